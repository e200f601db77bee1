"""Blocking bulk access to topics, for `holdfast.arrow` and for Spark's planner and tasks.

Needs pyarrow and numpy, but no Spark.

    read_options     what to read: topics, queues and bounds
    gaps             where a queue can hold messages
    pull_socket      blocking sockets for pulls
    near_replicas    which replica in the reader's unit a process pulls from
    queue_pulls      one pull, from a replica in the reader's unit or from the master
    cluster_session  the connection of a process to a cluster; retries requests until its patience ends
    queue_selection  resolves options to queues and offsets
    task_reader      reads ranges of offsets as Arrow batches
"""
