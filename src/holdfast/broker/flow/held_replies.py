"""Answers that wait until what they promise is on disk.

    append ... append ... sync ──────────── synced
      └ held: (end of its record, channel, answer) ┘─> sent

Under asynchronous flush nothing waits here.
"""

from __future__ import annotations

from collections import deque

from holdfast.machine.effects import Piece, SendBytes
from holdfast.machine.events import ChannelId


class HeldAnswers:
    """Answers in the order of the log positions they wait for."""

    def __init__(self) -> None:
        self._held: deque[tuple[int, ChannelId, list[Piece]]] = deque()

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, position: int, channel: ChannelId, pieces: list[Piece]) -> None:
        """Keep *pieces* until everything before *position* is on disk."""
        assert not self._held or self._held[-1][0] <= position, "the log only grows"
        self._held.append((position, channel, pieces))

    def release(self, position: int) -> list[SendBytes]:
        """Return what may be sent now that everything before *position* is on disk; one write per channel."""
        ready: dict[ChannelId, list[Piece]] = {}
        held = self._held
        while held and held[0][0] <= position:
            _, channel, pieces = held.popleft()
            if channel in ready:
                ready[channel] += pieces
            else:
                ready[channel] = pieces
        return [SendBytes(channel, pieces) for channel, pieces in ready.items()]

    def abandon(self) -> list[ChannelId]:
        """Forget all promises and return the channels they were made to: the disk has failed."""
        channels = list(dict.fromkeys(channel for _, channel, _ in self._held))
        self._held.clear()
        return channels
