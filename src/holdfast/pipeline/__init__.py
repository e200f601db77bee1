"""Jobs over what brokers have stored, on Spark: they read store folders, not brokers.

    store folder ─ a table of (file, start, end) ─ one task each: decode columns, do the work, return a few numbers
                                                 ─ the driver adds up, judges, commits, reports

`store_folder` says what is there and how much of it is settled, `log_ranges` and `log_scan` cut the log into ranges and
read them, `queue_entries` reads indexes, `spark_tasks` runs functions on Spark, `report` and `report_page` tell people.
Each job is a module of its own with one public function: `audit`, `stats`, `archive`, `backfill`.

A folder may belong to a live broker, be a copy, or be written by Java's: nothing in it is ever written to, but the one
file by which `archive` tells a broker's retention what it may delete.

    scan/     Reading store folders
    reports/  Reports of jobs
    stats/    The job `stats`
    audit/    The job `audit`
    archive/  The jobs `archive` and `backfill`
    convert/  The job `convert-index`
"""
