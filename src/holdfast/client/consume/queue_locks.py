"""Which queues only we may consume, for now.

    granted ──> held for 30 s ──> not held: consume nothing of it until it is granted again
                  ^ asked again every 20 s

A broker forgets a lock after 60 s. We stop believing in ours after 30 s, so that there is never a moment in which two
consumers believe. Time comes in.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from holdfast.model.queue import MessageQueue

BELIEF_MS: Final = 30_000
RENEW_INTERVAL_S: Final = 20.0


class QueueLocks:
    """The locks of one consumer."""

    def __init__(self) -> None:
        self._asked_ms: dict[MessageQueue, int] = {}

    def grant(self, queues: Iterable[MessageQueue], asked_ms: int) -> None:
        """Note what was granted to a request made at *asked_ms*: the broker's clock for it started later."""
        for queue in queues:
            self._asked_ms[queue] = asked_ms

    def drop(self, queues: Iterable[MessageQueue]) -> None:
        """Note what is ours no more."""
        for queue in queues:
            self._asked_ms.pop(queue, None)

    def is_held(self, queue: MessageQueue, now_ms: int) -> bool:
        """Say whether only we may consume *queue*."""
        asked_ms = self._asked_ms.get(queue)
        return asked_ms is not None and now_ms - asked_ms < BELIEF_MS
