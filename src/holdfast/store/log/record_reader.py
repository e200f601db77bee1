"""Read one record by its position, from memory or disk.

The position may come from an untrusted client: it may point beyond the log, into the middle of a record, or at a file
that retention removed. Then there is no record, which is not an error.
"""

from __future__ import annotations

import struct

from holdfast.model.errors import CorruptRecord
from holdfast.store.base.cold_reads import LogRange
from holdfast.wire.records.record import MAGIC_V1, MAGIC_V2, RECORD_SIZE_MIN, StoredRecord, decode_record

RECORD_SIZE_MAX = 16 * 1024 * 1024
_HEADER = struct.Struct(">ii")


async def read_bytes(position: int) -> bytes:
    """Return the bytes of the record that begins at *position*; empty if there is none."""
    if position < 0:
        return b""
    head = await LogRange(position, RECORD_SIZE_MIN, is_guess=True)
    if len(head) < RECORD_SIZE_MIN:
        return b""
    size, magic = _HEADER.unpack_from(head)
    if magic not in {MAGIC_V1, MAGIC_V2} or not RECORD_SIZE_MIN <= size <= RECORD_SIZE_MAX:
        return b""
    data = await LogRange(position, size, is_guess=True)
    return data if decode_at(data, position) is not None else b""


async def read_record(position: int) -> StoredRecord | None:
    """Return the record that begins at *position*, or None if there is none."""
    data = await read_bytes(position)
    return decode_at(data, position) if data else None


def decode_at(data: bytes, position: int) -> StoredRecord | None:
    """Return the record in *data* if it is whole and contains *position* as its own."""
    try:
        record = decode_record(data)
    except CorruptRecord:
        return None
    return record if record.position == position else None
