"""Handing messages out: 11 and 361.

    request ─> may this group read this queue? ─> scan the index ─┬─ nothing new ─> parked (`holds.py`), or told so
                                                                  ├─ hot records ─> views of the log, one answer
                                                                  └─ cold records ─> steps: a reader thread fetches them

The broker never opens a record here: the body of an answer is log bytes. Adjacent records leave as one view; scattered
ones are joined, because many small pieces cost more than one copy (docs/performance.md).
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Final

import msgspec

from holdfast.broker.clients import ClientTable
from holdfast.broker.groups import GroupTable
from holdfast.broker.holds import Hold, Holds
from holdfast.broker.offsets import OffsetTable
from holdfast.broker.options import BrokerOptions
from holdfast.broker.request import LogRange, Refusal, Steps
from holdfast.broker.stats import BrokerStats
from holdfast.broker.topics import TopicTable
from holdfast.machine.effects import Piece
from holdfast.machine.events import ChannelId
from holdfast.model.errors import CorruptRecord, DiskFailed
from holdfast.model.filter import is_tag_type, parse_tags, wanted_codes
from holdfast.model.topic import Permission
from holdfast.store.consume_queue import QueueLog
from holdfast.store.message_store import MessageStore
from holdfast.wire.codes import ResponseCode
from holdfast.wire.command import RESPONSE, Command, encode_command
from holdfast.wire.frame import FRAME_SIZE_MAX
from holdfast.wire.pull import COMMIT_OFFSET, SUBSCRIPTION, SUSPEND, PullFields, PullHeader, pull_answer_head
from holdfast.wire.record import RECORD_SIZE_MIN

SUSPEND_MAX_MS: Final = 5 * 60 * 1000  # Whoever wants to wait longer asks again: nobody parks a pull for ever.
_SCAN_MAX: Final = 800  # index entries looked at for one answer when a filter lets few of them through
_AHEAD: Final = 6400  # index entries read ahead when they are cold: as many as the kernel would
_EXPRESSION_KEPT_MAX: Final = 1024
_GAP_MAX: Final = 64 * 1024  # what lies between two cold ranges is read too when it is not larger than this

Range = tuple[int, int]
"""(position, size) of a record."""

Pulled = list[Piece] | Steps[list[Piece]] | None
"""The answer; steps that end in it; None when the pull was parked."""


class _Scan(msgspec.Struct, gc=False):
    """What an index scan found.

    Attributes:
        next_offset: Where to pull next, if not parked.
        size: Sum of the records' sizes.
    """

    code: int
    remark: str
    next_offset: int
    positions: Sequence[int] = ()
    sizes: Sequence[int] = ()
    size: int = 0


class Puller(msgspec.Struct, frozen=True):
    """Who pulls."""

    channel: ChannelId
    serializer: int
    now_ms: int


class Pulls:
    """The broker's exit."""

    def __init__(
        self,
        options: BrokerOptions,
        store: MessageStore,
        topics: TopicTable,
        groups: GroupTable,
        clients: ClientTable,
        offsets: OffsetTable,
        stats: BrokerStats,
    ) -> None:
        self._options = options
        self._store = store
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._offsets = offsets
        self._stats = stats
        self.holds: Holds[QueueLog] = Holds()

    def take(self, header: PullHeader, puller: Puller) -> Pulled:
        """Answer a pull, or park it until there is something to say."""
        fields = header.fields
        codes = self._admit(fields, puller.now_ms)
        if isinstance(codes, Refusal):
            return [_refuse(codes, header.opaque, puller.serializer)]
        if fields.sys_flag & COMMIT_OFFSET and fields.commit_offset >= 0:
            self._offsets.commit(fields.consumer_group, fields.topic, fields.queue_id, fields.commit_offset)
        queue = self._store.queue(fields.topic, fields.queue_id)
        reset = self._offsets.reset_pending(fields.consumer_group, fields.topic, fields.queue_id, fields.queue_offset)
        if reset is not None:
            moved = _Scan(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", reset)
            return [self._head(header, puller.serializer, queue, moved)]
        if fields.queue_offset < queue.hot_offset and queue.is_cold(
            fields.queue_offset, self._count_entries(fields, codes)
        ):
            return _tell_failure(self._take_cold(header, puller.serializer, queue, codes), header, puller.serializer)
        scan = self._scan(queue, fields, fields.queue_offset, codes)
        if scan.code == ResponseCode.PULL_NOT_FOUND and fields.sys_flag & SUSPEND and self._may_park(fields):
            deadline_ms = puller.now_ms + min(fields.suspend_timeout_millis, SUSPEND_MAX_MS)
            self.holds.park(
                queue, Hold(puller.channel, puller.serializer, header, deadline_ms, scan_from=fields.queue_offset)
            )
            return None
        return self._respond(header, puller.serializer, queue, scan)

    def put_off(self, header: PullHeader, serializer: int) -> bytes:
        """Return the answer to a pull that came with too many others: ask again, for the same."""
        offset = header.fields.queue_offset
        offsets = (offset, 0, offset)
        remark = "TOO_MANY_PULLS_AT_ONCE"
        return pull_answer_head(serializer, header.opaque, ResponseCode.PULL_RETRY_IMMEDIATELY, remark, offsets, 0)

    def retry(self, queue: QueueLog, hold: Hold, *, final: bool) -> Pulled:
        """Look again for a parked pull; park it again when there is nothing for it and this is not its last look."""
        fields = hold.header.fields
        codes = self._admit(fields, 0)
        if isinstance(codes, Refusal):
            return [_refuse(codes, hold.header.opaque, hold.serializer)]
        reset = self._offsets.reset_pending(fields.consumer_group, fields.topic, fields.queue_id, fields.queue_offset)
        if reset is not None:
            moved = _Scan(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", reset)
            return [self._head(hold.header, hold.serializer, queue, moved)]
        scan = self._scan(queue, fields, hold.scan_from, codes)
        nothing = scan.code in {ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY}
        if nothing and not final:
            hold.scan_from = scan.next_offset
            hold.gone = False
            self.holds.park(queue, hold)
            return None
        if nothing and scan.next_offset > fields.queue_offset:
            # Everything up to here was looked at and did not match: the client need not ask for it again.
            scan.code, scan.remark = ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE"
        return self._respond(hold.header, hold.serializer, queue, scan)

    def _may_park(self, fields: PullFields) -> bool:
        return fields.suspend_timeout_millis > 0 and len(self.holds) < self._options.parked_pulls_max

    def _admit(self, fields: PullFields, now_ms: int) -> frozenset[int] | Refusal | None:
        """Return the tag hashes that the puller wants (None: all of them), or why it may not pull."""
        group = self._groups.ensure(fields.consumer_group, now_ms)
        if isinstance(group, Refusal):
            return group
        if not group.consume_enable:
            return Refusal(ResponseCode.NO_PERMISSION, f"consumer group {fields.consumer_group} may not consume")
        topic = self._topics.find(fields.topic)
        if topic is None:
            return Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{fields.topic}] not exist, apply first please!")
        if not topic.permission & Permission.READ:
            return Refusal(ResponseCode.NO_PERMISSION, f"topic {fields.topic} may not be read")
        if topic.has_batch_index:
            return Refusal(
                ResponseCode.NO_PERMISSION, f"topic {fields.topic} has a batch index, which cannot be read yet"
            )
        if not 0 <= fields.queue_id < topic.read_queues:
            return Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{fields.queue_id}] is illegal, topic:[{fields.topic}] topicConfig.readQueueNums:"
                f"[{topic.read_queues}] consumer:[{fields.consumer_group}]",
            )
        if fields.sys_flag & SUBSCRIPTION:
            if not is_tag_type(fields.expression_type):
                return Refusal(ResponseCode.SYSTEM_ERROR, "only TAG subscriptions are supported, not SQL92")
            expression = fields.subscription or ""
            # Only what many pulls may share is worth keeping, and a stranger's megabytes are not.
            read = _codes_of_text if len(expression) <= _EXPRESSION_KEPT_MAX else _codes_of_text.__wrapped__
            return read(fields.topic, expression)
        subscription = self._clients.subscription(fields.consumer_group, fields.topic)
        if subscription is None:
            return Refusal(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"consumer group {fields.consumer_group} has not subscribed to {fields.topic}",
            )
        return wanted_codes(subscription)

    def _scan(self, queue: QueueLog, fields: PullFields, offset: int, codes: frozenset[int] | None) -> _Scan:
        """Look at the index from *offset* on."""
        offset_min, offset_max = queue.offset_min, queue.offset_max
        if offset_max == 0:
            if offset == 0:
                return _Scan(ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE", 0)
            return _Scan(ResponseCode.PULL_OFFSET_MOVED, "NO_MESSAGE_IN_QUEUE", 0)
        if offset < offset_min:
            return _Scan(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", offset_min)
        if offset == offset_max:
            return _Scan(ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", offset)
        if offset > offset_max:
            return _Scan(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", offset_max)
        return self._choose(queue.raw_entries(offset, self._count_entries(fields, codes)), fields, offset, codes)

    def _take_cold(
        self, header: PullHeader, serializer: int, queue: QueueLog, codes: frozenset[int] | None
    ) -> Steps[list[Piece]]:
        """Answer a pull whose index entries are cold."""
        fields = header.fields
        offset = fields.queue_offset
        raw = yield from queue.fetch_entries(offset, self._count_entries(fields, codes), ahead=_AHEAD)
        if not raw:
            scan = _Scan(ResponseCode.PULL_RETRY_IMMEDIATELY, "MESSAGE_WAS_REMOVING", queue.offset_min)
            return [self._head(header, serializer, queue, scan)]
        answer = self._respond(header, serializer, queue, self._choose(raw, fields, offset, codes))
        assert answer is not None, "there are entries, so nothing is parked"
        return answer if isinstance(answer, list) else (yield from answer)

    def _count_entries(self, fields: PullFields, codes: frozenset[int] | None) -> int:
        """Return how many entries to look at."""
        count = max(1, min(fields.max_msg_nums, self._options.pull_count_max))
        return count if codes is None else max(count, _SCAN_MAX)

    def _choose(self, raw: bytes | bytearray, fields: PullFields, offset: int, codes: frozenset[int] | None) -> _Scan:
        """Choose from index entries, which begin at *offset*."""
        options = self._options
        count = max(1, min(fields.max_msg_nums, options.pull_count_max))
        size_max = min(fields.max_msg_bytes or options.pull_size_default, options.pull_size_max)
        flat = _unpacker(len(raw) // 20)(raw)
        positions, sizes = flat[0::3], flat[1::3]
        # A blank says that it is larger than any record; a damaged index may say anything.
        if codes is not None or max(sizes) > FRAME_SIZE_MAX or min(sizes) < RECORD_SIZE_MIN:
            return _select(offset, positions, sizes, flat[2::3], codes, count, size_max)
        total = sum(sizes)
        if total > size_max:
            taken = max(1, bisect_right(list(accumulate(sizes)), size_max))
            positions, sizes = positions[:taken], sizes[:taken]
            total = sum(sizes)
        return _Scan(ResponseCode.SUCCESS, "FOUND", offset + len(positions), positions, sizes, total)

    def _respond(self, header: PullHeader, serializer: int, queue: QueueLog, scan: _Scan) -> Pulled:
        head = self._head(header, serializer, queue, scan)
        positions, sizes = scan.positions, scan.sizes
        if not positions:
            return [head]
        self._stats.count_gets(header.fields.consumer_group, header.fields.topic, len(positions), scan.size)
        first = positions[0]
        span_size = positions[-1] + sizes[-1] - first
        span = self._store.hot_view(first, span_size)
        if span is None:
            return _tell_failure(self._fetch(header, serializer, queue, scan), header, serializer)
        if span_size == scan.size:
            return [head, span]
        pairs = zip(positions, sizes, strict=True)
        return [head, b"".join([span[position - first : position - first + size] for position, size in pairs])]

    def _fetch(self, header: PullHeader, serializer: int, queue: QueueLog, scan: _Scan) -> Steps[list[Piece]]:
        """Answer a pull whose records are cold: read them in few large pieces, off the loop."""
        parts: list[Piece] = []
        for read, ranges in _reads(scan, self._store.log_file_size):
            try:
                data = yield read
            except CorruptRecord:
                parts += yield from _fetch_apart(ranges)
                continue
            for position, size in ranges:
                part = data[position - read.position : position - read.position + size]
                if len(part) < size:
                    gone = _Scan(ResponseCode.PULL_RETRY_IMMEDIATELY, "MESSAGE_WAS_REMOVING", queue.offset_min)
                    return [self._head(header, serializer, queue, gone)]
                parts.append(part)
        scan.size = sum(map(len, parts))
        if not parts:
            scan.code, scan.remark = ResponseCode.PULL_RETRY_IMMEDIATELY, "MESSAGE_IS_DAMAGED"
        return [self._head(header, serializer, queue, scan), *parts]

    def _head(self, header: PullHeader, serializer: int, queue: QueueLog, scan: _Scan) -> bytes:
        offsets = (scan.next_offset, queue.offset_min, queue.offset_max)
        return pull_answer_head(serializer, header.opaque, scan.code, scan.remark, offsets, scan.size)


@lru_cache(maxsize=4096)
def _unpacker(count: int):  # type: ignore[no-untyped-def] # noqa: ANN202 - the bound method of a Struct has no name
    """Return what unpacks *count* index entries at once, to one flat tuple: several times faster than one by one."""
    return struct.Struct(">" + "qiq" * count).unpack


@lru_cache(maxsize=1024)
def _codes_of_text(topic: str, expression: str) -> frozenset[int] | None:
    return wanted_codes(parse_tags(topic, expression))


def _fetch_apart(ranges: list[Range]) -> Steps[list[Piece]]:
    """Return the records of a read that met a damaged one, without those that are damaged.

    The damaged one may be of another queue. A consumer that is refused asks again for ever: it is told about in the
    log, as recovery tells, and passed.
    """
    whole: list[Piece] = []
    for position, size in ranges:
        try:
            data = yield LogRange(position, size)
        except CorruptRecord:
            continue
        if len(data) == size:
            whole.append(data)
    return whole


def _reads(scan: _Scan, file_size: int) -> list[tuple[LogRange, list[Range]]]:
    """Return what to read for cold records: near ones together, never across the end of a log file."""
    reads: list[tuple[LogRange, list[Range]]] = []
    for position, size in zip(scan.positions, scan.sizes, strict=True):
        if reads:
            read, members = reads[-1]
            near = position - (read.position + read.size) <= _GAP_MAX
            if near and position // file_size == read.position // file_size:
                members.append((position, size))
                reads[-1] = (LogRange(read.position, position + size - read.position), members)
                continue
        reads.append((LogRange(position, size), [(position, size)]))
    return reads


def _select(
    offset: int,
    positions: Sequence[int],
    sizes: Sequence[int],
    tags: Sequence[int],
    codes: frozenset[int] | None,
    count_max: int,
    size_max: int,
) -> _Scan:
    """Return the entries that match, up to the limits; offsets without a message never match."""
    chosen: list[int] = []
    total = 0
    looked_at = 0
    for at, (size, tag) in enumerate(zip(sizes, tags, strict=True)):
        if RECORD_SIZE_MIN <= size <= FRAME_SIZE_MAX and (codes is None or tag in codes):
            if len(chosen) == count_max or (chosen and total + size > size_max):
                break
            chosen.append(at)
            total += size
        looked_at = at + 1
    if not chosen:
        return _Scan(ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE", offset + looked_at)
    return _Scan(
        ResponseCode.SUCCESS,
        "FOUND",
        offset + looked_at,
        [positions[at] for at in chosen],
        [sizes[at] for at in chosen],
        total,
    )


def _tell_failure(steps: Steps[list[Piece]], header: PullHeader, serializer: int) -> Steps[list[Piece]]:
    """Take *steps*; when they fail the puller is told, and asks again later: nobody shall wait for ever."""
    try:
        return (yield from steps)
    except (CorruptRecord, DiskFailed) as error:
        return [_refuse(Refusal(ResponseCode.SYSTEM_ERROR, str(error)), header.opaque, serializer)]


def _refuse(refusal: Refusal, opaque: int, serializer: int) -> bytes:
    return encode_command(
        Command(code=refusal.code, opaque=opaque, flag=RESPONSE, remark=refusal.remark, serializer=serializer)
    )
