"""Computes which member of a group consumes which queues.

Every member computes it alone from the same two sorted lists, so no coordination is needed:

    queues   0 1 2 3 4 5 6
    members  a     b   c        contiguous blocks; the first ones are larger by one

While members see different lists, a queue may briefly have two readers or none; offsets and locks compensate for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from holdfast.model.queue import MessageQueue


def allocate_average(queues: Iterable[MessageQueue], members: Sequence[str], member: str) -> list[MessageQueue]:
    """Return the queues of *member* by upstream's `AVG` strategy; none if *member* is not among *members*."""
    sorted_queues = sorted(queues)
    sorted_members = sorted(set(members))
    if member not in sorted_members:
        return []
    index, rest = sorted_members.index(member), len(sorted_queues) % len(sorted_members)
    size = len(sorted_queues) // len(sorted_members) + (1 if index < rest else 0)
    start = index * size if index < rest else index * size + rest
    return sorted_queues[start : start + size]


class AssignmentChange(msgspec.Struct, frozen=True):
    """The queues that a member has to give up and to take over."""

    lost: tuple[MessageQueue, ...]
    gained: tuple[MessageQueue, ...]

    def __bool__(self) -> bool:
        return bool(self.lost or self.gained)


def plan_change(current: Iterable[MessageQueue], target: Iterable[MessageQueue]) -> AssignmentChange:
    """Return the change from *current* to *target*."""
    before, after = set(current), set(target)
    return AssignmentChange(lost=tuple(sorted(before - after)), gained=tuple(sorted(after - before)))
