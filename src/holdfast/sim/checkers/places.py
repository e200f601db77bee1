"""One place, one message: whoever reads an offset, at any time, finds the same message there.

A crash must not hand out an offset again that anybody has seen. Where a broker acknowledges before the disk has it, and
then loses power, what was behind the last sync may be forgotten: `forgive`.

Offsets are contiguous, with one exception: when power is lost, of what was not yet synced and promised to nobody a
later message may survive and an earlier one not. Its offset then stays empty for ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from holdfast.model.queue import MessageQueue
from holdfast.sim.world import Violation


class Place(NamedTuple):
    """Where a message is."""

    broker: str
    topic: str
    queue_id: int
    offset: int

    def __str__(self) -> str:
        return f"{self.broker}/{self.topic}/{self.queue_id}@{self.offset}"


_NOTHING: Final = ("(nothing)", -1)


class Places:
    """What was seen where.

    Attributes:
        holed: Brokers that lost power, and may have empty offsets since.
    """

    def __init__(self) -> None:
        self.holed: set[str] = set()
        self._seen: dict[Place, tuple[str, int]] = {}

    def see_row(self, queue: MessageQueue, start: int, row: Iterable[tuple[int, str, int]], end: int) -> list[int]:
        """Take note of what one answer brought: (offset, uid, position) of everything in [start, end).

        Return the offsets that have no message.
        """
        empty: list[int] = []
        expected = start
        for offset, uid, position in row:
            empty += self._skip(queue, expected, offset)
            self.see(Place(queue.broker_name, queue.topic, queue.queue_id, offset), uid, position)
            expected = offset + 1
        empty += self._skip(queue, expected, end)
        return empty

    def _skip(self, queue: MessageQueue, start: int, end: int) -> range:
        if start != end and (end < start or queue.broker_name not in self.holed):
            raise Violation(
                "offsets are contiguous",
                f"{queue.broker_name}/{queue.topic}/{queue.queue_id}: {end} comes where {start} should",
            )
        for offset in range(start, end):
            self.see(Place(queue.broker_name, queue.topic, queue.queue_id, offset), *_NOTHING)
        return range(start, end)

    def see(self, place: Place, uid: str, position: int) -> None:
        """Take note that *uid* was read, or promised, at *place*."""
        known = self._seen.setdefault(place, (uid, position))
        if known != (uid, position):
            raise Violation(
                "an offset is never used twice",
                f"{place} was {known[0]} at position {known[1]} and is now {uid} at {position}",
            )

    def forgive(self, broker: str, position: int) -> None:
        """Forget what was seen behind *position* of a log whose end may be lost."""
        self._seen = {
            place: found for place, found in self._seen.items() if place.broker != broker or 0 <= found[1] < position
        }
