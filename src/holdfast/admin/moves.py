"""Move logical queues: plan with the fewest moves, order them, follow them to their end, cancel, resume.

    plan ─> one order (7001) for each (topic, source, target) ─> the source drives ─> poll (7002) until it is done

The brokers complete a move on their own: the process that follows it may exit and poll again later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from holdfast.admin.cluster_access import Broker, ClusterAccess, NotAllowed, NotFound, body_of, gather, header_of
from holdfast.admin.previews import Preview, preview_moves
from holdfast.admin.static_topics import ClusterMappings, StaticTopics
from holdfast.model import leader_planning
from holdfast.model.errors import BrokerRefused, ConnectionLost, HoldfastError, RequestTimeout
from holdfast.model.queue import LogicalQueueId
from holdfast.model.scope import to_shown_scope
from holdfast.model.spelling_hint import hint_suffix
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.requests.moves import Move, MoveId, MoveList, MoveRequest, encode_body
from holdfast.wire.requests.offsets import OffsetAnswer, QueueFields

FINISHED: Final = frozenset({"done", "failed", "cancelled", "refused", "unknown"})
"""The final states of a move. Only this module sets the last two: not accepted by the source; no longer observable."""

_PAUSE_MIN_S: Final = 0.05
_PAUSE_MAX_S: Final = 1.0
# A source that restarts then finishes its moves: how long it may be away before we stop following.
_PATIENCE_S: Final = 120.0

MoveListener = Callable[[Sequence[Move]], None]
"""Called with all moves each time that one of them changes."""


class MovePlan(msgspec.Struct, frozen=True, kw_only=True):
    """Planned moves.

    Attributes:
        view: The cluster state for which they were planned.
        moves: The moves, in order of topic and queue.
        previews: The tables of every affected topic before and after.
    """

    view: ClusterMappings
    moves: list[leader_planning.PlannedMove]
    previews: list[Preview]


class Moves:
    """Operations that move queues.

    Args:
        access: The cluster.
        topics: Reads mappings.
        sleep: How to wait; tests pass a function that returns at once.
    """

    def __init__(
        self,
        access: ClusterAccess,
        topics: StaticTopics,
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._access = access
        self._topics = topics
        self._sleep = sleep
        self._brokers: dict[str, Broker] = {}

    # Plans.

    async def plan_queue(self, topic: str, queue: LogicalQueueId, target: str) -> MovePlan:
        """Return the move of one logical queue.

        Raises:
            NotFound: there is no such topic, queue or broker.
            NotAllowed: *target* leads it already, or a broker cannot take part in a move.
        """
        view = await self._read(topic)
        leader = get_leader(view, topic, queue)
        view.require_ready([target])
        view.require_in_scope(view.get_topic(topic), [target])
        if leader == target:
            raise NotAllowed(f"logical queue {queue} of {topic} is led by {target} already: there is nothing to move")
        return await self._plan(view, [leader_planning.PlannedMove(topic, queue, leader, target)])

    async def plan_topic(self, topic: str, targets: Collection[str]) -> MovePlan:
        """Return the fewest moves after which *targets* alone lead *topic*, evenly.

        Raises:
            NotFound: there is no such topic or broker.
            NotAllowed: a broker cannot take part in a move.
        """
        view = await self._read(None)
        view.require_ready(targets)
        view.require_in_scope(view.get_topic(topic), targets)
        leaders = view.get_topic(topic).merged.leaders
        other_leaders = {name: led for name, led in view.leaders.items() if name != topic}
        return await self._plan(
            view,
            leader_planning.plan_move(topic, leaders, targets, load=leader_planning.count_led_queues(other_leaders)),
        )

    async def plan_drain(self, broker: str) -> MovePlan:
        """Return the moves after which *broker* leads nothing.

        Raises:
            NotFound: there is no such broker.
            NotAllowed: no other broker can lead its queues.
        """
        view = (await self._read(None)).for_broker(broker)
        view.require_ready([broker])
        require_other_broker(view, broker)
        return await self._plan(view, drain_moves(view, broker))

    async def plan_spread(self, broker: str) -> MovePlan:
        """Return the moves that give *broker* its share of every static topic.

        Raises:
            NotFound: there is no such broker.
            NotAllowed: it cannot take part in a move.
        """
        view = (await self._read(None)).for_broker(broker)
        view.require_ready([broker])
        groups = view.leaders_by_scope(cluster=view.get_broker(broker).cluster)
        moves = [move for leaders, targets in groups for move in leader_planning.plan_spread(broker, leaders, targets)]
        return await self._plan(view, sorted(moves))

    async def plan_rebalance(self, topic: str | None = None) -> MovePlan:
        """Return the fewest moves after which the brokers lead every static topic, or only *topic*, evenly.

        Raises:
            NotFound: there is no such topic.
            NotAllowed: no broker answers in a cluster to which static topics are limited.
        """
        view = await self._read(None)
        if topic is not None:
            view = msgspec.structs.replace(view, topics={topic: view.get_topic(topic)}, same_named={})
        # Two topics with one name never share a scope: rebalance each scope separately.
        plans = [await self._plan(part, sorted(_rebalance_moves(part))) for part in view.split_by_scope()]
        return MovePlan(
            view=view,
            moves=[move for plan in plans for move in plan.moves],
            previews=[preview for plan in plans for preview in plan.previews],
        )

    async def _read(self, topic: str | None) -> ClusterMappings:
        await self._topics.require_support()
        return await self._topics.read(topic=topic)

    async def _plan(self, view: ClusterMappings, moves: list[leader_planning.PlannedMove]) -> MovePlan:
        sources = sorted({move.source for move in moves if move.source is not None})
        for source in sources:
            if source not in view.brokers or view.brokers[source].fault is not None:
                raise NotAllowed(
                    f"broker {source} leads queues that should move, and does not answer: start it, or, if it is dead"
                    f" for good, `holdfast broker evacuate {source} --force`"
                )
        view.require_ready(sources)
        ends = dict(await gather(moves, lambda move: self._find_end(view, move)))
        previews = [
            preview_moves(
                view.topics[name],
                moves,
                {queue: end for (topic_name, queue), end in ends.items() if topic_name == name and end is not None},
            )
            for name in sorted({move.topic for move in moves})
        ]
        return MovePlan(view=view, moves=moves, previews=previews)

    async def _find_end(
        self, view: ClusterMappings, move: leader_planning.PlannedMove
    ) -> tuple[tuple[str, int], int | None]:
        """Return the topic and queue of *move*, and where the queue ends now; None if its leader does not answer."""
        assert move.source is not None, "only a queue that is led moves"
        header = QueueFields(topic=move.topic, queue_id=move.queue)
        try:
            answer = await self._access.invoke(view.brokers[move.source].address, RequestCode.GET_MAX_OFFSET, header)
        except HoldfastError:
            return (move.topic, move.queue), None  # The end is only shown in a table.
        return (move.topic, move.queue), header_of(answer, OffsetAnswer).offset

    # Carrying out.

    async def start(self, plan: MovePlan) -> list[Move]:
        """Send every source its orders; return the started moves. A move that its source refuses is `refused`."""

        async def order(item: tuple[str, MoveRequest]) -> Move:
            source, move_order = item
            address = plan.view.brokers[source].address
            try:
                answer = await self._access.invoke(address, RequestCode.MOVE_QUEUES, body=encode_body(move_order))
            except HoldfastError as error:
                return Move(
                    id="",
                    topic=move_order.topic,
                    queues=move_order.queues,
                    source=source,
                    target=move_order.target,
                    state="refused",
                    reason=_reason(error),
                )
            return body_of(answer, Move)

        return await gather(to_orders(plan.moves), order)

    async def follow(self, moves: Sequence[Move], on_change: MoveListener = lambda _: None) -> list[Move]:
        """Poll *moves* until all are in a final state; return them with that state.

        If a source does not answer, wait for it for a while: it resumes its moves when it returns.
        """
        known = {(move.id, move.source, number): move for number, move in enumerate(moves)}
        silent_s = 0.0
        pause_s = _PAUSE_MIN_S
        on_change(list(known.values()))
        while pending := {key: move for key, move in known.items() if move.state not in FINISHED}:
            await self._sleep(pause_s)
            reported, silent = await self._poll({move.source for move in pending.values()})
            silent_s = silent_s + pause_s if silent else 0.0
            changed = False
            for key, move in pending.items():
                new_state = self._newest_state(move, reported, silent, is_overdue=silent_s > _PATIENCE_S)
                changed = changed or new_state != move
                known[key] = new_state
            if changed:
                on_change(list(known.values()))
            pause_s = _PAUSE_MIN_S if changed else min(2 * pause_s, _PAUSE_MAX_S)
        return list(known.values())

    def _newest_state(
        self, move: Move, reported: dict[str, Move], silent: Collection[str], *, is_overdue: bool
    ) -> Move:
        if move.id in reported:
            return reported[move.id]
        if move.source not in silent:
            reason = f"{move.source} has no move {move.id} any more: see `holdfast queue list {move.topic}`"
            return msgspec.structs.replace(move, state="unknown", reason=reason)
        if is_overdue:
            reason = f"{move.source} does not answer: the move continues when it returns (`holdfast move list`)"
            return msgspec.structs.replace(move, state="unknown", reason=reason)
        return move

    async def _poll(self, sources: set[str]) -> tuple[dict[str, Move], set[str]]:
        """Return moves by id, and the sources that did not answer."""
        # Name servers may be away while brokers move queues: the last known addresses will do.
        with suppress(HoldfastError):
            self._brokers |= {broker.name: broker for broker in await self._access.masters()}
        brokers = self._brokers
        silent = {name for name in sources if name not in brokers}
        found = await gather([brokers[name] for name in sorted(sources - silent)], self._fetch_moves)
        reported: dict[str, Move] = {}
        for name, moves in found:
            if moves is None:
                silent.add(name)
            reported.update({move.id: move for move in moves or ()})
        return reported, silent

    async def _fetch_moves(self, broker: Broker) -> tuple[str, list[Move] | None]:
        """Return the moves that *broker* drives; None if it does not answer; empty if it does not support moves."""
        try:
            answer = await self._access.invoke(broker.address, RequestCode.LIST_MOVES)
        except (ConnectionLost, RequestTimeout):
            return broker.name, None
        except BrokerRefused as refusal:
            if refusal.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            return broker.name, []
        return broker.name, body_of(answer, MoveList).moves

    # Managing started moves.

    async def list(self) -> list[Move]:
        """Return the moves of all brokers, oldest first."""
        found = await gather(await self._access.masters(), self._fetch_moves)
        all_moves = (move for _, moves in found for move in moves or ())
        return sorted(all_moves, key=lambda move: (move.started_ms, move.id))

    async def cancel(self, name: str) -> Move:
        """Roll back the move whose id is *name* or begins with it.

        Raises:
            NotFound: there is no such move.
            BrokerRefused: it is too late: the new leader already has the queues.
        """
        return await self._send_order(RequestCode.CANCEL_MOVE, name)

    async def resume(self, name: str) -> Move:
        """Resume the failed move whose id is *name* or begins with it.

        Raises:
            NotFound: there is no such move.
        """
        return await self._send_order(RequestCode.RESUME_MOVE, name)

    async def _send_order(self, code: RequestCode, name: str) -> Move:
        move = find_move(await self.list(), name)
        (source,) = await self._access.masters(names=[move.source])
        await self._access.invoke(source.address, code, body=encode_body(MoveId(id=move.id)))
        _, moves = await self._fetch_moves(source)
        return next((found for found in moves or () if found.id == move.id), move)


def find_move(moves: Collection[Move], name: str) -> Move:
    """Return the move whose id is *name*, or the only one whose id begins with it.

    Raises:
        NotFound: there is none, or more than one; the text says what to do.
    """
    found = [move for move in moves if move.id == name] or [move for move in moves if name and move.id.startswith(name)]
    if not found:
        known = [move.id for move in moves]
        raise NotFound(f"no move {name!r}{hint_suffix(name, known) if known else '; there are no moves'}")
    if len(found) > 1:
        raise NotFound(f"{len(found)} moves begin with {name!r}: give more of the id")
    return found[0]


def to_orders(moves: Iterable[leader_planning.PlannedMove]) -> list[tuple[str, MoveRequest]]:
    """Return *moves* as orders, each with the source that receives it.

    There is one order for each topic, source and target, so that each step of a move syncs once for many queues.
    """
    groups: dict[tuple[str, str, str], list[LogicalQueueId]] = {}
    for move in moves:
        assert move.source is not None, "only a queue that is led moves"
        groups.setdefault((move.topic, move.source, move.target), []).append(move.queue)
    return [
        (source, MoveRequest(topic=topic, queues=sorted(queues), target=target))
        for (topic, source, target), queues in sorted(groups.items())
    ]


def get_leader(view: ClusterMappings, topic: str, queue: LogicalQueueId) -> str:
    """Return the leader of a logical queue.

    Raises:
        NotFound: there is no such topic or queue, or the queue has no leader.
    """
    merged = view.get_topic(topic).merged
    if not 0 <= queue < merged.total:
        raise NotFound(f"{topic} has logical queues 0 to {merged.total - 1}, no {queue}")
    if queue not in merged.queues:
        raise NotFound(f"no broker leads logical queue {queue} of {topic}: run `holdfast queue repair {topic}`")
    return merged.queues[queue].leader.broker


def _rebalance_moves(view: ClusterMappings) -> list[leader_planning.PlannedMove]:
    """Return the fewest moves after which brokers lead the topics of one scope evenly."""
    moves = []
    for leaders, targets in view.leaders_by_scope():
        if not targets:
            scope = to_shown_scope(next(iter(view.topics.values())).merged.scope)
            raise NotAllowed(
                f"no broker of {scope} that can lead queues answers: start one, or rebalance another unit (--unit)"
            )
        moves += leader_planning.plan_rebalance(leaders, targets)
    return moves


def drain_moves(view: ClusterMappings, broker: str) -> list[leader_planning.PlannedMove]:
    """Return the moves after which *broker* leads nothing: each topic moves to other brokers in its scope.

    Raises:
        NotAllowed: there are queues to move, and no other broker to move them to.
    """
    moves = []
    for part in view.split_by_scope():
        for leaders, targets in part.leaders_by_scope():
            led = leader_planning.count_led_queues(leaders)[broker]
            if led and not {*targets} - {broker}:
                scope = to_shown_scope(next(iter(part.topics.values())).merged.scope)
                raise NotAllowed(
                    f"{broker} leads {led} logical queues of topics that are fixed in {scope}, and no other broker"
                    " there can lead them: start one first, or run `holdfast broker spread` on a drained one"
                )
            moves += leader_planning.plan_drain(broker, leaders, targets)
    return sorted(moves)


def require_other_broker(view: ClusterMappings, broker: str) -> None:
    """Check that another broker can lead the queues of *broker*.

    Raises:
        NotAllowed: it is the last one that can lead queues.
    """
    if not [name for name in view.default_targets if name != broker]:
        drained = ", ".join(sorted(name for name in view.ready_brokers if name != broker))
        remedy = f"start another broker, or undo the draining of {drained} (`holdfast broker spread`),"
        raise NotAllowed(
            f"{broker} is the only broker that can lead queues: {remedy if drained else 'start another broker'} "
            "before you"
            " remove this one"
        )


def _reason(error: HoldfastError) -> str:
    return error.remark if isinstance(error, BrokerRefused) and error.remark else str(error)
