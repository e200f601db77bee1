"""Check that messages of one key are consumed in the order in which they were sent.

A message may be redelivered: after a retry, after a crash, or when its queue moves. But when a number is seen for the
first time, every number before it has been seen.
"""

from __future__ import annotations

from holdfast.sim.world.workload import Job
from holdfast.sim.world.world import Violation


class Order:
    """The progress of each group with each key."""

    def __init__(self) -> None:
        self._next: dict[tuple[str, str], int] = {}

    def consumed(self, group: str, job: Job) -> None:
        """Record that *group* begins to consume *job*."""
        if job.key is None:
            return
        known = self._next.get((group, job.key), 0)
        if job.number > known:
            raise Violation("order per key", f"{group} got number {job.number} of key {job.key} before number {known}")
        if job.number == known:
            self._next[group, job.key] = known + 1
