"""Reads store folders in parallel, without a broker; all jobs build on it.

A *range* is a run of bytes of one log file, the unit of work of a task. A log is *settled* up to the position before
which log and indexes are complete and on disk. A *fault* is an inconsistency that an audit reports.

    read_only       Read-only access to the files of a store
    queue_entries   Reads the index of a queue as columns of numbers
    store_folder    The contents of a store folder
    mappings        Reads queue mappings, and maps physical offsets to logical queues
    log_ranges      Splits logs into ranges, and checks that their results fit together
    log_scan        Reads one range of a log as columns
    messages        Opens records as messages, including those in batches
    faults          The faults that an audit reports
    tasks           Runs functions over many inputs; runs them in this process
    spark_tasks     Runs functions over many inputs on Spark
"""
