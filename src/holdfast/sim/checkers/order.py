"""Check that messages of one key are consumed in the order in which they were sent.

A message may be redelivered: after a retry, after a crash, or when its queue moves. But when a number is seen for the
first time, every number before it has been seen.
"""

from __future__ import annotations

from holdfast.sim.world.workload import PlannedMessage
from holdfast.sim.world.world import Violation


class OrderChecker:
    """The progress of each group with each key."""

    def __init__(self) -> None:
        self._next: dict[tuple[str, str], int] = {}

    def consumed(self, group: str, planned: PlannedMessage) -> None:
        """Record that *group* begins to consume *planned*."""
        if planned.key is None:
            return
        expected = self._next.get((group, planned.key), 0)
        if planned.number > expected:
            raise Violation(
                "order per key", f"{group} got number {planned.number} of key {planned.key} before number {expected}"
            )
        if planned.number == expected:
            self._next[group, planned.key] = expected + 1
