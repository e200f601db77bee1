"""Check that committed offsets move along with a queue: the next leader knows at least what the last one knew.

    leader      inspected regularly ... after it has sealed the queue │
    the next                                                          │ when it opens the queue ... regularly

The checker reads the offsets that the leader of a logical queue would return. While the queue does not move its offset
may go back, because of a late commit by a member that has lost the queue. Between seal and opening nothing changes it.
A broker that is killed may forget offsets that it had not saved, so commits of the last seconds before that are
forgiven. After a forced move the new leader knows the offsets of its backup. The broker that keeps the backup may
forget it in the same way if it ends before the move.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.sim.world.world import Violation

Row = tuple[str, str, int]
"""Group, topic and logical queue."""

UNSAVED_MS: Final = 15_000
"""How long a commit may stay unsaved: offsets are saved every two seconds, but a disk may be slow."""

NOTHING_SAVED: Final = -1
"""A time before every commit."""


class _Mark(msgspec.Struct, frozen=True):
    """The offset committed at a leader, and since when.

    Attributes:
        keeper: If the leader is declared dead, the broker that has the backup of the offset since then; else empty.
    """

    leader: str
    offset: int
    since_ms: int
    keeper: str = ""


class _Copy(msgspec.Struct, frozen=True):
    """The offset that a broker keeps as a backup for another, and since when."""

    generation: int
    offset: int
    since_ms: int


class Commits:
    """The last known committed offsets, per group and queue."""

    def __init__(self) -> None:
        self._marks: dict[Row, _Mark] = {}
        self._copies: dict[tuple[str, Row], _Copy] = {}

    def see(self, row: Row, offset: int | None, now_ms: int, leader: str) -> None:
        """Record the offset committed at *leader*; None if it does not know the group."""
        mark = self._marks.get(row)
        if mark is not None and mark.keeper and mark.leader == leader:
            # It came back before another broker replaced it: the backup is not used, and it may have lost the offset.
            del self._marks[row]
            mark = None
        if mark is not None and mark.leader != leader and (offset is None or offset < mark.offset):
            group, topic, queue = row
            raise Violation(
                "a committed offset moves along",
                f"{mark.leader} had {mark.offset} as committed by {group} in logical queue {queue} of {topic},"
                f" {leader} has {offset}",
            )
        if offset is not None and (mark is None or (mark.leader, mark.offset) != (leader, offset)):
            self._marks[row] = _Mark(leader, offset, now_ms)

    def see_copy(self, row: Row, generation: int, offset: int, now_ms: int, keeper: str) -> None:
        """Record the offset that *keeper* received as a backup from the leader of *generation*."""
        copy = self._copies.get((keeper, row))
        if copy is None or (copy.generation, copy.offset) != (generation, offset):
            self._copies[keeper, row] = _Copy(generation, offset, now_ms)

    def expect(self, row: Row, generation: int, leader: str, keeper: str) -> None:
        """Record that *leader* is dead: the next leader must know the offset in the backup of *keeper*."""
        copy = self._copies.get((keeper, row))
        if copy is not None and copy.generation == generation:
            self._marks[row] = _Mark(leader, copy.offset, copy.since_ms, keeper)

    def pass_over(self, row: Row, leader: str) -> None:
        """Record that *leader* opened the queue by force: it need not know what the old leader knew."""
        mark = self._marks.get(row)
        if mark is not None and mark.leader != leader:
            del self._marks[row]

    def forgive(self, broker: str, saved_ms: int) -> None:
        """Record that *broker* ended: it may forget offsets and backups that it learned after *saved_ms*."""
        self._marks = {
            row: mark
            for row, mark in self._marks.items()
            if broker not in {mark.leader, mark.keeper} or mark.since_ms <= saved_ms
        }
        self._copies = {
            place: copy for place, copy in self._copies.items() if broker != place[0] or copy.since_ms <= saved_ms
        }

    def forget(self) -> None:
        """Record that offsets have lost their meaning."""
        self._marks.clear()
        self._copies.clear()
