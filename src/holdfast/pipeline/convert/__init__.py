"""The job `convert-index`: converts the indexes of a topic between the two kinds, by message and by record.

numpy_conversion   Converts and verifies pieces of an index as columns, with numpy
convert_job        Runs `convert-index` and reports the result
"""
