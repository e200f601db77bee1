"""Bulk access to topics for programs that wait for answers: `holdfast.arrow`, and Spark's planner and tasks.

Needs pyarrow and numpy, but no Spark.

    read_options   what to read: topics and bounds, the vocabulary of the other modules
    link           one process's connection to a cluster; retries until its patience ends
    gaps           where a queue can hold messages
    pull_line      plain sockets for pulls
    subjects       from options to queues and offsets
    ranges         reads ranges of offsets as Arrow batches
"""
