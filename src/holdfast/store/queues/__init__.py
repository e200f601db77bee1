"""Consume queues: the index of each queue, by message or by record.

An index by message has one entry of 20 bytes per offset. An index by record has one entry of 46 bytes per record, which
may be a batch of many messages. Each queue has one of the two.

    queue_files             Reads and writes the files of all queues of one kind
    queue_log               `QueueIndex`, the interface of one queue of either kind
    consume_queue           The index by message
    batch_consume_queue     The index by record
    time_search             Search for an offset by store time
    queue_table             All queues of a store
"""
