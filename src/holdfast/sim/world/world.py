"""The clock, the agenda and the random number generators of a simulated cluster.

    schedule(action, delay) ─> agenda, by time and then by ticket ─> run: the next action, every check, the next action

Nothing happens except actions on the agenda. This module knows neither networks nor machines.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Final

from holdfast.sim.world.trace import Trace

Action = Callable[[], None]
Check = Callable[[], None]

EPOCH_MS: Final = 1_700_000_000_000
"""The time at which every world begins, so that timestamps in records look realistic."""


class Violation(AssertionError):
    """A broken promise of the system."""

    def __init__(self, promise: str, evidence: str) -> None:
        super().__init__(f"{promise}: {evidence}")
        self.promise = promise


class World:
    """A whole cluster in one thread. Owns the only clock and the only source of randomness."""

    def __init__(self, seed: int, trace: Trace | None = None) -> None:
        self.seed = seed
        self.trace = trace or Trace()
        self.now_ms = EPOCH_MS
        self.checks: list[Check] = []
        self._agenda: list[tuple[int, int, Action]] = []
        self._ticket = 0

    @property
    def elapsed_ms(self) -> int:
        """The time since this world began."""
        return self.now_ms - EPOCH_MS

    def rng(self, name: str) -> Random:
        """Return a random number generator for *name*. Each has a separate sequence: other draws do not shift it."""
        return Random(f"{self.seed}/{name}")

    def schedule(self, action: Action, *, delay_ms: int) -> None:
        """Run *action* after *delay_ms* of virtual time."""
        assert delay_ms >= 0, "the past cannot be changed"
        self._ticket += 1
        # The ticket breaks ties by arrival, never by memory address.
        heappush(self._agenda, (self.now_ms + delay_ms, self._ticket, action))

    def run(self, *, until_ms: int, until: Callable[[], bool] | None = None) -> bool:
        """Run the agenda up to *until_ms*, or until *until* returns true; return whether it did."""
        agenda, trace = self._agenda, self.trace
        while agenda and agenda[0][0] <= until_ms:
            if until is not None and until():
                return True
            self.now_ms, _, action = heappop(agenda)
            trace.step += 1
            trace.time_ms = self.now_ms - EPOCH_MS
            action()
            for check in self.checks:
                check()
        self.now_ms = max(self.now_ms, until_ms)
        return until is not None and until()
