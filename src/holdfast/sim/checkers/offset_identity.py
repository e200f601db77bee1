"""Check that every offset of a queue always holds the same message.

A crash must not reassign an offset that a client has seen. If a broker acknowledges before it syncs and then loses
power, records after the last sync may be lost: see `allow_loss`. An answer about such a record may still be in flight,
because another broker relays it; so an answer counts as being as old as its request.

Offsets are contiguous, with two exceptions. After a power loss, a later record that was neither synced nor acknowledged
may survive while an earlier one does not; the earlier offset then stays empty for ever. And a forced move leaves a gap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from holdfast.model.queue import MessageQueue
from holdfast.sim.world.world import Violation


class QueueOffset(NamedTuple):
    """The queue and offset of a message, as clients see them; logical ones in a static topic."""

    broker: str
    topic: str
    queue_id: int
    offset: int

    def __str__(self) -> str:
        return f"{self.broker}/{self.topic}/{self.queue_id}@{self.offset}"


class LogPosition(NamedTuple):
    """A message's position on disk: the address of the broker whose log holds it, and the byte position."""

    address: str
    position: int

    def __str__(self) -> str:
        return f"{self.address}+{self.position}"


RangeTest = Callable[[MessageQueue, int, int], bool]
"""Returns whether a range of offsets of a logical queue may have no message."""

LISTED_RANGE_MAX: Final = 100_000
"""Only the gap of a forced move has more empty offsets than this; such a gap is not recorded offset by offset."""

_NO_MESSAGE: Final = ("(nothing)", LogPosition("", -1))


class _Loss(NamedTuple):
    """The end of a log that a power cut may have taken: the broker, the first lost position, and the time."""

    address: str
    position: int
    lost_ms: int


class OffsetIdentityChecker:
    """The message seen at each queue offset.

    Attributes:
        power_lost: Brokers that lost power, and may have empty offsets since.
        logical: The broker names under which clients know logical queues.
        may_have_hole: Returns whether a range of offsets of a logical queue may be empty.
        may_have_gap: Returns whether a range of offsets may be empty because of a forced move.
    """

    def __init__(self) -> None:
        self.power_lost: set[str] = set()
        self.logical: frozenset[str] = frozenset()
        self.may_have_hole: RangeTest = lambda _queue, _start, _end: False
        self.may_have_gap: RangeTest = lambda _queue, _start, _end: False
        self._messages: dict[QueueOffset, tuple[str, LogPosition]] = {}
        self._losses: list[_Loss] = []

    def record_answer(
        self,
        queue: MessageQueue,
        start: int,
        messages: Iterable[tuple[int, str, LogPosition]],
        end: int,
        *,
        requested_ms: int | None = None,
    ) -> list[range]:
        """Record the messages of one answer: (offset, uid, log position) of everything in [start, end).

        *requested_ms* is the time of the request; None for now. Return the offsets that have no message.
        """
        empty: list[range] = []
        expected = start
        for offset, uid, log_position in messages:
            empty += self._record_empty(queue, expected, offset)
            self.record(
                QueueOffset(queue.broker_name, queue.topic, queue.queue_id, offset),
                uid,
                log_position,
                requested_ms=requested_ms,
            )
            expected = offset + 1
        empty += self._record_empty(queue, expected, end)
        return empty

    def may_be_torn(self, broker: str) -> bool:
        """Return whether messages under that broker name may have been torn by a power loss."""
        return broker in self.power_lost or (broker in self.logical and bool(self.power_lost))

    def may_be_empty(self, queue: MessageQueue, start: int, end: int) -> bool:
        """Return whether there may be no message in a range of offsets."""
        if queue.broker_name in self.logical:
            return end >= start and self.may_have_hole(queue, start, end)
        return end >= start and queue.broker_name in self.power_lost

    def _record_empty(self, queue: MessageQueue, start: int, end: int) -> list[range]:
        if start == end:
            return []
        if not self.may_be_empty(queue, start, end):
            raise Violation(
                "offsets are contiguous",
                f"{queue.broker_name}/{queue.topic}/{queue.queue_id}: offset {end} comes where {start} is expected",
            )
        if end - start < LISTED_RANGE_MAX:
            for offset in range(start, end):
                self.record(QueueOffset(queue.broker_name, queue.topic, queue.queue_id, offset), *_NO_MESSAGE)
        return [range(start, end)]

    def record(
        self, queue_offset: QueueOffset, uid: str, log_position: LogPosition, *, requested_ms: int | None = None
    ) -> None:
        """Record that *uid* was read or acknowledged at *queue_offset*.

        The request was sent at *requested_ms*, or now.
        """
        if requested_ms is not None and self.may_be_lost(log_position, requested_ms):
            return
        known = self._messages.setdefault(queue_offset, (uid, log_position))
        if known != (uid, log_position):
            raise Violation(
                "an offset is never used twice",
                f"{queue_offset} was {known[0]} at {known[1]} and is now {uid} at {log_position}",
            )

    def may_be_lost(self, log_position: LogPosition, requested_ms: int) -> bool:
        """Return whether the answer to a request of *requested_ms* may describe a record that was lost since."""
        return any(
            log_position.address == loss.address
            and log_position.position >= loss.position
            and requested_ms <= loss.lost_ms
            for loss in self._losses
        )

    def allow_loss(self, address: str, position: int, now_ms: int) -> None:
        """Forget everything seen from *position* on in the log at *address*, whose end may be lost."""
        self._losses.append(_Loss(address, position, now_ms))
        self._messages = {
            queue_offset: (uid, log_position)
            for queue_offset, (uid, log_position) in self._messages.items()
            if log_position.address != address or log_position.position < position
        }
