"""One place, one message: whoever reads an offset, at any time, finds the same message there.

A crash must not hand out an offset again that anybody has seen. Where a broker acknowledges before the disk has it, and
then loses power, what was behind the last sync may be forgotten: `forgive`. What was said of it before may still be on
its way then, as another broker passes it on: an answer is as old as its question may be.

Offsets are contiguous, with two exceptions. When power is lost, of what was not yet synced and promised to nobody a
later message may survive and an earlier one not; its offset then stays empty for ever. And a forced move leaves a gap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from holdfast.model.queue import MessageQueue
from holdfast.sim.world.world import Violation


class Place(NamedTuple):
    """Where a message is, in the numbers that clients use: of a static topic, logical ones."""

    broker: str
    topic: str
    queue_id: int
    offset: int

    def __str__(self) -> str:
        return f"{self.broker}/{self.topic}/{self.queue_id}@{self.offset}"


class Spot(NamedTuple):
    """Where a message lies on disk: in whose log, by that broker's address, and at which byte."""

    home: str
    position: int

    def __str__(self) -> str:
        return f"{self.home}+{self.position}"


Holes = Callable[[MessageQueue, int, int], bool]
"""Says whether offsets of a logical queue, from one to another, may have no message."""

NARROW: Final = 100_000
"""More offsets than that have no message only in the gap of a forced move; nobody counts them one by one."""

_NOTHING: Final = ("(nothing)", Spot("", -1))


class _Loss(NamedTuple):
    """The end of a log that a power cut may have taken: of whose log, from where on, and when."""

    home: str
    position: int
    lost_ms: int


class Places:
    """What was seen where.

    Attributes:
        holed: Brokers that lost power, and may have empty offsets since.
        logical: Names under which logical queues are known instead of a broker's.
        find_holes: Judges empty offsets of logical queues.
        find_gaps: The same, but for gaps of forced moves only.
    """

    def __init__(self) -> None:
        self.holed: set[str] = set()
        self.logical: frozenset[str] = frozenset()
        self.find_holes: Holes = lambda _queue, _start, _end: False
        self.find_gaps: Holes = lambda _queue, _start, _end: False
        self._seen: dict[Place, tuple[str, Spot]] = {}
        self._losses: list[_Loss] = []

    def see_row(
        self,
        queue: MessageQueue,
        start: int,
        row: Iterable[tuple[int, str, Spot]],
        end: int,
        *,
        asked_ms: int | None = None,
    ) -> list[range]:
        """Take note of what one answer brought: (offset, uid, spot) of everything in [start, end).

        *asked_ms* is as in `see`. Return the offsets that have no message.
        """
        empty: list[range] = []
        expected = start
        for offset, uid, spot in row:
            empty += self._skip(queue, expected, offset)
            self.see(Place(queue.broker_name, queue.topic, queue.queue_id, offset), uid, spot, asked_ms=asked_ms)
            expected = offset + 1
        empty += self._skip(queue, expected, end)
        return empty

    def has_holes(self, broker: str) -> bool:
        """Say whether messages behind that broker name may have been torn by a loss of power."""
        return broker in self.holed or (broker in self.logical and bool(self.holed))

    def may_lack(self, queue: MessageQueue, start: int, end: int) -> bool:
        """Say whether there may be no message from one offset to another."""
        if queue.broker_name in self.logical:
            return end >= start and self.find_holes(queue, start, end)
        return end >= start and queue.broker_name in self.holed

    def _skip(self, queue: MessageQueue, start: int, end: int) -> list[range]:
        if start == end:
            return []
        if not self.may_lack(queue, start, end):
            raise Violation(
                "offsets are contiguous",
                f"{queue.broker_name}/{queue.topic}/{queue.queue_id}: {end} comes where {start} should",
            )
        if end - start < NARROW:
            for offset in range(start, end):
                self.see(Place(queue.broker_name, queue.topic, queue.queue_id, offset), *_NOTHING)
        return [range(start, end)]

    def see(self, place: Place, uid: str, spot: Spot, *, asked_ms: int | None = None) -> None:
        """Take note that *uid* was read, or promised, at *place*, in answer to a question of *asked_ms*, or of now."""
        if asked_ms is not None and self.may_be_lost(spot, asked_ms):
            return
        known = self._seen.setdefault(place, (uid, spot))
        if known != (uid, spot):
            raise Violation(
                "an offset is never used twice",
                f"{place} was {known[0]} at {known[1]} and is now {uid} at {spot}",
            )

    def may_be_lost(self, spot: Spot, asked_ms: int) -> bool:
        """Say whether the answer to a question of *asked_ms* may tell of what a power cut took since."""
        return any(
            spot.home == loss.home and spot.position >= loss.position and asked_ms <= loss.lost_ms
            for loss in self._losses
        )

    def forgive(self, home: str, position: int, now_ms: int) -> None:
        """Forget what was seen behind *position* of the log at *home*, whose end may be lost."""
        self._losses.append(_Loss(home, position, now_ms))
        self._seen = {
            place: (uid, spot)
            for place, (uid, spot) in self._seen.items()
            if spot.home != home or spot.position < position
        }
