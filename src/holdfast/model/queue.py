"""Names of queues.

A physical queue is one numbered queue of a topic on one broker. A `MessageQueue` is a queue as clients see it: a
physical queue of a normal topic, or a logical queue of a static topic under its mock broker name.
"""

from __future__ import annotations

from typing import NewType

import msgspec

from holdfast.model.numbers import Int32

Offset = NewType("Offset", int)
"""Count of messages in a queue; a message's offset is the number of messages before it."""

Position = NewType("Position", int)
"""Byte address in a broker's commit log."""


class MessageQueue(msgspec.Struct, frozen=True, order=True, rename="camel"):
    """A queue as clients name it. Sorts by topic, broker name, queue id, as every RocketMQ client sorts."""

    topic: str
    broker_name: str
    queue_id: Int32
