"""What the whole store stands on: the disk interface, options, and plain files.

disk          What the log engine asks of a disk
cold_reads    Work that needs bytes which may not be in memory
options       Every knob of the log engine, with upstream's defaults where it has one
config_files  The JSON files in `config/`, each with the previous one beside it as `.bak`
file_cache    A bounded number of open files, whoever was used last
log_file      Files of one size, named by their first byte, as one address space
index_fields  What the indexes take from a record
"""
