"""Replicas: copying the log and the tables of a master, and reading a replica.

ha_master         A master's side of replication
ha_replica        A replica's side of replication
replica_mappings  The logical queues of a master, as its replica knows them
local_reads       Reading beside the reader
ack_gate          Under synchronous replication
replica_report    How replication stands, in the words of those who ask
table_sync        What a replica needs of its master besides the log
master_return     A master that was away hears from its replicas what groups committed there, before anybody
hears of it
"""
