"""The commit log: appending, scanning, verifying and cleaning it.

log_scanner      Go along the log record by record, trusting nothing
retention        Which log files may go
disk_space       Whether the log can go on growing, found out before the disk refuses
record_reader    Looking up one record by its position, in memory or on disk
verified_ranges  Which parts of the log have been found good since this process began
commit_log       The log that every message goes through
"""
