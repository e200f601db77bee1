"""The job `audit`: every record is indexed exactly once, and every checksum is right.

index_check    One queue's index by itself
log_check      One range of a log against all indexes
mapping_check  Logical queues against the files
audit_job      `audit`
"""
