"""The job `audit`: checks that every record is indexed exactly once and that every checksum is right.

index_check     Checks the index of one queue on its own
log_check       Checks one range of a log against all indexes
mapping_check   Checks queue mappings against each other and against the files
audit_job       Runs the checks and reports the result
"""
