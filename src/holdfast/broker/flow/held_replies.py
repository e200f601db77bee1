"""Replies that wait until the records they promise are on disk.

    append ... append ... sync ──────────── synced
      └ held: (end of its record, channel, answer) ┘─> sent

Under asynchronous flush no reply waits here.
"""

from __future__ import annotations

from collections import deque

from holdfast.machine.effects import Piece, SendBytes
from holdfast.machine.events import ChannelId


class HeldReplies:
    """Held replies, in the order of the log positions that they wait for."""

    def __init__(self) -> None:
        self._held: deque[tuple[int, ChannelId, list[Piece]]] = deque()

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, position: int, channel: ChannelId, pieces: list[Piece]) -> None:
        """Hold *pieces* until the log before *position* is on disk."""
        assert not self._held or self._held[-1][0] <= position, "the log only grows"
        self._held.append((position, channel, pieces))

    def release(self, position: int) -> list[SendBytes]:
        """Return the replies to send once the log before *position* is on disk; one write per channel."""
        ready: dict[ChannelId, list[Piece]] = {}
        held = self._held
        while held and held[0][0] <= position:
            _, channel, pieces = held.popleft()
            if channel in ready:
                ready[channel] += pieces
            else:
                ready[channel] = pieces
        return [SendBytes(channel, pieces) for channel, pieces in ready.items()]

    def drop_all(self) -> list[ChannelId]:
        """Drop all held replies after a disk failure and return their channels."""
        channels = list(dict.fromkeys(channel for _, channel, _ in self._held))
        self._held.clear()
        return channels
