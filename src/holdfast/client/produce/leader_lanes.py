"""Keeps the sends of a logical queue in flight to one leader at a time.

    q -> a   ── 3 in flight ── 2 ── 1 ── none ─┐
    q -> b        waits until then ............└── in flight

A send to a queue's new leader could overtake an older one that is still on its way through the old leader. The asyncio
shell around a count.
"""

from __future__ import annotations

import asyncio

from holdfast.model.queue import MessageQueue


class LeaderLanes:
    """The logical queues to which one producer has sends in flight."""

    __slots__ = ("_lanes",)

    def __init__(self) -> None:
        # Invariant: a lane exists only while a send is in flight on it.
        self._lanes: dict[MessageQueue, _Lane] = {}

    def enter(self, queue: MessageQueue, broker: str) -> bool:
        """Begin a send to *queue* at *broker*.

        Return False while other sends are in flight to another broker; then call `wait_until_drained`.
        """
        lane = self._lanes.get(queue)
        if lane is None:
            self._lanes[queue] = _Lane(broker)
            return True
        if lane.broker != broker:
            return False
        lane.count += 1
        return True

    def leave(self, queue: MessageQueue) -> None:
        """End a send that had entered, whether or not it succeeded."""
        lane = self._lanes[queue]
        lane.count -= 1
        if not lane.count:
            del self._lanes[queue]
            if lane.drained is not None:
                lane.drained.set()

    async def wait_until_drained(self, queue: MessageQueue) -> None:
        """Return when no send to *queue* is in flight; another may begin right afterwards."""
        lane = self._lanes.get(queue)
        if lane is not None:
            if lane.drained is None:
                lane.drained = asyncio.Event()
            await lane.drained.wait()


class _Lane:
    __slots__ = ("broker", "count", "drained")

    def __init__(self, broker: str) -> None:
        self.broker = broker
        self.count = 1
        self.drained: asyncio.Event | None = None
