"""Opening a store folder: checkpoints, recovery after a crash, and the log of a replica.

checkpoint          The `checkpoint` file
queue_snapshot      Queue bounds at the last clean shutdown, and deleted topics
log_repair          Find the next record after corrupt bytes, and cover them
batch_overlap       Detect which of two records with the same offsets is corrupt
recovery            Make log and queues consistent when a store is opened
replica_log         The log of a replica
conversion_plan     Plan and progress of a conversion of a topic's index
open_store          Turn a folder into an open store
"""
