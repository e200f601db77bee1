"""Names of queues.

A physical queue is one numbered queue of a topic on one broker. A `MessageQueue` is a queue as clients see it: a
physical queue of a normal topic, or a logical queue of a static topic under its mock broker name.

The logical and the physical numbers have types of their own, because a mix-up would go unnoticed until a queue moves.
Only a `Segment` converts between them, and what a broker derives from one to convert many offsets: the `AppendTarget`
of sends and the `Lens` of pulls. In a normal topic both are the same.
"""

from __future__ import annotations

from typing import NewType

import msgspec

from holdfast.model.numbers import Int32

LogicalQueueId = NewType("LogicalQueueId", int)
"""Number of a queue as clients name it. In a static topic it is the same on every broker."""

PhysicalQueueId = NewType("PhysicalQueueId", int)
"""Number of a queue in the store of one broker."""

LogicalOffset = NewType("LogicalOffset", int)
"""Offset in a logical queue, as clients see it: it continues when the queue moves to another broker."""

PhysicalOffset = NewType("PhysicalOffset", int)
"""Offset in a physical queue, as its index counts: the number of messages that were stored there before it."""

Position = NewType("Position", int)
"""Byte address in a broker's commit log."""


QueueKey = tuple[str, LogicalQueueId]
"""Topic and logical queue."""


class MessageQueue(msgspec.Struct, frozen=True, order=True, rename="camel"):
    """A queue as clients name it. Sorts by topic, broker name, queue id, as every RocketMQ client sorts."""

    topic: str
    broker_name: str
    queue_id: Int32

    @property
    def key(self) -> QueueKey:
        """Topic and number of the queue, which stay the same wherever it is led."""
        return self.topic, LogicalQueueId(self.queue_id)
