"""A committed offset never passes a message that nobody consumed; in the end every group has consumed everything.

offsets of a queue   0 1 2 3 4 5 6 7 8
consumed             x x x x   x x
frontier                     ^ nothing beyond may be committed

What a gap of a forced move leaves out counts as consumed.

Where nothing is broken nothing comes twice, with one exception that any system has whose members share queues out among
themselves: when a topic grows they hear of it one after the other, and for a while two of them have the same queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from holdfast.model.queue import MessageQueue
from holdfast.sim.checkers.offset_identity import NARROW, Place
from holdfast.sim.world.workload import Job
from holdfast.sim.world.world import Violation

HANDED_ON_MS: Final = 15_000
"""How long a member may have been done with a message without its broker knowing: commits come every two seconds, but a
late one of a member that has lost the queue may take that back until the next pull, ten seconds later at most."""


SHIFT_MS: Final = 30_000
"""How long the members of a concurrent group may know different queues, or different members, after a unit was opened
or closed: they hear of it with a look at the routes, meet its brokers, and leave them."""


class Doing(msgspec.Struct, frozen=True):
    """How a member came to be done with a message.

    Attributes:
        shares: How many queues the topic had when the members last shared them out, as far as this one knew; 0 in an
            ordered group, where a lock lets nobody have the queue beside it.
    """

    now_ms: int
    shares: int = 0


class _Row(msgspec.Struct):
    """What one group consumed of one queue.

    Attributes:
        gaps: Where many offsets at once have nothing to be consumed: start to end.
        doings: How each offset was consumed for the first time.
    """

    frontier: int = 0
    beyond: set[int] = set()
    gaps: dict[int, int] = {}
    doings: dict[int, Doing] = {}

    def add(self, offset: int) -> bool:
        """Take note of *offset*; return whether it was consumed before."""
        if offset < self.frontier or offset in self.beyond:
            return True
        self.beyond.add(offset)
        self._advance()
        return False

    def skip(self, empty: range) -> None:
        """Take note that there is nothing in *empty*."""
        if len(empty) < NARROW:
            for offset in empty:
                self.add(offset)
        else:
            self.gaps[empty.start] = max(empty.stop, self.gaps.get(empty.start, 0))
            self._advance()

    def _advance(self) -> None:
        while True:
            if self.frontier in self.beyond:
                self.beyond.discard(self.frontier)
                self.frontier += 1
            elif (end := max((end for at, end in self.gaps.items() if at <= self.frontier), default=0)) > self.frontier:
                self.frontier = end
            else:
                return


class Progress:
    """What each group has consumed.

    Attributes:
        redelivered: How many messages came to a group more than once from the same place.
        is_undisturbed: Nothing is being broken, so nothing has a reason to come twice.
        find_shift: Returns when a unit was last opened or closed; None for never.
        tainted: Brokers that lost the end of their log with their operator's leave: offsets there mean nothing.
    """

    def __init__(self) -> None:
        self.redelivered = 0
        self.consumed_count = 0
        self.is_undisturbed = False
        self.find_shift: Callable[[], int | None] = lambda: None
        self.tainted: set[str] = set()
        self._rows: dict[tuple[str, MessageQueue], _Row] = {}
        self._empty: dict[MessageQueue, dict[range, None]] = {}
        self._done: dict[str, set[str]] = {}

    def consumed(self, group: str, uid: str, place: Place, doing: Doing) -> None:
        """Take note that *group* is done with the message at *place*: consumed, or given back."""
        self.consumed_count += 1
        row = self._row(group, MessageQueue(place.topic, place.broker, place.queue_id))
        first = row.doings.setdefault(place.offset, doing)
        if row.add(place.offset):
            self.redelivered += 1
            if self.is_undisturbed and not _is_handed_on(first, doing) and not self._is_shifting(doing):
                raise Violation("nothing comes twice for no reason", f"{group} got {uid} at {place} again")

    def _is_shifting(self, doing: Doing) -> bool:
        """Say whether members share out queues of units that were just opened or closed. Locks let no two have one."""
        shifted_ms = self.find_shift()
        return bool(doing.shares) and shifted_ms is not None and doing.now_ms - shifted_ms < SHIFT_MS

    def skip(self, queue: MessageQueue, empty: Iterable[range]) -> None:
        """Take note of offsets of *queue* where there is nothing to be consumed."""
        known = self._empty.setdefault(queue, {})
        for offsets in empty:
            if offsets not in known:
                known[offsets] = None
                for (_, other), row in self._rows.items():
                    if other == queue:
                        row.skip(offsets)

    def _row(self, group: str, queue: MessageQueue) -> _Row:
        row = self._rows.get((group, queue))
        if row is None:
            row = self._rows[group, queue] = _Row()
            for offsets in self._empty.get(queue, {}):
                row.skip(offsets)
        return row

    def finished(self, group: str, uid: str) -> None:
        """Take note that *group* has consumed *uid*, or will never have to."""
        self._done.setdefault(group, set()).add(uid)

    def is_finished(self, group: str, uid: str) -> bool:
        """Say whether *group* has consumed *uid*."""
        return uid in self._done.get(group, ())

    def find_frontier(self, group: str, queue: MessageQueue) -> int:
        """Return the first offset of *queue* that *group* is not done with."""
        return self._row(group, queue).frontier

    def committed(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Take note that a broker believes that *group* is done with everything before *offset*."""
        row = self._row(group, queue)
        if offset > row.frontier and queue.broker_name not in self.tainted:
            raise Violation(
                "committed means consumed",
                f"{group} {queue.broker_name}/{queue.topic}/{queue.queue_id}: committed {offset}, "
                f"consumed {row.frontier}",
            )

    def find_missing(self, group: str, expected: list[Job]) -> list[str]:
        """Return what *group* has not consumed."""
        done = self._done.get(group, set())
        return [job.uid for job in expected if job.uid not in done]


def _is_handed_on(first: Doing, again: Doing) -> bool:
    """Say whether two members had a message at hand because they had not heard of the same growth of its topic."""
    return first.shares != again.shares and again.now_ms - first.now_ms < HANDED_ON_MS
