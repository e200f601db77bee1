"""Queue locks of orderly consumers, by group (codes 41 and 42).

A lock belongs to a client and expires a minute after its last renewal; clients renew every 20 seconds. Locks are in
memory only: after a restart, clients simply lock again.

A lock is keyed by topic and queue number, never by the broker name in the request. A broker has one queue of each
number in a topic: its own, or the logical queue of a static topic. Clients name the broker of a logical queue in
several ways (`__syslo__global__`, `__logic__global`, or the broker that it was found on). All mean the same queue.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from holdfast.broker.flow.request import Timers
from holdfast.broker.tables.clients import TIMER as CLIENTS_TIMER
from holdfast.machine.component import Component
from holdfast.machine.turn import Turn
from holdfast.model.queue import LogicalQueueId, MessageQueue, QueueKey
from holdfast.wire.requests.moves import HeldLock

LOCK_LIFE_MS: Final = 60_000


class QueueLocks(Component):
    """The owner and last renewal of each lock, by group and queue."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._locks: dict[str, dict[QueueKey, tuple[str, int]]] = {}

    def timers(self) -> Timers:
        """Return the timers of this component, by name."""
        return {CLIENTS_TIMER: self.expire}

    def lock(self, group: str, client_id: str, queues: list[MessageQueue]) -> list[MessageQueue]:
        """Lock those of *queues* that are free, expired or already the client's; return the locked ones."""
        now_ms = self._turn.now_ms
        held = self._locks.setdefault(group, {})
        locked = []
        for queue in queues:
            queue_key = queue.key
            owner, since_ms = held.get(queue_key, (client_id, now_ms))
            if owner == client_id or now_ms - since_ms > LOCK_LIFE_MS:
                held[queue_key] = (client_id, now_ms)
                locked.append(queue)
        return locked

    def unlock(self, group: str, client_id: str, queues: list[MessageQueue]) -> None:
        """Release those of *queues* that the client has locked."""
        held = self._locks.get(group, {})
        for queue_key in (queue.key for queue in queues):
            owner, _ = held.get(queue_key, (None, 0))
            if owner == client_id:
                del held[queue_key]
        if not held:
            self._locks.pop(group, None)

    def expire(self) -> None:
        """Remove expired locks, so that groups that no longer exist use no memory."""
        for group, held in list(self._locks.items()):
            for queue_key, (_, since_ms) in list(held.items()):
                if self._turn.now_ms - since_ms > LOCK_LIFE_MS:
                    del held[queue_key]
            if not held:
                del self._locks[group]

    # The locks of a logical queue move with it.

    def locks_of(self, topic: str, queues: Collection[LogicalQueueId]) -> list[HeldLock]:
        """Return the locks on these queues of *topic*."""
        return [
            HeldLock(group=group, client=client, queue=number, renewed_ms=since_ms)
            for group, held in self._locks.items()
            for (name, number), (client, since_ms) in held.items()
            if name == topic and number in queues
        ]

    def adopt(self, topic: str, locks: Iterable[HeldLock]) -> None:
        """Add the locks that were moved here with queues of *topic*."""
        for lock in locks:
            held = self._locks.setdefault(lock.group, {})
            held[topic, lock.queue] = (lock.client, lock.renewed_ms)

    def forget_queues(self, topic: str, queues: Collection[LogicalQueueId]) -> None:
        """Remove the locks on these queues of *topic*, which have moved to another broker."""
        for group, held in list(self._locks.items()):
            for queue_key in [(name, number) for name, number in held if name == topic and number in queues]:
                del held[queue_key]
            if not held:
                del self._locks[group]
