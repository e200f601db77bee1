"""What a pull gets of an index by record if its reader cannot open batches, or must not get all of one.

    index    [40 ... 43) [43] [44 ..... 60)            pulled from 41 on, five messages at most
    answer        41 42   43   44 45                   the next pull begins in the middle of a batch, at 46

So batches look as if their messages had been sent alone, also to filters by tag. At least one message is returned if
there is one; a record that cannot be read, or not be opened, stands for none, and the reader goes on behind it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.broker.consume.index_scan import may_match
from holdfast.broker.messages.batch_cache import OpenedBatch, OpenedBatches, Reason
from holdfast.machine.effects import Piece
from holdfast.store.base.cold_reads import Steps
from holdfast.store.queues.queue_log import ENTRY, QueueLog

_AHEAD: Final = 6400  # index entries read ahead when they are cold: as many as the kernel would
_OPENED_SIZE_MAX: Final = 8 * 1024 * 1024  # what is opened for one answer, if a filter lets little of it through


class Wanted(msgspec.Struct, frozen=True):
    """What a reader asks for.

    Attributes:
        count: How many messages at most.
        size: How many bytes of records.
        end: The offset up to which it may read.
        codes: Hashes of tags; None for all.
        looked_at: At how many messages to look at most, if a filter lets few of them through.
        records: How many records to open at most.
    """

    count: int
    size: int
    end: int
    codes: frozenset[int] | None
    looked_at: int
    records: int


class Parts:
    """What was found.

    Attributes:
        next_offset: Where to go on.
        pieces: Single records, in order.
        size: How large they are together.
        count: How many.
    """

    def __init__(self, opened: OpenedBatches, start: int, wanted: Wanted) -> None:
        self._opened = opened
        self.next_offset = start
        self.pieces: list[Piece] = []
        self.size = 0
        self.count = 0
        self._wanted = wanted

    def take(self, batch: OpenedBatch, end: int) -> bool:
        """Take messages from the next offset on; False when no more are wanted, those of *batch* or others."""
        index = self.next_offset - batch.first
        if self._wanted.codes is None:
            return self._add_run(batch, index, end)
        for at in batch.find_tagged(self._wanted.codes, index):
            self.next_offset = batch.first + at
            if not self._add_run(batch, at, self.next_offset + 1):
                return False
        self.next_offset = end
        return True

    def _add_run(self, batch: OpenedBatch, index: int, end: int) -> bool:
        """Take all messages from *index* up to the offset *behind*, as far as there is room."""
        wanted = self._wanted
        count = end - self.next_offset
        fitting = min(count, wanted.count - self.count, batch.count_fitting(index, wanted.size - self.size))
        if fitting <= 0:
            if self.count:
                return False
            fitting = 1
        records = self._opened.data(batch, index, fitting)
        self.pieces.append(records)
        self.size += len(records)
        self.count += fitting
        self.next_offset += fitting
        return fitting == count


def read_parts(opened: OpenedBatches, queue: QueueLog, start: int, wanted: Wanted) -> Steps[Parts]:
    """Return messages of *queue* from *start* on."""
    parts = Parts(opened, start, wanted)
    stop = min(wanted.end, start + wanted.looked_at)
    opened_size = records = 0
    while parts.next_offset < min(stop, queue.offset_max):
        raw, spans = yield from queue.fetch_stretch(parts.next_offset, wanted.looked_at, ahead=_AHEAD)
        if not raw or spans is None:
            break  # Erased while we waited.
        for (position, size, tag), (first, end) in zip(ENTRY.iter_unpack(raw), spans, strict=True):
            is_enough = parts.count >= wanted.count or records == wanted.records or opened_size > _OPENED_SIZE_MAX
            if is_enough or parts.next_offset >= stop:
                return parts
            parts.next_offset = max(parts.next_offset, first)
            batch = None
            if may_match(tag, size, wanted.codes):
                batch = yield from opened.fetch(position, size, Reason.SPLIT)
                records += 1
            if batch is None or (batch.first, len(batch)) != (first, end - first):
                parts.next_offset = end
                continue
            opened_size += batch.size
            if not parts.take(batch, min(end, wanted.end)):
                return parts
    return parts
