"""Reads one physical queue for a pull, and builds the answer.

    scan the index ─┬─ nothing new
                    ├─ hot records ─> views of the log, one answer
                    ├─ cold records ─> steps: a reader thread fetches them
                    └─ batches, for a reader that cannot open them ─> single records (`batch_splitting.py`)

The body of an answer consists of log bytes. The broker never opens a record for a reader that can do so. Adjacent
records leave as one view. Scattered records are joined, because many small pieces cost more than one copy
(docs/performance.md). A `Lens` converts the offsets of a physical queue to those of a logical queue. Knows neither
groups nor parked pulls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

import msgspec

from holdfast.broker.consume.batch_splitting import ReadLimits, read_single_messages
from holdfast.broker.consume.delivered_ranges import DeliveredRanges
from holdfast.broker.consume.index_scan import (
    Scan,
    begins_with_run,
    choose_any,
    choose_records,
    choose_tagged,
    join_neighbours,
)
from holdfast.broker.flow.request import LogRange, Refusal, Steps
from holdfast.broker.mapping.offset_rewrite import rewrite_offsets
from holdfast.broker.mapping.queue_view import AppendTarget
from holdfast.broker.messages.batch_cache import BatchCache
from holdfast.broker.options import BrokerOptions
from holdfast.broker.tables.stats import BrokerStats
from holdfast.machine.effects import Piece
from holdfast.machine.events import ChannelId
from holdfast.machine.pressure import MemoryPressure
from holdfast.model.access.identity import Identity
from holdfast.model.errors import CorruptRecord, DiskFailed
from holdfast.model.queue import LogicalOffset, LogicalQueueId, PhysicalOffset
from holdfast.store.message_store import MessageStore
from holdfast.store.queues.queue_index import EntryRange, QueueIndex
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.frames.command import RESPONSE, Command, encode_command
from holdfast.wire.frames.frame import JSON
from holdfast.wire.records.inner_batch import COUNT_MAX, BatchSupport
from holdfast.wire.requests.pull import PullFields, PullHeader, prepared_answer_head, pull_answer_head

_SCAN_MAX: Final = 800  # index entries scanned for one answer when a filter passes few of them
_READ_AHEAD: Final = 6400  # index entries read ahead when they are cold: as many as the kernel would
# Answers occupy memory until their readers accept them. Above this fraction of the memory limit (1 / 4), an answer is
# only as large as a socket buffers.
_PRESSURE_FRACTION: Final = 4
_SIZE_UNDER_PRESSURE: Final = 2 * 1024 * 1024
_RUN_SIZE_MIN: Final = 32 * 1024  # average size from which views of the log leave without being joined
_GAP_MAX: Final = 64 * 1024  # largest gap between two cold ranges that one read covers

_NO_CHANNEL: Final = ChannelId(-1)

Range = tuple[int, int]
"""(position, size) of a record."""


class Lens(msgspec.Struct, frozen=True):
    """Converts the offsets of one segment's physical queue to those of the logical queue.

    Attributes:
        queue: The number of the logical queue.
        delta: The number to add to a physical offset.
        minimum: The lowest offset of the logical queue.
        leader: The end of the logical queue.
        end: The physical end of the segment, if it is known.
        rewrites_offsets: The reader has no delta support, so its records get logical offsets.
        prepared: The encoded part that answers have in common, if many will be made.
    """

    queue: LogicalQueueId
    delta: int
    minimum: LogicalOffset
    leader: AppendTarget
    end: PhysicalOffset | None = None
    rewrites_offsets: bool = False
    prepared: bytes = b""

    @property
    def maximum(self) -> LogicalOffset:
        """The end of the logical queue."""
        return self.leader.offset_max

    def to_logical(self, offset: PhysicalOffset) -> LogicalOffset:
        """Return an offset of the segment's physical queue as clients see it."""
        return offset + self.delta  # type: ignore[return-value]  # Every pull converts: a NewType is a call.

    def to_physical(self, offset: LogicalOffset) -> PhysicalOffset:
        """Return a logical offset as the segment's physical queue counts, which may lie outside of the segment."""
        return offset - self.delta  # type: ignore[return-value]

    def limit_count(self, count: int, offset: PhysicalOffset) -> int:
        """Return how many messages to read from *offset* on: at most *count*, and none after the segment, but one."""
        return count if self.end is None else max(1, min(count, self.end - offset))


