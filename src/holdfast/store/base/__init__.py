"""Shared by the whole store: the disk interface, the options, and plain files.

disk            The disk interface
cold_reads      Protocol for work that reads bytes which may not be in memory
options         The options of the log engine
file_versions   A small file and its previous version
config_files    JSON files in `config/`, with the previous version as `.bak`
file_cache      LRU cache of open files
log_file        A chain of files of one size as one address space
index_fields    The fields of a record that the indexes store
"""
