"""Pulls of logical queues, at their leader.

offset ─> the segment that holds it ─┬─ here ─> the index of its physical queue, seen through a lens
                                     └─ elsewhere ─> pulled from its broker, and its records relayed unchanged

past a sealed end             the next segment, in the same answer if that segment is here
past an end never recorded    the next segment, as in RocketMQ: Java's tools stop a queue before they remap it
past a forced, unknown end    an error that names the broker: messages that it accepted may still come
below the lowest offset       PULL_OFFSET_MOVED at the oldest segment, PULL_RETRY_IMMEDIATELY at any other
"""

from __future__ import annotations

from typing import Final, final

import msgspec

from holdfast.broker.consume.index_scan import Scan
from holdfast.broker.consume.physical_pull import Lens, PhysicalPullReader, PullContext, Puller, logical_head, refuse
from holdfast.broker.flow.awaitables import Pause, Procedure
from holdfast.broker.flow.request import Refusal
from holdfast.broker.mapping.segment_queries import SegmentQueries
from holdfast.broker.tables.clients import ClientTable
from holdfast.broker.tables.stats import BrokerStats
from holdfast.machine.effects import Piece
from holdfast.model.errors import PeerFailed
from holdfast.model.mapping import LogicalQueue, Segment
from holdfast.model.numbers import parse_count
from holdfast.store.message_store import MessageStore
from holdfast.store.queues.queue_log import QueueIndex
from holdfast.wire.cluster.route import is_mapping_aware
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.requests.pull import SUBSCRIPTION, PullFields, PullHeader, prepare_answer

_UNCONFIRMED_PAUSE_MS: Final = 200  # between pulls from a broker that has yet to confirm the messages it sealed

Codes = frozenset[int] | None


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


ReadResult = EmptyScan | list[Piece] | Procedure[list[Piece]]
"""The answer; steps that end in it; or a scan that found nothing, so that the pull may be parked."""


class LedQueue(msgspec.Struct):
    """A logical queue that is led here. Cached until mappings change, to save a lookup per pull.

    Attributes:
        first: The first logical offset of its leader segment.
        is_sealed: The leader segment has an end.
        end: The physical queue at its end, and the delta of that queue.
        own_indexes: All physical queues here that clients may read as segments of it.
        lens: How its end looks to readers. Includes the lowest offset, so it is rebuilt when `seen_lowest` or
            `seen_minimums_version` changes.
        rewriting_lens: The lens for readers without delta support.
        seen_lowest: Sum of the lowest offsets of `own_indexes` when the lenses were built.
        seen_minimums_version: How many minimum offsets other brokers had reported when the lenses were built.
    """

    queue: LogicalQueue
    leader: Segment
    first: int
    is_sealed: bool
    end: tuple[QueueIndex, int]
    own_indexes: list[QueueIndex]
    lens: Lens
    rewriting_lens: Lens
    seen_lowest: int = -1
    seen_minimums_version: int = -1


