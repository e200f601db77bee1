"""Reading store folders: ranges of the log, index entries, and tasks on Spark.

read_only      A store's files for those who only look
queue_entries  The index of a queue as columns of numbers, whichever of the two kinds it is
store_folder   What is in a store folder, seen from outside
log_ranges     Logs as a table of byte ranges, and what holds them together
messages       Records of a log as messages
faults         What an audit can find, and how it is told
mappings       What brokers record of logical queues, read from their folders, and which logical offset a stored
record has
log_scan       Reads one range of a log as columns
tasks          Functions on many inputs
spark_tasks    Functions on Spark
"""
