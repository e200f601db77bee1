"""Search for an offset by store time: a binary search of a queue, with the times read from the records.

Store times never decrease along the log, so they never decrease along a queue. A record that is gone counts as older
than any time. Entries and records that are not in memory are requested in steps. This module knows neither files nor
clocks. An index with the times in its entries does not need this search.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from holdfast.model.errors import CorruptRecord
from holdfast.store.base.cold_reads import LogRange
from holdfast.store.queues.queue_files import ENTRY_SIZE
from holdfast.store.queues.queue_index import BLANK_ENTRY_SIZE, ENTRY, Entry
from holdfast.wire.records.record import BORN_HOST_V6, RECORD_SIZE_MIN

if TYPE_CHECKING:
    from holdfast.store.queues.consume_queue import MessageIndex

WHOLE_SIZE_MAX = 64 * 1024
"""Records up to this size are read whole, so that they can be verified and need no second read from the disk."""

_BLOCK = 4096 // ENTRY_SIZE
_POSITION_AT = 28
_POSITION_FLAG = struct.Struct(">qi")  # Position and sys flag.
_STORE_TIME_AT = 56
_STORE_TIME = struct.Struct(">q")


class TimeReader:
    """Reads store times of one queue. Keeps the last block of entries, because a binary search ends within one."""

    def __init__(self, queue: MessageIndex) -> None:
        self._queue = queue
        self._block = b""
        self._block_start = 0

    async def read(self, offset: int) -> int | None:
        """Return the store time of the message at *offset*; None if it is gone, blank or corrupt."""
        if not self._queue.offset_min <= offset < self._queue.offset_max:
            return None
        entry = await self._read_entry(offset)
        if entry is None or not RECORD_SIZE_MIN <= entry[1] < BLANK_ENTRY_SIZE:
            return None
        position, size, _ = entry
        try:
            data = await LogRange(position, size if size <= WHOLE_SIZE_MAX else RECORD_SIZE_MIN)
        except CorruptRecord:
            return None
        if len(data) < RECORD_SIZE_MIN:
            return None
        own_position, sys_flag = _POSITION_FLAG.unpack_from(data, _POSITION_AT)
        if own_position != position:
            return None
        (store_ms,) = _STORE_TIME.unpack_from(data, _STORE_TIME_AT + (12 if sys_flag & BORN_HOST_V6 else 0))
        return int(store_ms)

    async def _read_entry(self, offset: int) -> Entry | None:
        queue = self._queue
        if offset >= queue.hot_offset:
            return queue.get_entry(offset)
        if not 0 <= offset - self._block_start < len(self._block) // ENTRY_SIZE:
            self._block_start = max(queue.offset_min, offset - offset % _BLOCK)
            self._block = await queue.fetch_entries(self._block_start, _BLOCK)
        at = (offset - self._block_start) * ENTRY_SIZE
        if at + ENTRY_SIZE > len(self._block):
            return None  # Removed during the read.
        position, size, tags_code = ENTRY.unpack_from(self._block, at)
        return position, size, tags_code


async def find_by_records(queue: MessageIndex, time_ms: int, *, upper: bool) -> int:
    """Return the first offset stored at or after *time_ms*, or with *upper* the last one at or before it.

    If there is none, return the end of the queue, or with *upper* its beginning.
    """
    times = TimeReader(queue)
    low, high = queue.offset_min, queue.offset_max
    while low < high:
        middle = (low + high) // 2
        store_ms = await times.read(middle)
        is_before = store_ms is None or (store_ms <= time_ms if upper else store_ms < time_ms)
        if is_before:
            low = middle + 1
        else:
            high = middle
    return max(queue.offset_min, low - 1) if upper else low
