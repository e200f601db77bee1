"""What a task does: reads its ranges, to the last row, whatever happens to brokers meanwhile.

    for each range:   pull ─> rows ─> pull ─> rows ... until its end
                       └── no answer, moved, restarted ─> the same pull again, until patience ends

A row is handed to Spark once it is read, so nothing is ever begun anew: a failure changes nothing about the place.
Offsets that are gone, because they were cleaned, are lost data, and so is a batch that nobody can open: that fails the
query, or is passed over if it is told so. What never was a message, the gap of a forced move or what a tag filter
leaves out, is not.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from holdfast.bulk.cluster_session import Link, Unavailable, link_to, log
from holdfast.bulk.pull_socket import PullLine, a_line
from holdfast.bulk.queue_pulls import PULL_COUNT_MAX, Pulled, Question
from holdfast.bulk.queue_selection import Queues, find_queues, resolve
from holdfast.bulk.read_options import DEFAULT_GROUP, Queue, Range, ReadOptions
from holdfast.client.consume.pull_plan import PullStatus
from holdfast.columns.message_columns import Origin, Wanted, to_batches
from holdfast.model.errors import ConfigError, CorruptRecord, HoldfastError, UnreadableBatch
from holdfast.model.queue import MessageQueue

# What is enough for one Arrow batch: smaller ones cost a round through Spark each. A pull that brought more is one.
_BATCH_ROWS: Final = 4_096
_BATCH_BYTES: Final = 3 * 1024 * 1024


class DataLost(HoldfastError):
    """Messages that were to be read are gone."""


def find_bounds(link: Link, options: ReadOptions) -> tuple[Queues, dict[Queue, int], dict[Queue, int]]:
    """Return the queues that are read, and where reading begins and ends in each.

    Raises:
        ConfigError: what is asked for does not exist.
        DataLost: a dead broker may have more of it, and that is not to be passed over.
    """
    queues = find_queues(link, options)
    starts = resolve(link, queues, options.start, which="starting", is_strict_time=options.is_strict_time)
    ends = resolve(link, queues, options.end, which="ending", is_strict_time=False)
    for name, start in starts.items():
        if options.start.kind == "offsets" and start > ends[name] and options.end.kind == "offsets":
            raise ConfigError(f"{name[0]}/{name[1]}: startingOffsets is {start}, endingOffsets is {ends[name]}")
        if options.fails_on_data_loss and (broker := link.find_unknown(name, start, ends[name])) is not None:
            raise DataLost(
                f"{name[0]}/{name[1]} was moved by force away from {broker}, which may have more of it: wait for "
                "that broker, give it up (holdfast queue abandon), or read without it: failOnDataLoss=false"
            )
    return queues, starts, ends


def hold_ranges(
    link: Link, options: ReadOptions, starts: Mapping[Queue, int], ends: Mapping[Queue, int]
) -> list[Range]:
    """Return the ranges between *starts* and *ends* that can hold messages."""
    skips = not options.fails_on_data_loss
    return [
        Range(*name, start, end)
        for name in ends
        for start, end in link.held(name, starts[name], ends[name], skips_unknown=skips)
    ]


def read_ranges(options: ReadOptions, columns: tuple[str, ...], ranges: tuple[Range, ...]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of *ranges*, in order, as batches of a good size.

    Raises:
        DataLost: some are gone, and that is not to be passed over.
        Unavailable: a broker was away for longer than the options allow.
    """
    link = link_to(options.namesrv, options.group or DEFAULT_GROUP, options.patience_s, options.unit)
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    with a_line() as line:
        for each in ranges:
            owner, name = link.owner_of((each.topic, each.queue))
            for batch in _RangeReader(owner, line, options, columns, each, name, is_foreign=owner is not link).read():
                waiting.append(batch)
                rows += batch.num_rows
                size += batch.nbytes
                if rows >= _BATCH_ROWS or size >= _BATCH_BYTES:
                    yield _join(waiting)
                    waiting, rows, size = [], 0, 0
    if waiting:
        yield _join(waiting)


