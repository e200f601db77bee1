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
from holdfast.sim.checkers.offset_identity import LISTED_RANGE_MAX, QueueOffset
from holdfast.sim.world.workload import PlannedMessage
from holdfast.sim.world.world import Violation

COMMIT_LAG_MS: Final = 15_000
"""How long a broker may not know that a member is done with a message. Commits arrive every two seconds, but a late
commit of a member that has lost the queue may undo a newer one until the next pull, at most ten seconds later."""


UNIT_SWITCH_MS: Final = 30_000
"""How long the members of a concurrent group may know different queues, or different members, after a unit was opened
or closed: they poll the routes, register with its brokers, and unregister from them."""


class FinishInfo(msgspec.Struct, frozen=True):
    """The circumstances in which a member finished a message.

    Attributes:
        queue_count: How many queues the topic had when the members last distributed them, as far as this member knew;
            0 in an ordered group, where a lock keeps other members away from the queue.
    """

    now_ms: int
    queue_count: int = 0


class _QueueProgress(msgspec.Struct):
    """One group's progress in one queue.

    Attributes:
        gaps: Large ranges of offsets without messages: start to end.
        first_finishes: How each offset was consumed for the first time.
    """

    frontier: int = 0
    consumed_ahead: set[int] = set()
    gaps: dict[int, int] = {}
    first_finishes: dict[int, FinishInfo] = {}

    def add(self, offset: int) -> bool:
        """Record *offset*; return whether it was consumed before."""
        if offset < self.frontier or offset in self.consumed_ahead:
            return True
        self.consumed_ahead.add(offset)
        self._advance()
        return False

    def skip(self, empty: range) -> None:
        """Record that the offsets in *empty* hold no message."""
        if len(empty) < LISTED_RANGE_MAX:
            for offset in empty:
                self.add(offset)
        else:
            self.gaps[empty.start] = max(empty.stop, self.gaps.get(empty.start, 0))
            self._advance()

    def _advance(self) -> None:
        while True:
            if self.frontier in self.consumed_ahead:
                self.consumed_ahead.discard(self.frontier)
                self.frontier += 1
            elif (end := max((end for at, end in self.gaps.items() if at <= self.frontier), default=0)) > self.frontier:
                self.frontier = end
            else:
                return


class ProgressChecker:
    """The progress of each group.

    Attributes:
        redelivered: How many messages a group received more than once from the same offset.
        is_undisturbed: No fault is active, so no message has a reason to be redelivered.
        last_switch_ms: Returns when a unit was last opened or closed; None for never.
        tainted: Brokers whose log lost its end, as their operator allowed: their offsets mean nothing.
    """

    def __init__(self) -> None:
        self.redelivered = 0
        self.consumed_count = 0
        self.is_undisturbed = False
        self.last_switch_ms: Callable[[], int | None] = lambda: None
        self.tainted: set[str] = set()
        self._queues: dict[tuple[str, MessageQueue], _QueueProgress] = {}
        self._empty: dict[MessageQueue, dict[range, None]] = {}
        self._finished_uids: dict[str, set[str]] = {}

    def consumed(self, group: str, uid: str, queue_offset: QueueOffset, finish: FinishInfo) -> None:
        """Record that *group* is done with the message at *queue_offset*: consumed, or sent back."""
        self.consumed_count += 1
        queue_progress = self._queue_progress(
            group, MessageQueue(queue_offset.topic, queue_offset.broker, queue_offset.queue_id)
        )
        first = queue_progress.first_finishes.setdefault(queue_offset.offset, finish)
        if queue_progress.add(queue_offset.offset):
            self.redelivered += 1
            if self.is_undisturbed and not _is_rebalanced(first, finish) and not self._is_switching_units(finish):
                raise Violation("nothing comes twice for no reason", f"{group} got {uid} at {queue_offset} again")

    def _is_switching_units(self, finish: FinishInfo) -> bool:
        """Return whether members are redistributing queues of a unit just opened or closed.

        Ordered groups are excluded: their locks never let two members have one queue.
        """
        switched_ms = self.last_switch_ms()
        return bool(finish.queue_count) and switched_ms is not None and finish.now_ms - switched_ms < UNIT_SWITCH_MS

    def skip(self, queue: MessageQueue, empty: Iterable[range]) -> None:
        """Record offsets of *queue* that hold no message."""
        known = self._empty.setdefault(queue, {})
        for offsets in empty:
            if offsets not in known:
                known[offsets] = None
                for (_, known_queue), queue_progress in self._queues.items():
                    if known_queue == queue:
                        queue_progress.skip(offsets)

    def _queue_progress(self, group: str, queue: MessageQueue) -> _QueueProgress:
        queue_progress = self._queues.get((group, queue))
        if queue_progress is None:
            queue_progress = self._queues[group, queue] = _QueueProgress()
            for offsets in self._empty.get(queue, {}):
                queue_progress.skip(offsets)
        return queue_progress

    def finished(self, group: str, uid: str) -> None:
        """Record that *group* has consumed *uid*, or will never have to."""
        self._finished_uids.setdefault(group, set()).add(uid)

    def is_finished(self, group: str, uid: str) -> bool:
        """Return whether *group* has consumed *uid*."""
        return uid in self._finished_uids.get(group, ())

    def find_frontier(self, group: str, queue: MessageQueue) -> int:
        """Return the first offset of *queue* that *group* is not done with."""
        return self._queue_progress(group, queue).frontier

    def committed(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Record that a broker believes that *group* is done with everything before *offset*."""
        queue_progress = self._queue_progress(group, queue)
        if offset > queue_progress.frontier and queue.broker_name not in self.tainted:
            raise Violation(
                "committed means consumed",
                f"{group} {queue.broker_name}/{queue.topic}/{queue.queue_id}: committed {offset}, "
                f"consumed {queue_progress.frontier}",
            )

    def find_missing(self, group: str, expected: list[PlannedMessage]) -> list[str]:
        """Return the uids of the messages that *group* has not consumed."""
        finished = self._finished_uids.get(group, set())
        return [planned.uid for planned in expected if planned.uid not in finished]


def _is_rebalanced(first: FinishInfo, second: FinishInfo) -> bool:
    """Return whether two members had a message because they learned at different times that its topic had grown."""
    return first.queue_count != second.queue_count and second.now_ms - first.now_ms < COMMIT_LAG_MS
