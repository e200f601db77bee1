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

from holdfast.admin.cluster_access import Broker, NotAllowed, NotFound, Reach, body_of, gather, header_of
from holdfast.admin.previews import Preview, preview_moves
from holdfast.admin.static_topics import ClusterMappings, StaticTopics
from holdfast.model import leader_planning
from holdfast.model.errors import BrokerRefused, ConnectionLost, HoldfastError, RequestTimeout
from holdfast.model.scope import to_shown_scope
from holdfast.model.spelling_hint import nearest
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.requests.moves import Move, MoveList, MoveName, MoveOrder, encode_body
from holdfast.wire.requests.offsets import OffsetAnswer, QueueFields

FINISHED: Final = frozenset({"done", "failed", "cancelled", "refused", "unknown"})
"""The final states of a move. Only this module sets the last two: not accepted by the source; no longer observable."""

_PAUSE_MIN_S: Final = 0.05
_PAUSE_MAX_S: Final = 1.0
# A source that restarts then finishes its moves: how long it may be away before we stop following.
_PATIENCE_S: Final = 120.0

Told = Callable[[Sequence[Move]], None]
"""Called with all moves each time that one of them changes."""


class MovePlan(msgspec.Struct, frozen=True, kw_only=True):
    """Planned moves.

    Attributes:
        view: The cluster state for which they were planned.
        moves: The moves, in order of topic and queue.
        previews: The tables of every affected topic before and after.
    """

    view: ClusterMappings
    moves: list[leader_planning.Move]
    previews: list[Preview]


