"""Reads index entries and records, and turns a record into a new draft.

Used by requests that contain a position (33, 36, 37, 309), and by components that read a queue in the background.
"""

from __future__ import annotations

from typing import Final

from holdfast.broker.messages.writer import Draft
from holdfast.model.errors import CorruptRecord
from holdfast.model.queue import LogicalQueueId
from holdfast.store.base.cold_reads import LogRange
from holdfast.store.log.record_reader import (
    FindQueue,
    decode_at,
    read_bytes,
    read_named_bytes,
    read_named_record,
    read_record,
)
from holdfast.store.queues.queue_index import ENTRY, Entry, QueueIndex
from holdfast.wire.records.properties import parse_properties
from holdfast.wire.records.record import StoredRecord

__all__ = [
    "FindQueue",
    "properties_of",
    "read_bytes",
    "read_entries",
    "read_named_bytes",
    "read_named_record",
    "read_record",
    "to_draft",
    "try_read_record",
]

_READ_AHEAD: Final = 6400  # cold index entries to read ahead: as many as the kernel would


async def read_entries(queue: QueueIndex, start: int, count: int) -> list[Entry]:
    """Return the index entries of up to *count* messages of *queue*, from *start* on.

    Waits for cold entries. Returns an empty list if *start* has expired meanwhile.
    """
    raw, _ = await queue.fetch_range(start, count, ahead=_READ_AHEAD)
    return list(ENTRY.iter_unpack(memoryview(raw)[: len(raw) // ENTRY.size * ENTRY.size]))


async def try_read_record(position: int, size: int) -> StoredRecord | None:
    """Return the record that an index entry points to, or None if it is gone or damaged.

    For background work, which must not stop at one bad record.
    """
    try:
        data = await LogRange(position, size)
    except CorruptRecord:
        return None
    return decode_at(data, position)


def properties_of(record: StoredRecord) -> dict[str, str]:
    """Return the properties of *record*."""
    return parse_properties(record.properties.decode(errors="replace"))


def to_draft(record: StoredRecord, properties: dict[str, str], *, topic: str, queue_id: int) -> Draft:
    """Return a draft with the content of *record*, for another queue."""
    return Draft(
        topic=topic,
        queue_id=LogicalQueueId(queue_id),
        body=bytes(record.body),
        properties=properties,
        born_ms=record.born_ms,
        born_host=record.born_host,
        flag=record.flag,
        sys_flag=record.sys_flag,
        reconsume_times=record.reconsume_times,
    )
