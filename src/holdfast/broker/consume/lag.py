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

from typing import Final

import msgspec

from holdfast.broker.consume.consumed_topics import ConsumedTopics
from holdfast.broker.consume.consumer_offsets import OffsetTable
from holdfast.broker.mapping.queue_view import Queues, QueueView
from holdfast.broker.tables.clients import ClientTable
from holdfast.broker.tables.topics import TopicTable
from holdfast.model.queue import LogicalOffset
from holdfast.model.topic import RETRY_PREFIX
from holdfast.wire.requests.heartbeat import ConsumeFromWhere

# Every other preference is read as "at the end", as Java consumers do.
_NOT_AT_END: Final = frozenset(
    {ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET.name, ConsumeFromWhere.CONSUME_FROM_TIMESTAMP.name}
)


class QueueLag(msgspec.Struct, frozen=True, kw_only=True):
    """The lag of a group in one queue.

    Attributes:
        view: The queue.
        committed: None if the group committed nothing.
        next: The offset that the group consumes next.
        end: The offset of the next message to be stored.
        gap: How many of the offsets between `next` and `end` hold no message.
    """

    view: QueueView
    committed: LogicalOffset | None
    next: LogicalOffset
    end: LogicalOffset
    gap: int = 0

    @property
    def lag(self) -> int:
        """Number of messages that the group has yet to consume."""
        return max(0, self.end - self.next - self.gap)


class LagCalculator:
    """Computes the lag of groups in the queues that this broker leads.

    Attributes:
        queue_views: The queues of this broker.
    """

    def __init__(
        self,
        topics: TopicTable,
        clients: ClientTable,
        offsets: OffsetTable,
        queues: Queues,
        consumed_topics: ConsumedTopics,
    ) -> None:
        self._topics = topics
        self._clients = clients
        self._offsets = offsets
        self.queue_views = queues
        self._consumed_topics = consumed_topics

    def pairs(self) -> list[tuple[str, str]]:
        """Return (topic, group) for each group that consumes the topic, here or at another broker."""
        known = dict.fromkeys((topic, group) for (topic, group), _ in self._offsets.rows())
        return [
            pair
            for pair in (known | dict.fromkeys(self._consumed_topics.pairs()))
            if self.is_consumed(pair[1], pair[0])
        ]

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
        return [self.compute(group, view) for view in self.queue_views.readable(topic)]

    def compute(self, group: str, view: QueueView) -> QueueLag:
        """Return the lag of *group* in one queue."""
        committed = self._offsets.find(group, view.topic, view.number)
        end = view.offset_max
        start = committed
        if start is None:
            is_at_end = self._begins_at_end(group, view.topic) and not _begins_low(view)
            start = end if is_at_end else min(view.offset_min, end)
        return QueueLag(view=view, committed=committed, next=start, end=end, gap=view.count_gap(start, end))

    def _begins_at_end(self, group: str, topic: str) -> bool:
        membership = self._clients.find_membership(group)
        if membership is None or topic.startswith(RETRY_PREFIX):
            return False
        return membership.consume_from_where not in _NOT_AT_END


def _begins_low(view: QueueView) -> bool:
    """Return whether a group without an offset starts low even if its consumer prefers the end.

    Its commit may have been lost with a dead leader, or be kept by a Java broker that led the queue before.
    """
    return view.may_have_lost_commits or bool(view.foreign_segments) or view.first_offset_if_hot is not None