class Moves:
    """Operations that move queues.

    Args:
        reach: The cluster.
        topics: Reads mappings.
        sleep: How to wait; tests pass a function that returns at once.
    """

    def __init__(
        self, reach: Reach, topics: StaticTopics, *, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    ) -> None:
        self._reach = reach
        self._topics = topics
        self._sleep = sleep
        self._brokers: dict[str, Broker] = {}

    # Plans.

    async def plan_queue(self, topic: str, queue: int, target: str) -> MovePlan:
        """Return the move of one logical queue.

        Raises:
            NotFound: there is no such topic, queue or broker.
            NotAllowed: *target* leads it already, or a broker cannot take part in a move.
        """
        view = await self._read(topic)
        leader = get_leader(view, topic, queue)
        view.require_ready([target])
        view.require_inside(view.get_topic(topic), [target])
        if leader == target:
            raise NotAllowed(f"logical queue {queue} of {topic} is led by {target} already: there is nothing to move")
        return await self._plan(view, [leader_planning.Move(topic, queue, leader, target)])

    async def plan_topic(self, topic: str, targets: Collection[str]) -> MovePlan:
        """Return the fewest moves after which *targets* alone lead *topic*, evenly.

        Raises:
            NotFound: there is no such topic or broker.
            NotAllowed: a broker cannot take part in a move.
        """
        view = await self._read(None)
        view.require_ready(targets)
        view.require_inside(view.get_topic(topic), targets)
        leaders = view.get_topic(topic).merged.leaders
        others = {name: led for name, led in view.leaders.items() if name != topic}
        return await self._plan(
            view, leader_planning.plan_move(topic, leaders, targets, load=leader_planning.count_leads(others))
        )

    async def plan_drain(self, broker: str) -> MovePlan:
        """Return the moves after which *broker* leads nothing.

        Raises:
            NotFound: there is no such broker.
            NotAllowed: no other broker can lead its queues.
        """
        view = (await self._read(None)).around(broker)
        view.require_ready([broker])
        require_another(view, broker)
        return await self._plan(view, drain_moves(view, broker))

    async def plan_spread(self, broker: str) -> MovePlan:
        """Return the moves that give *broker* its share of every static topic.

        Raises:
            NotFound: there is no such broker.
            NotAllowed: it cannot take part in a move.
        """
        view = (await self._read(None)).around(broker)
        view.require_ready([broker])
        groups = view.by_scope(cluster=view.get_holder(broker).cluster)
        moves = [move for leaders, takers in groups for move in leader_planning.plan_spread(broker, leaders, takers)]
        return await self._plan(view, sorted(moves))

    async def plan_rebalance(self, topic: str | None = None) -> MovePlan:
        """Return the fewest moves after which the brokers lead every static topic, or only *topic*, evenly.

        Raises:
            NotFound: there is no such topic.
            NotAllowed: no broker answers in a cluster to which static topics are limited.
        """
        view = await self._read(None)
        if topic is not None:
            view = msgspec.structs.replace(view, topics={topic: view.get_topic(topic)}, twins={})
        # Two topics with one name never share a scope: rebalance each scope separately.
        plans = [await self._plan(part, sorted(_even_moves(part))) for part in view.apart()]
        return MovePlan(
            view=view,
            moves=[move for plan in plans for move in plan.moves],
            previews=[preview for plan in plans for preview in plan.previews],
        )

    async def _read(self, topic: str | None) -> ClusterMappings:
        await self._topics.require_support()
        return await self._topics.read(topic=topic)

    async def _plan(self, view: ClusterMappings, moves: list[leader_planning.Move]) -> MovePlan:
        sources = sorted({move.source for move in moves if move.source is not None})
        for source in sources:
            if source not in view.holders or view.holders[source].fault is not None:
                raise NotAllowed(
                    f"broker {source} leads queues that should move, and does not answer: start it, or, if it is dead"
                    f" for good, `holdfast broker evacuate {source} --force`"
                )
        view.require_ready(sources)
        ends = dict(await gather(moves, lambda move: self._end(view, move)))
        previews = [
            preview_moves(
                view.topics[name],
                moves,
                {queue: end for (of, queue), end in ends.items() if of == name and end is not None},
            )
            for name in sorted({move.topic for move in moves})
        ]
        return MovePlan(view=view, moves=moves, previews=previews)

    async def _end(self, view: ClusterMappings, move: leader_planning.Move) -> tuple[tuple[str, int], int | None]:
        """Return the topic and queue of *move*, and where the queue ends now; None if its leader does not answer."""
        assert move.source is not None, "only a queue that is led moves"
        header = QueueFields(topic=move.topic, queue_id=move.queue)
        try:
            answer = await self._reach.ask(view.holders[move.source].address, RequestCode.GET_MAX_OFFSET, header)
        except HoldfastError:
            return (move.topic, move.queue), None  # The end is only shown in a table.
        return (move.topic, move.queue), header_of(answer, OffsetAnswer).offset

    # Carrying out.

    async def start(self, plan: MovePlan) -> list[Move]:
        """Send every source its orders; return the started moves. A move that its source refuses is `refused`."""

        async def order(named: tuple[str, MoveOrder]) -> Move:
            source, group = named
            address = plan.view.holders[source].address
            try:
                answer = await self._reach.ask(address, RequestCode.MOVE_QUEUES, body=encode_body(group))
            except HoldfastError as error:
                return Move(
                    id="",
                    topic=group.topic,
                    queues=group.queues,
                    source=source,
                    target=group.target,
                    state="refused",
                    reason=_reason(error),
                )
            return body_of(answer, Move)

        return await gather(to_orders(plan.moves), order)

    async def follow(self, moves: Sequence[Move], told: Told = lambda _: None) -> list[Move]:
        """Poll *moves* until all are in a final state; return them with that state.

        If a source does not answer, wait for it for a while: it resumes its moves when it returns.
        """
        known = {(move.id, move.source, number): move for number, move in enumerate(moves)}
        away_s = 0.0
        pause_s = _PAUSE_MIN_S
        told(list(known.values()))
        while pending := {key: move for key, move in known.items() if move.state not in FINISHED}:
            await self._sleep(pause_s)
            news, silent = await self._poll({move.source for move in pending.values()})
            away_s = away_s + pause_s if silent else 0.0
            changed = False
            for key, move in pending.items():
                newer = self._newest_state(move, news, silent, gave_up=away_s > _PATIENCE_S)
                changed = changed or newer != move
                known[key] = newer
            if changed:
                told(list(known.values()))
            pause_s = _PAUSE_MIN_S if changed else min(2 * pause_s, _PAUSE_MAX_S)
        return list(known.values())

    def _newest_state(self, move: Move, news: dict[str, Move], silent: Collection[str], *, gave_up: bool) -> Move:
        if move.id in news:
            return news[move.id]
        if move.source not in silent:
            reason = f"{move.source} has no move {move.id} any more: see `holdfast queue list {move.topic}`"
            return msgspec.structs.replace(move, state="unknown", reason=reason)
        if gave_up:
            reason = f"{move.source} does not answer: the move continues when it returns (`holdfast move list`)"
            return msgspec.structs.replace(move, state="unknown", reason=reason)
        return move

    async def _poll(self, sources: set[str]) -> tuple[dict[str, Move], set[str]]:
        """Return moves by id, and the sources that did not answer."""
        # Name servers may be away while brokers move queues: the last known addresses will do.
        with suppress(HoldfastError):
            self._brokers |= {broker.name: broker for broker in await self._reach.masters()}
        brokers = self._brokers
        silent = {name for name in sources if name not in brokers}
        found = await gather([brokers[name] for name in sorted(sources - silent)], self._list)
        news: dict[str, Move] = {}
        for name, moves in found:
            if moves is None:
                silent.add(name)
            news.update({move.id: move for move in moves or ()})
        return news, silent

    async def _list(self, broker: Broker) -> tuple[str, list[Move] | None]:
        """Return the moves that *broker* drives; None if it does not answer; empty if it does not support moves."""
        try:
            answer = await self._reach.ask(broker.address, RequestCode.LIST_MOVES)
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
        found = await gather(await self._reach.masters(), self._list)
        every = (move for _, moves in found for move in moves or ())
        return sorted(every, key=lambda move: (move.started_ms, move.id))

    async def cancel(self, name: str) -> Move:
        """Roll back the move whose id is *name* or begins with it.

        Raises:
            NotFound: there is no such move.
            BrokerRefused: it is too late: the new leader already has the queues.
        """
        return await self._order(RequestCode.CANCEL_MOVE, name)

    async def resume(self, name: str) -> Move:
        """Resume the failed move whose id is *name* or begins with it.

        Raises:
            NotFound: there is no such move.
        """
        return await self._order(RequestCode.RESUME_MOVE, name)

    async def _order(self, code: RequestCode, name: str) -> Move:
        move = find_move(await self.list(), name)
        (source,) = await self._reach.masters(names=[move.source])
        await self._reach.ask(source.address, code, body=encode_body(MoveName(id=move.id)))
        _, moves = await self._list(source)
        return next((found for found in moves or () if found.id == move.id), move)


