"""Tracks which queue locks this consumer holds.

    granted ──> held for 30 s ──> not held: consume nothing of the queue until the lock is granted again
                  ^ renewed every 20 s

A broker drops a lock after 60 s. The consumer treats its locks as expired after 30 s, so that two consumers never
hold the same lock at once. The caller supplies the time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from holdfast.model.queue import MessageQueue

LOCK_EXPIRY_MS: Final = 30_000
RENEW_INTERVAL_S: Final = 20.0


class HeldLocks:
    """The locks of one consumer."""

    def __init__(self) -> None:
        self._requested_ms: dict[MessageQueue, int] = {}

    def grant(self, queues: Iterable[MessageQueue], requested_ms: int) -> None:
        """Record locks granted to a request made at *requested_ms*: the broker's lease began later than that."""
        for queue in queues:
            self._requested_ms[queue] = requested_ms

    def drop(self, queues: Iterable[MessageQueue]) -> None:
        """Record that *queues* are no longer locked for us."""
        for queue in queues:
            self._requested_ms.pop(queue, None)

    def is_held(self, queue: MessageQueue, now_ms: int) -> bool:
        """Return whether only this consumer may consume *queue*."""
        requested_ms = self._requested_ms.get(queue)
        return requested_ms is not None and now_ms - requested_ms < LOCK_EXPIRY_MS
