"""One topic: its description and mapping, its problems in words, and the live map with the positions of consumers.

    physical ends (one request for each broker) ──┐
    mapping (7007, one request for each broker) ──┼─> rows: a logical queue, its segments, what groups have consumed
    lag of each group (208, for each broker) ─────┘

The queues of a normal topic are rows with one segment, so that a reader of the map need not know two forms.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from holdfast.admin.cluster_access import Broker, gather
from holdfast.admin.groups import GroupLag
from holdfast.admin.operations import Admin
from holdfast.admin.static_topics import ClusterMappings, StaticTopic
from holdfast.admin.tables import count_text
from holdfast.admin.topics import QueueState, TopicDescription
from holdfast.model.errors import HoldfastError
from holdfast.model.mapping import LogicalQueue
from holdfast.model.queue import PhysicalOffset, PhysicalQueueId
from holdfast.model.route import MASTER_ID
from holdfast.model.scope import mock_broker, shown_broker, to_shown_scope
from holdfast.model.segment import Segment, Status
from holdfast.wire.requests.moves import Move

GROUPS_MAX: Final = 16
"""How many groups a map shows by default: each costs every broker a request."""

# A broker that returns late may cause a thousand contradictions of the same kind.
_LINES_MAX: Final = 5


class SegmentView(msgspec.Struct, frozen=True, kw_only=True):
    """One segment of a logical queue.

    Attributes:
        generation: Its ordinal number; None while unknown.
        broker: The broker that has it.
        physical_queue: The physical queue there.
        first: Its first logical offset; null while a move prepares it.
        end: Its logical end, exclusive: the current end of the leader's segment; null if unknown.
        status: Normal, ReadOnly or Expired.
        is_leader: Whether it accepts the writes.
        gap_after: Whether a gap of offsets follows, which a forced move left out.
        note: What is special about it, in words.
        first_ms: When its first record was stored.
        last_ms: No record in it was stored later.
    """

    generation: int | None
    broker: str
    physical_queue: int
    first: int | None
    end: int | None
    status: Status
    is_leader: bool = False
    gap_after: bool = False
    note: str | None = None
    first_ms: int | None = None
    last_ms: int | None = None


class QueuePosition(msgspec.Struct, frozen=True):
    """The position of a group in a queue.

    Attributes:
        committed: The offset of the next message to consume; null if the group committed nothing.
        lag: How many messages are left to consume.
    """

    group: str
    committed: int | None
    lag: int


class QueueRow(msgspec.Struct, frozen=True, kw_only=True):
    """One queue of a topic.

    Attributes:
        queue: Its number.
        leader: The broker that accepts its writes.
        first: The oldest readable offset; null if unknown.
        end: The offset of the next message; null if the leader does not answer.
        segments: The oldest first; one for a queue of a normal topic.
        positions: The positions of consumer groups, by group.
        moving_to: The broker to which a move takes it now.
    """

    queue: int
    leader: str
    first: int | None
    end: int | None
    segments: list[SegmentView]
    positions: list[QueuePosition] = []
    moving_to: str | None = None


class GroupTotal(msgspec.Struct, frozen=True):
    """The lag of a group in the topic of a map; `fault` says why it is unknown."""

    group: str
    lag: int | None
    fault: str | None = None


class TopicMap(msgspec.Struct, frozen=True, kw_only=True):
    """The live map of one topic.

    Attributes:
        topic: Its name.
        kind: `static`, or the kind of a normal topic.
        scope: Where its queues are fixed; null for a normal topic.
        shown_to_clients_as: The broker name under which clients see its logical queues.
        epoch: The version of its mapping.
        total: The number of its queues.
        queues: By number.
        unled: The numbers of logical queues without a leader.
        groups: The groups that consume it, and how far they lag.
        groups_left_out: How many more groups consume it; a map shows only the first ones.
        moves: The moves of its queues that have not ended.
        problems: What is wrong with its mapping and what to do, in words.
    """

    topic: str
    kind: str
    scope: str | None = None
    shown_to_clients_as: str | None = None
    epoch: int | None = None
    total: int
    queues: list[QueueRow]
    unled: list[int] = []
    groups: list[GroupTotal] = []
    groups_left_out: int = 0
    moves: list[Move] = []
    problems: list[str] = []


async def read_topic(admin: Admin, topic: str) -> tuple[TopicDescription, ClusterMappings | None]:
    """Return a topic, and the mappings if it is static, even if the name server withholds or has forgotten it.

    Raises:
        RouteNotFound: there is no such topic.
        NotAllowed: several static topics have this name.
    """
    view = await admin.static_topics.read(topic=topic)
    if not view.find(topic):
        return await admin.topics.describe(topic), None
    records = view.get_topic(topic).records
    hosts = [
        Broker(mappings.name, mappings.cluster, MASTER_ID, mappings.address)
        for mappings in view.brokers.values()
        if topic in mappings.topics and mappings.name in records
    ]
    return await admin.topics.describe(topic, hosts=hosts), view


async def read_topic_map(admin: Admin, topic: str, *, groups_max: int = GROUPS_MAX) -> TopicMap:
    """Return the live map of a topic.

    Raises:
        RouteNotFound: there is no such topic.
        NotAllowed: several static topics have this name.
    """
    found, view = await read_topic(admin, topic)
    shown_groups = found.groups[:groups_max]
    lags = await gather(shown_groups, lambda group: _read_lag(admin, group, topic))
    totals = [GroupTotal(group, None, lag) if isinstance(lag, str) else _total(group, lag) for group, lag in lags]
    left_out = len(found.groups) - len(shown_groups)
    known = [lag for _, lag in lags if not isinstance(lag, str)]
    if view is None:
        rows = _normal_rows(found.queues, known)
        return TopicMap(
            topic=topic, kind=found.kind, total=len(rows), queues=rows, groups=totals, groups_left_out=left_out
        )
    static = view.get_topic(topic)
    merged = static.merged
    moves = [move for move in view.moves if move.topic == topic and move.state not in {"done", "cancelled"}]
    return TopicMap(
        topic=topic,
        kind="static",
        scope=to_shown_scope(merged.scope),
        shown_to_clients_as=shown_broker(merged.scope),
        epoch=merged.epoch,
        total=merged.total,
        queues=logical_rows(static, found.queues, known, moves),
        unled=list(merged.unled),
        groups=totals,
        groups_left_out=left_out,
        moves=moves,
        problems=find_problems(view, static),
    )


def logical_rows(
    topic: StaticTopic, states: Iterable[QueueState], lags: Sequence[GroupLag], moves: Iterable[Move] = ()
) -> list[QueueRow]:
    """Return the rows of a static topic.

    Args:
        topic: The topic.
        states: The ranges of its physical queues, from the brokers that answered.
        lags: The lag of each group.
        moves: The moves of its queues that have not ended.
    """
    ends = {(state.broker, PhysicalQueueId(state.queue)): state for state in states}  # asked by physical number
    positions = _positions_by_queue(lags)
    logical_broker = mock_broker(topic.merged.scope)
    targets = {queue: move.target for move in moves if move.state != "failed" for queue in move.queues}
    return [
        _logical_row(queue, ends, positions.get((logical_broker, number), []), targets.get(number))
        for number, queue in sorted(topic.merged.queues.items())
    ]


def _logical_row(
    queue: LogicalQueue,
    states: Mapping[tuple[str, PhysicalQueueId], QueueState],
    positions: list[QueuePosition],
    target: str | None,
) -> QueueRow:
    leader = queue.leader
    segments = [
        _segment_view(queue, segment, states.get((segment.broker, segment.queue_id))) for segment in queue.segments
    ]
    end = next((view.end for view in segments if view.is_leader), None)
    return QueueRow(
        queue=queue.queue,
        leader=leader.broker,
        first=_find_first(queue, states),
        end=end,
        segments=segments,
        positions=positions,
        moving_to=target,
    )


def _segment_view(queue: LogicalQueue, segment: Segment, state: QueueState | None) -> SegmentView:
    is_leader = segment == queue.leader and segment.is_decided
    end: int | None = segment.logical_end
    if end is None and is_leader and state is not None:
        end = segment.to_logical(PhysicalOffset(state.offset_max))
    return SegmentView(
        generation=segment.generation,
        broker=segment.broker,
        physical_queue=segment.queue_id,
        first=segment.first,
        end=end,
        status=queue.status_of(segment),
        is_leader=is_leader,
        gap_after=segment.forced,
        note=describe_segment(queue, segment),
        first_ms=segment.first_ms,
        last_ms=segment.last_ms,
    )


def _find_first(queue: LogicalQueue, states: Mapping[tuple[str, PhysicalQueueId], QueueState]) -> int | None:
    """Return the oldest readable offset. A broker that does not answer counts as recorded."""
    minimums = {
        segment.generation: PhysicalOffset(state.offset_min)
        for segment in queue.readable
        if (state := states.get((segment.broker, segment.queue_id))) is not None
    }
    return queue.logical_min(minimums)


def _normal_rows(states: Iterable[QueueState], lags: Sequence[GroupLag]) -> list[QueueRow]:
    positions = _positions_by_queue(lags)
    return [
        QueueRow(
            queue=state.queue,
            leader=state.broker,
            first=state.offset_min,
            end=state.offset_max,
            segments=[
                SegmentView(
                    generation=0,
                    broker=state.broker,
                    physical_queue=state.queue,
                    first=state.offset_min,
                    end=state.offset_max,
                    status=Status.NORMAL,
                    is_leader=True,
                    last_ms=state.last_stored_ms,
                )
            ],
            positions=positions.get((state.broker, state.queue), []),
        )
        for state in states
    ]


def _positions_by_queue(lags: Sequence[GroupLag]) -> dict[tuple[str, int], list[QueuePosition]]:
    """Return the positions of groups, by broker and queue as the wire names them."""
    found: dict[tuple[str, int], list[QueuePosition]] = {}
    for lag in lags:
        for each in lag.queues:
            found.setdefault((each.broker, each.queue), []).append(QueuePosition(lag.group, each.committed, each.lag))
    return found


async def _read_lag(admin: Admin, group: str, topic: str) -> tuple[str, GroupLag | str]:
    """Return the lag of a group in a topic, or why it is unknown: one group does not hide the map."""
    try:
        return group, await admin.groups.lag(group, topic)
    except HoldfastError as error:
        return group, str(error)


def _total(group: str, lag: GroupLag) -> GroupTotal:
    return GroupTotal(group, lag.lag)


def find_problems(view: ClusterMappings, topic: StaticTopic) -> list[str]:
    """Return the problems of a static topic and their remedies, one line each."""
    merged = topic.merged
    lines = [f"contradiction: {text}" for text in _first_lines(merged.contradictions)]
    repair_command = f"run `holdfast queue repair {topic.name}`"
    if merged.unled:
        lines.append(f"no broker leads {count_text(len(merged.unled), 'queue')}: {repair_command}")
    elif len({record.total for record in topic.records.values()}) > 1:
        lines.append(f"not every broker knows the current number of queues: {repair_command}")
    lines += [
        f"{name} has older messages and reported no record: they cannot be read until it returns"
        for name in merged.missing
    ]
    for name in sorted(set(merged.leaders.values())):
        mappings = view.brokers.get(name)
        if mappings is None or mappings.fault is not None:
            lines.append(
                f"{name} leads queues and does not answer: start it, or `holdfast broker evacuate {name} --force`"
            )
    return lines + _first_lines(merged.superseded)


def _first_lines(texts: list[str]) -> list[str]:
    """Return the first few texts, and a line with the number of the others."""
    return texts if len(texts) <= _LINES_MAX else [*texts[:_LINES_MAX], f"and {len(texts) - _LINES_MAX} more like it"]


def describe_segment(queue: LogicalQueue, segment: Segment) -> str | None:
    """Return what is special about a segment; None if nothing is."""
    if not segment.is_decided:
        return "prepared, accepts no writes"
    if segment.forced and not segment.is_sealed:
        return f"end unknown: wait for {segment.broker}, or `holdfast queue abandon`"
    if segment.forced:
        return "a gap of offsets follows"
    if segment != queue.leader and not segment.is_sealed and not segment.expired:
        return "end not recorded"
    return "messages before it are gone" if segment.is_detached else None
