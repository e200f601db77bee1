"""Parallel jobs over the data that brokers have stored, on Spark. They read store folders, not brokers.

    store folder ─ a table of (file, start, end) ─ one task each: decode columns, process, return a few numbers
                                                 ─ the driver adds them up, validates, commits, reports

Each job is a module with one public function: `stats`, `audit`, `archive`, `backfill`, `convert_index`.

A folder may belong to a live broker, be a copy, or be written by a Java broker. `stats` and `audit` only read it.
`archive` writes one file, which limits the broker's retention to archived records. `convert-index` replaces a topic's
index, and needs a stopped broker.

    scan/      Reads store folders in parallel, without a broker; all jobs build on it
    reports/   Renders job results for a terminal or as an HTML page
    stats/     The job `stats`: counts the stored messages by topic, queue, time, size and key
    audit/     The job `audit`: checks indexes, checksums and queue mappings
    archive/   The jobs `archive` and `backfill`: export logs to Parquet, write rows back
    convert/   The job `convert-index`: converts queue indexes between the two kinds
"""
