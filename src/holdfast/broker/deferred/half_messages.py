"""What half messages and op records say, and what a committed half message becomes. See `transactions.py`."""

from __future__ import annotations

from typing import Final

from holdfast.broker.flow.request import Refusal, Steps
from holdfast.broker.messages.record_lookup import properties_of, read_record, to_draft
from holdfast.broker.messages.writer import REAL_QUEUE, REAL_TOPIC, TAGS, Draft
from holdfast.model.errors import CorruptRecord
from holdfast.model.numbers import parse_count
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.records.record import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_ROLLBACK, StoredRecord

REMOVE: Final = "d"
"""The tag of an op record."""

SUCCESSOR: Final = "HOLDFAST_SUCCESSOR"
"""A property of an op record: where the record stands that takes the place of the half message."""

FIRST_POSITION: Final = "HOLDFAST_HALF"
"""A property of a half message that was stored anew, to be asked about: where it was first stored."""

# What a lost page leaves, and no property has in it.
_TORN: Final = b"\x00"
_IMMUNITY: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"


def take_place(properties: dict[str, str]) -> tuple[str, int] | None:
    """Take out where a half message belongs, or return None when it does not say."""
    topic, queue_text = properties.pop(REAL_TOPIC, ""), properties.pop(REAL_QUEUE, "")
    queue_id = parse_count(queue_text, -1)
    return (topic, queue_id) if topic and queue_id >= 0 else None


def patience_ms(properties: dict[str, str], timeout_ms: int) -> int:
    """Return how long a sender may take before it is asked; it may have asked for more time itself."""
    wish = parse_count(properties.get(_IMMUNITY), -1)
    return wish * 1000 if wish >= 0 else timeout_ms


def has_successor(op: StoredRecord) -> Steps[bool]:
    """Say whether the record that an op names is there. One that names none, a rollback or an op of others, is good.

    One whose properties were torn when power was lost is not: checksums are of bodies only, and nobody knows what it
    named. Its sender is asked again.
    """
    if _TORN in op.properties:
        return False
    text = properties_of(op).get(SUCCESSOR, "")
    if not text.isdecimal():
        return True
    try:
        successor = yield from read_record(int(text))
    except CorruptRecord:
        return False
    # Where the log was mended there is a record too, but one that stands for lost bytes.
    return successor is not None and successor.sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK


def named_offsets(record: StoredRecord | None) -> list[int]:
    """Return the half messages that an op record declares decided."""
    if record is None or properties_of(record).get(TAGS) != REMOVE:
        return []
    words = bytes(record.body).decode(errors="replace").split(",")
    return [offset for word in words if (offset := parse_count(word, -1)) >= 0]


def first_position(record: StoredRecord, properties: dict[str, str]) -> int:
    """Return where a half message was first stored: the same for all its copies."""
    return parse_count(properties.get(FIRST_POSITION), record.position)


def to_message(record: StoredRecord, properties: dict[str, str]) -> Draft | Refusal:
    """Return the message that takes the place of a half one that was committed."""
    place = take_place(properties)
    if place is None:
        return Refusal(ResponseCode.SYSTEM_ERROR, "the prepared message does not say where it belongs")
    properties.pop("TRAN_MSG", None)
    properties.pop(FIRST_POSITION, None)
    properties["WAIT"] = "false"
    draft = to_draft(record, properties, topic=place[0], queue_id=place[1])
    draft.sys_flag = draft.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT
    draft.prepared_position = record.position
    return draft
