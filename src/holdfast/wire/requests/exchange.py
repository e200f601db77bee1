"""Pending requests of one connection, matched with their answers.

    begin(waiter, deadline) -> opaque ... finish(opaque) -> waiter        the answer arrived
                                      ... expire(now)    -> waiters       it did not arrive in time
                                      ... cancel_all()   -> waiters       the connection is lost

Answers are matched by the correlation number alone and may arrive in any order. Deadlines are values: a caller with a
clock reads `next_deadline_ms` and calls `expire` then. There is no heap and no timer per request: only the earliest
deadline is remembered, and all requests are scanned when it passes. That is rare, because most requests are answered
long before.

Waiters are opaque values. Contains no clock and no bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

_Waiter = TypeVar("_Waiter")

_OPAQUE_LIMIT = 0x7FFFFFFF


class Exchange(Generic[_Waiter]):
    """The pending requests of one connection."""

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
        """When to call `expire` next at the latest; None while no request is pending."""
        return self._earliest_ms if self._waiting else None

    def next_opaque(self) -> int:
        """Return a correlation number that no pending request has; also for oneway requests."""
        opaque = self._last
        while True:
            opaque = opaque + 1 if opaque < _OPAQUE_LIMIT else 1
            if opaque not in self._waiting:
                self._last = opaque
                return opaque

    def begin(self, waiter: _Waiter, deadline_ms: int) -> int:
        """Add a pending request until *deadline_ms* and return its opaque."""
        opaque = self.next_opaque()
        self._waiting[opaque] = (waiter, deadline_ms)
        if self._earliest_ms is None or deadline_ms < self._earliest_ms:
            self._earliest_ms = deadline_ms
        return opaque

    def finish(self, opaque: int) -> _Waiter | None:
        """Remove the request *opaque* and return its waiter; None if no such request is pending (any more)."""
        found = self._waiting.pop(opaque, None)
        return None if found is None else found[0]

    def find(self, opaque: int) -> _Waiter | None:
        """Return the waiter of the request *opaque*; None if no such request is pending."""
        found = self._waiting.get(opaque)
        return None if found is None else found[0]

    def expire(self, now_ms: int) -> list[_Waiter]:
        """Remove all requests whose deadline has passed and return their waiters."""
        if self._earliest_ms is None or now_ms < self._earliest_ms:
            return []
        late = [opaque for opaque, (_, deadline_ms) in self._waiting.items() if deadline_ms <= now_ms]
        waiters = [self._waiting.pop(opaque)[0] for opaque in late]
        self._earliest_ms = min((deadline_ms for _, deadline_ms in self._waiting.values()), default=None)
        return waiters

    def cancel(self, is_lost: Callable[[_Waiter], bool]) -> list[_Waiter]:
        """Remove the requests of those waiters for which *is_lost* holds, and return these waiters."""
        lost = [opaque for opaque, (waiter, _) in self._waiting.items() if is_lost(waiter)]
        return [self._waiting.pop(opaque)[0] for opaque in lost]

    def cancel_oldest(self) -> _Waiter:
        """Remove the request that has been pending longest and return its waiter."""
        return self._waiting.pop(next(iter(self._waiting)))[0]

    def cancel_all(self) -> list[_Waiter]:
        """Remove all requests and return their waiters."""
        waiters = [waiter for waiter, _ in self._waiting.values()]
        self._waiting.clear()
        self._earliest_ms = None
        return waiters
