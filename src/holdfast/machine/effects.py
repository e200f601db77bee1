"""Everything that a role can ask its shell to do. The effects of an event run in order, before the next event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, get_args

import msgspec

from holdfast.machine.events import ChannelId
from holdfast.store.base.disk import File, Syncable

Piece = bytes | bytearray | memoryview


class SendBytes(msgspec.Struct, frozen=True, gc=False):
    """Write *pieces* to a channel as one write. The pieces are whole frames; a closed channel is ignored.

    The pieces may be views of log pages: the shell keeps them alive until the socket has accepted them and avoids
    copies. They are never views of the receive buffer.
    """

    channel: ChannelId
    pieces: Sequence[Piece]


class CloseChannel(msgspec.Struct, frozen=True):
    """Close a channel after everything sent to it has left."""

    channel: ChannelId


class PauseReading(msgspec.Struct, frozen=True):
    """Read nothing more from a channel until *until_ms*: its peer has to wait. The later of two pauses counts."""

    channel: ChannelId
    until_ms: int


class Fault(msgspec.Struct, frozen=True):
    """Report a programming error that occurred on a channel to the operator, and close only that channel."""

    channel: ChannelId
    error: Exception


class OpenChannel(msgspec.Struct, frozen=True):
    """Connect to `host:port`. The answer is `ChannelOpened` with `dialed`, or `ChannelFailed`.

    Attributes:
        purpose: Returned with the answer: two components of a role may dial the same address.
        is_stream: The channel is not divided into frames: its data arrive as they come, in `StreamReceived`.
    """

    address: str
    purpose: str = ""
    is_stream: bool = False


class SetTimer(msgspec.Struct, frozen=True):
    """Fire `TimerFired(name)` at *at_ms*. A second timer of the same name replaces the first."""

    name: str
    at_ms: int


class SyncLog(msgspec.Struct, frozen=True):
    """Sync *files* of the commit log off the loop, then report `LogSynced(position)`.

    Group commit: a shell that is still syncing merges all `SyncLog` that arrive meanwhile into one.
    """

    files: tuple[File, ...]
    position: int


class SyncFiles(msgspec.Struct, frozen=True):
    """Sync derived files (indexes, checkpoint) or the whole disk off the loop, then report `FilesSynced(token)`."""

    files: tuple[Syncable, ...]
    token: int


class ReadLog(msgspec.Struct, frozen=True):
    """Read a cold range of one log file off the loop, then report `LogRead(token)`."""

    file: File
    start: int
    end: int
    token: int


class WriteFile(msgspec.Struct, frozen=True):
    """Replace a small file durably off the loop (`Disk.replace`), then report `FileWritten(path)`.

    Attributes:
        is_private: Only the owner may read and write the file.
    """

    path: str
    data: bytes
    is_private: bool = False


AuditKind = Literal["change", "login", "refusal"]
"""What an audit line is about: an administrative change, a failed login, or a refused request."""
AUDIT_KINDS: Final[tuple[AuditKind, ...]] = get_args(AuditKind)


class Log(msgspec.Struct, frozen=True):
    """Log one event in one line for the operator. Logging is an effect, so that the simulator can show it.

    Attributes:
        audit: The line belongs in the audit file, too; None if it does not.
    """

    level: str
    event: str
    fields: dict[str, object]
    audit: AuditKind | None = None


Effect = (
    SendBytes
    | CloseChannel
    | PauseReading
    | Fault
    | OpenChannel
    | SetTimer
    | SyncLog
    | SyncFiles
    | ReadLog
    | WriteFile
    | Log
)
