"""Offsets: where queues begin and end, search by time, committed offsets of groups, and resets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from holdfast.admin.cluster_access import ClusterAccess, NotAllowed, NotFound, gather, header_of
from holdfast.model.errors import BrokerRefused
from holdfast.model.mapping import LogicalQueue, merge_scopes
from holdfast.model.queue import LogicalOffset, LogicalQueueId, MessageQueue
from holdfast.model.scope import mock_broker
from holdfast.wire.cluster.mapping import from_info
from holdfast.wire.frames.codes import VERSION_5_0, RequestCode, ResponseCode
from holdfast.wire.requests.offsets import OffsetAnswer, QueryOffsetFields, QueueFields, SearchOffsetFields


class OffsetTarget(msgspec.Struct, frozen=True):
    """The offset to go to in a queue, as a user gives it: an end, a time or a number."""

    kind: Literal["earliest", "latest", "time", "offset"]
    value: int = 0


class QueueRange(msgspec.Struct, frozen=True):
    """A queue, the broker that serves it, and its range of offsets: [start, end).

    Attributes:
        logical: Its segments, if it is a logical queue.
        supports_offsets: Whether its broker can set a group to an offset; brokers before 5.0 only support times.
    """

    queue: MessageQueue
    address: str
    start: int
    end: int
    supports_offsets: bool = True
    logical: LogicalQueue | None = None


class ReadableQueues(msgspec.Struct, frozen=True):
    """The queues of a topic that can be read now.

    Attributes:
        down: Logical queues whose leader is down.
        refused: The brokers' refusals for queues that cannot be read because they have no leader.
    """

    ranges: list[QueueRange]
    down: list[LogicalQueue]
    refused: list[str]


class OffsetChange(msgspec.Struct, frozen=True):
    """A group's offset in one queue before and after a reset. `before` is None when the group never committed.

    Attributes:
        lag: The group's lag after the reset; offsets without a message are not counted.
    """

    topic: str
    broker: str
    address: str
    queue: LogicalQueueId
    before: int | None
    after: int
    end: int
    lag: int


class Offsets:
    """Operations on offsets."""

    def __init__(self, access: ClusterAccess) -> None:
        self._access = access

    async def find_readable(self, topic: str, *, queue: int | None = None, broker: str | None = None) -> ReadableQueues:
        """Return the readable queues of *topic* with their offset ranges.

        Args:
            topic: Its name.
            queue: Return only queues with this number.
            broker: Return only queues of this broker, named as on the wire.

        Raises:
            RouteNotFound: there is no such topic.
            NotFound: it has no such queue.
        """
        served, down = [], []
        for each, address, logical in await self._find_queues(topic):
            if queue not in {None, each.queue_id} or broker not in {None, each.broker_name}:
                continue
            if address is not None:
                served.append((each, address, logical))
            elif logical is not None:
                down.append(logical)
        if not served and not down:
            raise NotFound(f"topic {topic!r} has no such queue; `holdfast topic describe {topic}` shows them")
        found = await gather(served, lambda item: self._find_range(*item))
        ranges = [each for each in found if isinstance(each, QueueRange)]
        return ReadableQueues(ranges, down, [each for each in found if isinstance(each, str)])

    async def _find_queues(self, topic: str) -> list[tuple[MessageQueue, str | None, LogicalQueue | None]]:
        """Return every readable queue with the address of its broker; the leader's for a logical queue.

        The address is None when that broker is down.
        """
        route, reports = await self._access.get_route_and_reports(topic)
        if not reports:
            return [(each, route.address_of(each.broker_name), None) for each in route.readable(topic)]
        found = merge_scopes({name: from_info(report) for name, report in reports.items()})
        return [
            (MessageQueue(topic, mock_broker(scope), number), route.address_of(queue.leader.broker), queue)
            for scope, merged in found.items()
            for number, queue in merged.queues.items()
        ]

    async def find_offset(self, queue_range: QueueRange, target: OffsetTarget) -> int:
        """Return the offset of *target* in a queue, clipped to the queue's range."""
        match target.kind:
            case "earliest":
                return queue_range.start
            case "latest":
                return queue_range.end
            case "offset":
                return min(max(target.value, queue_range.start), queue_range.end)
        queue = queue_range.queue
        header = SearchOffsetFields(topic=queue.topic, queue_id=queue.queue_id, timestamp=target.value)
        answer = await self._access.invoke(queue_range.address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
        return min(max(header_of(answer, OffsetAnswer).offset, queue_range.start), queue_range.end)

    async def find_committed(self, group: str, queue_range: QueueRange) -> int | None:
        """Return the committed offset of *group* in a queue, or None when it never committed."""
        queue = queue_range.queue
        header = QueryOffsetFields(
            consumer_group=group,
            topic=queue.topic,
            queue_id=LogicalQueueId(queue.queue_id),
            set_zero_if_not_found=False,
        )
        try:
            answer = await self._access.invoke(queue_range.address, RequestCode.QUERY_CONSUMER_OFFSET, header)
        except BrokerRefused as refusal:
            if refusal.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        return header_of(answer, OffsetAnswer).offset

    async def plan_reset(
        self,
        group: str,
        topic: str,
        target: OffsetTarget,
        *,
        queue: int | None = None,
        broker: str | None = None,
    ) -> list[OffsetChange]:
        """Return the offset changes that a reset of *group* to *target* would make in the queues of *topic*.

        Raises:
            RouteNotFound: there is no such topic.
            NotFound: it has no such queue.
            NotAllowed: the leader of a queue is down, or a queue has no leader.
        """

        async def plan(queue_range: QueueRange) -> OffsetChange:
            if not queue_range.supports_offsets and (target.kind == "offset" or queue is not None):
                raise NotAllowed(
                    f"broker {queue_range.queue.broker_name} is older than 5.0: it can only reset to a time"
                )
            before = await self.find_committed(group, queue_range)
            after = await self.find_offset(queue_range, target)
            message_queue = queue_range.queue
            lag = (
                queue_range.end - after
                if queue_range.logical is None
                else queue_range.logical.count_usable_offsets(LogicalOffset(after), LogicalOffset(queue_range.end))
            )
            return OffsetChange(
                topic,
                message_queue.broker_name,
                queue_range.address,
                LogicalQueueId(message_queue.queue_id),
                before,
                after,
                queue_range.end,
                lag,
            )

        readable = await self.find_readable(topic, queue=queue, broker=broker)
        if readable.down:
            raise NotAllowed(f"{describe_down(topic, readable.down)}: start it, or name other queues with --queue")
        if readable.refused:
            raise NotAllowed(f"{readable.refused[0]}, or name other queues with --queue")
        return await gather(readable.ranges, plan)

    async def apply_reset(self, group: str, target: OffsetTarget, changes: Sequence[OffsetChange]) -> None:
        """Carry out a planned reset. Online consumers continue at the new offset with their next pull.

        Raises:
            BrokerRefused: a broker refuses; other queues may have been reset already.
        """
        # Brokers before 5.0 accept neither queue nor offset, only a time: for them the target must have one.
        timestamp_ms = {"earliest": 0, "latest": -1, "time": target.value}.get(target.kind)

        async def reset(change: OffsetChange) -> None:
            fields = {
                "topic": change.topic,
                "group": group,
                "queueId": str(change.queue),
                "offset": str(change.after),
                "timestamp": str(-1 if timestamp_ms is None else timestamp_ms),
                "isForce": "true",
            }
            await self._access.invoke(change.address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)

        await gather(changes, reset)

    async def _find_range(self, queue: MessageQueue, address: str, logical: LogicalQueue | None) -> QueueRange | str:
        """Return the range of a queue, or the refusal if it has no leader: name servers still list its last leader."""
        try:
            return await self._read_range(queue, address, logical)
        except BrokerRefused as refusal:
            if logical is None or refusal.code != ResponseCode.NOT_LEADER_FOR_QUEUE:
                raise
            return refusal.remark

    async def _read_range(self, queue: MessageQueue, address: str, logical: LogicalQueue | None) -> QueueRange:
        header = QueueFields(topic=queue.topic, queue_id=queue.queue_id)
        start = await self._access.invoke(address, RequestCode.GET_MIN_OFFSET, header)
        end = await self._access.invoke(address, RequestCode.GET_MAX_OFFSET, header)
        return QueueRange(
            queue,
            address,
            header_of(start, OffsetAnswer).offset,
            header_of(end, OffsetAnswer).offset,
            supports_offsets=end.language != "JAVA" or end.version >= VERSION_5_0,
            logical=logical,
        )


def describe_down(topic: str, down: Sequence[LogicalQueue]) -> str:
    """Return a sentence that names the unreadable queues and the leaders that are down."""
    numbers = ", ".join(str(queue.queue) for queue in down)
    leaders = ", ".join(sorted({queue.leader.broker for queue in down}))
    noun, verb = ("queue", "is") if len(down) == 1 else ("queues", "are")
    return f"logical {noun} {numbers} of {topic} {verb} led by {leaders}, which is down"
