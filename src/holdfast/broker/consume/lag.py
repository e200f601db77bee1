"""Computes the lag of groups: the one number that tools (208, 317), the command line and the metric show.

    lag = messages between the group's next offset and the end of the queue
          offsets without a message (gaps of forced moves, expired segments) are not counted

The next offset is the committed offset. If a group committed nothing in a queue, it is where its consumer would start:
- at 0 if the queue still has its first message in memory: code 14 then returns 0, whatever the consumer prefers;
- else at the end if a connected consumer prefers the end, except in retry topics, which are read whole;
- else at the lowest readable offset.

Queues of static topics are logical, and only their leader knows their lag.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from holdfast.broker.consume.consumer_offsets import OffsetTable, first_logical_offset_if_hot, first_offset_if_hot
from holdfast.broker.mapping.segment_queries import SegmentQueries
from holdfast.broker.tables.clients import ClientTable
from holdfast.broker.tables.topics import TopicTable
from holdfast.model.mapping import LogicalQueue
from holdfast.model.topic import RETRY_PREFIX
from holdfast.store.message_store import MessageStore
from holdfast.store.queues.queue_log import QueueIndex
from holdfast.wire.requests.heartbeat import ConsumeFromWhere

# Every other preference is read as "at the end", as Java consumers do.
_NOT_AT_END: Final = frozenset(
    {ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET.name, ConsumeFromWhere.CONSUME_FROM_TIMESTAMP.name}
)


class QueueLag(msgspec.Struct, frozen=True, kw_only=True):
    """The lag of a group in one queue.

    Attributes:
        number: The logical queue of a static topic, or the queue of any other topic.
        committed: None if the group committed nothing.
        next: The offset that the group consumes next.
        end: The offset of the next message to be stored.
        gap: How many of the offsets between `next` and `end` hold no message.
        index: The physical queue that holds the end; None if nothing was ever stored.
        delta: The number to add to a physical offset of that queue to get the logical one.
    """

    number: int
    committed: int | None
    next: int
    end: int
    gap: int = 0
    index: QueueIndex | None
    delta: int = 0

    @property
    def lag(self) -> int:
        """Number of messages that the group has yet to consume."""
        return max(0, self.end - self.next - self.gap)


class LagCalculator:
    """Computes the lag of groups in the queues that this broker leads.

    Attributes:
        mappings: The logical queues.
        remote_pairs: Yields (topic, group) for each group that consumes the topic at another broker.
    """

    def __init__(
        self,
        topics: TopicTable,
        clients: ClientTable,
        offsets: OffsetTable,
        segment_queries: SegmentQueries,
        store: MessageStore,
    ) -> None:
        self._topics = topics
        self._clients = clients
        self._offsets = offsets
        self._segment_queries = segment_queries
        self.mappings = segment_queries.mappings
        self._store = store
        self.remote_pairs: Callable[[], Iterable[tuple[str, str]]] = tuple

    def pairs(self) -> list[tuple[str, str]]:
        """Return (topic, group) for each group that consumes the topic, here or at another broker."""
        known = dict.fromkeys((topic, group) for (topic, group), _ in self._offsets.rows())
        return [pair for pair in (known | dict.fromkeys(self.remote_pairs())) if self.is_consumed(pair[1], pair[0])]

    def topics_of(self, group: str) -> list[str]:
        """Return the topics that *group* consumes, here or at another broker."""
        return sorted(topic for topic, name in self.pairs() if name == group)

    def is_consumed(self, group: str, topic: str) -> bool:
        """Return whether *topic* is hosted here and *group*, if it is connected, still subscribes to it."""
        membership = self._clients.find_membership(group)
        is_unsubscribed = (
            membership is not None and bool(membership.subscriptions) and topic not in membership.subscriptions
        )
        return self._topics.find(topic) is not None and not is_unsubscribed

    def queues(self, group: str, topic: str) -> list[QueueLag]:
        """Return the lag of *group* in each queue of *topic* that this broker leads."""
        if self.mappings.is_static(topic):
            return self.logical_queues(group, topic, self.mappings.led_queues(topic))
        config = self._topics.find(topic)
        return [self._physical(group, topic, number) for number in range(0 if config is None else config.read_queues)]

    def logical_queues(self, group: str, topic: str, numbers: Iterable[int]) -> list[QueueLag]:
        """Return the lag of *group* in each of the logical queues *numbers* that this broker leads."""
        found = (self._segment_queries.find_led(topic, number) for number in numbers)
        return [self._logical(group, topic, queue) for queue in found if queue is not None]

    def _physical(self, group: str, topic: str, number: int) -> QueueLag:
        index = self._store.find_queue(topic, number)
        committed = self._offsets.find(group, topic, number)
        end = 0 if index is None else index.offset_max
        start = committed
        if start is None:
            is_at_end = self._begins_at_end(group, topic) and first_offset_if_hot(self._store, topic, number) is None
            start = end if is_at_end or index is None else index.offset_min
        return QueueLag(number=number, committed=committed, next=start, end=end, index=index)

    def _logical(self, group: str, topic: str, queue: LogicalQueue) -> QueueLag:
        committed = self._offsets.find(group, topic, queue.queue)
        end = self._segment_queries.maximum(topic, queue)
        start = committed
        if start is None:
            is_at_end = self._begins_at_end(group, topic) and not self._begins_at_minimum(topic, queue)
            start = end if is_at_end else min(self._segment_queries.minimum(topic, queue), end)
        return QueueLag(
            number=queue.queue,
            committed=committed,
            next=start,
            end=end,
            gap=max(0, end - start) - queue.count_usable_offsets(start, end),
            index=self._segment_queries.index_of(topic, queue.leader),
            delta=queue.leader.delta,
        )

    def _begins_at_minimum(self, topic: str, queue: LogicalQueue) -> bool:
        """Return whether a group without an offset starts low even if its consumer prefers the end.

        Its commit may have been lost with a dead leader, or be kept by a Java broker that led the queue before.
        """
        return (
            any(segment.forced for segment in queue.segments)
            or any(segment.is_decided and not segment.is_sealed for segment in queue.readable[:-1])
            or first_logical_offset_if_hot(self._store, topic, queue) is not None
        )

    def _begins_at_end(self, group: str, topic: str) -> bool:
        membership = self._clients.find_membership(group)
        if membership is None or topic.startswith(RETRY_PREFIX):
            return False
        return membership.consume_from_where not in _NOT_AT_END
