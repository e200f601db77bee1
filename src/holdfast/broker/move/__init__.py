"""Moves a logical queue to another broker without losing, repeating or reordering a message.

The source is the broker that leads the queue; the target is the one that will lead it. The source drives the move: the
target prepares a physical queue, the source seals its own and grants it, the target opens. The payload is the state
that moves with a queue: consumer offsets, locks, names of forwarded messages, and sink states.

    move_payload      the state that moves with a logical queue
    move_source       moves queues away from this broker; operator requests
    move_target       prepares and opens queues that another broker hands over
    segment_expiry    marks segments as expired once their records are gone
"""
