"""Encode sends (310, 320, 325) and decode their answers: the client's counterpart of `send.py`.

A producer sends the same group, topic and broker again and again; only the numbers, the properties and the body change.
The constant part becomes a template once, in upstream's field order. A signed send has more fields, and another
template for the content that is signed. An answer is decoded straight from the receive
buffer into `SendReply`; answers that this decoder cannot read (binary headers, non-standard JSON) are decoded as a
`Command`.
"""

from __future__ import annotations

import hmac
from binascii import b2a_base64
from typing import Final

import msgspec

from holdfast.model.access.credentials import Credentials
from holdfast.model.numbers import Int32, Int64, parse_count
from holdfast.model.topic import AUTO_CREATE_TOPIC
from holdfast.wire.access.signature import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE
from holdfast.wire.cluster.mapping import from_number, to_number
from holdfast.wire.cluster.route import MAPPING_FIELD
from holdfast.wire.frames.codes import OUR_LANGUAGE, VERSION, RequestCode
from holdfast.wire.frames.command import ONE_WAY, Command
from holdfast.wire.frames.frame import JSON, PREFIX_SIZE, frame_prefix
from holdfast.wire.requests.relay import GENERATION_FIELD, LEADER_FIELD

AUTO_CREATE_QUEUES = 4

_FIELDS_START: Final = b'"extFields":{'

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

    __slots__ = ("_names", "_reads_mappings", "_signer", "_template")

    def __init__(self, producer_group: str, topic: str, broker_name: str, *, reads_mappings: bool = False) -> None:
        self._names = (producer_group, topic, broker_name)
        self._reads_mappings = reads_mappings
        self._signer: _SendSigner | None = None

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

    def signed_head(
        self,
        opaque: int,
        message: OutgoingFields,
        body: bytes,
        credentials: Credentials,
        *,
        code: int = RequestCode.SEND_MESSAGE_V2,
        one_way: bool = False,
    ) -> bytes:
        """Return the frame of a request that *credentials* sign, up to its body."""
        signer = self._signer
        if signer is None or signer.credentials is not credentials:
            signer = self._signer = _SendSigner(credentials, *self._names, reads_mappings=self._reads_mappings)
        unsigned = self.head(opaque, message, len(body), code=code, one_way=one_way)
        fields_start = unsigned.index(_FIELDS_START) + len(_FIELDS_START)
        header = b"".join(
            (
                unsigned[PREFIX_SIZE:fields_start],
                signer.encode_fields(message, body, is_batch=code == RequestCode.SEND_BATCH_MESSAGE),
                unsigned[fields_start:],
            )
        )
        return frame_prefix(JSON, len(header), len(body)) + header


class _SendSigner:
    """Signs the sends of one template with the same credentials: see `holdfast.wire.access.signature`."""

    __slots__ = ("_content", "_fields", "_keyed", "credentials")

    def __init__(
        self, credentials: Credentials, producer_group: str, topic: str, broker_name: str, *, reads_mappings: bool
    ) -> None:
        self.credentials = credentials
        self._keyed = hmac.new(credentials.secret_key.encode(), digestmod="sha1")  # Copied by each send.
        fields = {ACCESS_KEY: credentials.access_key}
        if credentials.security_token is not None:
            fields[SECURITY_TOKEN] = credentials.security_token
        self._fields = _to_json(fields)[1:-1] + b',"%b":"' % SIGNATURE.encode()

        def text(*values: str) -> bytes:
            return "".join(values).encode().replace(b"%", b"%%")

        # The values in the order of their keys: upper case, then a to h, then the field that announces mappings.
        self._content = b"%b%b%%d%%d%%d%%d%b%%b0false%%b%b" % (
            text(*fields.values()),
            text(producer_group, topic, AUTO_CREATE_TOPIC, str(AUTO_CREATE_QUEUES)),
            b"1" if reads_mappings else b"",
            text(broker_name),
        )

    def encode_fields(self, message: OutgoingFields, body: bytes, *, is_batch: bool) -> bytes:
        """Return the signature and the other fields that a signed send has in addition, as JSON members."""
        content = self._content % (
            message.queue_id,
            message.sys_flag,
            message.born_ms,
            message.flag,
            message.properties.encode(),
            b"true" if is_batch else b"false",
        )
        signature = self._keyed.copy()
        signature.update(content)
        signature.update(body)
        return b'%b%b",' % (self._fields, b2a_base64(signature.digest(), newline=False))


class SendReplyFields(msgspec.Struct, gc=False, rename="camel"):
    """Where a message was stored. All fields are absent in a refusal.

    Attributes:
        leader: The leader of the queue, if it is not the broker that was asked.
        reported_generation: The generation in which it leads, as the answer has it.
    """

    queue_id: Int32 | None = None
    queue_offset: Int64 | None = None
    msg_id: str = ""
    transaction_id: str | None = None
    leader: str | None = msgspec.field(default=None, name=LEADER_FIELD)
    reported_generation: Int32 = msgspec.field(default=-1, name=GENERATION_FIELD)

    @property
    def generation(self) -> int | None:
        """The generation in which the leader leads; None if it is not known."""
        return from_number(self.reported_generation)


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
    queue_id, offset = parse_count(fields.get("queueId")), parse_count(fields.get("queueOffset"))
    if queue_id is not None and offset is not None:
        found.queue_id, found.queue_offset = queue_id, offset
    found.leader = fields.get(LEADER_FIELD)
    found.reported_generation = to_number(parse_count(fields.get(GENERATION_FIELD)))
    return SendReply(command.code, command.opaque, command.flag, command.remark, found)