class Puller(msgspec.Struct, frozen=True):
    """The connection that pulls, and its header encoding.

    Attributes:
        sender: Who pulls; None if access control is off.
    """

    channel: ChannelId
    serializer: int
    sender: Identity | None = None


class PullContext(msgspec.Struct, frozen=True):
    """A pull, and the lens for its answer.

    Attributes:
        lens: None for a physical queue.
        channel: The connection that pulls, for a logical queue.
        is_segment: Another broker reads a segment of a logical queue, as a physical queue.
    """

    header: PullHeader
    serializer: int
    lens: Lens | None = None
    channel: ChannelId = _NO_CHANNEL
    is_segment: bool = False

    def to_logical(self, offset: PhysicalOffset) -> LogicalOffset:
        """Return an offset of the physical queue as the reader sees it."""
        lens = self.lens
        return offset if lens is None else offset + lens.delta  # type: ignore[return-value]


@final
class EmptyScan(msgspec.Struct, frozen=True):
    """A scan that found no messages for the reader.

    Attributes:
        is_open_end: The scan reached the end of the queue, so the pull may be parked on this physical queue.
    """

    index: QueueIndex
    pull: PullContext
    scan: Scan
    is_open_end: bool


ReadResult = EmptyScan | list[Piece] | Steps[list[Piece]]
"""The answer; steps that end in it; or a scan that found nothing, so that the pull may be parked."""


