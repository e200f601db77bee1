"""The one clock, the one agenda and the one source of chance of a simulated cluster.

    schedule(action, delay) ─> agenda, by time and then by ticket ─> run: the next action, every check, the next action

Nothing happens but what is on the agenda. Knows neither networks nor machines.
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
"""When every world begins, so that times in records look like times."""


class Violation(AssertionError):
    """A promise of the system was broken, and which one."""

    def __init__(self, promise: str, evidence: str) -> None:
        super().__init__(f"{promise}: {evidence}")
        self.promise = promise


class World:
    """A whole cluster in one thread. Owns the only clock and the only chance there is."""

    def __init__(self, seed: int, trace: Trace | None = None) -> None:
        self.seed = seed
        self.trace = trace or Trace()
        self.now_ms = EPOCH_MS
        self.checks: list[Check] = []
        self._agenda: list[tuple[int, int, Action]] = []
        self._ticket = 0

    @property
    def elapsed_ms(self) -> int:
        """How long this world exists."""
        return self.now_ms - EPOCH_MS

    def chance(self, of: str) -> Random:
        """Return the chance that is *of* somebody: its own sequence, so that others' questions do not shift it."""
        return Random(f"{self.seed}/{of}")

    def schedule(self, action: Action, *, delay_ms: int) -> None:
        """Let *action* happen *delay_ms* of virtual time from now."""
        assert delay_ms >= 0, "the past cannot be changed"
        self._ticket += 1
        # The ticket breaks ties by arrival, never by memory address.
        heappush(self._agenda, (self.now_ms + delay_ms, self._ticket, action))

    def run(self, *, until_ms: int, until: Callable[[], bool] | None = None) -> bool:
        """Live through the agenda up to *until_ms*, or until *until* says so; return whether it did."""
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