def find_move(moves: Collection[Move], name: str) -> Move:
    """Return the move whose id is *name*, or the only one whose id begins with it.

    Raises:
        NotFound: there is none, or more than one; the text says what to do.
    """
    found = [move for move in moves if move.id == name] or [move for move in moves if name and move.id.startswith(name)]
    if not found:
        known = [move.id for move in moves]
        raise NotFound(f"no move {name!r}{nearest(name, known) if known else '; there are no moves'}")
    if len(found) > 1:
        raise NotFound(f"{len(found)} moves begin with {name!r}: give more of the id")
    return found[0]


def to_orders(moves: Iterable[leader_planning.Move]) -> list[tuple[str, MoveOrder]]:
    """Return *moves* as orders, each with the source that receives it.

    There is one order for each topic, source and target, so that each step of a move syncs once for many queues.
    """
    groups: dict[tuple[str, str, str], list[int]] = {}
    for move in moves:
        assert move.source is not None, "only a queue that is led moves"
        groups.setdefault((move.topic, move.source, move.target), []).append(move.queue)
    return [
        (source, MoveOrder(topic=topic, queues=sorted(queues), target=target))
        for (topic, source, target), queues in sorted(groups.items())
    ]


def get_leader(view: ClusterMappings, topic: str, queue: int) -> str:
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


def _even_moves(view: ClusterMappings) -> list[leader_planning.Move]:
    """Return the fewest moves after which brokers lead the topics of one scope evenly."""
    moves = []
    for leaders, takers in view.by_scope():
        if not takers:
            scope = to_shown_scope(next(iter(view.topics.values())).merged.scope)
            raise NotAllowed(
                f"no broker of {scope} that can lead queues answers: start one, or rebalance another unit (--unit)"
            )
        moves += leader_planning.plan_rebalance(leaders, takers)
    return moves


def drain_moves(view: ClusterMappings, broker: str) -> list[leader_planning.Move]:
    """Return the moves after which *broker* leads nothing: each topic moves to other brokers in its scope.

    Raises:
        NotAllowed: there are queues to move, and no other broker to move them to.
    """
    moves = []
    for part in view.apart():
        for leaders, takers in part.by_scope():
            led = leader_planning.count_leads(leaders)[broker]
            if led and not {*takers} - {broker}:
                scope = to_shown_scope(next(iter(part.topics.values())).merged.scope)
                raise NotAllowed(
                    f"{broker} leads {led} logical queues of topics that are fixed in {scope}, and no other broker"
                    " there can lead them: start one first, or run `holdfast broker spread` on a drained one"
                )
            moves += leader_planning.plan_drain(broker, leaders, takers)
    return sorted(moves)


def require_another(view: ClusterMappings, broker: str) -> None:
    """Check that another broker can lead the queues of *broker*.

    Raises:
        NotAllowed: it is the last one that can lead queues.
    """
    if not [name for name in view.takers if name != broker]:
        drained = ", ".join(sorted(name for name in view.ready if name != broker))
        way = f"start another broker, or undo the draining of {drained} (`holdfast broker spread`),"
        raise NotAllowed(
            f"{broker} is the only broker that can lead queues: {way if drained else 'start another broker'} before you"
            " remove this one"
        )


def _reason(error: HoldfastError) -> str:
    return error.remark if isinstance(error, BrokerRefused) and error.remark else str(error)
