"""Records and index entries that were looked up, and what becomes of them.

For requests that carry a position (33, 36, 37, 309), and for rooms that follow a queue by themselves.
"""

from __future__ import annotations

from typing import Final

from holdfast.broker.messages.writer import Draft
from holdfast.model.errors import CorruptRecord
from holdfast.store.base.cold_reads import LogRange, Steps
from holdfast.store.log.record_reader import decode_at, read_bytes, read_record
from holdfast.store.queues.queue_log import ENTRY, Entry, QueueLog
from holdfast.wire.records.properties import parse_properties
from holdfast.wire.records.record import StoredRecord

__all__ = ["properties_of", "read_bytes", "read_entries", "read_record", "read_scheduled", "to_draft"]

_AHEAD: Final = 6400  # index entries read ahead when they are cold: as many as the kernel would


def read_entries(queue: QueueLog, start: int, count: int) -> Steps[list[Entry]]:
    """Return the entries of up to *count* messages of *queue* from *start* on.

    Those that may not be in memory are waited for. Empty when *start* has gone out of the queue meanwhile.
    """
    raw, _ = yield from queue.fetch_stretch(start, count, ahead=_AHEAD)
    return list(ENTRY.iter_unpack(memoryview(raw)[: len(raw) // ENTRY.size * ENTRY.size]))


def read_scheduled(position: int, size: int) -> Steps[StoredRecord | None]:
    """Return the record that an index entry points to, or None when it is gone or damaged.

    For work that nobody waits for: one bad record must not stop it.
    """
    try:
        data = yield LogRange(position, size)
    except CorruptRecord:
        return None
    return decode_at(data, position)


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
