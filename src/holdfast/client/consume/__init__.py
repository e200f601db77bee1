"""Consuming: group membership, pulls, delivery to listeners, and commits.

rebalance            Who of a group consumes which queues
group_member         Being a member of a consumer group
process_queue        The window of one queue
pull_plan            What to pull next, and what an answer to a pull means
queue_reader         Pulls one queue, again and again, as long as there is room for what it brings
committed_offsets    How far a consumer got in each queue, and what of that the broker has not been told yet
offset_store         Where a consumer's offsets are kept
queue_locks          Which queues only we may consume, for now
lock_renewal         Keeps the locks of an ordered consumer
listener             Calling the user's code with a message
concurrent_delivery  Messages to a listener, several at a time, in no particular order
ordered_delivery     Messages to a listener, one at a time for each queue, in the order of the queue
iterator_delivery    Messages to an `async for` loop
running_info         What a consumer tells operators about itself
consumer_requests    Answers what brokers and, through them, operators ask of a consumer
"""
