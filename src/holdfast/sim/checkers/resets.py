"""A reset that a leader has taken is told with the next pull, and until then nothing undoes it.

    ordered ─> taken ─> waits at the leader, and goes along with the queue ─> told, with the next pull

A pull that a leader answers which has sealed the queue is told nothing; then the reset must still wait somewhere.

It is kept as offsets are: a broker that is killed may forget what it took within the last seconds. What a forced move
finds of it in copies is not looked at here. An answer that is lost on its way has told all the same. After a request of
which nobody knows whether it was carried out the queue is in doubt for a while: it may arrive late, and replace an
order that was given since, or hear of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from holdfast.sim.world.world import Violation

Row = tuple[str, int]
"""Topic and logical queue; one group is sent back and forth."""

DOUBT_MS: Final = 30_000


class _Order(msgspec.Struct):
    """Where the group shall go on.

    Attributes:
        leader: Who was asked.
        taken_ms: When it said yes; None until it did.
    """

    offset: int
    leader: str
    taken_ms: int | None = None


class Resets:
    """The orders of which no member has heard.

    Args:
        find_waiting: Returns what the leader of a queue has as committed if a reset waits there; None when none does.

    Attributes:
        told_count: How many were heard of.
    """

    def __init__(self, find_waiting: Callable[[Row], int | None]) -> None:
        self.told_count = 0
        self._find_waiting = find_waiting
        self._orders: dict[Row, _Order] = {}
        self._doubts: dict[Row, int] = {}
        self._doubts_end_ms = 0
        self._is_begun = False

    # What operators do.

    def ordered(self, row: Row, offset: int, leader: str, now_ms: int) -> None:
        """Take note that *leader* is being asked: whatever waited there may be replaced from now on."""
        before = self._orders.pop(row, None)
        if before is not None and before.taken_ms is None:
            self.doubt(row, now_ms)  # Whoever ordered that died before it was answered.
        if now_ms >= max(self._doubts_end_ms, self._doubts.get(row, 0)):
            self._orders[row] = _Order(offset, leader)

    def taken(self, row: Row, now_ms: int) -> None:
        """Take note that the leader said yes; a member may have heard of it before."""
        order = self._orders.get(row)
        if order is not None:
            order.taken_ms = now_ms

    def refused(self, row: Row) -> None:
        """Take note that the leader said no."""
        self._orders.pop(row, None)

    # What may happen to them.

    def doubt(self, row: Row, now_ms: int) -> None:
        """Take note of a request of which nobody knows what became of it."""
        self._orders.pop(row, None)
        self._doubts[row] = now_ms + DOUBT_MS

    def began(self, now_ms: int) -> None:
        """Take note that a member begins: the one before it, if there was one, may have asked for anything."""
        self._orders.clear()
        self._doubts_end_ms = now_ms + DOUBT_MS if self._is_begun else 0
        self._is_begun = True

    def forgive(self, saved_ms: int) -> None:
        """Take note that a broker ended: it may have led any queue, and forgotten what was taken since *saved_ms*."""
        self._orders = {
            row: order
            for row, order in self._orders.items()
            if order.taken_ms is not None and order.taken_ms <= saved_ms
        }

    def pass_over(self, row: Row, leader: str) -> None:
        """Take note that *leader* opened a queue by force: it may know only what it was asked itself."""
        order = self._orders.get(row)
        if order is not None and order.leader != leader:
            del self._orders[row]

    # What members hear.

    def pulled(self, row: Row, asked: int, asked_ms: int, moved_to: int | None) -> None:
        """Take note of the answer to a pull at *asked*: whether it sent the group elsewhere, and where to."""
        order = self._orders.get(row)
        if order is None:
            return
        if order.offset in {asked, moved_to}:
            self.told_count += 1
            del self._orders[row]
        elif order.taken_ms is not None and asked_ms > order.taken_ms and self._find_waiting(row) is None:
            raise Violation(
                "a reset is told with the next pull",
                f"queue {row[1]} of {row[0]} was reset to {order.offset} by {order.leader}, and a pull at {asked} later"
                f" was sent to {moved_to}",
            )

    def check(self) -> None:
        """See that nothing undoes what waits."""
        for row, order in self._orders.items():
            committed = None if order.taken_ms is None else self._find_waiting(row)
            if committed not in {None, order.offset}:
                raise Violation(
                    "nothing undoes a reset that waits",
                    f"queue {row[1]} of {row[0]} was reset to {order.offset}, nobody has heard of it, and {committed}"
                    " is committed",
                )

    def find_untold(self) -> list[str]:
        """Return what was taken and nobody has heard, in words."""
        return [
            f"queue {row[1]} of {row[0]}, reset to {order.offset} by {order.leader}"
            for row, order in self._orders.items()
            if order.taken_ms is not None
        ]
