"""Sends messages of the same key one after another, in the order in which they were requested.

    send(a, 1) ── in flight ──┐
    send(a, 2) ───────────────┴ waits ── in flight ──
    send(b, 1) ── in flight ──                          other keys are not delayed

A second send of a key that leaves before the first is answered could overtake it when the first is retried.

Each key has a line of turns. A new turn joins the lines of all its keys at once, and comes when it is first in each of
them. So turns cannot deadlock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable
from typing import Self


class KeySequencer:
    """The lines of turns of one producer."""

    __slots__ = ("_lines",)

    def __init__(self) -> None:
        # Invariant: no line is empty; the first turn of each has come, or waits to become first in another line.
        self._lines: dict[Hashable, list[KeyTurn]] = {}

    def turn(self, keys: Iterable[Hashable]) -> KeyTurn:
        """Join the lines of *keys*, each given once, and return the turn to wait for.

        Use it as `with sequencer.turn(keys) as turn: await turn.wait_until_ready(); ...`.
        """
        return KeyTurn(self._lines, keys)


class KeyTurn:
    """A turn in the lines of some keys. Leaving the block ends it, whether or not it had come."""

    __slots__ = ("_keys", "_lines", "_lines_ahead", "_ready")

    def __init__(self, lines: dict[Hashable, list[KeyTurn]], keys: Iterable[Hashable]) -> None:
        self._lines = lines
        self._keys = keys
        self._lines_ahead = 0  # the number of lines in which another turn is ahead
        self._ready: asyncio.Future[None] | None = None

    def __enter__(self) -> Self:
        lines = self._lines
        for key in self._keys:
            line = lines.get(key)
            if line is None:
                lines[key] = [self]
            else:
                line.append(self)
                self._lines_ahead += 1
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
    def is_ready(self) -> bool:
        """Whether all earlier turns with one of the keys have ended."""
        return not self._lines_ahead

    async def wait_until_ready(self) -> None:
        """Return when the turn has come."""
        if self._lines_ahead:
            self._ready = asyncio.get_running_loop().create_future()
            await self._ready

    def advance(self) -> None:
        """Record that this turn is now first in one of its lines."""
        self._lines_ahead -= 1
        if not self._lines_ahead and self._ready is not None and not self._ready.done():
            self._ready.set_result(None)
