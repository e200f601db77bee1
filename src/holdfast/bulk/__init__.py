"""Bulk access to topics for programs that wait for answers: `holdfast.arrow`, and Spark's planner and tasks.

Needs pyarrow and numpy, but no Spark.

    read_options     what to read: topics and bounds, the vocabulary of the other modules
    gaps             where a queue can hold messages
    pull_socket      plain sockets for pulls
    cluster_session  one process's connection to a cluster; retries until its patience ends
    queue_selection  from options to queues and offsets
    task_reader      reads ranges of offsets as Arrow batches
"""
