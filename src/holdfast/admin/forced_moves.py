"""Operations for a dead leader: open its queues elsewhere after a gap, and abandon its unreachable messages.

    a (dead)  0 ......... ?            its real end is unknown
    b                      . 2^40 .... opens here: no offset is ever used twice

With a forced move the operator asserts that the leader will accept no further write. If the leader returns, it is
fenced: it still serves the messages that it had, at their offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress

import msgspec

from holdfast.admin.cluster_access import ClusterAccess, NotAllowed, body_of, gather, header_of
from holdfast.admin.moves import MovePlan, drain_moves, get_leader, require_other_broker
from holdfast.admin.previews import preview_moves
from holdfast.admin.static_topics import ClusterMappings, StaticTopics
from holdfast.model import leader_planning
from holdfast.model.errors import BrokerRefused, HoldfastError
from holdfast.model.mapping import next_epoch
from holdfast.model.queue import LogicalOffset, LogicalQueueId, PhysicalOffset
from holdfast.model.route import MASTER_ID
from holdfast.model.segment import Segment
from holdfast.wire.cluster.mapping import to_extras, to_number
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.requests.admin import GroupNames
from holdfast.wire.requests.moves import (
    AbandonRequest,
    ForceRequest,
    Move,
    QueueSegments,
    encode_body,
    read_copied_bytes,
)
from holdfast.wire.requests.offsets import OffsetAnswer, QueryOffsetFields


class AbandonPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan to abandon the rest of a segment on a dead broker.

    Attributes:
        broker: The dead broker that has the segment.
        end: The logical offset at which the segment will end for readers.
        leader: The broker that receives the order.
    """

    topic: str
    queue: LogicalQueueId
    generation: int | None
    broker: str
    first: LogicalOffset
    end: LogicalOffset
    leader: str
    address: str


