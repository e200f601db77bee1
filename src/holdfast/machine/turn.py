"""The event that a role handles at the moment: its time, and everything that the role causes while it handles it.

    effects      actions for the shell, in the order in which they were caused: send, log, set a timer, ...
    procedures   coroutines that continue without a caller, and may wait
    frames       requests to process as if just read from a channel: once held, or relayed by another broker
    fired        timers that fire when the event ends, for components that this one does not know

A role has one turn. Its components get it in their constructors, and cause effects through it only. Before each event
the role sets the time, and after the event it takes what has collected.

Two things have an effect outside of it. Writes to the log happen during the event, because all sends of the event share
them. `KeptFile.save_now` blocks on the disk, for values whose changes are acknowledged when they are there.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Final

from holdfast.machine.effects import (
    AuditKind,
    CloseChannel,
    Effect,
    Log,
    OpenChannel,
    Piece,
    SendBytes,
    SetTimer,
    SyncLog,
    WriteFile,
)
from holdfast.machine.events import ChannelId
from holdfast.model.access.identity import Identity
from holdfast.store.base.disk import File

_FRAMES_AT_ONCE: Final = 256


class Turn:
    """The event at hand.

    Attributes:
        now_ms: The time of the event.
        audited: How many audit lines of each kind there were.
    """

    def __init__(self, now_ms: int = 0) -> None:
        self.now_ms = now_ms
        self.effects: list[Effect] = []
        self.procedures: list[Coroutine[Any, Any, object]] = []
        self.frames: deque[tuple[ChannelId, bytes, Identity | None]] = deque()
        self.fired: dict[str, None] = {}
        self.audited: Counter[AuditKind] = Counter()

    def __bool__(self) -> bool:
        return bool(self.effects or self.procedures or self.frames or self.fired)

    # Causing something.

    def send(self, channel: ChannelId, pieces: Sequence[Piece]) -> None:
        """Send *pieces* as one write."""
        self.effects.append(SendBytes(channel, pieces))

    def close(self, channel: ChannelId) -> None:
        """Close a channel after everything that was sent on it before."""
        self.effects.append(CloseChannel(channel))

    def open_channel(self, address: str, purpose: str = "", *, is_stream: bool = False) -> None:
        """Connect to `host:port`; see `OpenChannel`."""
        self.effects.append(OpenChannel(address, purpose, is_stream))

    def sync_log(self, files: tuple[File, ...], position: int) -> None:
        """Sync *files* of the commit log off the loop, and report when everything before *position* is on disk."""
        self.effects.append(SyncLog(files, position))

    def log(self, level: str, event: str, /, **fields: object) -> None:
        """Write one log line."""
        self.effects.append(Log(level, event, fields))

    def audit(self, kind: AuditKind, event: str, /, **fields: object) -> None:
        """Write one log line that the audit file contains, too, and count it."""
        self.audited[kind] += 1
        self.effects.append(Log("info" if kind == "change" else "warning", event, fields, kind))

    def set_timer(self, name: str, at_ms: int) -> None:
        """Let the timer *name* fire at the given time; an earlier setting of the same timer is replaced."""
        self.effects.append(SetTimer(name, at_ms))

    def cause(self, effect: Effect) -> None:
        """Add an effect that has no method here."""
        self.effects.append(effect)

    def cause_all(self, effects: Iterable[Effect]) -> None:
        """Add effects that were kept for later."""
        self.effects += effects

    def spawn(self, procedure: Coroutine[Any, Any, object]) -> None:
        """Start a procedure when the event ends; it continues without a caller."""
        self.procedures.append(procedure)

    def replay(self, channel: ChannelId, frame: bytes, sender: Identity | None = None) -> None:
        """Process *frame* when the event ends, as if it had just been read from *channel*.

        Args:
            channel: Where it was read, and where its answer goes.
            frame: One or more whole frames.
            sender: Who sent it when it was read; another user may have logged in on the channel since. None: not
                known, because access control is off.
        """
        self.frames.append((channel, frame, sender))

    def fire(self, name: str) -> None:
        """Let the timer *name* fire when the event ends; once, however often this is called."""
        self.fired[name] = None

    # For the role.

    def mark(self) -> int:
        """Return a mark between the effects so far and all later ones of this event."""
        return len(self.effects)

    def close_instead_of_sending(self, mark: int) -> None:
        """Replace everything that was sent after *mark* by closing the channels: its content must not be confirmed."""
        self.effects[mark:] = [
            CloseChannel(effect.channel) if isinstance(effect, SendBytes) else effect for effect in self.effects[mark:]
        ]

    def discard_effects(self, mark: int = 0) -> None:
        """Remove the effects after *mark*: what caused them has failed.

        Writes of files stay. The value that each writes has changed, and its owner waits for the result.
        """
        self.effects[mark:] = [effect for effect in self.effects[mark:] if isinstance(effect, WriteFile)]

    def pop_frames(self) -> tuple[ChannelId, bytes, Identity | None]:
        """Remove and return the frames at the head of the queue that belong to one channel and one sender."""
        channel, data, sender = self.frames.popleft()
        parts = [data]
        while (
            self.frames
            and self.frames[0][0] == channel
            and self.frames[0][2] is sender
            and len(parts) < _FRAMES_AT_ONCE
        ):
            parts.append(self.frames.popleft()[1])
        return channel, b"".join(parts), sender

    def drain_effects(self) -> list[Effect]:
        """Remove and return the effects."""
        drained, self.effects = self.effects, []
        return drained

    def drain_fired(self) -> list[str]:
        """Remove and return the timers that fire now."""
        drained, self.fired = list(self.fired), {}
        return drained

    def drain_procedures(self) -> list[Coroutine[Any, Any, object]]:
        """Remove and return the procedures."""
        drained, self.procedures = self.procedures, []
        return drained
