"""Logical queues: the segments that this broker records, and the leaders that other servers report.

A logical queue is a chain of segments: ranges of physical queues on brokers. The broker of the last decided segment is
the leader and accepts the sends. A mapping is a broker's record of a static topic: the segments of its logical queues.

    segment_ends     ends of this broker's segments, computed from its physical queues
    mapping_journal  changes to mappings as records in the broker's log
    mapping_table    the mappings of this broker: placements, changes, moves, the snapshot file
    cluster_view     addresses and leaders, as name servers and other brokers reported them
    segment_queries  offsets and times of one segment, on any broker
    queue_view       one interface for queries about the queues of normal and static topics
    offset_rewrite   rewrites queue ids and offsets in records, for clients without offset deltas
"""
