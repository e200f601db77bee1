"""Long polls: parked pulls that found nothing and wait for the next message of their queue, or for their deadline.

A client that gets "nothing new" pulls again at once, so a broker that does not park pulls is flooded with them.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

import msgspec

from holdfast.machine.events import ChannelId
from holdfast.wire.requests.pull import PullHeader


class Hold(msgspec.Struct, eq=False):
    """A parked pull.

    Attributes:
        scan_from: The first offset not yet scanned. The messages before it did not match the subscription.
    """

    channel: ChannelId
    serializer: int
    header: PullHeader
    deadline_ms: int
    scan_from: int
    gone: bool = False


_Queue = TypeVar("_Queue", bound=Hashable)
_STALE_MAX: Final = 1024


class Holds(Generic[_Queue]):
    """Parked pulls by queue, by channel and by deadline."""

    def __init__(self) -> None:
        # Keyed by identity: thousands of pulls may wait for one queue, and all are removed when their channel closes.
        self._by_queue: dict[_Queue, dict[int, Hold]] = {}
        self._by_channel: dict[ChannelId, dict[int, tuple[_Queue, Hold]]] = {}
        self._deadlines: list[tuple[int, int, _Queue, Hold]] = []
        self._ticket = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def park(self, queue: _Queue, hold: Hold) -> None:
        """Park *hold* until *queue* gets a message."""
        self._ticket += 1
        self._count += 1
        self._by_queue.setdefault(queue, {})[id(hold)] = hold
        self._by_channel.setdefault(hold.channel, {})[id(hold)] = (queue, hold)
        heappush(self._deadlines, (hold.deadline_ms, self._ticket, queue, hold))

    def wake(self, queue: _Queue) -> list[Hold]:
        """Remove and return every pull that waits for *queue*."""
        woken = [hold for hold in self._by_queue.pop(queue, {}).values() if not hold.gone]
        for hold in woken:
            self._forget(hold)
        self._compact()
        return woken

    def expire(self, now_ms: int) -> list[tuple[_Queue, Hold]]:
        """Remove and return every pull whose deadline has passed."""
        expired = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            _, _, queue, hold = heappop(self._deadlines)
            if not hold.gone:
                self._forget(hold)
                self._remove(queue, hold)
                expired.append((queue, hold))
        return expired

    def drop_channel(self, channel: ChannelId) -> None:
        """Remove the pulls of a closed connection."""
        for queue, hold in list(self._by_channel.get(channel, {}).values()):
            self._forget(hold)
            self._remove(queue, hold)
        self._compact()

    def next_deadline_ms(self) -> int | None:
        """Return the earliest deadline, or None if no pull is parked."""
        while self._deadlines and self._deadlines[0][3].gone:
            heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def _forget(self, hold: Hold) -> None:
        hold.gone = True
        self._count -= 1
        of_channel = self._by_channel[hold.channel]
        del of_channel[id(hold)]
        if not of_channel:
            del self._by_channel[hold.channel]

    def _remove(self, queue: _Queue, hold: Hold) -> None:
        waiting = self._by_queue[queue]
        del waiting[id(hold)]
        if not waiting:
            del self._by_queue[queue]

    def _compact(self) -> None:
        """Drop the deadlines of pulls that are no longer parked, once these are the majority."""
        if len(self._deadlines) > 2 * self._count + _STALE_MAX:
            self._deadlines = [entry for entry in self._deadlines if not entry[3].gone]
            heapify(self._deadlines)
