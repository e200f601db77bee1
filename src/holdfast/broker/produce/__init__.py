"""The write path: the fast path for plain messages, the slow path for all others, batches, returns and replies.

A run is the like frames of one turn of the event loop. To stage a message is to add it to the records that the broker
writes at the end of the turn. A message is plain if it needs no check besides its topic and queue.

    slow_send        stores one message with all checks: delay, transaction, retry topic, unknown topic
    exactly_once     the progress of exactly-once sinks in the queues that are led here
    batch_send       stores batches, whole or split into single messages
    fast_send        stages the messages of a run, plain ones straight from the receive buffer (10, 310, 320)
    send_back        stores messages that consumers return for a retry (36)
    request_reply    stores replies and pushes them to the waiting client (324, 325)
"""
