"""Replaces dead leaders of logical queues without using an offset twice.

A forced move opens a queue on a new leader, far above every offset that the old one may have written. When the old
leader returns it is fenced: it closes its segment and relays what reaches it. An operator orders forced moves, or
leases trigger them automatically (`auto_force`). Backups on another broker preserve the consumer offsets.

    incarnation      a number that identifies the process of a broker and rises with every start
    offset_backup    backs up the consumer offsets of logical queues on one other broker
    offset_floors    finds the lowest offset at which a forgotten queue may begin again
    forced_open      opens queues of dead leaders; fences leaders that were replaced
    queue_leases     leases of logical queues, and automatic forced moves (`auto_force`)
"""
