"""Turns: whoever comes with the same key goes one after the other, in the order of asking.

    send(a, 1) ── in flight ──┐
    send(a, 2) ───────────────┴ waits ── in flight ──
    send(b, 1) ── in flight ──                          other keys are not held up

A second send of a key that leaves before the first is answered could overtake it when the first is retried.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable, Iterable
from contextlib import asynccontextmanager


class KeyOrder:
    """The turns of one producer."""

    def __init__(self) -> None:
        self._last: dict[Hashable, asyncio.Future[None]] = {}

    @asynccontextmanager
    async def turn(self, keys: Iterable[Hashable]) -> AsyncIterator[None]:
        """Wait until everybody who came before with one of *keys* has gone, and go."""
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        wanted = set(keys)
        before = {self._last[key] for key in wanted if key in self._last}
        for key in wanted:
            self._last[key] = mine
        try:
            if before:
                await asyncio.wait(before)
            yield
        finally:
            self._leave(mine, wanted, {turn for turn in before if not turn.done()})

    def _leave(self, mine: asyncio.Future[None], wanted: set[Hashable], before: set[asyncio.Future[None]]) -> None:
        """Let the next one go; one who gives up waiting leaves the next one behind those who are still in front."""
        if before:
            before.pop().add_done_callback(
                lambda _: self._leave(mine, wanted, {turn for turn in before if not turn.done()})
            )
            return
        for key in wanted:
            if self._last.get(key) is mine:
                del self._last[key]
        mine.set_result(None)
