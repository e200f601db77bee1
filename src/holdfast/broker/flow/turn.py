"""Deferred work that components queue while they handle an event. The broker runs it when the event ends.

    effects   actions for the shell: send, log, set a timer
    work      procedures that continue without a caller, and may wait (`scheduler.py`)
    frames    requests to process as if just read from a channel: once held, or relayed by another broker

A procedure may outlive the event that started it. `Turn.now_ms` gives it the time of the current event.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from holdfast.broker.flow.awaitables import Procedure
from holdfast.machine.effects import Effect
from holdfast.machine.events import ChannelId

_FRAMES_AT_ONCE: Final = 256


class Turn:
    """A queue of deferred work.

    Attributes:
        now_ms: The time of the current event.
    """

    def __init__(self, now_ms: int = 0) -> None:
        self.now_ms = now_ms
        self.effects: list[Effect] = []
        self.procedures: list[Procedure[object]] = []
        self.frames: deque[tuple[ChannelId, bytes]] = deque()

    def __bool__(self) -> bool:
        return bool(self.effects or self.procedures or self.frames)

    def pop_frames(self) -> tuple[ChannelId, bytes]:
        """Remove and return the frames at the head of the queue that belong to one channel."""
        channel, data = self.frames.popleft()
        parts = [data]
        while self.frames and self.frames[0][0] == channel and len(parts) < _FRAMES_AT_ONCE:
            parts.append(self.frames.popleft()[1])
        return channel, b"".join(parts)

    def drain_effects(self) -> list[Effect]:
        """Remove and return the queued effects."""
        drained, self.effects = self.effects, []
        return drained

    def drain_procedures(self) -> list[Procedure[object]]:
        """Remove and return the queued procedures."""
        drained, self.procedures = self.procedures, []
        return drained
