"""Decodes half messages and op records, and builds the message of a committed half message (`transactions.py`)."""

from __future__ import annotations

from typing import Final

from holdfast.broker.flow.request import Refusal
from holdfast.broker.messages.record_lookup import properties_of, read_record, to_draft
from holdfast.broker.messages.writer import REAL_QUEUE, REAL_TOPIC, TAGS, Draft
from holdfast.model.errors import CorruptRecord
from holdfast.model.numbers import parse_count
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.records.record import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_ROLLBACK, StoredRecord

REMOVE: Final = "d"
"""The tag of an op record."""

SUCCESSOR: Final = "HOLDFAST_SUCCESSOR"
"""A property of an op record: the position of the record that replaces the half message."""

FIRST_POSITION: Final = "HOLDFAST_HALF"
"""A property of a half message that was stored again for a check: the position where it was first stored."""

# A lost page leaves zero bytes, and no property contains one.
_TORN: Final = b"\x00"
_IMMUNITY: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"


def pop_real_queue(properties: dict[str, str]) -> tuple[str, int] | None:
    """Remove and return the (topic, queue) of a half message from *properties*, or None if they name none."""
    topic, queue_text = properties.pop(REAL_TOPIC, ""), properties.pop(REAL_QUEUE, "")
    queue_id = parse_count(queue_text)
    return (topic, queue_id) if topic and queue_id is not None else None


def check_delay_ms(properties: dict[str, str], timeout_ms: int) -> int:
    """Return how long a producer may take before its transaction is checked; the message may set its own limit."""
    limit_s = parse_count(properties.get(_IMMUNITY))
    return timeout_ms if limit_s is None else limit_s * 1000


async def has_successor(op: StoredRecord) -> bool:
    """Return whether the successor that an op record names exists, or whether the op needs none.

    Rollbacks and the ops of Java brokers name no successor. The result is False if a power failure tore the properties
    of the op: checksums cover bodies only, so its successor is unknown and its producer is checked again.
    """
    if _TORN in op.properties:
        return False
    text = properties_of(op).get(SUCCESSOR, "")
    if not text.isdecimal():
        return True
    try:
        successor = await read_record(int(text))
    except CorruptRecord:
        return False
    # A repaired range of the log holds a filler record, marked as rolled back, in place of the lost bytes.
    return successor is not None and successor.sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK


def named_offsets(record: StoredRecord | None) -> list[int]:
    """Return the offsets of the half messages that an op record marks as decided."""
    if record is None or properties_of(record).get(TAGS) != REMOVE:
        return []
    words = bytes(record.body).decode(errors="replace").split(",")
    return [offset for word in words if (offset := parse_count(word)) is not None]


def first_position(record: StoredRecord, properties: dict[str, str]) -> int:
    """Return the position where a half message was first stored, which is the same for all its copies."""
    return parse_count(properties.get(FIRST_POSITION), record.position)


def to_message(record: StoredRecord, properties: dict[str, str]) -> Draft | Refusal:
    """Return the message that replaces a committed half message."""
    real_queue = pop_real_queue(properties)
    if real_queue is None:
        return Refusal(ResponseCode.SYSTEM_ERROR, "the prepared message does not name its real topic and queue")
    properties.pop("TRAN_MSG", None)
    properties.pop(FIRST_POSITION, None)
    properties["WAIT"] = "false"
    draft = to_draft(record, properties, topic=real_queue[0], queue_id=real_queue[1])
    draft.sys_flag = draft.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT
    draft.prepared_position = record.position
    return draft
