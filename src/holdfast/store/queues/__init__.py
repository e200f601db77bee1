"""Consume queues: the index of each queue, by message or by record.

An index by message has one entry of 20 bytes per offset. An index by record has one entry of 46 bytes per record, which
may be a batch of many messages. Each queue has one of the two kinds. A further kind is a module here and an entry in
`index_kinds`.

    queue_files             Reads and writes the files of all queues of one kind
    queue_index             `QueueIndex`, the interface of one queue of any kind
    consume_queue           The index by message
    batch_consume_queue     The index by record
    time_search             Search for an offset by store time, for an index without times
    index_kinds             The table of the kinds
    queue_table             All queues of a store
"""
