"""Sending: codes 10, 310, 320 (a batch), 324 and 325 (a reply), and their answer.

The hottest requests, so they have a separate path: a JSON header is decoded straight from the receive buffer into
`SendHeader`, and the answer is a byte template. Version 2 of the header (310, 320, 325) has one-letter names. Version 1
(10, 324) has the same fields with long names and uses the general path.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from holdfast.model.numbers import INT32, Int32, Int64
from holdfast.model.queue import LogicalQueueId
from holdfast.wire.frames.codes import OUR_LANGUAGE, VERSION
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import from_fields
from holdfast.wire.frames.frame import JSON, frame_prefix

_SHORT_NAMES: Final = {
    "producerGroup": "a",
    "topic": "b",
    "defaultTopic": "c",
    "defaultTopicQueueNums": "d",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsumeTimes": "j",
    "unitMode": "k",
    "maxReconsumeTimes": "l",
    "batch": "m",
    "bname": "n",
}


class SendFields(msgspec.Struct, gc=False, kw_only=True):
    """The fields of a send, for one message or for the batch in the body."""

    producer_group: str = msgspec.field(default="", name="a")
    topic: str = msgspec.field(name="b")
    default_topic: str = msgspec.field(default="TBW102", name="c")
    default_topic_queue_nums: Int32 = msgspec.field(default=4, name="d")
    queue_id: Annotated[LogicalQueueId, INT32] = msgspec.field(name="e")
    sys_flag: Int32 = msgspec.field(default=0, name="f")
    born_timestamp: Int64 = msgspec.field(default=0, name="g")
    flag: Int32 = msgspec.field(default=0, name="h")
    properties: str = msgspec.field(default="", name="i")
    reconsume_times: Int32 = msgspec.field(default=0, name="j")
    unit_mode: bool = msgspec.field(default=False, name="k")
    max_reconsume_times: Int32 | None = msgspec.field(default=None, name="l")
    batch: bool = msgspec.field(default=False, name="m")
    broker_name: str | None = msgspec.field(default=None, name="n")

    @property
    def wanted_queue(self) -> LogicalQueueId | None:
        """The queue that the sender names, as it knows it; None if any queue will do."""
        return None if self.queue_id < 0 else self.queue_id


class LongSendFields(SendFields, gc=False, kw_only=True):
    """The same fields under long names: version 1 of the header."""


class SendHeader(msgspec.Struct, gc=False, kw_only=True):
    """The header of one send."""

    code: Int32
    opaque: Int32
    flag: Int32 = 0
    version: Int32 = 0
    fields: SendFields = msgspec.field(name="extFields")


class PushedReplyFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Header of 326: the fields of a reply, and where and when it was stored."""

    producer_group: str = ""
    topic: str
    default_topic: str = ""
    default_topic_queue_nums: int = 0
    queue_id: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    flag: int = 0
    properties: str = ""
    reconsume_times: int = 0
    unit_mode: bool = False
    born_host: str = ""
    store_host: str = ""
    store_timestamp: int = 0


# Most clients send numbers as text, some as numbers: both are decoded.
decode_send = msgspec.json.Decoder(SendHeader, strict=False).decode


def send_header(command: Command, kind: type[msgspec.Struct] = SendFields) -> SendHeader:
    """Return the send header of a request from the general path: long names, a binary header, non-standard JSON.

    Args:
        command: The request.
        kind: `LongSendFields` if its fields have long names. The header has `SendFields` in any case.

    Raises:
        BadField: a field is missing or cannot be read.
    """
    fields = command.fields
    if kind is LongSendFields:
        fields = {_SHORT_NAMES[name]: value for name, value in fields.items() if name in _SHORT_NAMES}
    return SendHeader(
        code=command.code,
        opaque=command.opaque,
        flag=command.flag,
        version=command.version,
        fields=from_fields(SendFields, fields),
    )


_ANSWER: Final = (
    b'{"code":0,"extFields":{"queueId":"%%d","TRACE_ON":"true","MSG_REGION":"DefaultRegion","msgId":"%b%%016X",'
    b'"queueOffset":"%%d"},"flag":1,"language":"%b","opaque":%%d,"serializeTypeCurrentRPC":"JSON","version":%d}'
)


_INNER_ANSWER: Final = _ANSWER.replace(b'"queueOffset":"%%d"', b'"queueOffset":"%%d","batchUniqId":"%%b"')


def inner_answer_template(store_host: bytes) -> bytes:
    """Return the JSON header of the answer to an inner batch: a template like `answer_template`, plus the batch's id.

    Fill in the id after the queue offset. It must consist of letters and digits.
    """
    return _INNER_ANSWER % (store_host.hex().upper().encode(), OUR_LANGUAGE.encode(), VERSION)


def answer_template(store_host: bytes) -> bytes:
    """Return the JSON header of a plain answer, to be filled in with (queue id, position, queue offset, opaque).

    The message id in it is the store host and the position, in hex: it is the sender's only pointer to its message.
    """
    return _ANSWER % (store_host.hex().upper().encode(), OUR_LANGUAGE.encode(), VERSION)


PREFIXES: Final = tuple(frame_prefix(JSON, header_size, 0) for header_size in range(1024))
"""The frame prefix for a JSON header of each size, without a body."""


class SendAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A broker's answer for a stored message.

    Attributes:
        msg_id: Offset message id; the ids of a batch are joined with commas, unless it is stored as an inner batch.
        transaction_id: The message's unique key, if the sender set one.
        batch_uniq_id: The unique key of an inner batch.
    """

    msg_id: str
    queue_id: int
    queue_offset: int
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    msg_region: str = msgspec.field(default="DefaultRegion", name="MSG_REGION")
    trace_on: bool = msgspec.field(default=True, name="TRACE_ON")
