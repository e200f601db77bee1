"""What a role asks its shell to do. Effects of one event are performed in order, before the next event."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.machine.events import ChannelId
from holdfast.store.base.disk import File, Syncable

Piece = bytes | bytearray | memoryview


class SendBytes(msgspec.Struct, frozen=True, gc=False):
    """Write *pieces* to a channel as one write. Frames that are already whole; a closed channel is ignored.

    The pieces may be views of log pages: the shell holds them until the socket has taken them and never copies what
    need not be copied. They are never views of the receive buffer.
    """

    channel: ChannelId
    pieces: Sequence[Piece]


class CloseChannel(msgspec.Struct, frozen=True):
    """Close a channel after what was sent to it has left."""

    channel: ChannelId


class Fault(msgspec.Struct, frozen=True):
    """A mistake of ours came to light on a channel: tell the operator where, and close that channel alone."""

    channel: ChannelId
    error: Exception


class OpenChannel(msgspec.Struct, frozen=True):
    """Connect to `host:port`. Answered by `ChannelOpened` with `dialed`, or by `ChannelFailed`.

    Attributes:
        purpose: Comes back with the answer: two rooms of a role may dial the same address.
        is_stream: The channel speaks no frames: what comes is told as it comes, in `StreamReceived`.
    """

    address: str
    purpose: str = ""
    is_stream: bool = False


class SetTimer(msgspec.Struct, frozen=True):
    """Fire `TimerFired(name)` at *at_ms*. A second timer of the same name replaces the first."""

    name: str
    at_ms: int


class SyncLog(msgspec.Struct, frozen=True):
    """Bring *files* of the commit log to disk off the loop, then `LogSynced(position)`.

    Group commit: a shell that is still syncing merges all `SyncLog` that arrive meanwhile into one.
    """

    files: tuple[File, ...]
    position: int


class SyncFiles(msgspec.Struct, frozen=True):
    """Bring derived files (indexes, checkpoint), or the whole disk, to disk off the loop, then `FilesSynced(token)`."""

    files: tuple[Syncable, ...]
    token: int


class ReadLog(msgspec.Struct, frozen=True):
    """Read a cold range of one log file off the loop, then `LogRead(token)`."""

    file: File
    start: int
    end: int
    token: int


class WriteFile(msgspec.Struct, frozen=True):
    """Replace a small file durably off the loop (`Disk.replace`), then `FileWritten(path)`.

    Attributes:
        is_retried: Where the disk has no space, try again until it has, or until the path is written once more. Every
            attempt that fails is a `DiskFault` with `is_full`.
    """

    path: str
    data: bytes
    is_retried: bool = False


class Log(msgspec.Struct, frozen=True):
    """Tell the operator: one event, one line. Even logging is an effect, so that the simulator can show it."""

    level: str
    event: str
    fields: dict[str, object]


Effect = SendBytes | CloseChannel | Fault | OpenChannel | SetTimer | SyncLog | SyncFiles | ReadLog | WriteFile | Log
