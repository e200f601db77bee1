"""Requests that wait for their answers on one connection.

    begin(waiter, deadline) -> opaque ... finish(opaque) -> waiter        the answer came
                                      ... expire(now)    -> waiters       it did not come in time
                                      ... abandon()      -> waiters       the connection is gone

Answers are matched by the correlation number alone and may come in any order. Deadlines are values: whoever has a
clock asks `next_deadline_ms` and calls `expire` then. There is no heap and no timer per request; the earliest deadline
is remembered and everything is looked at when it passes, which is rare because most requests are answered long before.

Does not know what a waiter is, nor bytes, nor time.
"""

from __future__ import annotations

from typing import Generic, TypeVar

_Waiter = TypeVar("_Waiter")

_OPAQUE_LIMIT = 0x7FFFFFFF


class Exchange(Generic[_Waiter]):
    """The waiting requests of one connection."""

    __slots__ = ("_earliest_ms", "_last", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[_Waiter, int]] = {}
        self._last = 0
        # Invariant: no waiting request has a deadline before this.
        self._earliest_ms: int | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, opaque: int) -> bool:
        return opaque in self._waiting

    @property
    def next_deadline_ms(self) -> int | None:
        """When to call `expire` next at the latest; None while nothing waits."""
        return self._earliest_ms if self._waiting else None

    def next_opaque(self) -> int:
        """Return a number that no waiting request has; for requests that want no answer, too."""
        opaque = self._last
        while True:
            opaque = opaque + 1 if opaque < _OPAQUE_LIMIT else 1
            if opaque not in self._waiting:
                self._last = opaque
                return opaque

    def begin(self, waiter: _Waiter, deadline_ms: int) -> int:
        """Let *waiter* wait until *deadline_ms* and return the opaque of its request."""
        opaque = self.next_opaque()
        self._waiting[opaque] = (waiter, deadline_ms)
        if self._earliest_ms is None or deadline_ms < self._earliest_ms:
            self._earliest_ms = deadline_ms
        return opaque

    def finish(self, opaque: int) -> _Waiter | None:
        """Return who waits for *opaque* and forget it. None: nobody does, or no longer."""
        found = self._waiting.pop(opaque, None)
        return None if found is None else found[0]

    def expire(self, now_ms: int) -> list[_Waiter]:
        """Return and forget everybody whose deadline has come."""
        if self._earliest_ms is None or now_ms < self._earliest_ms:
            return []
        late = [opaque for opaque, (_, deadline_ms) in self._waiting.items() if deadline_ms <= now_ms]
        waiters = [self._waiting.pop(opaque)[0] for opaque in late]
        self._earliest_ms = min((deadline_ms for _, deadline_ms in self._waiting.values()), default=None)
        return waiters

    def abandon(self) -> list[_Waiter]:
        """Return and forget everybody."""
        waiters = [waiter for waiter, _ in self._waiting.values()]
        self._waiting.clear()
        self._earliest_ms = None
        return waiters
