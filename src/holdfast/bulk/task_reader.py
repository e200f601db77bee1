"""Reads the ranges of a task completely, even if brokers fail, restart or move queues meanwhile.

    for each range:   pull ─> rows ─> pull ─> rows ... until its end
                       └── no answer, queue moved, broker restarted ─> retry the pull until patience ends

Spark receives rows as they are read, so a range never starts over: a retry continues at the same offset.

Offsets that retention removed and batches that cannot be decoded are lost data. Lost data fails the query, or is
skipped with `failOnDataLoss=false`. Offsets that never had a message, such as the gap of a forced move, and messages
that a tag filter excludes are not lost data.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from holdfast.bulk.cluster_connection import Unavailable, log
from holdfast.bulk.cluster_session import ClusterSession, session_for
from holdfast.bulk.pull_socket import PullSocket, borrow_pull_socket
from holdfast.bulk.queue_pulls import PULL_COUNT_MAX, PullRequest, PullResult
from holdfast.bulk.queue_selection import QueuesByKey, find_queues, resolve
from holdfast.bulk.read_options import QueueKey, Range, ReadOptions
from holdfast.client.consume.pull_plan import PullStatus
from holdfast.columns.message_columns import RecordOrigin, RowSelection, to_batches
from holdfast.model.errors import AccessDenied, ConfigError, CorruptRecord, HoldfastError, UnreadableBatch
from holdfast.model.queue import LogicalOffset, MessageQueue

# Join smaller batches up to these sizes, because each batch costs a round trip through Spark. A larger pull stays one.
_BATCH_ROWS: Final = 4_096
_BATCH_BYTES: Final = 3 * 1024 * 1024


class DataLost(HoldfastError):
    """Messages in the range to read are no longer stored, or cannot be decoded."""


def find_bounds(
    session: ClusterSession, options: ReadOptions
) -> tuple[QueuesByKey, dict[QueueKey, int], dict[QueueKey, int]]:
    """Return the queues to read, and the start and end offset of each.

    Raises:
        ConfigError: a topic, a queue or an offset in the options does not exist.
        DataLost: a dead broker may have more of a queue, and the options do not allow data loss.
    """
    queues = find_queues(session, options)
    starts = resolve(session, queues, options.start, side="starting", is_strict_time=options.is_strict_time)
    ends = resolve(session, queues, options.end, side="ending", is_strict_time=False)
    for name, start in starts.items():
        if options.start.kind == "offsets" and start > ends[name] and options.end.kind == "offsets":
            raise ConfigError(f"{name[0]}/{name[1]}: startingOffsets is {start}, endingOffsets is {ends[name]}")
        if options.fails_on_data_loss and (broker := session.find_unknown_end(name, start, ends[name])) is not None:
            raise DataLost(
                f"{name[0]}/{name[1]} was moved by force away from {broker}, which may have more messages of it: "
                "wait for that broker, give them up (holdfast queue abandon), or skip them (failOnDataLoss=false)"
            )
    return queues, starts, ends


def plan_ranges(
    session: ClusterSession, options: ReadOptions, starts: Mapping[QueueKey, int], ends: Mapping[QueueKey, int]
) -> list[Range]:
    """Return the ranges between *starts* and *ends* that can hold messages."""
    skips_unknown = not options.fails_on_data_loss
    return [
        Range(*name, start, end)
        for name in ends
        for start, end in session.readable_ranges(name, starts[name], ends[name], skips_unknown=skips_unknown)
    ]


def read_ranges(options: ReadOptions, columns: tuple[str, ...], ranges: tuple[Range, ...]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of *ranges*, in order, as batches of suitable size.

    Raises:
        DataLost: rows are lost, and the options do not allow data loss.
        Unavailable: a broker was unreachable for longer than the options allow.
        AccessDenied: access control refused a request.
    """
    session = session_for(options)
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    with borrow_pull_socket(session.connection.client.tls, options.credentials) as pull_socket:
        for offset_range in ranges:
            queue_session, name = session.session_of((offset_range.topic, offset_range.queue))
            for batch in _RangeReader(
                queue_session,
                pull_socket,
                options,
                columns,
                offset_range,
                name,
                is_foreign=queue_session is not session,
            ).read():
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
    """Reads one range.

    Attributes:
        name: The queue's name in *session*.
        is_foreign: Whether the queue belongs to another unit than the reader's.
    """

    session: ClusterSession
    pull_socket: PullSocket
    options: ReadOptions
    columns: tuple[str, ...]
    range: Range
    name: QueueKey
    is_foreign: bool

    def read(self) -> Iterator[pa.RecordBatch]:
        name = self.name
        queue = self.session.find_queue(name)
        selection = RowSelection(self.columns, self.range.start, self.range.end, self.options.tag_set)
        offset = LogicalOffset(self.range.start)
        while offset < self.range.end:
            result = self._pull(queue, offset)
            if result is None:
                return
            if offset < result.offset_min:
                self._report_loss(
                    f"{_describe_range(offset, min(result.offset_min, self.range.end))} is no longer stored"
                )
            if result.next_offset < self.range.end:
                self.session.pulls.pull_ahead(self.pull_socket, self._pull_request(queue, result.next_offset))
            if result.block:
                origin = self.session.origin(name, queue, offset, result.delta)
                if result.is_from_replica:
                    batches = _read_replica_rows(result.block, origin, selection)
                    if batches is None:
                        self.session.pulls.avoid_replica(self._pull_request(queue, offset))
                        continue
                    yield from batches
                else:
                    yield from self._to_batches(result.block, origin, selection)
            offset = result.next_offset

    def _to_batches(self, block: memoryview, origin: RecordOrigin, selection: RowSelection) -> Iterator[pa.RecordBatch]:
        unreadable: list[UnreadableBatch] = []
        for batch in to_batches(block, origin, selection, unreadable):
            for error in unreadable:
                # The producer sent it like this, so that another pull would not help: it counts as lost data.
                self._report_loss(str(error))
                log.error("%s/%s: %s; the batch is skipped", self.range.topic, self.range.queue, error)
            unreadable.clear()
            if batch.num_rows:
                yield batch

    def _pull(self, queue: MessageQueue, offset: LogicalOffset) -> PullResult | None:
        """Return an answer that makes progress; None if the rest of the range is lost and the query continues."""
        connection = self.session.connection
        deadline_s = time.monotonic() + connection.patience_s
        failures = 0
        while True:
            error: HoldfastError
            try:
                result = self.session.pulls.pull(self.pull_socket, self._pull_request(queue, offset))
            except (CorruptRecord, AccessDenied):
                raise
            except HoldfastError as failure:
                error = failure
            else:
                if result.next_offset > offset:
                    return result
                error = _RowsUnavailable(
                    f"the queue ends at {result.offset_max} now, but it ended at {self.range.end} or later before"
                )
                if result.status is PullStatus.NO_MATCH:
                    error = _RowsUnavailable("the queue is being moved to another broker")
            if time.monotonic() > deadline_s:
                self._fail_or_skip(offset, error)
                return None
            failures += 1
            connection.wait(connection.recover(self.range.topic, error, failures))

    def _pull_request(self, queue: MessageQueue, offset: LogicalOffset) -> PullRequest:
        count = min(PULL_COUNT_MAX, self.range.end - offset)
        return PullRequest(queue, offset, count, self.options.tags, unit=self.options.unit, is_foreign=self.is_foreign)

    def _fail_or_skip(self, offset: int, error: HoldfastError) -> None:
        patience_s = self.session.connection.patience_s
        if isinstance(error, _RowsUnavailable):
            missing = _describe_range(offset, self.range.end)
            self._report_loss(f"{missing} was missing for {patience_s:g} s: {error}")
            return
        where = f"{self.range.topic}/{self.range.queue} at offset {offset}"
        raise Unavailable(
            f"{where} could not be read for {patience_s:g} s (option 'brokerTimeout'): {error}"
        ) from error

    def _report_loss(self, description: str) -> None:
        if self.options.fails_on_data_loss:
            raise DataLost(
                f"{self.range.topic}/{self.range.queue}: {description}. With failOnDataLoss=false the query skips it "
                "and continues"
            )


def _read_replica_rows(block: memoryview, origin: RecordOrigin, selection: RowSelection) -> list[pa.RecordBatch] | None:
    """Return the rows of a replica's answer; None if a record is unreadable, because the master's may be intact."""
    try:
        return [batch for batch in to_batches(block, origin, selection) if batch.num_rows]
    except HoldfastError as error:
        log.warning("%s/%s: the records of a replica cannot be read: %s", origin.topic, origin.queue, error)
        return None


def _describe_range(start: int, end: int) -> str:
    return f"the range from {start} to {end}"


class _RowsUnavailable(HoldfastError):
    """The broker has fewer rows than it had when the batch was planned."""
