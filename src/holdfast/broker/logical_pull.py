"""Pulls of logical queues, at their leader.

offset ─> the segment it lies in ─┬─ here ─> the index of its physical queue, seen through a lens
                                  └─ elsewhere ─> asked for at its broker, passed on as it comes

behind a sealed end                the next segment, in the same answer when that one is here
behind an end that nobody recorded the next segment, as upstream has it: Java's tools stop a queue before they go on
behind a forced, unknown end       an error that names the broker: what it took may still come
below the lowest offset            "moved" at the oldest segment, "ask again there" anywhere else
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.broker.clients import ClientTable
from holdfast.broker.queue_reading import Asked, Lens, QueueReading, Scan, logical_head, refuse, stamped
from holdfast.broker.request import Refusal
from holdfast.broker.static_reads import StaticReads
from holdfast.broker.stats import BrokerStats
from holdfast.broker.waits import Pause, Procedure
from holdfast.machine.effects import Piece
from holdfast.model.errors import PeerFailed
from holdfast.model.mapping import LogicalQueue, Segment
from holdfast.model.numbers import parse_count
from holdfast.store.consume_queue import QueueLog
from holdfast.store.message_store import MessageStore
from holdfast.wire.codes import ResponseCode
from holdfast.wire.command import Command
from holdfast.wire.pull import SUBSCRIPTION, PullFields, PullHeader
from holdfast.wire.route import is_mapping_aware

_BEHIND_MS: Final = 200  # A broker that has yet to confirm what it sealed is not asked faster than this.

Codes = frozenset[int] | None


class Look(msgspec.Struct, frozen=True):
    """What was found in memory.

    Attributes:
        is_open_end: Everything that is there was looked at: a pull may wait on this physical queue.
    """

    log: QueueLog
    asked: Asked
    scan: Scan
    is_open_end: bool


Looked = Look | list[Piece] | Procedure[list[Piece]]
"""What is in memory; or the answer, perhaps after some steps."""


class LogicalPulls:
    """Looks for messages in logical queues."""

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

    def look(self, header: PullHeader, serializer: int, offset: int, codes: Codes) -> Looked:
        """Look from *offset* on."""
        fields = header.fields
        queue = self._reads.find_led(fields.topic, fields.queue_id)
        if queue is None:
            return [refuse(not_leader_to_read(fields.topic, fields.queue_id, self._name), header.opaque, serializer)]
        segment = queue.locate(offset)
        assert segment is not None, "a queue that is led has a decided segment"
        if segment.last is not None and offset >= segment.last:
            following = queue.after(segment)
            if following is not None:  # In a hole in which there never was a message.
                segment, offset = following, following.first
        asked = self._ask(header, serializer, queue, segment)
        if segment.broker != self._name:
            return self._pass_on(asked, queue, segment, offset)
        return self._look_here(asked, queue, segment, offset, codes)

    def answer(self, header: PullHeader, serializer: int, code: int, remark: str, next_offset: int) -> list[Piece]:
        """Return an answer that sends the puller to another offset."""
        queue = self._reads.find_led(header.fields.topic, header.fields.queue_id)
        assert queue is not None, "asked only of queues that are led here"
        asked = self._ask(header, serializer, queue, queue.leader)
        assert asked.lens is not None
        return [logical_head(asked, asked.lens, code, remark, next_offset)]

    def _ask(self, header: PullHeader, serializer: int, queue: LogicalQueue, segment: Segment) -> Asked:
        topic, leader = header.fields.topic, queue.leader
        is_aware = is_mapping_aware(header.language, header.version, says_so=bool(header.fields.reads_mappings))
        lens = Lens(
            queue=queue.queue,
            delta=segment.delta,
            minimum=self._reads.minimum(topic, queue),
            leader=(self._store.queue(topic, leader.queue_id), leader.delta),
            end=segment.end if segment.is_sealed else None,
            restamps=not is_aware,
        )
        return Asked(header, serializer, lens)

    # Here.

    def _look_here(self, asked: Asked, queue: LogicalQueue, segment: Segment, offset: int, codes: Codes) -> Looked:
        log = self._store.queue(asked.header.fields.topic, segment.queue_id)
        physical = segment.to_physical(offset)
        if self._reading.is_cold(asked, log, physical, codes):
            return self._reading.read_cold(asked, log, physical, codes)
        scan = self._reading.scan(asked, log, physical, codes)
        is_leader = segment == queue.leader
        if scan.code in {ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY}:
            return Look(log, asked, scan, is_open_end=is_leader and scan.next_offset >= log.offset_max)
        if physical >= log.offset_min and is_leader:
            return Look(log, asked, scan, is_open_end=scan.code == ResponseCode.PULL_NOT_FOUND)
        is_spent = physical >= log.offset_max or (log.offset_min >= log.offset_max and not is_leader)
        if is_spent:
            following = self._find_following(queue, segment)
            if isinstance(following, Refusal):
                return [refuse(following, asked.header.opaque, asked.serializer)]
            return self.look(asked.header, asked.serializer, following.first, codes)
        scan = Scan(self._code_below(queue, segment), "OFFSET_TOO_SMALL", log.offset_min)
        return Look(log, asked, scan, is_open_end=False)

    @staticmethod
    def _code_below(queue: LogicalQueue, segment: Segment) -> ResponseCode:
        """Return what a reader is told whose offset is gone: the big word only where nothing older is left."""
        is_oldest = segment == next(home for home in queue.readable if home.is_decided)
        return ResponseCode.PULL_OFFSET_MOVED if is_oldest else ResponseCode.PULL_RETRY_IMMEDIATELY

    @staticmethod
    def _find_following(queue: LogicalQueue, segment: Segment) -> Segment | Refusal:
        """Return where to read on behind everything that *segment* holds."""
        if segment.forced and not segment.is_sealed:
            return Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"the end of logical queue {queue.queue} on broker {segment.broker} is not known, as it was moved away "
                "by force: wait for that broker, or give up what it may still hold (holdfast queue abandon)",
            )
        following = queue.after(segment)
        assert following is not None, "the leader is decided, and newer"
        return following

    # Elsewhere.

    def _pass_on(self, asked: Asked, queue: LogicalQueue, segment: Segment, offset: int) -> Procedure[list[Piece]]:
        """Answer with what the broker of an old segment has."""
        fields, lens = asked.header.fields, asked.lens
        assert lens is not None
        physical = segment.to_physical(offset)
        count = fields.max_msg_nums if lens.end is None else max(1, min(fields.max_msg_nums, lens.end - physical))
        try:
            answer = yield from self._reads.pull(fields.topic, segment, self._subscribed(fields), physical, count)
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
            next_offset = max(next_physical, physical) + lens.delta
            remark = "FOUND" if answer.code == ResponseCode.SUCCESS else "NO_MATCHED_MESSAGE"
            body = stamped(lens, [answer.body] if answer.body else [])
            return [logical_head(asked, lens, answer.code, remark, next_offset, len(answer.body)), *body]
        return (yield from self._judge(asked, queue, segment, physical, (lowest, _number(answer, "maxOffset"))))

    def _judge(
        self, asked: Asked, queue: LogicalQueue, segment: Segment, physical: int, bounds: tuple[int, int]
    ) -> Procedure[list[Piece]]:
        """Answer a pull for which the broker of an old segment has nothing."""
        lens, (lowest, highest) = asked.lens, bounds
        assert lens is not None
        if physical < lowest < highest:
            code = self._code_below(queue, segment)
            return [logical_head(asked, lens, code, "OFFSET_TOO_SMALL", lowest + lens.delta)]
        if lens.end is not None and physical < lens.end and lowest < lens.end:
            # It has not confirmed yet what it sealed, or has lost it: nobody may pass over that.
            yield Pause(_BEHIND_MS)
            return [logical_head(asked, lens, ResponseCode.PULL_NOT_FOUND, "NOT_YET_THERE", physical + lens.delta)]
        following = self._find_following(queue, segment)
        if isinstance(following, Refusal):
            return [refuse(following, asked.header.opaque, asked.serializer)]
        code, remark = ResponseCode.PULL_RETRY_IMMEDIATELY, "NEXT_SEGMENT"
        return [logical_head(asked, lens, code, remark, following.first)]

    def _subscribed(self, fields: PullFields) -> PullFields:
        """Return a pull that brings its subscription: the other broker may never have heard of the group."""
        if fields.sys_flag & SUBSCRIPTION:
            return fields
        known = self._clients.subscription(fields.consumer_group, fields.topic)
        if known is None:
            return fields
        return msgspec.structs.replace(fields, subscription=known.sub_string, expression_type=known.expression_type)


def not_leader_to_read(topic: str, queue_id: int, broker: str) -> Refusal:
    """Return the answer to a question about a logical queue that is not led here; in upstream's words."""
    return Refusal(
        ResponseCode.NOT_LEADER_FOR_QUEUE,
        f"{topic}-{queue_id} cannot find mapping item in request process of current broker {broker}",
    )


def _number(answer: Command, name: str) -> int:
    return parse_count(answer.fields.get(name), 0)
