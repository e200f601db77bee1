"""One interface for the queries about a queue, whatever the kind of its topic.

    normal topic   a queue with one segment: the physical queue of the same number here, delta 0
    static topic   a logical queue that this broker leads, with the segments that its mapping records
    lo=false       a broker names a physical queue of a static topic: seen as a queue with one segment, too

`Queues` is the only place that tests the kind of a topic for a query. Everything else asks the view. It combines its
segments: one here is read from the store, and one elsewhere is requested from its broker (`segment_queries.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from holdfast.broker.flow.request import Refusal
from holdfast.broker.mapping.mapping_table import Mappings, State
from holdfast.broker.mapping.segment_queries import SegmentQueries
from holdfast.broker.tables.topics import TopicTable
from holdfast.model.mapping import LogicalQueue, Segment, new_logical_queue
from holdfast.model.queue import LogicalOffset, LogicalQueueId, MessageQueue, PhysicalOffset, PhysicalQueueId, QueueKey
from holdfast.model.scope import mock_broker
from holdfast.store.message_store import MessageStore
from holdfast.store.queues.queue_index import QueueIndex
from holdfast.wire.frames.codes import ResponseCode

_ZERO: Final = LogicalOffset(0)


class AppendTarget(msgspec.Struct, frozen=True):
    """Where messages for a queue that is open here are stored: the physical queue at its end.

    Attributes:
        index: The physical queue.
        delta: The number to add to an offset there to get the offset that its sender and its readers see.
    """

    index: QueueIndex
    delta: int = 0

    def to_logical(self, offset: PhysicalOffset) -> LogicalOffset:
        """Return the offset of a stored message as clients see it."""
        return LogicalOffset(offset + self.delta)

    @property
    def offset_max(self) -> LogicalOffset:
        """The end of the confirmed messages: a crash could assign later offsets to other messages."""
        return self.index.offset_max + self.delta  # type: ignore[return-value]  # Every pull asks.


class CommitTarget(msgspec.Struct, frozen=True):
    """Where the committed offsets of a queue are kept.

    Attributes:
        number: The number under which they are kept.
        segment: The segment whose physical offsets the requesting broker names; None for a client.
    """

    number: LogicalQueueId
    segment: Segment | None = None

    def to_logical(self, offset: int) -> LogicalOffset:
        """Return a named offset as it is kept."""
        return LogicalOffset(offset) if self.segment is None else self.segment.to_logical(PhysicalOffset(offset))

    def to_named(self, offset: LogicalOffset | None) -> int | None:
        """Return a kept offset as the request names it; None if it lies before the segment."""
        if offset is None or self.segment is None:
            return offset
        return None if offset < self.segment.decided_first else self.segment.to_physical(offset)


class QueueView:
    """A queue that this broker serves, with its segments as they were when it was resolved.

    Attributes:
        name: The queue as clients name it.
        queue: Its segments.
        has_number: Whether the topic has a queue of this number. A view of any other queue is empty.
        can_move: Whether another broker may lead the queue later, or led it before.
        is_segment: Whether it is a physical queue that another broker reads as a segment of a logical one.
    """

    __slots__ = ("_segments", "can_move", "has_number", "is_segment", "name", "queue")

    def __init__(
        self,
        name: MessageQueue,
        queue: LogicalQueue,
        segments: SegmentQueries,
        *,
        has_number: bool,
        can_move: bool = False,
        is_segment: bool = False,
    ) -> None:
        self.name = name
        self.queue = queue
        self.has_number = has_number
        self.can_move = can_move
        self.is_segment = is_segment
        self._segments = segments

    @property
    def topic(self) -> str:
        """The topic of the queue."""
        return self.name.topic

    @property
    def number(self) -> LogicalQueueId:
        """The number of the queue in its topic."""
        return self.queue.queue

    @property
    def is_local(self) -> bool:
        """Whether no other broker holds messages of the queue."""
        return all(segment.broker == self._segments.mappings.broker for segment in self.queue.readable)

    # The end of the queue.

    @property
    def index(self) -> QueueIndex | None:
        """The physical queue at its end; None if nothing was ever stored there."""
        return self._segments.index_of(self.topic, self.queue.leader)

    async def first_store_time(self) -> int | None:
        """Return the store time of the first message in `index`; None if there is none."""
        index = self.index
        return None if index is None else (await self._segments.store.store_time(index, index.offset_min))

    async def last_store_time(self) -> int | None:
        """Return the store time of the last message in `index`; None if there is none."""
        index = self.index
        return None if index is None else await self._segments.store.store_time(index, index.offset_max - 1)

    async def store_time(self, offset: LogicalOffset) -> int | None:
        """Return the store time of the message at *offset*; None if it is gone, or in a segment before the end."""
        index, leader = self.index, self.queue.leader
        physical = leader.to_physical(offset)
        if index is None or physical < leader.start:
            return None
        return await self._segments.store.store_time(index, physical)

    # Bounds.

    @property
    def offset_max(self) -> LogicalOffset:
        """The end of the confirmed messages: a crash could assign later offsets to other messages."""
        leader, index = self.queue.leader, self.index
        return leader.to_logical(leader.start if index is None else PhysicalOffset(index.offset_max))

    @property
    def offset_min(self) -> LogicalOffset:
        """The lowest offset from which on the queue is complete, as far as known without asking other brokers."""
        known: dict[int | None, PhysicalOffset] = {}
        for segment in self.queue.readable:
            reported = self._segments.known_minimum(self.topic, self.number, segment)
            if reported is not None:
                known[segment.generation] = max(reported, segment.start)
        return self.queue.logical_min(known) or _ZERO

    async def fetch_min(self) -> LogicalOffset:
        """Return the lowest offset, after asking every other broker with a segment that can be reached."""
        for segment in self.queue.readable:
            if segment.is_decided:
                await self._segments.refresh_minimum(self.topic, self.number, segment)
        return self.offset_min

    def count_gap(self, start: LogicalOffset, end: LogicalOffset) -> int:
        """Return how many offsets from *start* to *end* hold no message: gaps of forced moves, expired segments."""
        usable = self.queue.count_usable_offsets(start, end)
        return max(0, end - start) - usable

    # Times.

    async def earliest_time(self) -> int | None:
        """Return the store time of the oldest message; None if there is none.

        Raises:
            PeerFailed: The broker of a segment does not answer.
        """
        for segment in self.queue.readable:
            if segment.is_decided:
                found = await self._segments.earliest_time(self.topic, segment)
                if found is not None:
                    return found
        return None

    async def offset_at_time(self, time_ms: int, *, upper: bool = False) -> LogicalOffset:
        """Return the first offset stored at or after *time_ms*, or the queue's end.

        With *upper*, return the last offset stored at or before it, or the queue's lowest.

        Raises:
            PeerFailed: The broker of a segment does not answer.
        """
        if upper:
            return await self._search_back(time_ms)
        for segment in self.queue.readable:
            if segment.is_decided and (segment.last_ms is None or segment.last_ms >= time_ms):
                first = await self._segments.first_at(self.topic, segment, time_ms)
                if first is not None:
                    return segment.to_logical(first)
        return self.offset_max

    async def _search_back(self, time_ms: int) -> LogicalOffset:
        for segment in reversed(self.queue.readable):
            if not segment.is_decided:
                continue
            first = await self._segments.first_at(self.topic, segment, time_ms + 1)
            lowest, end = await self._segments.bounds(self.topic, segment)
            last = PhysicalOffset((end if first is None else first) - 1)
            if last >= max(lowest, segment.start):
                return segment.to_logical(last)
        return self.offset_min

    # Where a group without a committed offset starts.

    @property
    def may_have_lost_commits(self) -> bool:
        """Whether a commit may have been lost with a dead leader: the lowest offset then misses nothing."""
        return any(segment.forced for segment in self.queue.segments)

    @property
    def foreign_segments(self) -> list[Segment]:
        """Segments of Java brokers that led the queue before, oldest first. They still keep its committed offsets."""
        return [segment for segment in self.queue.readable[:-1] if segment.is_decided and not segment.is_sealed]

    @property
    def first_offset_if_hot(self) -> LogicalOffset | None:
        """0 if the queue never moved and its very first message is still in memory; None otherwise."""
        segment, index = self.queue.leader, self.index
        has_moved = len(self.queue.readable) > 1 or segment.first != 0 or segment.start > 0
        if has_moved or index is None or index.offset_min > 0 or index.offset_max == 0:
            return None
        (entry,) = index.entries(0, 1) or [(0, 0, 0)]
        return _ZERO if self._segments.store.is_hot(entry[0]) else None


class Queues:
    """Finds the view of a queue.

    Attributes:
        topics: The topics of this broker.
        segments: Queries about single segments.
        mappings: The mappings of static topics.
        store: The store of this broker.
    """

    def __init__(self, topics: TopicTable, segments: SegmentQueries) -> None:
        self.topics = topics
        self.segments = segments
        self.mappings: Mappings = segments.mappings
        self.store: MessageStore = segments.store

    def resolve(self, topic: str, number: LogicalQueueId, *, is_logical: bool | None = None) -> QueueView | None:
        """Return the view of a queue; None if it is a logical queue that this broker does not lead.

        Args:
            topic: The topic; an unknown one has empty queues.
            number: The number of the queue.
            is_logical: False if another broker asks, which names physical queues.
        """
        mapping = self.mappings.find(topic)
        if mapping is None or is_logical is False:
            return self._physical(topic, PhysicalQueueId(number), is_segment=mapping is not None)
        if not self.mappings.placement(topic, number).is_led:
            return None
        name = MessageQueue(topic, mock_broker(mapping.scope), number)
        return QueueView(name, mapping.queues[number], self.segments, has_number=True, can_move=True)

    def readable(self, topic: str) -> list[QueueView]:
        """Return the queues of *topic* that this broker serves to consumers, by number."""
        config = self.topics.find(topic)
        if self.mappings.is_static(topic):
            return self.all(topic)
        return self._all_physical(topic, 0 if config is None else config.read_queues)

    def all(self, topic: str) -> list[QueueView]:
        """Return all queues of *topic* that this broker serves, by number."""
        if not self.mappings.is_static(topic):
            return self.physical(topic)
        found = (self.resolve(topic, number) for number in self.mappings.led_queues(topic))
        return [view for view in found if view is not None]

    def physical(self, topic: str) -> list[QueueView]:
        """Return the physical queues of *topic* on this broker, by number."""
        return self._all_physical(topic, self._count(topic))

    def own_indexes(self, topic: str, number: LogicalQueueId) -> list[QueueIndex]:
        """Return the physical queues here that hold messages of a queue, even if another broker leads it."""
        if self.mappings.is_static(topic):
            return self.mappings.own_indexes(topic, number)
        index = self.store.find_queue(topic, number)
        return [] if index is None else [index]

    # Sends.

    def find_state(self, topic: str, number: LogicalQueueId) -> State:
        """Return who leads a queue. A queue of a normal topic is always open here, whether it exists or not."""
        return self.mappings.placement(topic, number).state if self.mappings.is_static(topic) else "open"

    def find_target(self, topic: str, number: LogicalQueueId) -> AppendTarget | None:
        """Return where messages for a queue are stored; None if it is not open here."""
        if not self.mappings.is_static(topic):
            return AppendTarget(self.store.queue(topic, number))
        placement = self.mappings.placement(topic, number)
        if placement.queue_index is None or placement.state != "open":
            return None
        return AppendTarget(placement.queue_index, placement.delta)

    def targets(self, topic: str) -> dict[LogicalQueueId, AppendTarget]:
        """Return where messages for the queues of *topic* are stored, by the number of each queue that is open here."""
        found = ((number, self.find_target(topic, number)) for number in self._numbers(topic))
        return {number: target for number, target in found if target is not None}

    def writable(self, topic: str) -> Sequence[LogicalQueueId]:
        """Return the numbers of the queues here that a message which may go to any queue is distributed among."""
        if self.mappings.is_static(topic):
            return self.mappings.led_queues(topic)
        config = self.topics.find(topic)
        return [LogicalQueueId(number) for number in range(1 if config is None else max(1, config.write_queues))]

    def has_number(self, topic: str, number: LogicalQueueId) -> bool:
        """Return whether *topic* has a queue of this number, wherever it is led."""
        if self.mappings.is_static(topic):
            return self.mappings.placement(topic, number).state != "unknown"
        return 0 <= number < self._count(topic)

    # Committed offsets.

    def find_commit_target(self, view: QueueView) -> CommitTarget | None:
        """Return where the committed offsets of a queue are kept; None if the topic has no such queue."""
        if not view.is_segment:
            return CommitTarget(view.number) if view.has_number else None
        found = self.mappings.find_by_physical(view.topic, view.queue.leader.queue_id)
        return CommitTarget(found[0].queue, found[1]) if found is not None and found[1].is_decided else None

    # Other brokers.

    def is_shared(self, topic: str) -> bool:
        """Return whether other brokers may hold messages of the queues of *topic* that are served here."""
        return self.mappings.is_static(topic)

    @property
    def are_shared(self) -> bool:
        """Whether other brokers may hold messages of any topic that is served here."""
        return bool(self.mappings.topics())

    def led(self) -> Iterator[QueueKey]:
        """Yield topic and number of the queues that this broker leads and may hand over."""
        return ((topic, number) for topic in self.mappings.topics() for number in self.mappings.led_queues(topic))

    def is_settled(self, view: QueueView) -> bool:
        """Return whether no other broker can have received the offsets of this queue.

        False while a logical queue is being handed over: its next leader may already have the groups' offsets.
        """
        return self.find_state(view.topic, view.number) == "open"

    def refuse(self, topic: str, number: LogicalQueueId) -> Refusal:
        """Return the refusal of a request for a logical queue that is not led here, worded as in RocketMQ."""
        return Refusal(
            ResponseCode.NOT_LEADER_FOR_QUEUE,
            f"{topic}-{number} cannot find mapping item in request process of current broker {self.mappings.broker}",
        )

    def _numbers(self, topic: str) -> Sequence[LogicalQueueId]:
        if self.mappings.is_static(topic):
            return self.mappings.led_queues(topic)
        return [LogicalQueueId(number) for number in range(self._count(topic))]

    def _count(self, topic: str) -> int:
        """Return how many physical queues *topic* has on this broker."""
        config = self.topics.find(topic)
        return 0 if config is None else max(config.read_queues, config.write_queues)

    def _all_physical(self, topic: str, count: int) -> list[QueueView]:
        return [self._physical(topic, PhysicalQueueId(number)) for number in range(count)]

    def _physical(self, topic: str, number: PhysicalQueueId, *, is_segment: bool = False) -> QueueView:
        broker = self.mappings.broker
        queue = new_logical_queue(LogicalQueueId(number), broker, number)
        has_number = 0 <= number < self._count(topic)
        name = MessageQueue(topic, broker, number)
        return QueueView(name, queue, self.segments, has_number=has_number, is_segment=is_segment)
