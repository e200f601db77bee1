"""The broker: stores messages, serves them to consumers, and moves logical queues between brokers.

All of it is pure code except `service`, the shell: components handle events and cause effects through the one `Turn`.
A package imports only packages above it in this list.

    options          every setting of a broker, with its default
    flow/            requests and suspended procedures
    tables/          small tables: topics, groups, clients, queue locks, statistics
    mapping/         the segments of logical queues, on this broker and as name servers report them
    naming/          registration at the name servers
    messages/        writing records, finding them again, and unpacking batches
    consume/         pulls, long polls, consumer offsets and lag
    relay/           requests that this broker passes on to another broker, or receives from one
    deferred/        delayed messages and transactions
    produce/         sends, send-backs and request-reply
    move/            moving a logical queue to another broker
    failover/        taking over the logical queues of a dead leader
    replication/     masters, replicas, and reading from replicas
    admin/           requests from tools and operators
    assembly         builds the components and lists their handlers and timers
    completion       writes staged records, then releases replies and wakes parked pulls
    dispatch         routes incoming frames to the fast path of sends and pulls, or to a handler
    core             the broker as one state machine: passes each event to the component concerned
    metrics          the metrics, read from the components at each scrape
    recovery_report  log lines about the store that a start found
    service          the shell: sockets, files and the clock
"""