class PhysicalPullReader:
    """Reads physical queues for pulls.

    Attributes:
        on_answered: Called with every answered pull and the next offset of its reader.
    """

    def __init__(
        self,
        options: BrokerOptions,
        store: MessageStore,
        stats: BrokerStats,
        batch_cache: BatchCache,
        delivered_ranges: DeliveredRanges,
        pressure: MemoryPressure,
        on_answered: Callable[[PullContext, LogicalOffset], None] = lambda _asked, _next_offset: None,
    ) -> None:
        self._count_limit = options.pull_count_max
        self._size_default, self._size_limit = options.pull_size_default, options.pull_size_max
        self._is_replica = options.is_replica
        self._pressure_threshold = options.memory_limit // _PRESSURE_FRACTION
        self._pressure = pressure  # While it is high, answers are small: large ones that wait would stop senders.
        self._store = store
        self._batch_cache = batch_cache
        self._delivered_ranges = delivered_ranges
        self._stats = stats
        self.on_answered = on_answered

    def read(
        self, pull: PullContext, queue: QueueIndex, offset: PhysicalOffset, codes: frozenset[int] | None
    ) -> ReadResult:
        """Read a physical queue from *offset* on."""
        if offset < queue.hot_offset and self.is_cold(pull, queue, offset, codes):
            return self.read_cold(pull, queue, offset, codes)
        scan = self.scan(pull, queue, offset, codes)
        return self.respond(pull, queue, scan) if scan.positions else EmptyScan(queue, pull, scan, is_open_end=True)

    def is_cold(
        self, pull: PullContext, queue: QueueIndex, offset: PhysicalOffset, codes: frozenset[int] | None
    ) -> bool:
        """Return whether index entries from *offset* on may be absent from memory."""
        return queue.is_cold(offset, self._count_entries(pull, offset, codes))

    def scan(self, pull: PullContext, queue: QueueIndex, offset: PhysicalOffset, codes: frozenset[int] | None) -> Scan:
        """Scan the index from *offset* on."""
        if not queue.offset_min <= offset < queue.offset_max:
            return self._scan_outside(offset, PhysicalOffset(queue.offset_min), PhysicalOffset(queue.offset_max))
        entries = queue.read_range(offset, self._count_entries(pull, offset, codes))
        return self._choose(entries, pull.header.fields, offset, codes)

    def _scan_outside(self, offset: PhysicalOffset, offset_min: PhysicalOffset, offset_max: PhysicalOffset) -> Scan:
        """Return what a reader gets at an offset that no message has: wait for the next one, or move."""
        if offset_max == 0:
            if offset == 0 or (self._is_replica and offset > 0):
                return Scan(ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE", offset)
            return Scan(ResponseCode.PULL_OFFSET_MOVED, "NO_MESSAGE_IN_QUEUE", PhysicalOffset(0))
        if offset < offset_min:
            return Scan(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", offset_min)
        if offset == offset_max:
            return Scan(ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", offset)
        if offset > offset_max and self._is_replica:
            # The master may have more messages: a replica that lags must not move a reader back.
            return Scan(ResponseCode.PULL_NOT_FOUND, "NOT_YET_HERE", offset)
        return Scan(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", offset_max)

    def read_cold(
        self, pull: PullContext, queue: QueueIndex, offset: PhysicalOffset, codes: frozenset[int] | None
    ) -> Steps[list[Piece]]:
        """Answer a pull whose index entries are cold."""
        return answer_failure(self._read_cold(pull, queue, offset, codes), pull)

    async def _read_cold(
        self, pull: PullContext, queue: QueueIndex, offset: PhysicalOffset, codes: frozenset[int] | None
    ) -> list[Piece]:
        entries = await queue.fetch_range(offset, self._count_entries(pull, offset, codes), ahead=_READ_AHEAD)
        if not entries[0]:
            scan = Scan(ResponseCode.PULL_RETRY_IMMEDIATELY, "MESSAGE_WAS_REMOVING", PhysicalOffset(queue.offset_min))
            self._stats.count_miss()
            return [self.head(pull, queue, scan)]
        answer = self.respond(pull, queue, self._choose(entries, pull.header.fields, offset, codes))
        return answer if isinstance(answer, list) else await answer

    def _count_entries(self, pull: PullContext, offset: PhysicalOffset, codes: frozenset[int] | None) -> int:
        """Return how many messages to scan in the index."""
        count = self._count_max(pull.header.fields)
        count = count if codes is None else max(count, _SCAN_MAX)
        lens = pull.lens
        return count if lens is None or lens.end is None else lens.limit_count(count, offset)

    def _choose(
        self, entries: EntryRange, fields: PullFields, offset: PhysicalOffset, codes: frozenset[int] | None
    ) -> Scan:
        """Choose from the index entries of *entries*, which begin at *offset*."""
        raw, spans = entries
        size_max = self._size_max(fields)
        if spans is None and codes is None:
            return choose_any(raw, offset, size_max, self._store.hot_view)
        count = self._count_max(fields)
        if spans is not None:
            return choose_records(raw, spans, offset, count, size_max, codes)
        assert codes is not None
        return choose_tagged(raw, offset, count, size_max, codes)

    def _count_max(self, fields: PullFields) -> int:
        count = fields.max_msg_nums
        if 0 < count <= self._count_limit:  # As nearly always: cheaper than `min` and `max`.
            return count
        return self._count_limit if count > 0 else 1

    def _size_max(self, fields: PullFields) -> int:
        size = min(fields.max_msg_bytes or self._size_default, self._size_limit)
        return size if self._pressure.held < self._pressure_threshold else min(size, _SIZE_UNDER_PRESSURE)

    def respond(self, pull: PullContext, queue: QueueIndex, scan: Scan) -> list[Piece] | Steps[list[Piece]]:
        """Answer with the records of a scan, at once or after the cold ones were fetched."""
        if queue.accepts_batches and scan.positions:
            batch_support = pull.header.batch_support
            if batch_support is BatchSupport.NONE or (batch_support is BatchSupport.ALL and scan.first < scan.start):
                return answer_failure(self._respond_split(pull, queue, scan), pull)
        lens = pull.lens
        self.on_answered(pull, pull.to_logical(scan.next_offset))
        if not scan.positions:
            self._stats.count_miss()
            return [self.head(pull, queue, scan)]
        fields = pull.header.fields
        self._stats.count_gets(fields.consumer_group, fields.topic, scan.count, scan.size)
        head = self.head(pull, queue, scan)
        span = scan.span or self._find_span(scan)
        if span is None:
            return answer_failure(self._fetch(pull, queue, scan), pull)
        if len(span) == scan.size:
            return [head, span] if lens is None else [head, *self.rewrite_for_reader(pull, [span])]
        records = _slice_records(span, scan)
        if len(records) * _RUN_SIZE_MIN > scan.size:  # Many small views cost more than a copy.
            records = [b"".join(records)]
        # A damaged index names positions outside the span: then fetch each record alone.
        if sum(map(len, records)) != scan.size:
            return answer_failure(self._fetch(pull, queue, scan), pull)
        return [head, *records] if lens is None else [head, *self.rewrite_for_reader(pull, records)]

    def _find_span(self, scan: Scan) -> memoryview | None:
        """Return the log bytes from the first record of a scan to the last, or None if they are cold."""
        first = scan.positions[0]
        return self._store.hot_view(first, scan.positions[-1] + scan.sizes[-1] - first)

    async def _fetch(self, pull: PullContext, queue: QueueIndex, scan: Scan) -> list[Piece]:
        """Answer a pull whose records are cold: read them in a few large pieces, off the loop."""
        parts: list[Piece] = []
        missing = "MESSAGE_IS_DAMAGED"
        for read, ranges in _plan_reads(scan, self._store.log_file_size):
            try:
                data = await read
            except CorruptRecord:
                parts += await _fetch_separately(ranges)
                continue
            for position, size in ranges:
                part = data[position - read.position : position - read.position + size]
                # Short if retention is deleting the record, or if a damaged index names it: the reader skips it.
                if len(part) == size:
                    parts.append(part)
                else:
                    missing = "MESSAGE_WAS_REMOVING"
        scan.size = sum(map(len, parts))
        # A queue that lost its end or all of its messages meanwhile will assign these offsets again.
        scan.next_offset = min(scan.next_offset, PhysicalOffset(queue.offset_max))
        if not parts:
            scan.code, scan.remark = ResponseCode.PULL_RETRY_IMMEDIATELY, missing
        return [self.head(pull, queue, scan), *self.rewrite_for_reader(pull, parts)]

    async def _respond_split(self, pull: PullContext, queue: QueueIndex, scan: Scan) -> list[Piece]:
        """Answer with single messages. A reader that opens batches gets the rest of one, and whole ones after it."""
        fields, lens = pull.header.fields, pull.lens
        is_rest = pull.header.batch_support is not BatchSupport.NONE
        limits = ReadLimits(
            count=COUNT_MAX if is_rest else self._count_max(fields),
            size=self._size_max(fields),
            end=queue.offset_max if lens is None or lens.end is None else lens.end,
            codes=scan.codes,
            inspected=COUNT_MAX if is_rest else self._count_entries(pull, PhysicalOffset(scan.start), scan.codes),
            records=1 if is_rest else COUNT_MAX,
        )
        messages = await read_single_messages(self._batch_cache, queue, scan.start, limits)
        next_offset = PhysicalOffset(min(messages.next_offset, queue.offset_max))
        found = Scan(ResponseCode.SUCCESS, "FOUND", next_offset, size=messages.size, count=messages.count)
        self.on_answered(pull, pull.to_logical(found.next_offset))
        if messages.pieces:
            self._stats.count_gets(fields.consumer_group, fields.topic, messages.count, messages.size)
        else:
            found.code, found.remark = ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE"
            self._stats.count_miss()
        is_few = len(messages.pieces) * _RUN_SIZE_MIN <= messages.size
        pieces: list[Piece] = messages.pieces if is_few else [b"".join(messages.pieces)]
        return [self.head(pull, queue, found), *self.rewrite_for_reader(pull, pieces)]

    def rewrite_for_reader(self, pull: PullContext, pieces: list[Piece]) -> list[Piece]:
        """Return records in the form that their reader understands.

        A reader without delta support gets logical offsets in the records. It may not know which broker's log they come
        from either, so note that.
        """
        lens = pull.lens
        if lens is None or not lens.rewrites_offsets or not pieces:
            return pieces
        records, last = rewrite_offsets(pieces, lens.queue, lens.delta)
        fields = pull.header.fields
        self._delivered_ranges.add(pull.channel, fields.consumer_group, fields.topic, records, last)
        return [records]

    @staticmethod
    def head(pull: PullContext, queue: QueueIndex, scan: Scan) -> bytes:
        """Return the part of an answer before its records."""
        lens, opaque = pull.lens, pull.header.opaque
        if lens is None:
            offsets = (scan.next_offset, queue.offset_min, queue.offset_max)
            return pull_answer_head(pull.serializer, opaque, scan.code, scan.remark, offsets, scan.size)
        next_offset = lens.to_logical(scan.next_offset)
        if pull.serializer != JSON or not lens.prepared:
            return logical_head(pull, lens, scan.code, scan.remark, next_offset, scan.size)
        end = lens.leader.offset_max
        return prepared_answer_head(lens.prepared, opaque, scan.code, scan.remark, next_offset, end, scan.size)


def _slice_records(span: memoryview, scan: Scan) -> list[Piece]:
    """Return the records of a scan as views of *span*, with contiguous records as one view."""
    positions, sizes = scan.positions, scan.sizes
    first = positions[0]
    if begins_with_run(positions, sizes):
        return [span[start - first : end - first] for start, end in join_neighbours(positions, sizes)]
    if size := scan.common_size:
        return [span[(at := position - first) : at + size] for position in positions]
    return [span[(at := position - first) : at + size] for position, size in zip(positions, sizes, strict=True)]


def logical_head(
    pull: PullContext, lens: Lens, code: int, remark: str, next_offset: LogicalOffset, size: int = 0
) -> bytes:
    """Return the part of an answer before its records, for a logical queue."""
    offsets = (next_offset, lens.minimum, lens.maximum)
    delta = 0 if lens.rewrites_offsets else lens.delta
    return pull_answer_head(pull.serializer, pull.header.opaque, code, remark, offsets, size, delta)


async def _fetch_separately(ranges: list[Range]) -> list[Piece]:
    """Return the undamaged records of a read that hit a damaged one.

    The damaged record may belong to another queue. Damaged records are logged, as in recovery, and skipped, because a
    refused consumer would retry forever.
    """
    undamaged: list[Piece] = []
    for position, size in ranges:
        try:
            data = await LogRange(position, size)
        except CorruptRecord:
            continue
        if len(data) == size:
            undamaged.append(data)
    return undamaged


def _plan_reads(scan: Scan, file_size: int) -> list[tuple[LogRange, list[Range]]]:
    """Plan the reads of cold records: nearby records in one read, but never across the end of a log file."""
    reads: list[tuple[LogRange, list[Range]]] = []
    for position, size in zip(scan.positions, scan.sizes, strict=True):
        if reads:
            read, members = reads[-1]
            is_near = position - (read.position + read.size) <= _GAP_MAX
            if is_near and position // file_size == read.position // file_size:
                members.append((position, size))
                reads[-1] = (LogRange(read.position, position + size - read.position), members)
                continue
        reads.append((LogRange(position, size), [(position, size)]))
    return reads


async def answer_failure(steps: Steps[list[Piece]], pull: PullContext) -> list[Piece]:
    """Run *steps*; if they fail, answer with an error, so that the reader retries instead of waiting forever."""
    try:
        return await steps
    except (CorruptRecord, DiskFailed) as error:
        return [refuse(Refusal(ResponseCode.SYSTEM_ERROR, str(error)), pull.header.opaque, pull.serializer)]


def refuse(refusal: Refusal, opaque: int, serializer: int) -> bytes:
    """Return the encoded refusal of a pull."""
    return encode_command(
        Command(code=refusal.code, opaque=opaque, flag=RESPONSE, remark=refusal.remark, serializer=serializer)
    )
