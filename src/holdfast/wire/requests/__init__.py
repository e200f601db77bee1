"""Headers and bodies of requests, by subject.

An *envelope* carries a client's frames from one broker to another. A *move* changes the leader of logical queues. A
*sink* is a writer that stores each of its rows exactly once. A *row* of the table says all that is known about one
request code in one role.

    relay           requests that a broker relays to another broker (7020)
    forward         messages that a broker sends to the leader of their logical queue (7021)
    exchange        pending requests of one connection, matched with their answers
    send            sends and their answers, on the broker's side
    send_request    sends and their answers, on the client's side
    pull            pulls and their answers
    offsets         offsets, lookups, and the locks of ordered consumption
    sink            the stamps of exactly-once sinks in requests and records
    moves           moves of logical queues, floors, and the state that brokers copy to each other (7001 and others)
    heartbeat       heartbeats, group membership and subscription checks
    admin           requests of administration tools to a broker
    permissions     the resources and actions that requests need, for access control
    table           the table of requests: one row for every code of every role
"""