class ForcedMoveOperations:
    """Operations on queues whose leader is dead.

    Args:
        access: The cluster.
        topics: Reads mappings.
        now_ms: Returns the local time.
    """

    def __init__(self, access: ClusterAccess, topics: StaticTopics, now_ms: Callable[[], int]) -> None:
        self._access = access
        self._topics = topics
        self._now_ms = now_ms

    async def plan_queue(
        self, topic: str, queue: LogicalQueueId, target: str, *, even_if_alive: bool = False
    ) -> MovePlan:
        """Return the forced move of one logical queue.

        Raises:
            NotFound: there is no such topic, queue or broker.
            NotAllowed: its leader answers: move it without force.
        """
        view = await self._read(topic)
        leader = get_leader(view, topic, queue)
        view.require_in_scope(view.get_topic(topic), [target])
        return self._plan(
            view, [leader_planning.PlannedMove(topic, queue, leader, target)], even_if_alive=even_if_alive
        )

    async def plan_topic(self, topic: str, targets: Sequence[str], *, even_if_alive: bool = False) -> MovePlan:
        """Return the forced moves of the queues of *topic* whose leaders are dead; the others stay.

        Raises:
            NotFound: there is no such topic or broker.
            NotAllowed: no leader is dead.
        """
        view = await self._read(None)
        leaders = view.get_topic(topic).merged.leaders
        view.require_in_scope(view.get_topic(topic), targets)
        dead = {leader for leader in leaders.values() if even_if_alive or not _is_answering(view, leader)} - {*targets}
        if not dead:
            raise NotAllowed(f"every leader of {topic} answers: move it without --force, so that no offset is skipped")
        moves = [
            move for leader in sorted(dead) for move in leader_planning.plan_drain(leader, {topic: leaders}, targets)
        ]
        return self._plan(view, moves, even_if_alive=even_if_alive)

    async def plan_evacuation(self, broker: str, *, even_if_alive: bool = False) -> MovePlan:
        """Return the forced moves after which a dead *broker* leads nothing.

        Raises:
            NotAllowed: it answers, or no other broker can lead its queues.
        """
        view = (await self._read(None)).for_broker(broker)
        require_other_broker(view, broker)
        moves = drain_moves(view, broker)
        if not moves and broker not in view.brokers:
            view.get_broker(broker)
        return self._plan(view, moves, even_if_alive=even_if_alive)

    async def force(self, plan: MovePlan) -> list[Move]:
        """Open the queues of *plan* at their targets. A move that its target refuses gets the state `refused`."""

        async def order(item: tuple[str, ForceRequest]) -> Move:
            target, body = item
            numbers = [queue.queue for queue in body.queues]
            source = plan.view.leaders[body.topic.name][numbers[0]]
            state, reason, copied = "done", "forced", None
            try:
                address = plan.view.brokers[target].address
                answer = await self._access.invoke(address, RequestCode.FORCE_QUEUES, body=encode_body(body))
                copied = read_copied_bytes(answer)
            except HoldfastError as error:
                state, reason = "refused", str(error)
            return Move(
                id="",
                topic=body.topic.name,
                queues=numbers,
                source=source,
                target=target,
                state=state,
                reason=reason,
                copied=copied,
            )

        return await gather(to_force_orders(plan.view, plan.moves, self._now_ms()), order)

    async def plan_abandon(self, topic: str, queue: LogicalQueueId, *, end: LogicalOffset | None = None) -> AbandonPlan:
        """Return the plan to abandon the rest of a segment on a dead broker.

        Args:
            topic: The static topic.
            queue: The logical queue at whose unknown end readers wait.
            end: Where the segment shall end. If left out, it ends after the last message that a replica of the dead
                broker has, or, without a replica, at the highest offset that any group has consumed.

        Raises:
            NotFound: there is no such topic or queue.
            NotAllowed: the queue waits for no dead broker, or the broker is back.
        """
        view = await self._read(topic)
        leader = get_leader(view, topic, queue)
        view.require_ready([leader])
        segment = view.get_topic(topic).merged.queues[queue].unresolved
        if segment is None:
            raise NotAllowed(f"logical queue {queue} of {topic} waits for no dead broker: there is nothing to abandon")
        if _is_answering(view, segment.broker):
            raise NotAllowed(
                f"{segment.broker} is back and will report where its segment ends: nothing needs abandoning"
            )
        address = view.brokers[leader].address
        next_segment = view.get_topic(topic).merged.queues[queue].segment_after(segment)
        if end is None:
            end = await self._find_replica_end(topic, segment)
        segment_end = (
            await self._find_consumed_end(topic, queue, address, segment, next_segment) if end is None else end
        )
        return AbandonPlan(
            topic=topic,
            queue=queue,
            generation=segment.generation,
            broker=segment.broker,
            first=segment.decided_first,
            end=segment_end,
            leader=leader,
            address=address,
        )

    async def abandon(self, plan: AbandonPlan) -> None:
        """Fix the end of a dead broker's segment. Readers continue after it; messages past it are lost to them."""
        body = AbandonRequest(topic=plan.topic, queue=plan.queue, generation=to_number(plan.generation), end=plan.end)
        await self._access.invoke(plan.address, RequestCode.ABANDON_QUEUE, body=encode_body(body))

    async def _find_replica_end(self, topic: str, segment: Segment) -> LogicalOffset | None:
        """Return where *segment* ends at a replica of its broker; None if no replica answers."""
        header = {"topic": topic, "queueId": str(segment.queue_id), "lo": "false"}
        for broker in await self._access.brokers():
            if broker.name == segment.broker and broker.id != MASTER_ID:
                with suppress(HoldfastError):
                    answer = await self._access.invoke(broker.address, RequestCode.GET_MAX_OFFSET, header)
                    return segment.to_logical(PhysicalOffset(header_of(answer, OffsetAnswer).offset))
        return None

    async def _find_consumed_end(
        self, topic: str, queue: LogicalQueueId, address: str, segment: Segment, next_segment: Segment | None
    ) -> LogicalOffset:
        """Return the highest offset inside *segment* up to which any group has consumed."""
        answer = await self._access.invoke(address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": topic})
        candidates: list[LogicalOffset] = [segment.decided_first]
        for group in body_of(answer, GroupNames).group_list:
            header = QueryOffsetFields(consumer_group=group, topic=topic, queue_id=queue, set_zero_if_not_found=False)
            try:
                committed = header_of(
                    await self._access.invoke(address, RequestCode.QUERY_CONSUMER_OFFSET, header), OffsetAnswer
                )
            except BrokerRefused:
                continue  # This group never committed.
            candidates.append(LogicalOffset(committed.offset))
        limit = None if next_segment is None else next_segment.decided_first
        return max(offset for offset in candidates if limit is None or offset < limit)

    async def _read(self, topic: str | None) -> ClusterMappings:
        await self._topics.require_support()
        return await self._topics.read(topic=topic, includes_dead=topic is None)

    def _plan(
        self, view: ClusterMappings, moves: list[leader_planning.PlannedMove], *, even_if_alive: bool
    ) -> MovePlan:
        alive = sorted({str(move.source) for move in moves if _is_answering(view, str(move.source))})
        if alive and not even_if_alive:
            raise NotAllowed(
                f"{', '.join(alive)} answers: move its queues without --force, so that no offset is skipped. To force"
                " the move anyway, stop the broker first, or add --even-if-alive"
            )
        view.require_ready(sorted({move.target for move in moves}))
        names = sorted({move.topic for move in moves})
        previews = [preview_moves(view.topics[name], moves, {}, forced=True) for name in names]
        return MovePlan(view=view, moves=moves, previews=previews)


def to_force_orders(
    view: ClusterMappings, moves: Iterable[leader_planning.PlannedMove], now_ms: int
) -> list[tuple[str, ForceRequest]]:
    """Return one target and order for each topic and target, with the last known segments of every queue."""
    groups: dict[tuple[str, str], list[LogicalQueueId]] = {}
    for move in moves:
        groups.setdefault((move.topic, move.target), []).append(move.queue)
    return [(target, _to_order(view, topic, queues, now_ms)) for (topic, target), queues in sorted(groups.items())]


def _to_order(view: ClusterMappings, name: str, queues: Collection[LogicalQueueId], now_ms: int) -> ForceRequest:
    topic = view.topics[name]
    record = next(iter(topic.records.values()))
    extras = to_extras(
        msgspec.structs.replace(record, queues={number: topic.merged.queues[number] for number in queues})
    )
    return ForceRequest(
        topic=topic.config,
        scope=topic.merged.scope,
        epoch=next_epoch(topic.merged.epoch, now_ms),
        total=topic.merged.total,
        queues=[QueueSegments(queue=number, segments=extras.queues[number]) for number in sorted(queues)],
    )


def _is_answering(view: ClusterMappings, broker: str) -> bool:
    mappings = view.brokers.get(broker)
    return mappings is not None and mappings.fault is None
