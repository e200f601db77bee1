"""To which broker the sends of each logical queue are under way: to one at a time.

    q -> a   ── 3 in flight ── 2 ── 1 ── none ─┐
    q -> b        waits until then ............└── in flight

A send that goes to a queue's new leader while an older one is still on its way through the old leader could overtake
it. The asyncio shell around a count.
"""

from __future__ import annotations

import asyncio

from holdfast.model.queue import MessageQueue


class QueueLanes:
    """The logical queues to which one producer sends."""

    __slots__ = ("_lanes",)

    def __init__(self) -> None:
        # Invariant: a lane is there only while something is in flight on it.
        self._lanes: dict[MessageQueue, _Lane] = {}

    def enter(self, queue: MessageQueue, broker: str) -> bool:
        """Begin a send to *queue* at *broker*. False: others are under way to another broker; await `drained`."""
        lane = self._lanes.get(queue)
        if lane is None:
            self._lanes[queue] = _Lane(broker)
            return True
        if lane.broker != broker:
            return False
        lane.count += 1
        return True

    def leave(self, queue: MessageQueue) -> None:
        """End a send that had entered, whatever became of it."""
        lane = self._lanes[queue]
        lane.count -= 1
        if not lane.count:
            del self._lanes[queue]
            if lane.drained is not None:
                lane.drained.set()

    async def drained(self, queue: MessageQueue) -> None:
        """Return when nothing is in flight to *queue*, for a moment at least."""
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
