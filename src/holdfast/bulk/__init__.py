"""Blocking bulk access to topics, for `holdfast.arrow` and for Spark's planner and tasks.

Needs pyarrow and numpy, but no Spark.

    read_options        what to read: topics, queues and bounds
    pull_socket         blocking sockets for pulls
    near_replicas       which replica in the reader's unit a process pulls from
    queue_pulls         one pull, from a replica in the reader's unit or from the master
    cluster_connection  a process's connection to a cluster; retries requests until its patience ends
    queue_directory     topics, and their queues by name
    queue_offsets       bounds, times and commits
    queue_mappings      the segments of logical queues
    cluster_session     a process's session with a cluster; finds the session that serves the queue of another unit
    queue_selection     resolves options to queues and offsets
    task_reader         reads ranges of offsets as Arrow batches
"""
