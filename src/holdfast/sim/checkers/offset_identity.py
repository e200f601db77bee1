"""Check that every offset of a queue always holds the same message.

A crash must not reassign an offset that a client has seen. If a broker acknowledges before it syncs and then loses
power, records after the last sync may be lost: see `forgive`. An answer about such a record may still be in flight,
because another broker relays it; so an answer counts as being as old as its request.

Offsets are contiguous, with two exceptions. After a power loss, a later record that was neither synced nor acknowledged
may survive while an earlier one does not; the earlier offset then stays empty for ever. And a forced move leaves a gap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from holdfast.model.queue import MessageQueue
from holdfast.sim.world.world import Violation


class Place(NamedTuple):
    """A message's place in the numbers that clients use; in a static topic these are logical."""

    broker: str
    topic: str
    queue_id: int
    offset: int

    def __str__(self) -> str:
        return f"{self.broker}/{self.topic}/{self.queue_id}@{self.offset}"


class Spot(NamedTuple):
    """A message's position on disk: the address of the broker whose log holds it, and the byte position."""

    home: str
    position: int

    def __str__(self) -> str:
        return f"{self.home}+{self.position}"


Holes = Callable[[MessageQueue, int, int], bool]
"""Returns whether a range of offsets of a logical queue may have no message."""

NARROW: Final = 100_000
"""Only the gap of a forced move has more empty offsets than this; such a gap is not recorded offset by offset."""

_NOTHING: Final = ("(nothing)", Spot("", -1))


class _Loss(NamedTuple):
    """The end of a log that a power cut may have taken: the broker, the first lost position, and the time."""

    home: str
    position: int
    lost_ms: int


class Places:
    """The message seen at each place.

    Attributes:
        holed: Brokers that lost power, and may have empty offsets since.
        logical: The broker names under which clients know logical queues.
        find_holes: Returns whether a range of offsets of a logical queue may be empty.
        find_gaps: Returns whether a range of offsets may be empty because of a forced move.
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
        """Record the messages of one answer: (offset, uid, spot) of everything in [start, end).

        *asked_ms* is the time of the request; None for now. Return the offsets that have no message.
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
        """Return whether messages under that broker name may have been torn by a power loss."""
        return broker in self.holed or (broker in self.logical and bool(self.holed))

    def may_lack(self, queue: MessageQueue, start: int, end: int) -> bool:
        """Return whether there may be no message in a range of offsets."""
        if queue.broker_name in self.logical:
            return end >= start and self.find_holes(queue, start, end)
        return end >= start and queue.broker_name in self.holed

    def _skip(self, queue: MessageQueue, start: int, end: int) -> list[range]:
        if start == end:
            return []
        if not self.may_lack(queue, start, end):
            raise Violation(
                "offsets are contiguous",
                f"{queue.broker_name}/{queue.topic}/{queue.queue_id}: offset {end} comes where {start} is expected",
            )
        if end - start < NARROW:
            for offset in range(start, end):
                self.see(Place(queue.broker_name, queue.topic, queue.queue_id, offset), *_NOTHING)
        return [range(start, end)]

    def see(self, place: Place, uid: str, spot: Spot, *, asked_ms: int | None = None) -> None:
        """Record that *uid* was read or acknowledged at *place*, in answer to a request of *asked_ms*, or of now."""
        if asked_ms is not None and self.may_be_lost(spot, asked_ms):
            return
        known = self._seen.setdefault(place, (uid, spot))
        if known != (uid, spot):
            raise Violation(
                "an offset is never used twice",
                f"{place} was {known[0]} at {known[1]} and is now {uid} at {spot}",
            )

    def may_be_lost(self, spot: Spot, asked_ms: int) -> bool:
        """Return whether the answer to a request of *asked_ms* may describe a record that was lost since."""
        return any(
            spot.home == loss.home and spot.position >= loss.position and asked_ms <= loss.lost_ms
            for loss in self._losses
        )

    def forgive(self, home: str, position: int, now_ms: int) -> None:
        """Forget everything seen from *position* on in the log at *home*, whose end may be lost."""
        self._losses.append(_Loss(home, position, now_ms))
        self._seen = {
            place: (uid, spot)
            for place, (uid, spot) in self._seen.items()
            if spot.home != home or spot.position < position
        }
