"""Previews of mappings after planned moves: the tables that `--dry-run` prints.

The ends in a preview are those at the time of the query; the move itself fixes the exact ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from holdfast.admin.static_topics import StaticTopic
from holdfast.model.errors import MappingRefused
from holdfast.model.leader_planning import PlannedMove
from holdfast.model.mapping import LogicalQueue, MappingRow, mapping_rows
from holdfast.model.queue import LogicalOffset, PhysicalQueueId


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """The tables of one topic before and after."""

    topic: str
    before: list[MappingRow]
    after: list[MappingRow]


def preview_moves(
    topic: StaticTopic, moves: Iterable[PlannedMove], ends: Mapping[int, int], *, forced: bool = False
) -> Preview:
    """Return the tables of *topic* before and after *moves*.

    Args:
        topic: The topic in its current state.
        moves: Planned moves; those of other topics are ignored.
        ends: Logical queue to its current end; without an end, the next segment shows no offset.
        forced: Whether the old leaders are dead.
    """
    queues = dict(topic.merged.queues)
    next_queue_ids: dict[str, int] = {}
    for move in moves:
        if move.topic != topic.name or move.queue not in queues:
            continue
        queue = queues[move.queue]
        queue_id = queue.reusable_queue_id(move.target)
        if queue_id is None:
            fresh = next_queue_ids.get(move.target, topic.next_physical_queue(move.target))
            next_queue_ids[move.target] = fresh + 1
            queue_id = PhysicalQueueId(fresh)
        queues[move.queue] = _apply_move(queue, move.target, queue_id, ends.get(move.queue), forced=forced)
    return preview_queues(topic.name, topic.merged.queues.values(), queues.values())


def preview_queues(topic: str, before: Iterable[LogicalQueue], after: Iterable[LogicalQueue]) -> Preview:
    """Return the tables of queues before and after a change."""
    return Preview(topic=topic, before=mapping_rows(before), after=mapping_rows(after))


def _apply_move(
    queue: LogicalQueue, target: str, queue_id: PhysicalQueueId, end: int | None, *, forced: bool
) -> LogicalQueue:
    if forced:
        return queue.force(target, queue_id, known_end=None if end is None else LogicalOffset(end))
    prepared = queue.prepare(target, queue_id)
    first = queue.leader.first
    if end is None or first is None:
        return prepared
    try:
        return prepared.seal(queue.leader.to_physical(max(LogicalOffset(end), first))).open_next()
    except MappingRefused:
        return prepared  # The queue is being moved at this moment: that move decides its end.
