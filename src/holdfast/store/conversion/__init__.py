"""Offline conversion between the two kinds of consume queue.

record_headers     What the log says of records whose places are known
entry_columns      Rows of one width as columns
entry_conversion   Entries of one kind of index into those of the other, and the proof that they are right
conversion_survey  Look at the index of a topic that shall be converted
piece_conversion   Pieces of an index
index_conversion   Turn the index of a topic from one kind into the other, in a folder that nobody serves
"""
