"""Bulk access to topics for programs that wait for answers: `holdfast.arrow`, and Spark's planner and tasks.

Needs pyarrow and numpy, but no Spark.

    read_options     what to read: topics and bounds, the vocabulary of the other modules
    gaps             where a queue can hold messages
    pull_socket      plain sockets for pulls
    near_replicas    which replica beside the reader a process pulls from
    queue_pulls      one pull, at a replica beside the reader or at the master
    cluster_session  one process's connection to a cluster; retries until its patience ends
    queue_selection  from options to queues and offsets
    task_reader      reads ranges of offsets as Arrow batches
"""
