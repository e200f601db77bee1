"""Offline conversion between the two kinds of consume queue, in pieces that are verified against the log.

record_headers       Read the header fields of many log records, and compare them with an index
entry_columns        Read and write one field of many entries at once
entry_conversion     Convert entries of one kind to the other, and verify the result
conversion_survey    Survey a topic's index and plan the pieces
piece_conversion     Convert, verify, write and sync pieces of an index
index_conversion     Convert the index of a topic, resumably
"""
