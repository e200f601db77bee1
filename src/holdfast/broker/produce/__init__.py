"""Sends: the fast path, the paths with more checks, batches, retries, replies and the exactly-once sink.

slow_send      The second look at a message that is not plain
batch_send     Taking batches, with all the questions asked
exactly_once   What sinks that want every row exactly once have written to the queues that are led here
fast_send      Taking messages
send_back      A consumer could not consume a message and gives it back (36)
request_reply  Request and reply
"""
