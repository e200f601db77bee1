"""Opening a store folder: checkpoints, recovery after a crash, and the log of a replica.

checkpoint       The `checkpoint` file
queue_snapshot   What an orderly end leaves beside upstream's files
log_repair       Find the log's thread again behind bytes that are no record, and mend the place
batch_overlap    Two records of a queue claim the same offsets
recovery         Bring log and indexes back to one truth when a store is opened
replica_log      The log of a replica
conversion_plan  What a conversion of a topic's index has to do, and how far it is
open_store       Turn a folder into an open store
"""
