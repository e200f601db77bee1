"""Counts operations in flight, so that closing can wait for them: `with in_flight: ...`, `await in_flight.ended()`."""

from __future__ import annotations

import asyncio


class InFlight:
    """A counter that callers can await until it reaches zero. Re-entrant: each `with` counts one."""

    __slots__ = ("_count", "_ended")

    def __init__(self) -> None:
        self._count = 0
        self._ended: asyncio.Event | None = None

    def __enter__(self) -> None:
        self._count += 1

    def __exit__(self, *error: object) -> None:
        self._count -= 1
        if not self._count and self._ended is not None:
            self._ended.set()
            self._ended = None

    def __len__(self) -> int:
        return self._count

    async def wait_until_idle(self) -> None:
        """Return once no operation is in flight. Any number of callers may wait."""
        if self._count:
            if self._ended is None:
                self._ended = asyncio.Event()
            await self._ended.wait()
