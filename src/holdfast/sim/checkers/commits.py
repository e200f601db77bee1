"""What a group has committed travels with its queue: the next leader knows at least what the last one knew.

    leader      looked at every now and then ... when it has sealed the queue │
    the next                                                                  │ when it opens it ... now and then

Seen at the brokers themselves: what the leader of a logical queue would answer. While nobody moves the queue its offset
may go back, as a late word of a member that has lost the queue does that; between seal and opening nothing changes it.
A broker that is killed may forget what it had not saved yet, so what was committed there within the last seconds before
that is forgiven. After a forced move the new leader knows what it had a copy of; a copy may be forgotten in the same
way, by the broker that keeps it, if that ends before it is asked.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.sim.world.world import Violation

Row = tuple[str, str, int]
"""Group, topic and logical queue."""

UNSAVED_MS: Final = 15_000
"""Offsets are saved every two seconds, and a slow disk takes its time."""

NOTHING_SAVED: Final = -1
"""A moment before everything."""


class _Mark(msgspec.Struct, frozen=True):
    """What a leader had as committed, and since when.

    Attributes:
        keeper: Who has a copy of it, since then: the leader is dead. Empty while nobody has to be asked for it.
    """

    leader: str
    offset: int
    since_ms: int
    keeper: str = ""


class _Copy(msgspec.Struct, frozen=True):
    """What a broker keeps for another, and since when."""

    generation: int
    offset: int
    since_ms: int


class Commits:
    """What was last seen as committed, per group and queue."""

    def __init__(self) -> None:
        self._marks: dict[Row, _Mark] = {}
        self._copies: dict[tuple[str, Row], _Copy] = {}

    def see(self, row: Row, offset: int | None, now_ms: int, leader: str) -> None:
        """Take note of what *leader* has as committed; None when it knows nothing of the group."""
        mark = self._marks.get(row)
        if mark is not None and mark.keeper and mark.leader == leader:
            # It came back before another took its place: nobody asks for the copy, and it may have forgotten.
            del self._marks[row]
            mark = None
        if mark is not None and mark.leader != leader and (offset is None or offset < mark.offset):
            group, topic, queue = row
            raise Violation(
                "what is committed moves along",
                f"{mark.leader} had {mark.offset} as committed by {group} in logical queue {queue} of {topic},"
                f" {leader} has {offset}",
            )
        if offset is not None and (mark is None or (mark.leader, mark.offset) != (leader, offset)):
            self._marks[row] = _Mark(leader, offset, now_ms)

    def see_copy(self, row: Row, generation: int, offset: int, now_ms: int, keeper: str) -> None:
        """Take note of what *keeper* has a copy of, as the leader of a generation told it."""
        copy = self._copies.get((keeper, row))
        if copy is None or (copy.generation, copy.offset) != (generation, offset):
            self._copies[keeper, row] = _Copy(generation, offset, now_ms)

    def expect(self, row: Row, generation: int, leader: str, keeper: str) -> None:
        """Take note that *leader* is dead: whoever leads next knows what *keeper* has a copy of."""
        copy = self._copies.get((keeper, row))
        if copy is not None and copy.generation == generation:
            self._marks[row] = _Mark(leader, copy.offset, copy.since_ms, keeper)

    def pass_over(self, row: Row, leader: str) -> None:
        """Take note that *leader* opened the queue behind one that could not be asked: it need not know as much."""
        mark = self._marks.get(row)
        if mark is not None and mark.leader != leader:
            del self._marks[row]

    def forgive(self, broker: str, saved_ms: int) -> None:
        """Take note that *broker* ended: what it learned since *saved_ms*, as a leader or for one, may be forgotten."""
        self._marks = {
            row: mark
            for row, mark in self._marks.items()
            if broker not in {mark.leader, mark.keeper} or mark.since_ms <= saved_ms
        }
        self._copies = {
            place: copy for place, copy in self._copies.items() if broker != place[0] or copy.since_ms <= saved_ms
        }

    def forget(self) -> None:
        """Take note that offsets have lost their meaning."""
        self._marks.clear()
        self._copies.clear()
