"""The jobs `archive` and `backfill`: from the log to Parquet, and back into a topic.

manifest        What an archive holds, and how a run becomes a part of it
cut             Up to where the logs of several brokers go together
parquet_files   Writes one range of a log as Parquet files, one for each topic and day
retention_hold  Tells the retention of a broker what it may delete
archive_job     `archive`
backfill_plan   In which pieces rows are brought back, so that a piece is the same whenever it is looked at
again
backfill        `backfill`
"""
