"""How much memory all connections of a server may hold together, and who goes when it is spent.

A connection holds bytes for its peer in two ways: the beginning of a frame whose rest has not come, and answers that
the peer has not taken. Each is small by itself (16 MB, a few MB), but a thousand connections make gigabytes of it.

    0 ................ eased (1/2) ....... high (3/4) ....... limit
                       pressure ends       pressure begins    who has held longest is cut off

Who behaves holds something for milliseconds. So the one that has held longest is cut off, not the one whose bytes
happen to be one too many: otherwise whoever filled the memory first would keep it, and everybody else be cut off.

Knows nothing of sockets and frames. Connections that hold less than `UNMETERED_MAX` in a way do not report it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from holdfast.machine.effects import Log
from holdfast.machine.pressure import MemoryPressure

UNMETERED_MAX: Final = 64 * 1024


class Holder(Protocol):
    """A connection, as the budget sees it."""

    def abort(self, reason: str) -> None:
        """Close at once, and let go of everything."""
        ...


class MemoryBudget:
    """Counts what connections hold.

    Args:
        limit: Bytes that they may hold together.
        emit: Writes one log line.

    Attributes:
        pressure: What they hold now, for the role to read.
    """

    def __init__(self, limit: int, emit: Callable[[Log], None]) -> None:
        self._limit = limit
        self._emit = emit
        self._holders: dict[Holder, int] = {}  # in the order in which they began to hold
        self.pressure = MemoryPressure()

    def hold(self, holder: Holder, size: int) -> None:
        """Take note that *holder* now holds *size* bytes in all; with 0 it is forgotten."""
        pressure = self.pressure
        pressure.held += size - self._holders.get(holder, 0)
        if size:
            self._holders[holder] = size
        else:
            self._holders.pop(holder, None)
        while pressure.held > self._limit:
            longest = next(iter(self._holders))
            pressure.held -= self._holders.pop(longest)
            longest.abort(
                f"connections held more than {self._limit} bytes in unfinished requests and answers that were not "
                "taken, and this one had held some for the longest time"
            )
        self._read()

    def _read(self) -> None:
        """Keep the reading; between the two marks it stays as it is, so that it does not flutter."""
        pressure = self.pressure
        if not pressure.is_high and pressure.held > self._limit // 4 * 3:
            pressure.is_high = True
            fields: dict[str, object] = {"held": pressure.held, "limit": self._limit, "connections": len(self._holders)}
            self._emit(Log("warning", "memory is short, senders are told to wait", fields))
        elif pressure.is_high and pressure.held <= self._limit // 2:
            pressure.is_high = False
            self._emit(Log("info", "memory is not short any more", {"held": pressure.held, "limit": self._limit}))
