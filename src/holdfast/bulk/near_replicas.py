"""Which replica a process reads at: one in the reader's own unit, while it reads a queue of another unit.

    pull at the master ─> its answer names a replica beside the reader ─> the next pulls go there
           ^                                                                     │
           └── no answer (30 s), a refusal or an answer that does not lead on (3 s) ──┘

Only rows are read there: offsets, bounds and planning stay with the master. Both logs hold the same records, so a
reader may change between them at any offset.

The choice outlives ranges and tasks. A batch of a stream is often one pull per queue: all would go to the master.
"""

from __future__ import annotations

import time
from typing import Final, NamedTuple

from holdfast.model.route import MASTER_ID

SUSPEND_MS: Final = 1_000  # So long a replica waits for rows that the master has already.
TIMEOUT_S: Final = 8.0  # A replica that hangs is noticed sooner than a master: there is another place to read.
LAGGING_AVOID_S: Final = (
    3.0  # after an answer that does not lead on: a replica compares itself with its master so often
)
FAILED_AVOID_S: Final = 30.0  # after a failure: until then the master has noticed, too


class ReplicaKey(NamedTuple):
    """What is read, for whom: a master's answer holds for all of it.

    Attributes:
        unit: The reader's.
        broker: The broker that leads the queue.
    """

    unit: str
    topic: str
    broker: str


class NearReplicas:
    """The brokers that answers named, by what they were answers to."""

    def __init__(self) -> None:
        self._chosen: dict[ReplicaKey, int] = {}
        self._avoided_until_s: dict[ReplicaKey, float] = {}

    def find(self, key: ReplicaKey) -> int:
        """Return the number of the broker to pull from: 0 is the master."""
        return self._chosen.get(key, MASTER_ID)

    def is_known(self, key: ReplicaKey) -> bool:
        """Return whether an answer has named any broker yet, the master or another."""
        return key in self._chosen

    def record(self, key: ReplicaKey, broker_id: int) -> None:
        """Read at the broker that an answer named, unless a replica has to be avoided."""
        is_avoided = time.monotonic() < self._avoided_until_s.get(key, 0.0)
        self._chosen[key] = MASTER_ID if is_avoided else broker_id

    def avoid(self, key: ReplicaKey, seconds: float) -> None:
        """Read at the master, for so long at least."""
        self._chosen[key] = MASTER_ID
        self._avoided_until_s[key] = time.monotonic() + seconds
