"""The memory limit for all connections of a server, and which connection is closed when it is exceeded.

A connection holds bytes for its peer in two ways: the beginning of an incomplete frame, and answers that the peer has
not read. Each is small (16 MB, a few MB), but a thousand connections can hold gigabytes.

    0 ................ eased (1/2) ....... high (3/4) ....... limit
                       pressure ends       pressure begins    the connection that has held longest is closed

A well-behaved peer makes a connection hold bytes for milliseconds. So the connection that has held longest is closed,
not the one that exceeds the limit: otherwise the peer that filled the memory first would keep it, and all others would
be disconnected.

Independent of sockets and frames. A connection does not report holdings of a kind below `UNMETERED_MAX`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from holdfast.machine.effects import Log
from holdfast.machine.pressure import MemoryPressure

UNMETERED_MAX: Final = 64 * 1024


class MeteredConnection(Protocol):
    """A connection, as the budget sees it."""

    def abort(self, reason: str) -> None:
        """Close at once, and free everything."""
        ...


class MemoryBudget:
    """Counts the bytes that connections hold.

    Args:
        limit: The maximum for all connections together.
        emit: Writes one log line.

    Attributes:
        pressure: The current holdings, for the role to read.
    """

    def __init__(self, limit: int, emit: Callable[[Log], None]) -> None:
        self._limit = limit
        self._emit = emit
        self._connections: dict[MeteredConnection, int] = {}  # ordered by when they began to hold
        self.pressure = MemoryPressure()

    def record_held(self, connection: MeteredConnection, size: int) -> None:
        """Record that *connection* now holds *size* bytes in all; with 0 it is removed."""
        pressure = self.pressure
        pressure.held += size - self._connections.get(connection, 0)
        if size:
            self._connections[connection] = size
        else:
            self._connections.pop(connection, None)
        while pressure.held > self._limit:
            longest = next(iter(self._connections))
            pressure.held -= self._connections.pop(longest)
            longest.abort(
                f"connections held more than {self._limit} bytes in unfinished requests and unread answers, and this "
                "one had held some for the longest time"
            )
        self._update_pressure()

    def _update_pressure(self) -> None:
        """Update `pressure`. Between the two marks it stays unchanged: hysteresis prevents flapping."""
        pressure = self.pressure
        if not pressure.is_high and pressure.held > self._limit // 4 * 3:
            pressure.is_high = True
            fields: dict[str, object] = {
                "held": pressure.held,
                "limit": self._limit,
                "connections": len(self._connections),
            }
            self._emit(Log("warning", "memory is short, senders must wait", fields))
        elif pressure.is_high and pressure.held <= self._limit // 2:
            pressure.is_high = False
            self._emit(Log("info", "memory is not short any more", {"held": pressure.held, "limit": self._limit}))
