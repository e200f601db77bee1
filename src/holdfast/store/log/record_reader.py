"""Read one record by its position, from memory or disk.

The position may come from an untrusted client: it may point beyond the log, into the middle of a record, or at a file
that retention removed. Then there is no record, which is not an error.

A body may contain the bytes of another record, whose properties, which no checksum covers, reach beyond it: over the
messages of others that follow. So a position that a client has named counts only if the index of a queue has it, too.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from holdfast.model.errors import CorruptRecord
from holdfast.store.base.cold_reads import LogRange
from holdfast.store.queues.queue_index import ENTRY, QueueIndex
from holdfast.wire.records.record import MAGIC_V1, MAGIC_V2, RECORD_SIZE_MIN, StoredRecord, decode_record

RECORD_SIZE_MAX = 16 * 1024 * 1024
_HEADER = struct.Struct(">ii")

FindQueue = Callable[[str, int], QueueIndex | None]
"""Returns the physical queue with this topic and number, if there is one."""


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


async def read_named_bytes(position: int, find_queue: FindQueue) -> bytes:
    """Return the bytes of the record at a *position* that a client has named; empty if no queue has one there."""
    data = await read_bytes(position)
    record = decode_at(data, position) if data else None
    queue = None if record is None else find_queue(record.topic, record.queue_id)
    if record is None or queue is None:
        return b""
    entries, _ = await queue.fetch_range(record.offset, 1)
    return data if entries and ENTRY.unpack_from(entries)[:2] == (position, record.size) else b""


async def read_named_record(position: int, find_queue: FindQueue) -> StoredRecord | None:
    """Return the record at a *position* that a client has named, or None if no queue has one there."""
    data = await read_named_bytes(position, find_queue)
    return decode_at(data, position) if data else None


def decode_at(data: bytes, position: int) -> StoredRecord | None:
    """Return the record in *data* if it is whole and contains *position* as its own."""
    try:
        record = decode_record(data)
    except CorruptRecord:
        return None
    return record if record.position == position else None
