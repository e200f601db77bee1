"""Replication: a replica copies its master's log and tables, and serves reads.

A master ships its log over a separate port; the replica compares the end of its own log, then appends. Topics, groups
and offsets are copied with requests. A replica has caught up when its copy is complete up to a recent time; it is in
sync when it lacks at most `in_sync_limit` bytes.

    stream_login        the login on the replication port, before the stream begins
    ha_master           the master's side of the log stream
    ha_replica          the replica's side of the log stream
    replica_topics      the topics of which a replica knows enough to index their records
    replica_mappings    the mappings of the master's logical queues, followed from its log
    local_reads         sends consumers to a replica in the unit where they run
    replica_report      the state of replication for operators, Java's tools and metrics
    table_sync          copies topics, groups, offsets and mappings from the master
    master_return       fetches offsets from replicas before a returning master registers
"""
