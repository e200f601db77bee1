"""Chooses the replica that a process reads from: one in the reader's own unit, for a queue of another unit.

    pull from the master ─> its answer names a replica in the reader's unit ─> the next pulls use the replica
            ^                                                                          │
            └── no answer (avoid it for 30 s), a refusal, or no progress (avoid it for 3 s) ──┘

Replicas serve rows only; offsets, bounds and planning always use the master. Both logs hold the same records, so a
reader can switch between them at any offset.

The choice is kept across ranges and tasks. A batch of a stream is often one pull per queue, so without this memory
every pull would go to the master.
"""

from __future__ import annotations

import time
from typing import Final, NamedTuple

from holdfast.model.route import MASTER_ID

SUSPEND_MS: Final = 1_000  # How long a replica holds a pull for rows that the master already has.
TIMEOUT_S: Final = 8.0  # Shorter than for a master, because the master can serve the pull instead.
LAGGING_AVOID_S: Final = 3.0  # After an answer without progress: how often a replica compares itself with its master.
FAILED_AVOID_S: Final = 30.0  # After a failure: by then the master has noticed it, too.


class ReplicaKey(NamedTuple):
    """The pulls that share one choice: what a master's answer names applies to all of them.

    Attributes:
        unit: The reader's unit.
        broker: The broker that leads the queue.
    """

    unit: str
    topic: str
    broker: str


class NearReplicas:
    """The broker that the latest answer named, for each key."""

    def __init__(self) -> None:
        self._chosen: dict[ReplicaKey, int] = {}
        self._avoided_until_s: dict[ReplicaKey, float] = {}

    def find(self, key: ReplicaKey) -> int:
        """Return the id of the broker to pull from; 0 is the master."""
        return self._chosen.get(key, MASTER_ID)

    def is_known(self, key: ReplicaKey) -> bool:
        """Return whether an answer has named a broker yet, be it the master or a replica."""
        return key in self._chosen

    def record(self, key: ReplicaKey, broker_id: int) -> None:
        """Pull from *broker_id* next, which an answer named; from the master if replicas are being avoided."""
        is_avoided = time.monotonic() < self._avoided_until_s.get(key, 0.0)
        self._chosen[key] = MASTER_ID if is_avoided else broker_id

    def avoid(self, key: ReplicaKey, seconds: float) -> None:
        """Pull from the master for at least *seconds*."""
        self._chosen[key] = MASTER_ID
        self._avoided_until_s[key] = time.monotonic() + seconds
