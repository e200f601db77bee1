"""The read path: pulls, long polls, committed offsets and lag.

A pull asks for the messages of one queue from an offset on. A pull that finds nothing new is parked: it waits for the
next message or for its deadline (long poll). A `Lens` presents the offsets of a physical queue as those of a logical
queue. The lag of a group counts the messages that it has yet to consume.

    index_scan          chooses the index entries that answer a pull
    batch_splitting     splits batch records for readers that cannot open them
    delivered_ranges    log ranges that each connection received records from
    long_poll           parked pulls, by queue, channel and deadline
    physical_pull       reads one physical queue and builds the answer to a pull
    logical_pull        pulls of logical queues, at their leader
    consumer_offsets    committed offsets and offset resets, kept in `config/consumerOffset.json` (14, 15, 43)
    consumed_topics     which groups consume which topics at the other brokers of the cluster (7035)
    lag                 the lag of each group, by queue
    pull                answers or parks pulls (11, 361)
    refused_pulls       parks refused pulls that a client repeats
    parked_pull_check   refuses parked pulls whose senders may no longer pull
"""
