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
from holdfast.broker.consume.physical_pull import Asked, Lens, Puller, QueueReading, logical_head, refuse
from holdfast.broker.flow.awaitables import Pause, Procedure
from holdfast.broker.flow.request import Refusal
from holdfast.broker.mapping.segment_queries import StaticReads
from holdfast.broker.tables.clients import ClientTable
from holdfast.broker.tables.stats import BrokerStats
from holdfast.machine.effects import Piece
from holdfast.model.errors import PeerFailed
from holdfast.model.mapping import LogicalQueue, Segment
from holdfast.model.numbers import parse_count
from holdfast.store.message_store import MessageStore
from holdfast.store.queues.queue_log import QueueLog
from holdfast.wire.cluster.route import is_mapping_aware
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.requests.pull import SUBSCRIPTION, PullFields, PullHeader, prepare_answer

_UNCONFIRMED_PAUSE_MS: Final = 200  # between pulls from a broker that has yet to confirm the messages it sealed

Codes = frozenset[int] | None


@final
class Look(msgspec.Struct, frozen=True):
    """A scan that found no messages for the reader.

    Attributes:
        is_open_end: The scan reached the end of the queue, so the pull may be parked on this physical queue.
    """

    log: QueueLog
    asked: Asked
    scan: Scan
    is_open_end: bool


Looked = Look | list[Piece] | Procedure[list[Piece]]
"""The answer; steps that end in it; or a scan that found nothing, so that the pull may be parked."""


class Led(msgspec.Struct):
    """A logical queue that is led here. Cached until mappings change, to save a lookup per pull.

    Attributes:
        first: The first logical offset of its leader segment.
        is_sealed: The leader segment has an end.
        end: The physical queue at its end, and the delta of that queue.
        own: All physical queues here that clients may read as segments of it.
        lens: How its end looks to readers. Includes the lowest offset, so it is rebuilt when `seen_lowest` or
            `seen_told` changes.
        restamping: The lens for readers without delta support.
        seen_lowest: Sum of the lowest offsets of `own` when the lenses were built.
        seen_told: How many minimum offsets other brokers had reported when the lenses were built.
    """

    queue: LogicalQueue
    leader: Segment
    first: int
    is_sealed: bool
    end: tuple[QueueLog, int]
    own: list[QueueLog]
    lens: Lens
    restamping: Lens
    seen_lowest: int = -1
    seen_told: int = -1


