"""The key index: from a message's key or id to its position in the log.

key_links     New keys into the slot table of an index file
key_index     The index files: hash tables from key hash to log position
batch_keys    The keys and ids of the messages in a batch, which is one record
key_scan      Extract the keys of many log records at once
indexer       Feed the key index from the confirmed log in slices, and answer queries by key
"""
