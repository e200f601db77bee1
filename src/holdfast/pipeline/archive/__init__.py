"""The jobs `archive` and `backfill`: export logs to Parquet, and write archived rows back into a topic.

An archive grows by *runs*: each run adds the new records of the logs atomically, and the *manifest* records how far
each log is archived. A backfill writes in *pieces*, each of them exactly once.

    manifest         Contents of an archive, and the atomic commit of a run
    cut              Limits each log so that no logical queue is archived with a hole
    parquet_files    Writes one range of a log as Parquet files, one per topic and day
    retention_hold   Keeps a broker's retention from deleting records that are not archived
    archive_job      Runs `archive` and reports the result
    backfill_plan    Divides the rows of a backfill into repeatable pieces
    backfill         Runs `backfill` and reports the result
"""
