"""Pulling: codes 11 and 361, and their answer.

A hot path like sending: requests are decoded straight from the receive buffer and answered from a template. The body
of the answer is log bytes, which are not copied.
"""

from __future__ import annotations

import struct
from typing import Annotated, Final

import msgspec

from holdfast.model.numbers import INT32, INT64, Int32, Int64
from holdfast.model.queue import LogicalOffset, LogicalQueueId
from holdfast.wire.cluster.route import MAPPING_FIELD
from holdfast.wire.cluster.units import SCOPE_FIELD
from holdfast.wire.frames.codes import OUR_LANGUAGE, VERSION, ResponseCode
from holdfast.wire.frames.command import Command, decode_command, encode_command
from holdfast.wire.frames.fields import from_fields
from holdfast.wire.frames.frame import JSON, Frame, frame_prefix
from holdfast.wire.records.inner_batch import BATCH_SUPPORT_FIELD, BatchSupport

# Bits of `sys_flag` in a pull.
COMMIT_OFFSET: Final = 1
SUSPEND: Final = 2
SUBSCRIPTION: Final = 4

_BATCH_SUPPORT_VERSION: Final = 413  # 5.0.0: from here on Java clients unpack inner batches.


_BATCH_SUPPORT_BY_VALUE: Final = {support.value: support for support in BatchSupport}


class PullFields(msgspec.Struct, gc=False, kw_only=True, rename="camel"):
    """The fields of a consumer's pull."""

    consumer_group: str
    topic: str
    queue_id: Annotated[LogicalQueueId, INT32]
    queue_offset: Annotated[LogicalOffset, INT64]
    max_msg_nums: Int32 = 32
    sys_flag: Int32 = 0
    commit_offset: Int64 = -1
    suspend_timeout_millis: Int64 = 0
    subscription: str | None = None
    sub_version: Int64 = 0
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None
    broker_name: str | None = msgspec.field(default=None, name="bname")
    is_logical: bool | None = msgspec.field(default=None, name="lo")  # False: a physical queue of a static topic.
    reads_mappings: bool | None = msgspec.field(default=None, name=MAPPING_FIELD)
    batch_support: str | None = msgspec.field(default=None, name=BATCH_SUPPORT_FIELD)
    unit: str | None = msgspec.field(default=None, name=SCOPE_FIELD)  # the consumer's unit

    @property
    def committed(self) -> LogicalOffset | None:
        """The offset that a pull with `COMMIT_OFFSET` commits; None if its group has consumed nothing yet."""
        return None if self.commit_offset < 0 else LogicalOffset(self.commit_offset)


class PullHeader(msgspec.Struct, gc=False, kw_only=True):
    """The header of one pull."""

    code: Int32
    opaque: Int32
    flag: Int32 = 0
    version: Int32 = 0
    language: str | Int32 | None = None
    fields: PullFields = msgspec.field(name="extFields")

    @property
    def batch_support(self) -> BatchSupport:
        """How the client handles inner batches: by its own field, else by its version if it is a Java client."""
        declared = self.fields.batch_support
        if declared is not None:
            return _BATCH_SUPPORT_BY_VALUE.get(declared, BatchSupport.NONE)
        # A version alone is no proof: clients in other languages announce high ones.
        return (
            BatchSupport.ALL
            if self.version >= _BATCH_SUPPORT_VERSION and self.language in {"JAVA", 0}
            else BatchSupport.NONE
        )


decode_pull = msgspec.json.Decoder(PullHeader, strict=False).decode


def pull_header(command: Command) -> PullHeader:
    """Return the pull header of a request that was decoded on the general path.

    Raises:
        BadField: a field is missing or cannot be read.
    """
    return PullHeader(
        code=command.code,
        opaque=command.opaque,
        flag=command.flag,
        version=command.version,
        language=command.language,
        fields=from_fields(PullFields, command.fields),
    )


class PullAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Header of a pull answer. Always complete: clients read all four fields without checking."""

    suggest_which_broker_id: int = 0
    next_begin_offset: int
    min_offset: int
    max_offset: int
    offset_delta: int | None = None


_ANSWER: Final = (
    b'{"code":%%d,"extFields":{"suggestWhichBrokerId":"0","nextBeginOffset":"%%d","minOffset":"%%d","maxOffset":"%%d",'
    b'"topicSysFlag":"0","groupSysFlag":"0"},"flag":1,"language":"%b","opaque":%%d,"remark":"%%b",'
    b'"serializeTypeCurrentRPC":"JSON","version":%d}' % (OUR_LANGUAGE.encode(), VERSION)
)
_SUGGESTION: Final = "suggestWhichBrokerId"
_TO_MASTER: Final = b'"%b":"0"' % _SUGGESTION.encode()
_OFFSET_MOVED: Final = b'{"code":%d,' % ResponseCode.PULL_OFFSET_MOVED
_PREFIX: Final = struct.Struct(">II")
_LOGICAL_ANSWER: Final = _ANSWER.replace(b'"topicSysFlag"', b'"offsetDelta":"%d","topicSysFlag"')


def pull_answer_head(
    serializer: int,
    opaque: int,
    code: int,
    remark: str,
    offsets: tuple[int, int, int],
    body_size: int,
    offset_delta: int | None = None,
) -> bytes:
    """Return the frame of a pull answer up to its body.

    Args:
        serializer: The header encoding of the request.
        opaque: The request's.
        code: 0, 19, 20 or 21.
        remark: The store's result, plain ASCII.
        offsets: The next offset to pull, the queue's lowest offset and its end.
        body_size: Size of the records that follow.
        offset_delta: For a logical queue: the number that the consumer adds to the offsets in the records.
    """
    next_begin, offset_min, offset_max = offsets
    if serializer == JSON:
        if offset_delta is None:
            header = _ANSWER % (code, next_begin, offset_min, offset_max, opaque, remark.encode())
        else:
            header = _LOGICAL_ANSWER % (code, next_begin, offset_min, offset_max, offset_delta, opaque, remark.encode())
        return frame_prefix(JSON, len(header), body_size) + header
    fields = {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": str(next_begin),
        "minOffset": str(offset_min),
        "maxOffset": str(offset_max),
        "topicSysFlag": "0",
        "groupSysFlag": "0",
    }
    if offset_delta is not None:
        fields["offsetDelta"] = str(offset_delta)
    encoded = encode_command(
        Command(code=code, opaque=opaque, flag=1, fields=fields, remark=remark, serializer=serializer)
    )
    header_size = len(encoded) - 8
    return frame_prefix(serializer, header_size, body_size) + encoded[8:]


def suggest_broker(head: bytes, serializer: int, broker_id: int) -> bytes:
    """Return the head of an answer that directs the next pull to another broker of the same name.

    Args:
        head: From `pull_answer_head` or `prepared_answer_head`; the head of a refusal is returned unchanged.
        serializer: The encoding of the head.
        broker_id: The id of that broker.
    """
    frame_size, _ = _PREFIX.unpack_from(head)
    header = head[_PREFIX.size :]
    body_size = 4 + frame_size - len(head)
    if serializer == JSON:
        header = header.replace(_TO_MASTER, _TO_MASTER.replace(b"0", b"%d" % broker_id), 1)
    else:
        command = decode_command(Frame(serializer, memoryview(header), memoryview(b"")))
        if _SUGGESTION not in command.fields:
            return head
        command.fields[_SUGGESTION] = str(broker_id)
        header = encode_command(command)[_PREFIX.size :]
    return frame_prefix(serializer, len(header), body_size) + header


def is_offset_moved_answer(head: bytes, serializer: int) -> bool:
    """Return whether an answer redirects the consumer to another offset."""
    if serializer == JSON:
        return head.startswith(_OFFSET_MOVED, _PREFIX.size)
    return int.from_bytes(head[_PREFIX.size : _PREFIX.size + 2], "big") == ResponseCode.PULL_OFFSET_MOVED


def prepare_answer(offset_min: int, offset_delta: int) -> bytes:
    """Return a JSON answer template with the parts that many pulls of a logical queue share."""
    return _LOGICAL_ANSWER.replace(b'"minOffset":"%d"', b'"minOffset":"%d"' % offset_min).replace(
        b'"offsetDelta":"%d"', b'"offsetDelta":"%d"' % offset_delta
    )


def prepared_answer_head(
    prepared: bytes, opaque: int, code: int, remark: str, next_begin: int, offset_max: int, body_size: int
) -> bytes:
    """Return the head of a pull answer, as `pull_answer_head` does, from a template of `prepare_answer`."""
    header = prepared % (code, next_begin, offset_max, opaque, remark.encode())
    return frame_prefix(JSON, len(header), body_size) + header
