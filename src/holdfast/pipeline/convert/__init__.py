"""The job `convert-index`: queue indexes by message or by record.

numpy_conversion  Converts and proves pieces of an index by columns, with numpy
convert_job       `convert-index`
"""