class LogicalPullReader:
    """Reads logical queues for pulls.

    Attributes:
        led_queues: The logical queues led here that were requested since mappings changed.
    """

    def __init__(
        self,
        store: MessageStore,
        segment_queries: SegmentQueries,
        reader: PhysicalPullReader,
        clients: ClientTable,
        stats: BrokerStats,
    ) -> None:
        self._name = segment_queries.mappings.broker
        self._store = store
        self._segment_queries = segment_queries
        self._reader = reader
        self._clients = clients
        self._stats = stats
        self.led_queues: dict[tuple[str, int], LedQueue] = {}
        segment_queries.mappings.register_cache(self.led_queues)

    def read(self, led: LedQueue, header: PullHeader, puller: Puller, offset: int, codes: Codes) -> ReadResult:
        """Read a logical queue from the logical *offset* on."""
        if offset >= led.first:  # Nearly every reader is near the end.
            if led.is_sealed and offset > led.leader.static_max:
                # Sealed here, but the reader is past the end: the next leader is open, which this broker has yet to
                # learn.
                refusal = not_leader_to_read(header.fields.topic, header.fields.queue_id, self._name)
                return [refuse(refusal, header.opaque, puller.serializer)]
            pull, (index, delta) = self._with_lens(header, puller, led), led.end
            if offset - delta < index.hot_offset:
                return self._read_local(pull, led.queue, led.leader, index, offset, codes)
            scan = self._reader.scan(pull, index, offset - delta, codes)
            if scan.positions:
                return self._reader.respond(pull, index, scan)
            return self._continue_from(
                EmptyScan(index, pull, scan, is_open_end=True), led.queue, led.leader, offset - delta, codes
            )
        segment = led.queue.locate(offset)
        assert segment is not None, "a queue that is led has a decided segment"
        if segment.logical_end is not None and offset >= segment.logical_end:
            following = led.queue.segment_after(segment)
            if following is not None:  # The offset is in a gap that never held a message.
                segment, offset = following, following.first
        pull = self._with_older_lens(header, puller, led, segment)
        if segment.broker != self._name:
            return self._pull_remote(pull, led.queue, segment, offset)
        index = self._store.queue(header.fields.topic, segment.queue_id)
        return self._read_local(pull, led.queue, segment, index, offset, codes)

    def redirect(self, led: LedQueue, header: PullHeader, puller: Puller, offset: int) -> list[Piece]:
        """Return the answer that moves a reader to another offset."""
        pull = self._with_lens(header, puller, led)
        assert pull.lens is not None
        return [logical_head(pull, pull.lens, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", offset)]

    def refuse(self, header: PullHeader, serializer: int) -> list[Piece]:
        """Return the refusal of a pull of a queue that is not led here."""
        fields = header.fields
        return [refuse(not_leader_to_read(fields.topic, fields.queue_id, self._name), header.opaque, serializer)]

    def find_led(self, topic: str, number: int) -> LedQueue | None:
        """Return a logical queue if it is led here, or None; cache it."""
        led = self.led_queues.get((topic, number))
        if led is None:
            queue = self._segment_queries.find_led(topic, number)
            if queue is None:
                return None
            leader = queue.leader
            own_indexes = [
                self._store.queue(topic, each.queue_id) for each in queue.readable if each.broker == self._name
            ]
            index = self._store.queue(topic, leader.queue_id)
            end = (index, leader.delta)
            led = LedQueue(
                queue, leader, leader.first, leader.is_sealed, end, own_indexes, *self._make_lenses(topic, queue, end)
            )
            self.led_queues[topic, number] = led
        return led

    def _with_lens(self, header: PullHeader, puller: Puller, led: LedQueue) -> PullContext:
        """Return a pull with the lens for the end of the queue."""
        own_indexes, segment_queries, fields = led.own_indexes, self._segment_queries, header.fields
        lowest = (
            own_indexes[0].offset_min if len(own_indexes) == 1 else sum([index.offset_min for index in own_indexes])
        )
        if lowest != led.seen_lowest or segment_queries.minimums_version != led.seen_minimums_version:
            led.seen_lowest, led.seen_minimums_version = lowest, segment_queries.minimums_version
            led.lens, led.rewriting_lens = self._make_lenses(fields.topic, led.queue, led.end)
        is_aware = fields.reads_mappings or is_mapping_aware(header.language, header.version)
        return PullContext(header, puller.serializer, led.lens if is_aware else led.rewriting_lens, puller.channel)

    def _with_older_lens(self, header: PullHeader, puller: Puller, led: LedQueue, segment: Segment) -> PullContext:
        """Return a pull with the lens for a segment before the leader."""
        pull = self._with_lens(header, puller, led)
        assert pull.lens is not None
        end = segment.end if segment.end >= 0 else None
        lens = msgspec.structs.replace(pull.lens, delta=segment.delta, end=end, prepared=b"")
        return PullContext(header, puller.serializer, lens, puller.channel)

    def _make_lenses(self, topic: str, queue: LogicalQueue, end: tuple[QueueIndex, int]) -> tuple[Lens, Lens]:
        """Return the lenses of the end of a queue: for readers with delta support, and for the others."""
        minimum, delta = self._segment_queries.minimum(topic, queue), end[1]
        sealed = queue.leader.end if queue.leader.end >= 0 else None
        lens = Lens(queue.queue, delta, minimum, end, sealed, prepared=prepare_answer(minimum, delta))
        return lens, msgspec.structs.replace(lens, rewrites_offsets=True, prepared=prepare_answer(minimum, 0))

    # Segments on this broker.

    def _read_local(
        self, pull: PullContext, queue: LogicalQueue, segment: Segment, index: QueueIndex, offset: int, codes: Codes
    ) -> ReadResult:
        assert pull.lens is not None
        physical, reader = offset - pull.lens.delta, self._reader
        if reader.is_cold(pull, index, physical, codes):
            return reader.read_cold(pull, index, physical, codes)
        scan = reader.scan(pull, index, physical, codes)
        if scan.positions:
            return reader.respond(pull, index, scan)
        is_leader = pull.lens.leader[0] is index
        return self._continue_from(EmptyScan(index, pull, scan, is_open_end=is_leader), queue, segment, physical, codes)

    def _continue_from(
        self, empty: EmptyScan, queue: LogicalQueue, segment: Segment, physical: int, codes: Codes
    ) -> ReadResult:
        """Continue after a scan that found nothing: wait, read the next segment, or move the reader."""
        index, pull, scan, is_leader = empty.index, empty.pull, empty.scan, empty.is_open_end
        if scan.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
            return EmptyScan(index, pull, scan, is_open_end=is_leader and scan.next_offset >= index.offset_max)
        if physical >= index.offset_min and is_leader:
            return EmptyScan(index, pull, scan, is_open_end=scan.code == ResponseCode.PULL_NOT_FOUND)
        is_spent = physical >= index.offset_max or (index.offset_min >= index.offset_max and not is_leader)
        if is_spent:
            following = self._find_following(queue, segment)
            if isinstance(following, Refusal):
                return [refuse(following, pull.header.opaque, pull.serializer)]
            led = self.find_led(pull.header.fields.topic, queue.queue)
            assert led is not None, "nothing has happened since"
            return self.read(led, pull.header, Puller(pull.channel, pull.serializer), following.first, codes)
        scan = Scan(self._code_below(queue, segment), "OFFSET_TOO_SMALL", index.offset_min)
        return EmptyScan(index, pull, scan, is_open_end=False)

    @staticmethod
    def _code_below(queue: LogicalQueue, segment: Segment) -> ResponseCode:
        """Return the code for an offset below the lowest one: PULL_OFFSET_MOVED only at the oldest segment."""
        is_oldest = segment == next(each for each in queue.readable if each.is_decided)
        return ResponseCode.PULL_OFFSET_MOVED if is_oldest else ResponseCode.PULL_RETRY_IMMEDIATELY

    @staticmethod
    def _find_following(queue: LogicalQueue, segment: Segment) -> Segment | Refusal:
        """Return the segment to read after *segment*, or a refusal if its end is unknown."""
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

    async def _pull_remote(self, pull: PullContext, queue: LogicalQueue, segment: Segment, offset: int) -> list[Piece]:
        """Answer with the records of an older segment that another broker holds."""
        fields, lens = pull.header.fields, pull.lens
        assert lens is not None
        physical = segment.to_physical(offset)
        count = fields.max_msg_nums if lens.end is None else max(1, min(fields.max_msg_nums, lens.end - physical))
        try:
            answer = await self._segment_queries.pull(
                fields.topic, segment, self._with_subscription(pull.header), physical, count
            )
        except PeerFailed as error:
            return [refuse(Refusal(ResponseCode.SYSTEM_ERROR, str(error)), pull.header.opaque, pull.serializer)]
        lowest = _number(answer, "minOffset")
        self._segment_queries.record_minimum(fields.topic, queue.queue, segment, lowest)
        next_physical = _number(answer, "nextBeginOffset")
        if answer.code in {ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY}:
            if lens.end is not None:
                next_physical = min(next_physical, lens.end)
            if answer.body:
                self._stats.count_gets(fields.consumer_group, fields.topic, next_physical - physical, len(answer.body))
            else:
                self._stats.count_miss()
            next_offset = max(next_physical, physical) + lens.delta
            self._reader.on_answered(pull, next_offset)
            remark = "FOUND" if answer.code == ResponseCode.SUCCESS else "NO_MATCHED_MESSAGE"
            body = self._reader.rewrite_for_reader(pull, [answer.body] if answer.body else [])
            return [logical_head(pull, lens, answer.code, remark, next_offset, len(answer.body)), *body]
        self._stats.count_miss()
        return await self._answer_remote_miss(pull, queue, segment, physical, (lowest, _number(answer, "maxOffset")))

    async def _answer_remote_miss(
        self, pull: PullContext, queue: LogicalQueue, segment: Segment, physical: int, bounds: tuple[int, int]
    ) -> list[Piece]:
        """Answer a pull for which the broker of an older segment has no messages."""
        lens, (lowest, highest) = pull.lens, bounds
        assert lens is not None
        if physical < lowest < highest:
            code = self._code_below(queue, segment)
            return [logical_head(pull, lens, code, "OFFSET_TOO_SMALL", lowest + lens.delta)]
        if lens.end is not None and physical < lens.end and lowest < lens.end:
            # That broker has not confirmed the sealed messages yet, or lost them: no reader may skip them.
            await Pause(_UNCONFIRMED_PAUSE_MS)
            return [logical_head(pull, lens, ResponseCode.PULL_NOT_FOUND, "NOT_YET_THERE", physical + lens.delta)]
        following = self._find_following(queue, segment)
        if isinstance(following, Refusal):
            return [refuse(following, pull.header.opaque, pull.serializer)]
        code, remark = ResponseCode.PULL_RETRY_IMMEDIATELY, "NEXT_SEGMENT"
        return [logical_head(pull, lens, code, remark, following.first)]

    def _with_subscription(self, header: PullHeader) -> PullFields:
        """Return a pull that includes the subscription: the other broker may not know the group."""
        fields = msgspec.structs.replace(header.fields, batch_support=header.batch_support.value, unit=None)
        if fields.sys_flag & SUBSCRIPTION:
            return fields
        known = self._clients.subscription(fields.consumer_group, fields.topic)
        if known is None:
            return fields
        return msgspec.structs.replace(fields, subscription=known.sub_string, expression_type=known.expression_type)


def not_leader_to_read(topic: str, queue_id: int, broker: str) -> Refusal:
    """Return the refusal of a request for a logical queue that is not led here, worded as in RocketMQ."""
    return Refusal(
        ResponseCode.NOT_LEADER_FOR_QUEUE,
        f"{topic}-{queue_id} cannot find mapping item in request process of current broker {broker}",
    )


def _number(answer: Command, name: str) -> int:
    return parse_count(answer.fields.get(name), 0)
