"""The parts of a consumer: group membership, pulls, delivery to the application, and commits.

A *reader* pulls one queue. The *window* of a queue holds its pulled messages that are not done yet. A *delivery* is a
message on its way to the application; the message is *done* when the application has processed it.

    rebalance            computes which member of a group consumes which queues
    group_member         joins a consumer group and keeps its assignment up to date
    process_queue        the window of one queue: pulled, done, committable
    pull_plan            builds pull requests, interprets their answers, limits prefetching
    queue_reader         pulls one queue while its window has space
    committed_offsets    tracks the offsets of each queue: done, committed, uncommitted
    offset_store         loads and saves offsets, at brokers or in a file
    send_back            sends a failed message back, to be delivered again later
    queue_locks          tracks which queue locks this consumer holds
    lock_requests        requests and releases locks at brokers
    lock_renewal         acquires, renews and releases the locks of an ordered consumer
    listener             calls the application's listener with a message
    concurrent_delivery  delivers messages to a listener, several at a time
    ordered_delivery     delivers messages to a listener, one at a time per queue, in order
    iterator_delivery    delivers messages to `async for` loops
    running_info         encodes the status that a consumer reports to operators
    consumer_requests    answers the requests of brokers and operators to a consumer
"""
