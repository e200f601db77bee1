"""Registered brokers: which are alive, which topics they have, and which leads which logical queue.

broker_liveness    the broker addresses that are alive
access_push        sends users and rules to the brokers when they change
unit_requests      the switch that opens units for the loss of a site
registry           broker registration, heartbeats and departure
topics             request handlers for topic lists and topic changes
queue_leases       leases of logical queues (7040)
"""
