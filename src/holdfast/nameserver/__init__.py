"""The name server: which broker serves which topic, and which brokers are alive.

Brokers register their topics, and again every 30 s to stay alive; clients query routes or watch them. The core is a
machine without I/O; the service around it owns sockets, files and the clock. Routes are in memory only. On disk are the
KV store, the reports about static topics, and the leases of logical queues.

    options         all settings of a name server, with defaults and meanings
    notices         which watching client is owed a notice about which topics, and when it is due
    route_changes   which routes changed while an event is handled, and why
    config/         the KV store, and the settings that can change at run time
    routes/         routes of normal and static topics, by what a client may see
    cluster/        broker registration, broker liveness, leases of logical queues
    push/           route watches, and notices to watching clients
    scan            the periodic scan for silent brokers, lapsed leases and withheld topics
    core            the machine: builds the components, and passes each event to them
    service         the process around the machine: sockets, files, lifecycle
"""
