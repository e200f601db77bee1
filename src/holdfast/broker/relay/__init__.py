"""Requests that another broker must answer: relaying to the leader, finding it, and forwarding messages to it.

relay_client       Envelopes (7020) on their way to another broker
relay_server       Requests that other brokers bring (7020), taken as if their clients were connected here
leader_lookup      Who leads a logical queue, for a broker that does not
relay              Requests for logical queues that another broker leads, or that are just moving
auto_create_guard  Topics that nobody here has heard of, before a send brings them into being
lock_requests      Locks of queues that several brokers lead (41 and 42)
forward_dedup      Which forwarded messages this broker has taken, so that it takes none of them twice
message_forwarder  Messages of the broker's own making for logical queues that another broker leads (7021)
record_locator     Where a record is that a client names by its position in some broker's log (33, 36, 37)
group_gossip       Who consumes static topics anywhere
"""
