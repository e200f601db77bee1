"""Requests that another broker must answer: relaying to the leader, finding the leader, and forwarding messages to it.

To relay is to pass a client's request unchanged to the leader of its logical queue, in an envelope (7020). To forward
is to send a stored message, such as a due delayed message, to that leader (7021). A guest is the client of a relayed
request, at the broker that receives the envelope.

    relay_client         sends envelopes to another broker, and repeats them safely
    guests               clients of other brokers whose requests are being answered here
    relay_server         handles envelopes of other brokers as if their clients were connected here
    leader_lookup        the leader of a logical queue that this broker does not lead
    held_leases          the leases without which a queue that this broker leads accepts no sends
    suspects             topics of which another broker may lead queues that this broker regards as its own
    relay                holds or relays requests for logical queues that move or are led elsewhere
    auto_create_guard    checks with name servers before a send creates a topic
    lock_requests        locks of queues that several brokers lead (41, 42)
    forward_dedup        the forwarded messages that this broker has stored, to deduplicate them
    message_forwarder    forwards stored messages to the leader of their logical queue (7021)
    record_locator       finds the record that a client names by its position in some broker's log (33, 36, 37)
    group_gossip         the members of consumer groups of static topics, exchanged between brokers (7030)
"""
