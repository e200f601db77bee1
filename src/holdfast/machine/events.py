"""Everything that can happen to a role. Every event carries `now_ms`: time enters here and nowhere else."""

from __future__ import annotations

from typing import NewType

import msgspec

from holdfast.wire.frames.frame import Frame

ChannelId = NewType("ChannelId", int)
"""One connection, from open to close. Never reused within a process."""


class Started(msgspec.Struct, frozen=True):
    """The shell is listening; nothing else has happened yet."""

    now_ms: int


class ChannelOpened(msgspec.Struct, frozen=True):
    """A peer connected, or a connection that `OpenChannel` asked for is up.

    Attributes:
        peer: `host:port` of the other end, as the socket reports it.
        dialed: The address given to `OpenChannel`; None if the peer connected to us.
        purpose: The purpose given to `OpenChannel`, or the purpose of the port that the peer connected to.
    """

    channel: ChannelId
    peer: str
    now_ms: int
    dialed: str | None = None
    purpose: str = ""


class ChannelFailed(msgspec.Struct, frozen=True):
    """A connection that `OpenChannel` asked for could not be established."""

    dialed: str
    reason: str
    now_ms: int
    purpose: str = ""


class FramesReceived(msgspec.Struct, frozen=True, gc=False):
    """All whole frames of one read of one channel, in order.

    The frames are views of the receive buffer, valid until `handle` returns: copy everything that is kept longer.
    """

    channel: ChannelId
    frames: list[Frame]
    now_ms: int


class StreamReceived(msgspec.Struct, frozen=True, gc=False):
    """The bytes of one read of a channel that is not divided into frames. They are valid until `handle` returns."""

    channel: ChannelId
    data: bytes | memoryview
    now_ms: int


class ReadsReceived(msgspec.Struct, frozen=True, gc=False):
    """Everything that one turn of the event loop read from several channels, in the order of reading.

    Equivalent to the reads as separate events, but cheaper: costs per event are paid once for all reads.
    """

    reads: list[FramesReceived]
    now_ms: int


class ChannelClosed(msgspec.Struct, frozen=True):
    """The connection is closed; nothing sent to it will arrive."""

    channel: ChannelId
    now_ms: int


class TimerFired(msgspec.Struct, frozen=True):
    """The time set by `SetTimer` has come. A timer fires once."""

    name: str
    now_ms: int


class LogSynced(msgspec.Struct, frozen=True):
    """Everything in the commit log before `position` is on disk."""

    position: int
    now_ms: int


class FilesSynced(msgspec.Struct, frozen=True):
    """The files of a `SyncFiles` are on disk."""

    token: int
    now_ms: int


class DiskFault(msgspec.Struct, frozen=True):
    """A sync, a read or a write that an effect asked for has failed. The store must accept no more writes.

    Attributes:
        token: The token of the `ReadLog`, if it was a read: its caller waits for the bytes.
        path: The path of the `WriteFile`, if it was one.
        is_full: The disk was full when *path* was written. Nothing else is wrong: the store continues.
    """

    reason: str
    now_ms: int
    token: int | None = None
    path: str | None = None
    is_full: bool = False


class LogRead(msgspec.Struct, frozen=True):
    """The bytes that a `ReadLog` asked for. Shorter than asked if the log ends or was cleaned there."""

    token: int
    data: bytes
    now_ms: int


class FileWritten(msgspec.Struct, frozen=True):
    """A `WriteFile` is on disk under its name."""

    path: str
    now_ms: int


class Leaving(msgspec.Struct, frozen=True):
    """The operator asked for an orderly shutdown. The role says goodbye and still serves peers that do not know."""

    now_ms: int


class Stopping(msgspec.Struct, frozen=True):
    """The last event. The role persists its state; then the shell closes every channel."""

    now_ms: int


Event = (
    Started
    | ChannelOpened
    | ChannelFailed
    | FramesReceived
    | ReadsReceived
    | StreamReceived
    | ChannelClosed
    | TimerFired
    | LogSynced
    | FilesSynced
    | DiskFault
    | LogRead
    | FileWritten
    | Leaving
    | Stopping
)
