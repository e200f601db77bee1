"""What rooms want done besides what they are asked at the moment: done at the end of the event that brought it up.

    effects   something to send, to log, to set
    work      a procedure that goes on by itself, and may wait (`stepping.py`)
    frames    requests to be taken as if they had just been read from a channel: once held, or brought by another broker

Rooms whose procedures outlive the event that began them ask here for the time.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from holdfast.broker.flow.awaitables import Procedure
from holdfast.machine.effects import Effect
from holdfast.machine.events import ChannelId

_FRAMES_AT_ONCE: Final = 256


class Errands:
    """A list of things to do.

    Attributes:
        now_ms: The time of the event at hand.
    """

    def __init__(self, now_ms: int = 0) -> None:
        self.now_ms = now_ms
        self.effects: list[Effect] = []
        self.work: list[Procedure[object]] = []
        self.frames: deque[tuple[ChannelId, bytes]] = deque()

    def __bool__(self) -> bool:
        return bool(self.effects or self.work or self.frames)

    def take_frames(self) -> tuple[ChannelId, bytes]:
        """Return the next channel and everything that stands first in the list for it."""
        channel, data = self.frames.popleft()
        parts = [data]
        while self.frames and self.frames[0][0] == channel and len(parts) < _FRAMES_AT_ONCE:
            parts.append(self.frames.popleft()[1])
        return channel, b"".join(parts)

    def take_effects(self) -> list[Effect]:
        """Return what shall happen, once."""
        taken, self.effects = self.effects, []
        return taken

    def take_work(self) -> list[Procedure[object]]:
        """Return what shall begin, once."""
        taken, self.work = self.work, []
        return taken