class LogicalPulls:
    """Reads logical queues for pulls.

    Attributes:
        led: The logical queues led here that were requested since mappings changed.
    """

    def __init__(
        self,
        store: MessageStore,
        reads: StaticReads,
        reading: QueueReading,
        clients: ClientTable,
        stats: BrokerStats,
    ) -> None:
        self._name = reads.mappings.broker
        self._store = store
        self._reads = reads
        self._reading = reading
        self._clients = clients
        self._stats = stats
        self.led: dict[tuple[str, int], Led] = {}
        reads.mappings.keep_fresh(self.led)

    def look(self, led: Led, header: PullHeader, puller: Puller, offset: int, codes: Codes) -> Looked:
        """Read a logical queue from the logical *offset* on."""
        if offset >= led.first:  # Nearly every reader is near the end.
            if led.is_sealed and offset > led.leader.static_max:
                # Sealed here, but the reader is past the end: the next leader is open, and this broker is yet to hear.
                refusal = not_leader_to_read(header.fields.topic, header.fields.queue_id, self._name)
                return [refuse(refusal, header.opaque, puller.serializer)]
            asked, (log, delta) = self._ask(header, puller, led), led.end
            if offset - delta < log.hot_offset:
                return self._read_here(asked, led.queue, led.leader, log, offset, codes)
            scan = self._reading.scan(asked, log, offset - delta, codes)
            if scan.positions:
                return self._reading.respond(asked, log, scan)
            return self._continue_from(
                Look(log, asked, scan, is_open_end=True), led.queue, led.leader, offset - delta, codes
            )
        segment = led.queue.locate(offset)
        assert segment is not None, "a queue that is led has a decided segment"
        if segment.last is not None and offset >= segment.last:
            following = led.queue.after(segment)
            if following is not None:  # The offset is in a gap that never held a message.
                segment, offset = following, following.first
        asked = self._ask_older(header, puller, led, segment)
        if segment.broker != self._name:
            return self._pull_remote(asked, led.queue, segment, offset)
        log = self._store.queue(header.fields.topic, segment.queue_id)
        return self._read_here(asked, led.queue, segment, log, offset, codes)

    def send_to(self, led: Led, header: PullHeader, puller: Puller, offset: int) -> list[Piece]:
        """Return the answer that moves a reader to another offset."""
        asked = self._ask(header, puller, led)
        assert asked.lens is not None
        return [logical_head(asked, asked.lens, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", offset)]

    def refuse(self, header: PullHeader, serializer: int) -> list[Piece]:
        """Return the refusal of a pull of a queue that is not led here."""
        fields = header.fields
        return [refuse(not_leader_to_read(fields.topic, fields.queue_id, self._name), header.opaque, serializer)]

    def find_led(self, topic: str, number: int) -> Led | None:
        """Return a logical queue if it is led here, or None; cache it."""
        led = self.led.get((topic, number))
        if led is None:
            queue = self._reads.find_led(topic, number)
            if queue is None:
                return None
            leader = queue.leader
            own = [self._store.queue(topic, each.queue_id) for each in queue.readable if each.broker == self._name]
            log = self._store.queue(topic, leader.queue_id)
            end = (log, leader.delta)
            led = Led(queue, leader, leader.first, leader.is_sealed, end, own, *self._make_lenses(topic, queue, end))
            self.led[topic, number] = led
        return led

    def _ask(self, header: PullHeader, puller: Puller, led: Led) -> Asked:
        """Return a pull with the lens for the end of the queue."""
        own, reads, fields = led.own, self._reads, header.fields
        lowest = own[0].offset_min if len(own) == 1 else sum([log.offset_min for log in own])
        if lowest != led.seen_lowest or reads.minimums_told != led.seen_told:
            led.seen_lowest, led.seen_told = lowest, reads.minimums_told
            led.lens, led.restamping = self._make_lenses(fields.topic, led.queue, led.end)
        is_aware = fields.reads_mappings or is_mapping_aware(header.language, header.version)
        return Asked(header, puller.serializer, led.lens if is_aware else led.restamping, puller.channel)

    def _ask_older(self, header: PullHeader, puller: Puller, led: Led, segment: Segment) -> Asked:
        """Return a pull with the lens for a segment before the leader."""
        asked = self._ask(header, puller, led)
        assert asked.lens is not None
        end = segment.end if segment.end >= 0 else None
        lens = msgspec.structs.replace(asked.lens, delta=segment.delta, end=end, prepared=b"")
        return Asked(header, puller.serializer, lens, puller.channel)

    def _make_lenses(self, topic: str, queue: LogicalQueue, end: tuple[QueueLog, int]) -> tuple[Lens, Lens]:
        """Return the lenses of the end of a queue: for readers with delta support, and for the others."""
        minimum, delta = self._reads.minimum(topic, queue), end[1]
        sealed = queue.leader.end if queue.leader.end >= 0 else None
        lens = Lens(queue.queue, delta, minimum, end, sealed, prepared=prepare_answer(minimum, delta))
        return lens, msgspec.structs.replace(lens, restamps=True, prepared=prepare_answer(minimum, 0))

    # Segments on this broker.

    def _read_here(
        self, asked: Asked, queue: LogicalQueue, segment: Segment, log: QueueLog, offset: int, codes: Codes
    ) -> Looked:
        assert asked.lens is not None
        physical, reading = offset - asked.lens.delta, self._reading
        if reading.is_cold(asked, log, physical, codes):
            return reading.read_cold(asked, log, physical, codes)
        scan = reading.scan(asked, log, physical, codes)
        if scan.positions:
            return reading.respond(asked, log, scan)
        is_leader = asked.lens.leader[0] is log
        return self._continue_from(Look(log, asked, scan, is_open_end=is_leader), queue, segment, physical, codes)

    def _continue_from(self, look: Look, queue: LogicalQueue, segment: Segment, physical: int, codes: Codes) -> Looked:
        """Continue after a scan that found nothing: wait, read the next segment, or move the reader."""
        log, asked, scan, is_leader = look.log, look.asked, look.scan, look.is_open_end
        if scan.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
            return Look(log, asked, scan, is_open_end=is_leader and scan.next_offset >= log.offset_max)
        if physical >= log.offset_min and is_leader:
            return Look(log, asked, scan, is_open_end=scan.code == ResponseCode.PULL_NOT_FOUND)
        is_spent = physical >= log.offset_max or (log.offset_min >= log.offset_max and not is_leader)
        if is_spent:
            following = self._find_following(queue, segment)
            if isinstance(following, Refusal):
                return [refuse(following, asked.header.opaque, asked.serializer)]
            led = self.find_led(asked.header.fields.topic, queue.queue)
            assert led is not None, "nothing has happened since"
            return self.look(led, asked.header, Puller(asked.channel, asked.serializer), following.first, codes)
        scan = Scan(self._code_below(queue, segment), "OFFSET_TOO_SMALL", log.offset_min)
        return Look(log, asked, scan, is_open_end=False)

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
        following = queue.after(segment)
        assert following is not None, "the leader is decided, and newer"
        return following

    # Segments on other brokers.

    def _pull_remote(self, asked: Asked, queue: LogicalQueue, segment: Segment, offset: int) -> Procedure[list[Piece]]:
        """Answer with the records of an older segment that another broker holds."""
        fields, lens = asked.header.fields, asked.lens
        assert lens is not None
        physical = segment.to_physical(offset)
        count = fields.max_msg_nums if lens.end is None else max(1, min(fields.max_msg_nums, lens.end - physical))
        try:
            answer = yield from self._reads.pull(
                fields.topic, segment, self._with_subscription(asked.header), physical, count
            )
        except PeerFailed as error:
            return [refuse(Refusal(ResponseCode.SYSTEM_ERROR, str(error)), asked.header.opaque, asked.serializer)]
        lowest = _number(answer, "minOffset")
        self._reads.note_minimum(fields.topic, queue.queue, segment, lowest)
        next_physical = _number(answer, "nextBeginOffset")
        if answer.code in {ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY}:
            if lens.end is not None:
                next_physical = min(next_physical, lens.end)
            if answer.body:
                self._stats.count_gets(fields.consumer_group, fields.topic, next_physical - physical, len(answer.body))
            else:
                self._stats.count_miss()
            next_offset = max(next_physical, physical) + lens.delta
            self._reading.answered(asked, next_offset)
            remark = "FOUND" if answer.code == ResponseCode.SUCCESS else "NO_MATCHED_MESSAGE"
            body = self._reading.stamp(asked, [answer.body] if answer.body else [])
            return [logical_head(asked, lens, answer.code, remark, next_offset, len(answer.body)), *body]
        self._stats.count_miss()
        return (
            yield from self._answer_remote_miss(asked, queue, segment, physical, (lowest, _number(answer, "maxOffset")))
        )

    def _answer_remote_miss(
        self, asked: Asked, queue: LogicalQueue, segment: Segment, physical: int, bounds: tuple[int, int]
    ) -> Procedure[list[Piece]]:
        """Answer a pull for which the broker of an older segment has no messages."""
        lens, (lowest, highest) = asked.lens, bounds
        assert lens is not None
        if physical < lowest < highest:
            code = self._code_below(queue, segment)
            return [logical_head(asked, lens, code, "OFFSET_TOO_SMALL", lowest + lens.delta)]
        if lens.end is not None and physical < lens.end and lowest < lens.end:
            # That broker has not confirmed the sealed messages yet, or lost them: no reader may skip them.
            yield Pause(_UNCONFIRMED_PAUSE_MS)
            return [logical_head(asked, lens, ResponseCode.PULL_NOT_FOUND, "NOT_YET_THERE", physical + lens.delta)]
        following = self._find_following(queue, segment)
        if isinstance(following, Refusal):
            return [refuse(following, asked.header.opaque, asked.serializer)]
        code, remark = ResponseCode.PULL_RETRY_IMMEDIATELY, "NEXT_SEGMENT"
        return [logical_head(asked, lens, code, remark, following.first)]

    def _with_subscription(self, header: PullHeader) -> PullFields:
        """Return a pull that includes the subscription: the other broker may not know the group."""
        fields = msgspec.structs.replace(header.fields, opens_batches=header.opening.value, unit=None)
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
