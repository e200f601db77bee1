"""Registered brokers: who is alive, which topics they have, and who leads which logical queue.

broker_liveness  Who is alive
unit_requests    The switch for the loss of a site at a name server
registry         Brokers register, renew and leave
topics           Questions and orders about topics
queue_leases     Leases of logical queues (7040)
"""
