"""Consume queues: the index of each queue, by message or by batch.

queue_files          The files of all queues of one kind
queue_log            One physical queue, whatever its entries look like
consume_queue        The index of one queue
batch_consume_queue  The index of one queue by record
queue_table          All queues of a store
time_search          Find offsets by store time
"""
