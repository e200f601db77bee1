"""Long polls: parked pulls that found nothing and wait for the next message of their queue, or for their deadline.

A client that gets "nothing new" pulls again at once, so a broker that does not park pulls is flooded with them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

import msgspec

from holdfast.machine.events import ChannelId
from holdfast.machine.request import Refusal
from holdfast.model.access.identity import Identity
from holdfast.model.queue import LogicalOffset
from holdfast.wire.requests.pull import PullHeader


class ParkedPull(msgspec.Struct, eq=False):
    """A parked pull.

    Attributes:
        scan_from: The first offset not yet scanned. The messages before it did not match the subscription.
        sender: Who pulls; None if access control is off.
        refusal: Why the pull is refused at its deadline; None if it is not.
        ticket: The number of its latest parking. It may be parked again, for another physical queue, too.
    """

    channel: ChannelId
    serializer: int
    header: PullHeader
    deadline_ms: int
    scan_from: LogicalOffset
    sender: Identity | None = None
    refusal: Refusal | None = None
    is_gone: bool = False
    ticket: int = 0


_Queue = TypeVar("_Queue", bound=Hashable)
_STALE_MAX: Final = 1024


class ParkedPulls(Generic[_Queue]):
    """Parked pulls by queue, by channel and by deadline."""

    def __init__(self) -> None:
        # Keyed by identity: thousands of pulls may wait for one queue, and all are removed when their channel closes.
        self._by_queue: dict[_Queue, dict[int, ParkedPull]] = {}
        self._by_channel: dict[ChannelId, dict[int, tuple[_Queue, ParkedPull]]] = {}
        self._deadlines: list[tuple[int, int, _Queue, ParkedPull]] = []
        self._ticket = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def park(self, queue: _Queue, parked: ParkedPull) -> None:
        """Park *parked* until *queue* gets a message."""
        self._ticket += 1
        self._count += 1
        parked.ticket = self._ticket
        self._by_queue.setdefault(queue, {})[id(parked)] = parked
        self._by_channel.setdefault(parked.channel, {})[id(parked)] = (queue, parked)
        heappush(self._deadlines, (parked.deadline_ms, self._ticket, queue, parked))

    def wake(self, queue: _Queue) -> list[ParkedPull]:
        """Remove and return every pull that waits for *queue*."""
        woken = [parked for parked in self._by_queue.pop(queue, {}).values() if not parked.is_gone]
        for parked in woken:
            self._forget(parked)
        self._compact()
        return woken

    def remove(self, is_removed: Callable[[ParkedPull], bool]) -> list[ParkedPull]:
        """Remove and return every pull of which *is_removed* is true."""
        removed = []
        for queue, waiting in list(self._by_queue.items()):
            for parked in [parked for parked in waiting.values() if is_removed(parked)]:
                self._forget(parked)
                self._remove(queue, parked)
                removed.append(parked)
        self._compact()
        return removed

    def expire(self, now_ms: int) -> list[tuple[_Queue, ParkedPull]]:
        """Remove and return every pull whose deadline has passed."""
        expired = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            entry = heappop(self._deadlines)
            if not _is_stale(entry):
                _, _, queue, parked = entry
                self._forget(parked)
                self._remove(queue, parked)
                expired.append((queue, parked))
        return expired

    def drop_channel(self, channel: ChannelId) -> None:
        """Remove the pulls of a closed connection."""
        for queue, parked in list(self._by_channel.get(channel, {}).values()):
            self._forget(parked)
            self._remove(queue, parked)
        self._compact()

    def next_deadline_ms(self) -> int | None:
        """Return the earliest deadline, or None if no pull is parked."""
        while self._deadlines and _is_stale(self._deadlines[0]):
            heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def _forget(self, parked: ParkedPull) -> None:
        parked.is_gone = True
        self._count -= 1
        of_channel = self._by_channel[parked.channel]
        del of_channel[id(parked)]
        if not of_channel:
            del self._by_channel[parked.channel]

    def _remove(self, queue: _Queue, parked: ParkedPull) -> None:
        waiting = self._by_queue[queue]
        del waiting[id(parked)]
        if not waiting:
            del self._by_queue[queue]

    def _compact(self) -> None:
        """Drop the deadlines of pulls that are no longer parked, once these are the majority."""
        if len(self._deadlines) > 2 * self._count + _STALE_MAX:
            self._deadlines = [entry for entry in self._deadlines if not _is_stale(entry)]
            heapify(self._deadlines)


def _is_stale(deadline: tuple[int, int, object, ParkedPull]) -> bool:
    """Return whether the pull of a deadline is parked no more, or was parked again since."""
    _, ticket, _, parked = deadline
    return parked.is_gone or parked.ticket != ticket
