"""Splits batch records into single messages, for readers that cannot open batches or must not get all of one.

    index    [40 ... 43) [43] [44 ..... 60)            a pull from 41, of at most five messages
    answer        41 42   43   44 45                   the next pull starts inside a batch, at 46

The messages of a batch have the form of messages that were sent alone, for tag filters as well. The answer has at least
one message if there is any. A record that cannot be read or opened yields no message: the reader continues after it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.broker.consume.index_scan import may_match
from holdfast.broker.messages.batch_cache import BatchCache, UnpackedBatch, UnpackReason
from holdfast.machine.effects import Piece
from holdfast.store.queues.queue_index import ENTRY, QueueIndex

_READ_AHEAD: Final = 6400  # index entries read ahead when they are cold: as many as the kernel would
_UNPACKED_SIZE_MAX: Final = 8 * 1024 * 1024  # bytes of batches opened for one answer, if a filter passes few messages


class ReadLimits(msgspec.Struct, frozen=True):
    """The limits and the filter of a read.

    Attributes:
        count: Maximum number of messages.
        size: Maximum number of bytes of records.
        end: The offset at which reading stops.
        codes: Hashes of the wanted tags; None for all messages.
        inspected: Maximum number of messages to inspect, for filters that pass few of them.
        records: Maximum number of records to open.
    """

    count: int
    size: int
    end: int
    codes: frozenset[int] | None
    inspected: int
    records: int


class SingleMessages:
    """The single messages found so far.

    Attributes:
        next_offset: The offset at which reading continues.
        pieces: The records of the messages, in order.
        size: Total bytes of the records.
        count: Number of messages.
    """

    def __init__(self, batch_cache: BatchCache, start: int, limits: ReadLimits) -> None:
        self._batch_cache = batch_cache
        self.next_offset = start
        self.pieces: list[Piece] = []
        self.size = 0
        self.count = 0
        self._limits = limits

    def add_batch(self, batch: UnpackedBatch, end: int) -> bool:
        """Add the messages of *batch* from the next offset up to *end*; return False when a limit is reached."""
        index = self.next_offset - batch.first
        if self._limits.codes is None:
            return self._add_run(batch, index, end)
        for at in batch.find_tagged(self._limits.codes, index):
            self.next_offset = batch.first + at
            if not self._add_run(batch, at, self.next_offset + 1):
                return False
        self.next_offset = end
        return True

    def _add_run(self, batch: UnpackedBatch, index: int, end: int) -> bool:
        """Add the messages from *index* up to the offset *end* that fit; return whether all of them did."""
        limits = self._limits
        count = end - self.next_offset
        fitting = min(count, limits.count - self.count, batch.count_fitting(index, limits.size - self.size))
        if fitting <= 0:
            if self.count:
                return False
            fitting = 1
        records = self._batch_cache.data(batch, index, fitting)
        self.pieces.append(records)
        self.size += len(records)
        self.count += fitting
        self.next_offset += fitting
        return fitting == count


async def read_single_messages(
    batch_cache: BatchCache, queue: QueueIndex, start: int, limits: ReadLimits
) -> SingleMessages:
    """Return single messages of *queue* from offset *start* on."""
    messages = SingleMessages(batch_cache, start, limits)
    stop = min(limits.end, start + limits.inspected)
    unpacked_size = records = 0
    while messages.next_offset < min(stop, queue.offset_max):
        raw, spans = await queue.fetch_range(messages.next_offset, limits.inspected, ahead=_READ_AHEAD)
        if not raw or spans is None:
            break  # Retention deleted the entries while they were fetched.
        for (position, size, tag), (first, end) in zip(ENTRY.iter_unpack(raw), spans, strict=True):
            is_enough = (
                messages.count >= limits.count or records == limits.records or unpacked_size > _UNPACKED_SIZE_MAX
            )
            if is_enough or messages.next_offset >= stop:
                return messages
            messages.next_offset = max(messages.next_offset, first)
            batch = None
            if may_match(tag, size, limits.codes):
                batch = await batch_cache.fetch(position, size, UnpackReason.SPLIT)
                records += 1
            if batch is None or (batch.first, len(batch)) != (first, end - first):
                messages.next_offset = end
                continue
            unpacked_size += batch.size
            if not messages.add_batch(batch, min(end, limits.end)):
                return messages
    return messages