def _join(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


@dataclass(slots=True)
class _RangeReader:
    """Reads one range."""

    link: Link
    line: PullLine
    options: ReadOptions
    columns: tuple[str, ...]
    range: Range
    name: Queue  # as the link knows it
    is_foreign: bool  # of another unit than the reader's

    def read(self) -> Iterator[pa.RecordBatch]:
        name = self.name
        queue = self.link.find_queue(name)
        wanted = Wanted(self.columns, self.range.start, self.range.end, self.options.tag_set)
        at = self.range.start
        while at < self.range.end:
            pulled = self._pull(queue, at)
            if pulled is None:
                return
            if at < pulled.offset_min:
                self._lose(f"{_what(at, min(pulled.offset_min, self.range.end))} is no longer stored")
            if pulled.next_offset < self.range.end:
                self.link.pull_ahead(self.line, self._question(queue, pulled.next_offset))
            if pulled.block:
                origin = self.link.origin(name, queue, at, pulled.delta)
                if pulled.is_copy:
                    copied = _read_whole(pulled.block, origin, wanted)
                    if copied is None:
                        self.link.reject_copy(self._question(queue, at))
                        continue
                    yield from copied
                else:
                    yield from self._to_batches(pulled.block, origin, wanted)
            at = pulled.next_offset

    def _to_batches(self, block: memoryview, origin: Origin, wanted: Wanted) -> Iterator[pa.RecordBatch]:
        unreadable: list[UnreadableBatch] = []
        for batch in to_batches(block, origin, wanted, unreadable):
            for error in unreadable:
                # Its producer made it so, and no pull will mend it: it is as good as gone.
                self._lose(str(error))
                log.error("%s/%s: %s; it is passed over", self.range.topic, self.range.queue, error)
            unreadable.clear()
            if batch.num_rows:
                yield batch

    def _pull(self, queue: MessageQueue, at: int) -> Pulled | None:
        """Return an answer that leads on; None when what is left is lost, and that is to be passed over."""
        deadline_s = time.monotonic() + self.link.patience_s
        failures = 0
        while True:
            error: HoldfastError
            try:
                pulled = self.link.pull(self.line, self._question(queue, at))
            except CorruptRecord:
                raise
            except HoldfastError as failure:
                error = failure
            else:
                if pulled.next_offset > at:
                    return pulled
                error = _Behind(f"the queue ends at {pulled.offset_max} now, though it had reached {self.range.end}")
                if pulled.status is PullStatus.NO_MATCH:
                    error = _Behind("the queue is on its way to another broker")
            if time.monotonic() > deadline_s:
                self._give_up(at, error)
                return None
            failures += 1
            self.link.wait(self.link.mend(self.range.topic, error, failures))

    def _question(self, queue: MessageQueue, at: int) -> Question:
        count = min(PULL_COUNT_MAX, self.range.end - at)
        return Question(queue, at, count, self.options.tags, unit=self.options.unit, is_foreign=self.is_foreign)

    def _give_up(self, at: int, error: HoldfastError) -> None:
        if isinstance(error, _Behind):
            self._lose(f"{_what(at, self.range.end)} did not come back in {self.link.patience_s:g} s: {error}")
            return
        where = f"{self.range.topic}/{self.range.queue} at offset {at}"
        raise Unavailable(
            f"{where} could not be read for {self.link.patience_s:g} s (option 'brokerTimeout'): {error}"
        ) from error

    def _lose(self, what: str) -> None:
        if self.options.fails_on_data_loss:
            raise DataLost(
                f"{self.range.topic}/{self.range.queue}: {what}. With failOnDataLoss=false the query goes on without it"
            )


def _read_whole(block: memoryview, origin: Origin, wanted: Wanted) -> list[pa.RecordBatch] | None:
    """Return the rows of a replica's answer; None if any of them cannot be read: perhaps the master's can."""
    try:
        return [batch for batch in to_batches(block, origin, wanted) if batch.num_rows]
    except HoldfastError as error:
        log.warning("%s/%s: what a replica handed out cannot be read: %s", origin.topic, origin.queue, error)
        return None


def _what(start: int, end: int) -> str:
    return f"what was to be read from {start} to {end}"


class _Behind(HoldfastError):
    """The broker has less than it had when the batch was planned."""
