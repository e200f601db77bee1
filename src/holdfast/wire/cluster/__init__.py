"""What brokers and name servers tell each other: registrations, routes, mappings, leases, replication.

leases        Leases of logical queues
units         Units on the wire
deletions     Deletion markers on the wire
registration  A broker presents itself to name servers
mapping       Static topics as upstream writes them
watch         Watching routes
push_state    How a name server tells clients of changed routes, as an operator asks for it (7050)
ha            The replication stream
route         Asking a name server
"""
