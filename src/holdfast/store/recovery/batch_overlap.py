"""Detect which of two records that claim the same offsets of a queue is corrupt.

    log      | first 5, INNER_NUM 9, body: 3 items | first 8, ... |
    claimed    5 6 7 8 9 10 11 12 13                 8 ...
    right      5 6 7                                 8 ...

`INNER_NUM`, the number of messages that a batch states, has no checksum. Too large a number would cover the offsets of
later records and hide them. Bodies have a checksum, so the items in them are counted. This is done only on suspicion,
because a batch may be compressed.
"""

from __future__ import annotations

from holdfast.model.errors import RemoteProtocolError
from holdfast.store.base.index_fields import INNER_BITS, INNER_COUNT_MAX
from holdfast.store.base.log_file import LogFiles
from holdfast.store.log.log_scanner import StopReason, validate_record_at
from holdfast.store.queues.queue_index import QueueIndex
from holdfast.store.recovery.log_repair import Damage
from holdfast.wire.records.batch import count_items
from holdfast.wire.records.compression import decompress
from holdfast.wire.records.record import decode_record


def find_overlap(files: LogFiles, queue: QueueIndex, entry: bytes, first: int) -> Damage | None:
    """Return the damage of the record of *entry* if it claims offsets of a later record, which begins at *first*.

    The entry belongs to *queue*, which accepts batches.

    None if it holds the stated number of messages: then the later one has a wrong offset. A record that cannot be
    opened counts as corrupt, so that the later one is not hidden.
    """
    start, end = queue.parse_span(entry)
    if not start < first < end:
        return None
    position, size = queue.parse_location(entry)
    message_count = count_messages(files, position)
    if message_count == end - start:
        return None
    reason = f"a batch at offset {start} states {end - start} messages, but offset {first} belongs to another record"
    return Damage(position, size, reason)


def count_messages(files: LogFiles, position: int) -> int | None:
    """Return the number of messages in the body of the record at *position*; None if it cannot be determined."""
    record = validate_record_at(files, position)
    found = files.find(position)
    if isinstance(record, StopReason) or found is None:
        return None
    if record.sys_flag & INNER_BITS != INNER_BITS:
        return 1
    at = position - found.start
    body = decode_record(found.file.view(at, at + record.size), check_body=False).body
    try:
        return count_items(decompress(body, record.sys_flag), count_max=INNER_COUNT_MAX)
    except RemoteProtocolError:
        return None
