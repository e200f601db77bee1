"""Encode sends (310, 320, 325) and decode their answers: the client's counterpart of `send.py`.

A producer sends the same group, topic and broker again and again; only the numbers, the properties and the body change.
The constant part becomes a template once, in upstream's field order. An answer is decoded straight from the receive
buffer into `SendReply`; answers that this decoder cannot read (binary headers, non-standard JSON) are decoded as a
`Command`.
"""

from __future__ import annotations

import msgspec

from holdfast.model.numbers import Int32, Int64, parse_count
from holdfast.model.topic import AUTO_CREATE_TOPIC
from holdfast.wire.cluster.route import MAPPING_FIELD
from holdfast.wire.frames.codes import OUR_LANGUAGE, VERSION, RequestCode
from holdfast.wire.frames.command import ONE_WAY, Command
from holdfast.wire.frames.frame import JSON, frame_prefix
from holdfast.wire.requests.relay import GENERATION_FIELD, LEADER_FIELD

AUTO_CREATE_QUEUES = 4

_to_json = msgspec.json.Encoder().encode


class OutgoingFields(msgspec.Struct, gc=False):
    """The fields that differ from send to send."""

    queue_id: int
    sys_flag: int
    born_ms: int
    flag: int
    properties: str


class SendTemplate:
    """Encodes sends of one producer group to one topic on one broker.

    Args:
        producer_group: The producer group.
        topic: The topic.
        broker_name: The broker that is expected to accept the sends.
        reads_mappings: Announce mapping support: an answer from another broker then names that broker.
    """

    __slots__ = ("_template",)

    def __init__(self, producer_group: str, topic: str, broker_name: str, *, reads_mappings: bool = False) -> None:
        def text(value: str) -> bytes:
            return _to_json(value).replace(b"%", b"%%")

        self._template = (
            b'{"code":%%d,"extFields":{"a":%b,"b":%b,"c":%b,"d":"%d","e":"%%d","f":"%%d","g":"%%d","h":"%%d","i":%%b,'
            b'"j":"0","k":"false","m":"%%b","n":%b%b},"flag":%%d,"language":"%b","opaque":%%d,'
            b'"serializeTypeCurrentRPC":"JSON","version":%d}'
        ) % (
            text(producer_group),
            text(topic),
            text(AUTO_CREATE_TOPIC),
            AUTO_CREATE_QUEUES,
            text(broker_name),
            b',"%b":"1"' % MAPPING_FIELD.encode() if reads_mappings else b"",
            OUR_LANGUAGE.encode(),
            VERSION,
        )

    def head(
        self,
        opaque: int,
        message: OutgoingFields,
        body_size: int,
        *,
        code: int = RequestCode.SEND_MESSAGE_V2,
        one_way: bool = False,
    ) -> bytes:
        """Return the frame of a request up to its body."""
        header = self._template % (
            code,
            message.queue_id,
            message.sys_flag,
            message.born_ms,
            message.flag,
            _to_json(message.properties),
            b"true" if code == RequestCode.SEND_BATCH_MESSAGE else b"false",
            ONE_WAY if one_way else 0,
            opaque,
        )
        return frame_prefix(JSON, len(header), body_size) + header


class SendReplyFields(msgspec.Struct, gc=False, rename="camel"):
    """Where a message was stored. All fields are absent in a refusal.

    Attributes:
        leader: The leader of the queue, if it is not the broker that was asked.
        generation: The generation in which it leads.
    """

    queue_id: Int32 | None = None
    queue_offset: Int64 | None = None
    msg_id: str = ""
    transaction_id: str | None = None
    leader: str | None = msgspec.field(default=None, name=LEADER_FIELD)
    generation: Int32 = msgspec.field(default=-1, name=GENERATION_FIELD)


class SendReply(msgspec.Struct, gc=False):
    """The answer to one send, or the members of any other header that it shares with one."""

    code: Int32
    opaque: Int32
    flag: Int32 = 0
    remark: str | None = None
    fields: SendReplyFields = msgspec.field(name="extFields", default_factory=SendReplyFields)


decode_send_reply = msgspec.json.Decoder(SendReply, strict=False).decode


def send_reply(command: Command) -> SendReply:
    """Return the reply in an answer that was decoded on the general path. Invalid numbers count as absent."""
    fields = command.fields
    found = SendReplyFields(msg_id=fields.get("msgId", ""), transaction_id=fields.get("transactionId"))
    queue_id, offset = parse_count(fields.get("queueId"), -1), parse_count(fields.get("queueOffset"), -1)
    if queue_id >= 0 and offset >= 0:
        found.queue_id, found.queue_offset = queue_id, offset
    found.leader = fields.get(LEADER_FIELD)
    found.generation = parse_count(fields.get(GENERATION_FIELD), -1)
    return SendReply(command.code, command.opaque, command.flag, command.remark, found)
