"""What brokers and name servers exchange: registrations, routes, mappings, leases, replication.

A *mapping* records which broker stores which part of a static topic's logical queues. A *unit* is a cluster that
clients name as their own. A *deletion marker* is the durable note that a topic was deleted.

    leases          leases of logical queues (7040)
    units           the units of clients, and the DR switch
    deletions       deletion markers
    registration    registrations of brokers with name servers (103 and others)
    mapping         static topics in upstream's encoding, with our additions
    watch           route watches and change notices (105, 328, 329)
    push_state      the state of route pushes, for operators (7050)
    ha              the replication stream from a master to a replica
    route           queries to a name server: routes, clusters, topics, the KV store
"""
