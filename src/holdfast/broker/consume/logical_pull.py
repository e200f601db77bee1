"""Pulls of logical queues, at their leader.

offset ─> the segment that holds it ─┬─ here ─> the index of its physical queue, seen through a lens
                                     └─ elsewhere ─> pulled from its broker, and its records relayed unchanged

past a sealed end             the next segment, in the same answer if that segment is here
past an end never recorded    the next segment, as in RocketMQ: Java's tools stop a queue before they remap it
past a forced, unknown end    an error that names the broker: messages that it accepted may still come
below the lowest offset       PULL_OFFSET_MOVED at the oldest segment, PULL_RETRY_IMMEDIATELY at any other
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.broker.consume.index_scan import Scan
from holdfast.broker.consume.physical_pull import (
    EmptyScan,
    Lens,
    PhysicalPullReader,
    PullContext,
    Puller,
    ReadResult,
    logical_head,
    refuse,
)
from holdfast.broker.flow.awaitables import Pause
from holdfast.broker.flow.request import Refusal
from holdfast.broker.mapping.queue_view import AppendTarget, Queues, QueueView
from holdfast.broker.tables.clients import ClientTable
from holdfast.broker.tables.stats import BrokerStats
from holdfast.machine.effects import Piece
from holdfast.model.errors import PeerFailed
from holdfast.model.mapping import LogicalQueue, Segment
from holdfast.model.numbers import parse_count
from holdfast.model.queue import LogicalOffset, PhysicalOffset
from holdfast.store.queues.queue_index import QueueIndex
from holdfast.wire.cluster.route import is_mapping_aware
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.requests.pull import SUBSCRIPTION, PullFields, PullHeader, prepare_answer

_UNCONFIRMED_PAUSE_MS: Final = 200  # between pulls from a broker that has yet to confirm the messages it sealed

Codes = frozenset[int] | None


class LedQueue(msgspec.Struct):
    """A logical queue that is led here, prepared for many pulls. Valid until mappings change.

    Attributes:
        view: The queue.
        queue: Its segments.
        leader: The segment at its end.
        first: The first logical offset of its leader segment.
        is_sealed: The leader segment has an end.
        end: The physical queue at its end.
        own_indexes: All physical queues here that clients may read as segments of it.
        lens: How its end looks to readers. Includes the lowest offset, so it is rebuilt when `seen_lowest` or
            `seen_minimums_version` changes.
        rewriting_lens: The lens for readers without delta support.
        seen_lowest: Sum of the lowest offsets of `own_indexes` when the lenses were built.
        seen_minimums_version: How many minimum offsets other brokers had reported when the lenses were built.
    """

    view: QueueView
    queue: LogicalQueue
    leader: Segment
    first: LogicalOffset
    is_sealed: bool
    end: AppendTarget
    own_indexes: list[QueueIndex]
    lens: Lens
    rewriting_lens: Lens
    seen_lowest: int | None = None
    seen_minimums_version: int | None = None


class LogicalPullReader:
    """Reads logical queues for pulls."""

    def __init__(
        self,
        queues: Queues,
        reader: PhysicalPullReader,
        clients: ClientTable,
        stats: BrokerStats,
    ) -> None:
        self._name = queues.mappings.broker
        self._store = queues.store
        self._queues = queues
        self._segment_queries = queues.segments
        self._reader = reader
        self._clients = clients
        self._stats = stats

    def read(
        self, led: LedQueue, header: PullHeader, puller: Puller, offset: LogicalOffset, codes: Codes
    ) -> ReadResult:
        """Read a logical queue from *offset* on."""
        if offset >= led.first:  # Nearly every reader is near the end.
            if led.is_sealed and offset > led.leader.static_max:
                # Sealed here, but the reader is past the end: the next leader is open, which this broker has yet to
                # learn.
                return self.refuse(header, puller.serializer)
            pull, segment, index = self._with_lens(header, puller, led), led.leader, led.end.index
        else:
            segment, offset = self._locate(led, offset)
            pull = self._with_older_lens(header, puller, led, segment)
            if segment.broker != self._name:
                return self._pull_remote(pull, led.queue, segment, offset)
            index = self._store.queue(header.fields.topic, segment.queue_id)
        assert pull.lens is not None
        physical = pull.lens.to_physical(offset)
        result = self._reader.read(pull, index, physical, codes)
        return result if type(result) is not EmptyScan else self._continue_from(result, led, segment, physical, codes)

    @staticmethod
    def _locate(led: LedQueue, offset: LogicalOffset) -> tuple[Segment, LogicalOffset]:
        """Return the segment that holds *offset*, or the next one and its start if no message ever had that offset."""
        segment = led.queue.locate(offset)
        assert segment is not None, "a queue that is led has a decided segment"
        is_past = segment.logical_end is not None and offset >= segment.logical_end
        following = led.queue.segment_after(segment) if is_past else None
        return (segment, offset) if following is None else (following, following.decided_first)

    def redirect(self, led: LedQueue, header: PullHeader, puller: Puller, offset: LogicalOffset) -> list[Piece]:
        """Return the answer that moves a reader to another offset."""
        pull = self._with_lens(header, puller, led)
        assert pull.lens is not None
        return [logical_head(pull, pull.lens, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", offset)]

    def refuse(self, header: PullHeader, serializer: int) -> list[Piece]:
        """Return the refusal of a pull of a queue that is not led here."""
        fields = header.fields
        return [refuse(self._queues.refuse(fields.topic, fields.queue_id), header.opaque, serializer)]

    def make_led(self, view: QueueView) -> LedQueue:
        """Return a logical queue that is led here, prepared for many pulls."""
        queue, leader = view.queue, view.queue.leader
        own = [segment for segment in queue.readable if segment.broker == self._name]
        end = AppendTarget(self._store.queue(view.topic, leader.queue_id), leader.delta)
        return LedQueue(
            view,
            queue,
            leader,
            leader.decided_first,
            leader.is_sealed,
            end,
            [self._store.queue(view.topic, segment.queue_id) for segment in own],
            *self._make_lenses(view, end),
        )

    def _with_lens(self, header: PullHeader, puller: Puller, led: LedQueue) -> PullContext:
        """Return a pull with the lens for the end of the queue."""
        own_indexes, segment_queries, fields = led.own_indexes, self._segment_queries, header.fields
        lowest = (
            own_indexes[0].offset_min if len(own_indexes) == 1 else sum([index.offset_min for index in own_indexes])
        )
        if lowest != led.seen_lowest or segment_queries.minimums_version != led.seen_minimums_version:
            led.seen_lowest, led.seen_minimums_version = lowest, segment_queries.minimums_version
            led.lens, led.rewriting_lens = self._make_lenses(led.view, led.end)
        is_aware = fields.reads_mappings or is_mapping_aware(header.language, header.version)
        return PullContext(header, puller.serializer, led.lens if is_aware else led.rewriting_lens, puller.channel)

    def _with_older_lens(self, header: PullHeader, puller: Puller, led: LedQueue, segment: Segment) -> PullContext:
        """Return a pull with the lens for a segment before the leader."""
        pull = self._with_lens(header, puller, led)
        assert pull.lens is not None
        lens = msgspec.structs.replace(pull.lens, delta=segment.delta, end=segment.end, prepared=b"")
        return PullContext(header, puller.serializer, lens, puller.channel)

    @staticmethod
    def _make_lenses(view: QueueView, end: AppendTarget) -> tuple[Lens, Lens]:
        """Return the lenses of the end of a queue: for readers with delta support, and for the others."""
        minimum, delta = view.offset_min, end.delta
        lens = Lens(view.number, delta, minimum, end, view.queue.leader.end, prepared=prepare_answer(minimum, delta))
        return lens, msgspec.structs.replace(lens, rewrites_offsets=True, prepared=prepare_answer(minimum, 0))

    # Segments on this broker.

    def _continue_from(
        self, empty: EmptyScan, led: LedQueue, segment: Segment, physical: PhysicalOffset, codes: Codes
    ) -> ReadResult:
        """Continue after a scan that found nothing: wait, read the next segment, or move the reader."""
        index, pull, scan = empty.index, empty.pull, empty.scan
        assert pull.lens is not None
        is_leader = pull.lens.leader.index is index
        if scan.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
            return EmptyScan(index, pull, scan, is_open_end=is_leader and scan.next_offset >= index.offset_max)
        if physical >= index.offset_min and is_leader:
            return EmptyScan(index, pull, scan, is_open_end=scan.code == ResponseCode.PULL_NOT_FOUND)
        lowest = PhysicalOffset(index.offset_min)
        following = None
        if not is_leader:
            following = self._find_following(led.queue, segment, physical, (lowest, PhysicalOffset(index.offset_max)))
        if isinstance(following, Refusal):
            return [refuse(following, pull.header.opaque, pull.serializer)]
        if following is not None:
            return self.read(led, pull.header, Puller(pull.channel, pull.serializer), following.decided_first, codes)
        scan = Scan(self._code_below(led.queue, segment), "OFFSET_TOO_SMALL", lowest)
        return EmptyScan(index, pull, scan, is_open_end=False)

    @staticmethod
    def _code_below(queue: LogicalQueue, segment: Segment) -> ResponseCode:
        """Return the code for an offset below the lowest one: PULL_OFFSET_MOVED only at the oldest segment."""
        is_oldest = segment == next(each for each in queue.readable if each.is_decided)
        return ResponseCode.PULL_OFFSET_MOVED if is_oldest else ResponseCode.PULL_RETRY_IMMEDIATELY

    @staticmethod
    def _find_following(
        queue: LogicalQueue, segment: Segment, physical: PhysicalOffset, bounds: tuple[PhysicalOffset, PhysicalOffset]
    ) -> Segment | Refusal | None:
        """Return where to continue in a segment before the leader that has no message at *physical*.

        Return the next segment, a refusal if the end of this one is unknown, or None if the reader must move up to the
        lowest offset, because retention removed the messages before it.

        Args:
            queue: The logical queue.
            segment: The segment.
            physical: Where the reader is.
            bounds: The lowest offset and the end of the segment's physical queue.
        """
        if physical < bounds[0] < bounds[1]:
            return None
        if segment.forced and not segment.is_sealed:
            return Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"the end of logical queue {queue.queue} on broker {segment.broker} is unknown, because the queue was "
                "moved away by force: wait for that broker, or abandon its messages (holdfast queue abandon)",
            )
        following = queue.segment_after(segment)
        assert following is not None, "the leader is decided, and newer"
        return following

    # Segments on other brokers.

    async def _pull_remote(
        self, pull: PullContext, queue: LogicalQueue, segment: Segment, offset: LogicalOffset
    ) -> list[Piece]:
        """Answer with the records of an older segment that another broker holds."""
        fields, lens = pull.header.fields, pull.lens
        assert lens is not None
        physical = segment.to_physical(offset)
        count = lens.limit_count(fields.max_msg_nums, physical)
        try:
            answer = await self._segment_queries.pull(
                fields.topic, segment, self._with_subscription(pull.header), physical, count
            )
        except PeerFailed as error:
            return [refuse(Refusal(ResponseCode.SYSTEM_ERROR, str(error)), pull.header.opaque, pull.serializer)]
        lowest = _offset(answer, "minOffset")
        self._segment_queries.record_minimum(fields.topic, queue.queue, segment, lowest)
        next_physical = _offset(answer, "nextBeginOffset")
        if answer.code in {ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY}:
            if lens.end is not None:
                next_physical = min(next_physical, lens.end)
            if answer.body:
                self._stats.count_gets(fields.consumer_group, fields.topic, next_physical - physical, len(answer.body))
            else:
                self._stats.count_miss()
            next_offset = lens.to_logical(max(next_physical, physical))
            self._reader.on_answered(pull, next_offset)
            remark = "FOUND" if answer.code == ResponseCode.SUCCESS else "NO_MATCHED_MESSAGE"
            body = self._reader.rewrite_for_reader(pull, [answer.body] if answer.body else [])
            return [logical_head(pull, lens, answer.code, remark, next_offset, len(answer.body)), *body]
        self._stats.count_miss()
        following = self._find_following(queue, segment, physical, (lowest, _offset(answer, "maxOffset")))
        if following is None:
            code = self._code_below(queue, segment)
            return [logical_head(pull, lens, code, "OFFSET_TOO_SMALL", lens.to_logical(lowest))]
        if lens.end is not None and physical < lens.end and lowest < lens.end:
            # That broker has not confirmed the sealed messages yet, or lost them: no reader may skip them.
            await Pause(_UNCONFIRMED_PAUSE_MS)
            return [logical_head(pull, lens, ResponseCode.PULL_NOT_FOUND, "NOT_YET_THERE", offset)]
        if isinstance(following, Refusal):
            return [refuse(following, pull.header.opaque, pull.serializer)]
        code, remark = ResponseCode.PULL_RETRY_IMMEDIATELY, "NEXT_SEGMENT"
        return [logical_head(pull, lens, code, remark, following.decided_first)]

    def _with_subscription(self, header: PullHeader) -> PullFields:
        """Return a pull that includes the subscription: the other broker may not know the group."""
        fields = msgspec.structs.replace(header.fields, batch_support=header.batch_support.value, unit=None)
        if fields.sys_flag & SUBSCRIPTION:
            return fields
        known = self._clients.subscription(fields.consumer_group, fields.topic)
        if known is None:
            return fields
        return msgspec.structs.replace(fields, subscription=known.sub_string, expression_type=known.expression_type)


def _offset(answer: Command, name: str) -> PhysicalOffset:
    return PhysicalOffset(parse_count(answer.fields.get(name), 0))
