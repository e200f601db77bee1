"""Check that the next pull reports a reset that a leader accepted, and that nothing undoes it before.

    ordered ─> accepted ─> waits at the leader, and moves along with the queue ─> reported by the next pull

A leader that has sealed the queue does not report the reset. It must then still wait somewhere.

A reset is as durable as a committed offset: a broker that is killed may forget a reset that it accepted in the last
seconds. This checker ignores resets that a forced move finds in backups. A lost answer still counts as a report. After
a request with an unknown outcome, the queue is unchecked for a while: the request may arrive late, replace a newer
reset, or receive its report.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from holdfast.model.queue import QueueKey
from holdfast.sim.world.world import Violation

UNKNOWN_OUTCOME_MS: Final = 30_000


class _PendingReset(msgspec.Struct):
    """The offset at which the group shall continue.

    Attributes:
        leader: The broker that was asked.
        accepted_ms: When it accepted; None until it did.
    """

    offset: int
    leader: str
    accepted_ms: int | None = None


class ResetChecker:
    """The resets that no member has received.

    Args:
        find_pending: Returns the offset committed at the leader of a queue if a reset waits there; else None.
    """

    def __init__(self, find_pending: Callable[[QueueKey], int | None]) -> None:
        self._find_pending = find_pending
        self._pending: dict[QueueKey, _PendingReset] = {}
        self._unchecked_until_ms: dict[QueueKey, int] = {}
        self._all_unchecked_until_ms = 0
        self._has_started = False

    # Calls for operators.

    def requested(self, key: QueueKey, offset: int, leader: str, now_ms: int) -> None:
        """Record that *leader* is being asked for a reset: from now on it may replace an older one."""
        previous = self._pending.pop(key, None)
        if previous is not None and previous.accepted_ms is None:
            self.record_unknown_outcome(key, now_ms)  # The operator died before it got an answer.
        if now_ms >= max(self._all_unchecked_until_ms, self._unchecked_until_ms.get(key, 0)):
            self._pending[key] = _PendingReset(offset, leader)

    def accepted(self, key: QueueKey, now_ms: int) -> None:
        """Record that the leader accepted; a member may have received the reset before."""
        reset = self._pending.get(key)
        if reset is not None:
            reset.accepted_ms = now_ms

    def refused(self, key: QueueKey) -> None:
        """Record that the leader refused."""
        self._pending.pop(key, None)

    # Events that cancel checks.

    def record_unknown_outcome(self, key: QueueKey, now_ms: int) -> None:
        """Record a request with an unknown outcome."""
        self._pending.pop(key, None)
        self._unchecked_until_ms[key] = now_ms + UNKNOWN_OUTCOME_MS

    def member_started(self, now_ms: int) -> None:
        """Record that a member starts. The process before it may have sent any request."""
        self._pending.clear()
        self._all_unchecked_until_ms = now_ms + UNKNOWN_OUTCOME_MS if self._has_started else 0
        self._has_started = True

    def allow_loss(self, saved_ms: int) -> None:
        """Record that a broker ended: it may have led any queue, and forgotten resets accepted after *saved_ms*."""
        self._pending = {
            key: reset
            for key, reset in self._pending.items()
            if reset.accepted_ms is not None and reset.accepted_ms <= saved_ms
        }

    def record_forced_open(self, key: QueueKey, leader: str) -> None:
        """Record that *leader* opened a queue by force: it may only know resets that it accepted itself."""
        reset = self._pending.get(key)
        if reset is not None and reset.leader != leader:
            del self._pending[key]

    # Calls for members.

    def pulled(self, key: QueueKey, pull_offset: int, requested_ms: int, reset_to: int | None) -> None:
        """Record the answer to a pull at *pull_offset*: the offset it reset the group to, or None."""
        reset = self._pending.get(key)
        if reset is None:
            return
        if reset.offset in {pull_offset, reset_to}:
            del self._pending[key]
        elif reset.accepted_ms is not None and requested_ms > reset.accepted_ms and self._find_pending(key) is None:
            raise Violation(
                "the next pull reports a reset",
                f"queue {key[1]} of {key[0]} was reset to {reset.offset} by {reset.leader}, and a later pull at "
                f"{pull_offset}"
                f" was sent to {reset_to}",
            )

    def check(self) -> None:
        """Check that no commit has undone a waiting reset."""
        for key, reset in self._pending.items():
            committed = None if reset.accepted_ms is None else self._find_pending(key)
            if committed not in {None, reset.offset}:
                raise Violation(
                    "nothing undoes a waiting reset",
                    f"queue {key[1]} of {key[0]} was reset to {reset.offset}, no member received it, and {committed}"
                    " is committed",
                )

    def find_unreported(self) -> list[str]:
        """Return a description of every accepted reset that no member has received."""
        return [
            f"queue {key[1]} of {key[0]}, reset to {reset.offset} by {reset.leader}"
            for key, reset in self._pending.items()
            if reset.accepted_ms is not None
        ]
