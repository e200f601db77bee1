"""Turns: whoever comes with the same key goes one after the other, in the order of asking.

    send(a, 1) ── in flight ──┐
    send(a, 2) ───────────────┴ waits ── in flight ──
    send(b, 1) ── in flight ──                          other keys are not held up

A second send of a key that leaves before the first is answered could overtake it when the first is retried.

Each key has a line, and whoever comes stands at the end of the lines of all their keys at once; they go when they are
the first in each. So nobody waits in a circle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable
from typing import Self


class KeyOrder:
    """The turns of one producer."""

    __slots__ = ("_lines",)

    def __init__(self) -> None:
        # Invariant: no line is empty; the first of each goes, or is waiting to be the first in another one.
        self._lines: dict[Hashable, list[Turn]] = {}

    def turn(self, keys: Iterable[Hashable]) -> Turn:
        """Stand in line for *keys*, each given once: `with order.turn(keys) as turn: await turn.comes(); ...`."""
        return Turn(self._lines, keys)


class Turn:
    """A place in the lines of some keys. Leaving the block gives it up, whether it had come or not."""

    __slots__ = ("_behind", "_came", "_keys", "_lines")

    def __init__(self, lines: dict[Hashable, list[Turn]], keys: Iterable[Hashable]) -> None:
        self._lines = lines
        self._keys = keys
        self._behind = 0  # in how many lines somebody is in front
        self._came: asyncio.Future[None] | None = None

    def __enter__(self) -> Self:
        lines = self._lines
        for key in self._keys:
            line = lines.get(key)
            if line is None:
                lines[key] = [self]
            else:
                line.append(self)
                self._behind += 1
        return self

    def __exit__(self, *error: object) -> None:
        lines = self._lines
        for key in self._keys:
            line = lines[key]
            was_first = line[0] is self
            line.remove(self)
            if not line:
                del lines[key]
            elif was_first:
                line[0].advance()

    @property
    def has_come(self) -> bool:
        """Whether everybody who came before with one of the keys has gone."""
        return not self._behind

    async def comes(self) -> None:
        """Return when it has come."""
        if self._behind:
            self._came = asyncio.get_running_loop().create_future()
            await self._came

    def advance(self) -> None:
        """Take note that nobody is in front any more in one of the lines."""
        self._behind -= 1
        if not self._behind and self._came is not None and not self._came.done():
            self._came.set_result(None)
