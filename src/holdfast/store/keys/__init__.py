"""The key index: from a message's key or id to its position in the log.

batch_keys  What the messages of a batch are found by, though the batch is one record
key_index   Find records by key
key_batch   Keys on their way from the log into the key index
indexer     Feeds the key index from the confirmed log, a slice at a time, and answers queries by key
"""
