"""Dead leaders: forced moves, leases, fencing, and the offsets that survive them.

incarnation    Which process of a broker this is
offset_backup  How far groups have consumed logical queues, copied to one other broker
offset_floors  Where a logical queue may begin again that was forgotten
forced_open    Leaders that are dead, or were taken for dead
queue_leases   Leases of logical queues, where an operator wants dead leaders to be replaced by themselves
(`auto_force`)
"""
