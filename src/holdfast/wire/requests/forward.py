"""Messages that a broker sends to the leader of their logical queue: 7021.

    7021 | topic queueId ... properties | body        a delayed message that is due, a half message that was committed
         | source stream position       |             where it was stored before: its permanent name
         | settled                      |             no position of that stream below this will be sent again

The receiver deduplicates by that name. Does not depend on why messages are forwarded.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from holdfast.model.numbers import INT32, Int32, Int64
from holdfast.model.queue import LogicalQueueId


class ForwardName(msgspec.Struct, frozen=True, kw_only=True):
    """The permanent name of a forwarded message, by which the receiver deduplicates.

    Attributes:
        source: The broker that forwards the message.
        stream: The stream of that broker that held the message: its messages are forwarded roughly in order.
        position: The message's position in that broker's log.
    """

    source: str
    stream: str
    position: Int64


class ForwardFields(ForwardName, frozen=True, kw_only=True):
    """Header of 7021.

    Attributes:
        settled: No message of the stream before this position will be forwarded again.
    """

    topic: str
    queue_id: Annotated[LogicalQueueId, INT32] = msgspec.field(name="queueId")
    settled: Int64
    properties: str = ""
    flag: Int32 = 0
    sys_flag: Int32 = msgspec.field(default=0, name="sysFlag")
    born_ms: Int64 = msgspec.field(default=0, name="bornTimestamp")
    reconsume_times: Int32 = msgspec.field(default=0, name="reconsumeTimes")


class AcceptedForward(ForwardName, frozen=True, kw_only=True):
    """The name of a forwarded message that was accepted, and the logical queue that stores the message."""

    topic: str
    queue: Annotated[LogicalQueueId, INT32]
