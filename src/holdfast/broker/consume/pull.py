"""Answers or parks pulls: 11 and 361.

    request ─> may this group read this queue? ─> read messages ─┬─ found ─> answered, at once or after some steps
    woken   ─┘ (`physical_pull.py`, `logical_pull.py`)           └─ nothing new ─> parked (`long_poll.py`) or answered

There is one rule for all queues, with two exceptions. A queue that may move accepts only commits that move its offset
forward. A segment of a logical queue is read by the broker that leads the queue: that broker neither commits nor waits,
and gets no resets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import Final

import msgspec

from holdfast.broker.consume.consumer_offsets import OffsetTable
from holdfast.broker.consume.delivered_ranges import DeliveredRanges
from holdfast.broker.consume.index_scan import Scan
from holdfast.broker.consume.logical_pull import LedQueue, LogicalPullReader
from holdfast.broker.consume.long_poll import ParkedPull, ParkedPulls
from holdfast.broker.consume.physical_pull import EmptyScan, PhysicalPullReader, PullContext, Puller, ReadResult, refuse
from holdfast.broker.flow.awaitables import Procedure
from holdfast.broker.flow.request import Refusal
from holdfast.broker.mapping.queue_view import Queues
from holdfast.broker.messages.batch_cache import BatchCache
from holdfast.broker.options import BrokerOptions
from holdfast.broker.tables.clients import ClientTable
from holdfast.broker.tables.groups import GroupTable
from holdfast.broker.tables.stats import BrokerStats
from holdfast.machine.component import Component
from holdfast.machine.effects import Piece
from holdfast.machine.events import ChannelId
from holdfast.machine.pressure import MemoryPressure
from holdfast.machine.sample import Sample
from holdfast.machine.turn import Turn
from holdfast.model.filter import accepted_tag_codes, is_tag_type, parse_tags
from holdfast.model.queue import LogicalOffset, LogicalQueueId, PhysicalOffset, QueueKey
from holdfast.model.topic import Permission
from holdfast.store.queues.queue_index import QueueIndex
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.requests.pull import COMMIT_OFFSET, SUBSCRIPTION, SUSPEND, PullFields, PullHeader, pull_answer_head

SUSPEND_MAX_MS: Final = 5 * 60 * 1000  # A client that wants to wait longer pulls again.
_EXPRESSION_CACHED_MAX: Final = 1024
_READ: Final = int(Permission.READ)  # Enum flags are slow to compute with.

PullResult = list[Piece] | Procedure[list[Piece]] | None
"""The answer; steps that end in it; or None if the pull was parked."""


class PulledQueue(msgspec.Struct, frozen=True):
    """A queue as a pull reads it: of a topic that exists and may be read.

    Attributes:
        index: The physical queue at its end.
        logical: Its segments, and the lens to its end; None if clients see the offsets of `index` unchanged.
        is_segment: Another broker reads it as a segment of a logical queue.
        is_sealed: The next leader may have its committed offsets and pending resets already.
    """

    index: QueueIndex
    logical: LedQueue | None = None
    is_segment: bool = False
    is_sealed: bool = False


class PullHandler(Component):
    """Admits, answers and parks pulls.

    Attributes:
        parked_pulls: Parked pulls, by physical queue.
        batch_cache: Batches opened here, for readers that cannot open them and for other components.
        delivered_ranges: The log ranges that clients without mapping support received records from.
        pulled_queues: Some of the queues that clients may read here: a fast check that a pull is for this broker.
        to_wake: Physical queues whose parked pulls must be retried although no message was added.
    """

    def __init__(
        self,
        options: BrokerOptions,
        groups: GroupTable,
        clients: ClientTable,
        offsets: OffsetTable,
        stats: BrokerStats,
        queues: Queues,
        pressure: MemoryPressure,
        turn: Turn,
    ) -> None:
        self._turn = turn
        self._options = options
        self._store = queues.store
        self._topics = queues.topics
        self._groups = groups
        self._clients = clients
        self._offsets = offsets
        self._queues = queues
        self.batch_cache = BatchCache()
        self.delivered_ranges = DeliveredRanges()
        self._physical_reader = PhysicalPullReader(
            options, queues.store, stats, self.batch_cache, self.delivered_ranges, pressure, self._record_next
        )
        self._logical_reader = LogicalPullReader(queues, self._physical_reader, clients, stats)
        self._pulled_queues: dict[QueueKey, PulledQueue] = {}
        self._pulled_version: object = None
        self.pulled_queues: Collection[QueueKey] = self._pulled_queues
        queues.mappings.register_cache(self._pulled_queues)
        self.parked_pulls: ParkedPulls[QueueIndex] = ParkedPulls()
        self.to_wake: list[QueueIndex] = []

    def channel_closed(self, channel: ChannelId) -> None:
        """Drop the parked pulls of a closed channel, and the ranges delivered to it."""
        self.parked_pulls.drop_channel(channel)
        self.delivered_ranges.forget(channel)

    def metrics(self) -> Iterator[Sample]:
        """Yield the number of parked pulls, and those of unpacked batches."""
        yield Sample("broker_parked_pulls", "gauge", "Pulls parked until messages arrive.", len(self.parked_pulls))
        yield from self.batch_cache.metrics()

    def handle_pull(self, header: PullHeader, puller: Puller) -> PullResult:
        """Answer a pull, or park it until there is a message or its deadline passes."""
        found = self._admit_and_find(header.fields)
        if type(found) is Refusal:  # Costs a fifth of `isinstance` with a struct.
            return [refuse(found, header.opaque, puller.serializer)]
        queue, codes = found
        fields = header.fields
        if fields.sys_flag & COMMIT_OFFSET:
            self._commit(queue, fields)
        result = self._read(header, puller, queue, fields.queue_offset, codes)
        if type(result) is not EmptyScan:
            return result
        return self._answer_or_park(result, puller, may_park=not queue.is_segment and self._may_park(fields))

    def retry(self, parked: ParkedPull, *, final: bool) -> PullResult:
        """Retry a parked pull; park it again if there is still nothing for it, unless *final*."""
        header = parked.header
        found = self._admit_and_find(header.fields)
        if isinstance(found, Refusal):
            if found.code == ResponseCode.NOT_LEADER_FOR_QUEUE:
                return [self.answer_queue_moved(parked)]
            return [refuse(found, header.opaque, parked.serializer)]
        queue, codes = found
        puller = Puller(parked.channel, parked.serializer)
        result = self._read(header, puller, queue, parked.scan_from, codes)
        if type(result) is not EmptyScan:
            return result
        return self._answer_or_park(result, puller, parked, may_park=not final)

    def _read(
        self,
        header: PullHeader,
        puller: Puller,
        queue: PulledQueue,
        offset: LogicalOffset,
        codes: frozenset[int] | None,
    ) -> ReadResult:
        """Return what a reader gets: its pending reset, or the messages from *offset* on.

        Args:
            header: The pull.
            puller: The connection that pulls.
            queue: The queue.
            offset: Where the reader continues; a parked pull has skipped messages that it does not want.
            codes: The tag hashes that the reader wants; None for all of them.
        """
        if self._offsets.pending_resets and not (queue.is_sealed or queue.is_segment):
            fields = header.fields
            reset = self._offsets.pop_reset(fields.consumer_group, fields.topic, fields.queue_id, fields.queue_offset)
            if reset is not None:
                return self._redirect(header, puller, queue, reset)
        if queue.logical is not None:
            return self._logical_reader.read(queue.logical, header, puller, offset, codes)
        pull = PullContext(header, puller.serializer, is_segment=queue.is_segment)
        return self._physical_reader.read(pull, queue.index, PhysicalOffset(offset), codes)

    def _commit(self, queue: PulledQueue, fields: PullFields) -> None:
        """Commit the offset in a pull.

        A pull of a queue that may move may have been relayed, and arrive twice, much later: its commit may only move
        the offset forward. A leader that sealed the queue may have sent the committed offsets to the next leader.
        """
        offset = fields.committed
        if offset is None or queue.is_segment or queue.is_sealed:
            return
        if queue.logical is not None:
            known = self._offsets.find(fields.consumer_group, fields.topic, fields.queue_id)
            if known is not None and offset <= known:
                return
        self._offsets.commit(fields.consumer_group, fields.topic, fields.queue_id, offset)

    def _redirect(self, header: PullHeader, puller: Puller, queue: PulledQueue, offset: LogicalOffset) -> list[Piece]:
        """Return the answer that moves a reader to another offset."""
        if queue.logical is not None:
            return self._logical_reader.redirect(queue.logical, header, puller, offset)
        moved = Scan(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", PhysicalOffset(offset))
        return [self._physical_reader.head(PullContext(header, puller.serializer), queue.index, moved)]

    def answer_too_many(self, header: PullHeader, serializer: int) -> bytes:
        """Return the answer to one of too many pulls at once: pull again at the same offset."""
        return retry_answer(header, serializer, "TOO_MANY_PULLS_AT_ONCE")

    def answer_queue_moved(self, parked: ParkedPull) -> bytes:
        """Return the answer to a parked pull whose queue another broker leads now: pull again at the same offset."""
        return retry_answer(parked.header, parked.serializer, "QUEUE_MOVED")

    def wake_queue(self, topic: str, queue_id: LogicalQueueId) -> None:
        """Retry the parked pulls of a queue that moved, or whose reader has a pending reset."""
        self.to_wake += self._queues.own_indexes(topic, queue_id)

    # Parking.

    def _answer_or_park(
        self, empty: EmptyScan, puller: Puller, parked: ParkedPull | None = None, *, may_park: bool
    ) -> PullResult:
        """Park a pull, or answer it with the result of the scan.

        A new pull waits only if there is no newer message, and where it asked: the segments before its end may change
        meanwhile. One that was parked before waits, too, if no newer message matches, and then after the scanned ones.

        Args:
            empty: What the scan found.
            puller: The connection that pulls.
            parked: The pull, if it was parked before.
            may_park: Whether the pull may be parked.
        """
        pull, scan = empty.pull, empty.scan
        next_offset = pull.to_logical(scan.next_offset)
        is_nothing = scan.code == ResponseCode.PULL_NOT_FOUND or (
            parked is not None and scan.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        )
        if is_nothing and empty.is_open_end and may_park:
            if parked is None:
                parked = self._to_parked(pull.header, puller)
            else:
                parked.scan_from, parked.is_gone = next_offset, False
            self.parked_pulls.park(empty.index, parked)
            return None
        if is_nothing and parked is not None and next_offset > pull.header.fields.queue_offset:
            # Nothing up to the next offset matched: the client need not pull these messages again.
            scan.code, scan.remark = ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE"
        return self._physical_reader.respond(pull, empty.index, scan)

    def _to_parked(self, header: PullHeader, puller: Puller) -> ParkedPull:
        fields = header.fields
        deadline_ms = self._turn.now_ms + min(fields.suspend_timeout_millis, SUSPEND_MAX_MS)
        return ParkedPull(
            puller.channel, puller.serializer, header, deadline_ms, fields.queue_offset, sender=puller.sender
        )

    def _record_next(self, pull: PullContext, next_offset: LogicalOffset) -> None:
        """Record the next offset of a group, unless another broker pulled: that broker leads, and records it itself."""
        if not pull.is_segment:
            fields = pull.header.fields
            self._offsets.record_pull(fields.consumer_group, fields.topic, fields.queue_id, next_offset)

    def _may_park(self, fields: PullFields) -> bool:
        return (
            bool(fields.sys_flag & SUSPEND)
            and fields.suspend_timeout_millis > 0
            and len(self.parked_pulls) < self._options.parked_pulls_max
        )

    # Admission.

    def _admit_and_find(self, fields: PullFields) -> tuple[PulledQueue, frozenset[int] | None] | Refusal:
        """Return the queue and the tag hashes that the reader wants (None: all of them), or why it may not pull."""
        group = self._groups.ensure(fields.consumer_group)
        if isinstance(group, Refusal):
            return group
        if not group.consume_enable:
            return Refusal(ResponseCode.NO_PERMISSION, f"consumer group {fields.consumer_group} may not consume")
        if self._topics.data_version is not self._pulled_version:
            self._pulled_queues.clear()
            self._pulled_version = self._topics.data_version
        queue = None if fields.is_logical is False else self._pulled_queues.get((fields.topic, fields.queue_id))
        if queue is None:
            found = self._find_queue(fields)
            if isinstance(found, Refusal):
                return found
            queue = found
        if fields.sys_flag & SUBSCRIPTION:
            if not is_tag_type(fields.expression_type):
                return Refusal(ResponseCode.SYSTEM_ERROR, "only TAG subscriptions are supported, not SQL92")
            expression = fields.subscription or ""
            # Only cache short expressions, which many pulls may share: an unknown client could send megabytes.
            read = _codes_of_text if len(expression) <= _EXPRESSION_CACHED_MAX else _codes_of_text.__wrapped__
            return queue, read(fields.topic, expression)
        subscription = self._clients.subscription(fields.consumer_group, fields.topic)
        if subscription is None:
            return Refusal(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"consumer group {fields.consumer_group} has not subscribed to {fields.topic}",
            )
        return queue, accepted_tag_codes(subscription)

    def _find_queue(self, fields: PullFields) -> PulledQueue | Refusal:
        """Return a queue that is not in the cache, or why it may not be read here."""
        topic = self._topics.find(fields.topic)
        if topic is None:
            return Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{fields.topic}] not exist, apply first please!")
        if not topic.permission & _READ:
            return Refusal(ResponseCode.NO_PERMISSION, f"topic {fields.topic} may not be read")
        view = self._queues.resolve(topic.name, fields.queue_id, is_logical=fields.is_logical)
        if view is None:
            return self._queues.refuse(topic.name, fields.queue_id)
        if view.can_move:
            led = self._logical_reader.make_led(view)
            queue = PulledQueue(led.end.index, led, is_sealed=led.is_sealed)
        elif not 0 <= fields.queue_id < topic.read_queues:
            return Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{fields.queue_id}] is illegal, topic:[{fields.topic}] topicConfig.readQueueNums:"
                f"[{topic.read_queues}] consumer:[{fields.consumer_group}]",
            )
        else:
            queue = PulledQueue(self._store.queue(topic.name, fields.queue_id), is_segment=view.is_segment)
        if not view.is_segment:
            self._pulled_queues[topic.name, fields.queue_id] = queue
        return queue


@lru_cache(maxsize=1024)
def _codes_of_text(topic: str, expression: str) -> frozenset[int] | None:
    return accepted_tag_codes(parse_tags(topic, expression))


def retry_answer(header: PullHeader, serializer: int, remark: str) -> bytes:
    """Return an answer without messages that makes the reader pull again at the same offset, from the master."""
    offset = header.fields.queue_offset
    offsets = (offset, 0, offset)
    return pull_answer_head(serializer, header.opaque, ResponseCode.PULL_RETRY_IMMEDIATELY, remark, offsets, 0)
