"""The commit log: append, scan, read, verify and clean it.

log_scanner         Walk the log record by record, validating each
retention           Which log files may be removed
disk_space          Admission of writes by free disk space; creates log files ahead
record_reader       Read one record by its position, from memory or disk
verified_ranges     The ranges of the log that this process has verified
batch_records       The records of a batch that is split
commit_log          Append records to the log
"""
