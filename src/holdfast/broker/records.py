"""Looking up one record by its position, for requests that carry a position and nothing else (33, 36, 37, 309).

The position comes from a stranger: it may point beyond the log, into the middle of a record, or at what retention took.
"""

from __future__ import annotations

import struct

from holdfast.broker.request import LogRange, Steps
from holdfast.broker.writer import Draft
from holdfast.model.errors import CorruptRecord
from holdfast.wire.properties import parse_properties
from holdfast.wire.record import MAGIC_V1, MAGIC_V2, RECORD_SIZE_MIN, StoredRecord, decode_record

RECORD_SIZE_MAX = 16 * 1024 * 1024
_HEAD = struct.Struct(">ii")


def read_scheduled(position: int, size: int) -> Steps[StoredRecord | None]:
    """Return the record that an index entry points to, or None when it is gone or damaged.

    For work that nobody waits for: one bad record must not stop it.
    """
    try:
        data = yield LogRange(position, size)
    except CorruptRecord:
        return None
    return decode_at(data, position)


def read_bytes(position: int) -> Steps[bytes]:
    """Return the bytes of the record that begins at *position*; empty when there is none."""
    if position < 0:
        return b""
    head = yield LogRange(position, RECORD_SIZE_MIN)
    if len(head) < RECORD_SIZE_MIN:
        return b""
    size, magic = _HEAD.unpack_from(head)
    if magic not in {MAGIC_V1, MAGIC_V2} or not RECORD_SIZE_MIN <= size <= RECORD_SIZE_MAX:
        return b""
    data = yield LogRange(position, size)
    return data if decode_at(data, position) is not None else b""


def read_record(position: int) -> Steps[StoredRecord | None]:
    """Return the record that begins at *position*, or None when there is none."""
    data = yield from read_bytes(position)
    return decode_at(data, position) if data else None


def decode_at(data: bytes, position: int) -> StoredRecord | None:
    """Return the record in *data* if that is a whole one and says itself that it stands at *position*."""
    try:
        record = decode_record(data)
    except CorruptRecord:
        return None
    return record if record.position == position else None


def properties_of(record: StoredRecord) -> dict[str, str]:
    """Return the properties of *record*."""
    return parse_properties(record.properties.decode(errors="replace"))


def to_draft(record: StoredRecord, properties: dict[str, str], *, topic: str, queue_id: int) -> Draft:
    """Return a new message with the content of *record*, for another place."""
    return Draft(
        topic=topic,
        queue_id=queue_id,
        body=bytes(record.body),
        properties=properties,
        born_ms=record.born_ms,
        born_host=record.born_host,
        flag=record.flag,
        sys_flag=record.sys_flag,
        reconsume_times=record.reconsume_times,
    )
