"""Check that a committed offset never passes an unconsumed message, and that groups consume everything.

offsets of a queue   0 1 2 3 4 5 6 7 8
consumed             x x x x   x x
frontier                     ^ no offset beyond it may be committed

The offsets in the gap of a forced move count as consumed. At the end of a run every group must have consumed every
message.

Without faults no message is delivered twice, with one exception, which every system has whose members distribute queues
among themselves: members learn one after the other that a topic has grown, and for a while two of them have the same
queue.
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
"""How long a broker may not know that a member is done with a message. Commits arrive every two seconds, but a late
commit of a member that has lost the queue may undo a newer one until the next pull, at most ten seconds later."""


SHIFT_MS: Final = 30_000
"""How long the members of a concurrent group may know different queues, or different members, after a unit was opened
or closed: they poll the routes, register with its brokers, and unregister from them."""


class Doing(msgspec.Struct, frozen=True):
    """The circumstances in which a member finished a message.

    Attributes:
        shares: How many queues the topic had when the members last distributed them, as far as this member knew; 0 in
            an ordered group, where a lock keeps other members away from the queue.
    """

    now_ms: int
    shares: int = 0


class _Row(msgspec.Struct):
    """One group's progress in one queue.

    Attributes:
        gaps: Large ranges of offsets without messages: start to end.
        doings: How each offset was consumed for the first time.
    """

    frontier: int = 0
    beyond: set[int] = set()
    gaps: dict[int, int] = {}
    doings: dict[int, Doing] = {}

    def add(self, offset: int) -> bool:
        """Record *offset*; return whether it was consumed before."""
        if offset < self.frontier or offset in self.beyond:
            return True
        self.beyond.add(offset)
        self._advance()
        return False

    def skip(self, empty: range) -> None:
        """Record that the offsets in *empty* hold no message."""
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
    """The progress of each group.

    Attributes:
        redelivered: How many messages a group received more than once from the same place.
        is_undisturbed: No fault is active, so no message has a reason to be redelivered.
        find_shift: Returns when a unit was last opened or closed; None for never.
        tainted: Brokers whose log lost its end, as their operator allowed: their offsets mean nothing.
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
        """Record that *group* is done with the message at *place*: consumed, or sent back."""
        self.consumed_count += 1
        row = self._row(group, MessageQueue(place.topic, place.broker, place.queue_id))
        first = row.doings.setdefault(place.offset, doing)
        if row.add(place.offset):
            self.redelivered += 1
            if self.is_undisturbed and not _is_handed_on(first, doing) and not self._is_shifting(doing):
                raise Violation("nothing comes twice for no reason", f"{group} got {uid} at {place} again")

    def _is_shifting(self, doing: Doing) -> bool:
        """Return whether members are redistributing queues of a unit just opened or closed.

        Ordered groups are excluded: their locks never let two members have one queue.
        """
        shifted_ms = self.find_shift()
        return bool(doing.shares) and shifted_ms is not None and doing.now_ms - shifted_ms < SHIFT_MS

    def skip(self, queue: MessageQueue, empty: Iterable[range]) -> None:
        """Record offsets of *queue* that hold no message."""
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
        """Record that *group* has consumed *uid*, or will never have to."""
        self._done.setdefault(group, set()).add(uid)

    def is_finished(self, group: str, uid: str) -> bool:
        """Return whether *group* has consumed *uid*."""
        return uid in self._done.get(group, ())

    def find_frontier(self, group: str, queue: MessageQueue) -> int:
        """Return the first offset of *queue* that *group* is not done with."""
        return self._row(group, queue).frontier

    def committed(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Record that a broker believes that *group* is done with everything before *offset*."""
        row = self._row(group, queue)
        if offset > row.frontier and queue.broker_name not in self.tainted:
            raise Violation(
                "committed means consumed",
                f"{group} {queue.broker_name}/{queue.topic}/{queue.queue_id}: committed {offset}, "
                f"consumed {row.frontier}",
            )

    def find_missing(self, group: str, expected: list[Job]) -> list[str]:
        """Return the uids of the messages that *group* has not consumed."""
        done = self._done.get(group, set())
        return [job.uid for job in expected if job.uid not in done]


def _is_handed_on(first: Doing, again: Doing) -> bool:
    """Return whether two members had a message because they learned at different times that its topic had grown."""
    return first.shares != again.shares and again.now_ms - first.now_ms < HANDED_ON_MS
