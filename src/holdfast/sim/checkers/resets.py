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

from holdfast.sim.world.world import Violation

Row = tuple[str, int]
"""Topic and logical queue. Only one group is reset."""

DOUBT_MS: Final = 30_000


class _Order(msgspec.Struct):
    """The offset at which the group shall continue.

    Attributes:
        leader: The broker that was asked.
        taken_ms: When it accepted; None until it did.
    """

    offset: int
    leader: str
    taken_ms: int | None = None


class Resets:
    """The resets that no member has received.

    Args:
        find_waiting: Returns the offset committed at the leader of a queue if a reset waits there; else None.

    Attributes:
        told_count: How many were reported to a member.
    """

    def __init__(self, find_waiting: Callable[[Row], int | None]) -> None:
        self.told_count = 0
        self._find_waiting = find_waiting
        self._orders: dict[Row, _Order] = {}
        self._doubts: dict[Row, int] = {}
        self._doubts_end_ms = 0
        self._is_begun = False

    # Calls for operators.

    def ordered(self, row: Row, offset: int, leader: str, now_ms: int) -> None:
        """Record that *leader* is being asked for a reset: from now on it may replace an older one."""
        before = self._orders.pop(row, None)
        if before is not None and before.taken_ms is None:
            self.doubt(row, now_ms)  # The operator died before it got an answer.
        if now_ms >= max(self._doubts_end_ms, self._doubts.get(row, 0)):
            self._orders[row] = _Order(offset, leader)

    def taken(self, row: Row, now_ms: int) -> None:
        """Record that the leader accepted; a member may have received the reset before."""
        order = self._orders.get(row)
        if order is not None:
            order.taken_ms = now_ms

    def refused(self, row: Row) -> None:
        """Record that the leader refused."""
        self._orders.pop(row, None)

    # Events that cancel checks.

    def doubt(self, row: Row, now_ms: int) -> None:
        """Record a request with an unknown outcome."""
        self._orders.pop(row, None)
        self._doubts[row] = now_ms + DOUBT_MS

    def began(self, now_ms: int) -> None:
        """Record that a member starts. The process before it may have sent any request."""
        self._orders.clear()
        self._doubts_end_ms = now_ms + DOUBT_MS if self._is_begun else 0
        self._is_begun = True

    def forgive(self, saved_ms: int) -> None:
        """Record that a broker ended: it may have led any queue, and forgotten resets accepted after *saved_ms*."""
        self._orders = {
            row: order
            for row, order in self._orders.items()
            if order.taken_ms is not None and order.taken_ms <= saved_ms
        }

    def pass_over(self, row: Row, leader: str) -> None:
        """Record that *leader* opened a queue by force: it may only know resets that it accepted itself."""
        order = self._orders.get(row)
        if order is not None and order.leader != leader:
            del self._orders[row]

    # Calls for members.

    def pulled(self, row: Row, asked: int, asked_ms: int, moved_to: int | None) -> None:
        """Record the answer to a pull at *asked*: the offset it reset the group to, or None."""
        order = self._orders.get(row)
        if order is None:
            return
        if order.offset in {asked, moved_to}:
            self.told_count += 1
            del self._orders[row]
        elif order.taken_ms is not None and asked_ms > order.taken_ms and self._find_waiting(row) is None:
            raise Violation(
                "the next pull reports a reset",
                f"queue {row[1]} of {row[0]} was reset to {order.offset} by {order.leader}, and a later pull at {asked}"
                f" was sent to {moved_to}",
            )

    def check(self) -> None:
        """Check that no commit has undone a waiting reset."""
        for row, order in self._orders.items():
            committed = None if order.taken_ms is None else self._find_waiting(row)
            if committed not in {None, order.offset}:
                raise Violation(
                    "nothing undoes a waiting reset",
                    f"queue {row[1]} of {row[0]} was reset to {order.offset}, no member received it, and {committed}"
                    " is committed",
                )

    def find_untold(self) -> list[str]:
        """Return a description of every accepted reset that no member has received."""
        return [
            f"queue {row[1]} of {row[0]}, reset to {order.offset} by {order.leader}"
            for row, order in self._orders.items()
            if order.taken_ms is not None
        ]
