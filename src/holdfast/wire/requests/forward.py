"""Messages of a broker's own making, sent to the leader of their logical queue: 7021.

    7021 | topic queueId ... properties | body        a delayed message that is due, a half message that was committed
         | source stream position       |             where it stood before: its name, for ever
         | settled                      |             of that stream nothing below will come again

The receiver takes a name once. Knows nothing of how messages are delayed or decided about.
"""

from __future__ import annotations

import msgspec

from holdfast.model.numbers import Int32, Int64


class ForwardName(msgspec.Struct, frozen=True, kw_only=True):
    """What a forwarded message is recognised by.

    Attributes:
        source: The broker that forwards.
        stream: What it stood in there: messages of a stream are forwarded more or less in order.
        position: Where, in the log of that broker.
    """

    source: str
    stream: str
    position: Int64


class ForwardFields(ForwardName, frozen=True, kw_only=True):
    """Header of 7021.

    Attributes:
        settled: Nothing of the stream before this position will come again.
    """

    topic: str
    queue_id: Int32 = msgspec.field(name="queueId")
    settled: Int64
    properties: str = ""
    flag: Int32 = 0
    sys_flag: Int32 = msgspec.field(default=0, name="sysFlag")
    born_ms: Int64 = msgspec.field(default=0, name="bornTimestamp")
    reconsume_times: Int32 = msgspec.field(default=0, name="reconsumeTimes")


class ForwardMark(ForwardName, frozen=True, kw_only=True):
    """A name that was taken, and the logical queue in which the message is."""

    topic: str
    queue: Int32
