"""One TCP connection that carries frames: the asyncio shell around the frame splitter.

The unit of work is one read, not one message: all complete frames of a read are passed on together, and all answers
leave as one write (measured: a task or an await per frame costs a factor of four).

All connections of a server, or of the clients in one thread, share a receive buffer. A connection owns only the
beginning of an incomplete frame, so ten thousand idle connections cost next to nothing:

    receive buffer   | reads kept for this turn | unfinished part, copied in front | fresh bytes .......... |
                     0                          used: a frame starts here

A frame that does not fit gets a separate buffer, which grows as its bytes arrive: a declared size alone reserves
nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Final, Protocol, cast

from holdfast.machine.effects import Piece
from holdfast.machine.events import ChannelId
from holdfast.model.errors import RemoteProtocolError
from holdfast.runtime.budget import UNMETERED_MAX, MemoryBudget
from holdfast.wire.frames.frame import FRAME_SIZE_MAX, Frame, peek_frame_size, split_frames

RECEIVE_BUFFER_SIZE: Final = 1024 * 1024
# An owner that keeps reads must release them above this, so that a normal read always fits.
KEPT_SIZE_MAX: Final = RECEIVE_BUFFER_SIZE // 2
_LARGE_FRAME_SIZE: Final = 256 * 1024
# We stop reading from a peer that does not read its answers: its backlog stays about this large.
WRITE_BACKLOG_MAX: Final = 4 * 1024 * 1024
# Pieces that are smaller than this on average are cheaper to join than to write as a list.
_PIECE_SIZE_MIN: Final = 16 * 1024
_TLS_WRITE_SIZE: Final = 64 * 1024


class ReceiveBuffer:
    """The memory that receives the bytes of many connections.

    Attributes:
        used: The number of bytes at the beginning that hold kept frames.
    """

    __slots__ = ("memory", "used")

    def __init__(self) -> None:
        self.memory = memoryview(bytearray(RECEIVE_BUFFER_SIZE))
        self.used = 0


class FrameLimits:
    """The largest frames that connections may receive.

    Attributes:
        frame_size_max: Of a whole frame.
        header_size_max: Of its header.
        refused: How many connections were closed because of a frame that was too large or malformed.
    """

    __slots__ = ("frame_size_max", "header_size_max", "refused")

    def __init__(self, frame_size_max: int = FRAME_SIZE_MAX, header_size_max: int = FRAME_SIZE_MAX) -> None:
        self.frame_size_max = frame_size_max
        self.header_size_max = header_size_max
        self.refused = 0


_LARGEST: Final = FrameLimits()


class _ThreadBuffer(threading.local):
    """The buffer of all owners in one thread that handle each read at once.

    Each event loop has a thread. While one loop reads from a socket, which releases the interpreter, others may, too.
    """

    def __init__(self) -> None:
        self.receive_buffer = ReceiveBuffer()


_this_thread = _ThreadBuffer()


class ChannelOwner(Protocol):
    """Receives the events of a channel."""

    def channel_opened(self, channel: Channel) -> None:
        """Handle a new connection."""
        ...

    def frames_received(self, channel: Channel, frames: list[Frame]) -> bool:
        """Handle the complete frames of one read. They are views that become invalid when this returns.

        If it returns True, they stay valid until the owner resets `used` of its receive buffer.
        """
        ...

    def channel_closed(self, channel: Channel, reason: str) -> None:
        """Handle the loss of a connection."""
        ...


class _TlsTransport:
    """Writes to a TLS transport in parts, so that it counts what the peer has not read.

    The transport encrypts each write and passes it on to that of the socket. It counts only what that one refused: a
    write of many megabytes would be held in memory, but neither metered nor limited.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._write = transport.write
        self.abort = transport.abort
        self.close = transport.close
        self.get_extra_info = transport.get_extra_info
        self.get_write_buffer_size = transport.get_write_buffer_size
        self.is_closing = transport.is_closing
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading
        self.set_write_buffer_limits = transport.set_write_buffer_limits

    def write(self, data: Piece) -> None:
        if len(data) <= _TLS_WRITE_SIZE:
            self._write(data)
            return
        view = memoryview(data)
        for at in range(0, len(view), _TLS_WRITE_SIZE):
            self._write(view[at : at + _TLS_WRITE_SIZE])

    def writelines(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            self.write(piece)


class Channel(asyncio.BufferedProtocol):
    """A connection that carries frames."""

    __slots__ = (
        "_budget",
        "_buffer",
        "_filled",
        "_is_backlogged",
        "_is_paused",
        "_limits",
        "_owner",
        "_receive_buffer",
        "_transport",
        "_unfinished",
        "channel_id",
        "closing_reason",
        "idle_ticks",
        "peer",
    )

    def __init__(
        self,
        owner: ChannelOwner,
        budget: MemoryBudget | None = None,
        receive_buffer: ReceiveBuffer | None = None,
        limits: FrameLimits = _LARGEST,
    ) -> None:
        self._owner = owner
        self._limits = limits
        self._receive_buffer = receive_buffer or _this_thread.receive_buffer
        self._budget = budget  # servers have one; a client chose its peers
        self._is_backlogged = False  # whether the peer has many unread answers
        self._is_paused = False  # whether the owner wants nothing more from the peer for now
        self._unfinished: bytes | bytearray = (
            b""  # of an unfinished frame; for a large one a buffer that is not full yet
        )
        self._filled = 0  # how many bytes of it have arrived
        # The target of the current read, including the unfinished frame before it.
        self._buffer = self._receive_buffer.memory
        self._transport: asyncio.Transport | None = None
        self.peer = ""
        self.channel_id = ChannelId(0)  # the owner's number for this channel
        self.closing_reason = ""
        self.idle_ticks = 0  # increased by the owner's timer, reset by traffic

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Configure the socket and notify the owner."""
        self._transport = cast("asyncio.Transport", transport)
        if transport.get_extra_info("sslcontext") is not None:
            self._transport = cast("asyncio.Transport", _TlsTransport(self._transport))
        self._transport.set_write_buffer_limits(high=WRITE_BACKLOG_MAX if self._budget is None else UNMETERED_MAX)
        plain_socket = transport.get_extra_info("socket")
        if plain_socket is not None and plain_socket.family in {socket.AF_INET, socket.AF_INET6}:
            plain_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with contextlib.suppress(OSError, AttributeError):  # some systems do not have or allow it
                # Large answers on a machine whose default is bbr leave up to twice as fast (docs/performance.md).
                plain_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
        self.peer = peer_text(transport.get_extra_info("peername"))
        self._owner.channel_opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Return the part of the receive buffer after the unfinished frame."""
        filled = self._filled
        if not filled:
            receive_buffer = self._receive_buffer
            self._buffer = receive_buffer.memory[receive_buffer.used :]
            return self._buffer
        if filled >= _LARGE_FRAME_SIZE:
            if filled == len(self._unfinished):
                # A large frame: at least double the received size, but never more than the frame will need.
                grown = bytearray(min(max(peek_frame_size(memoryview(self._unfinished)), filled + 1), 2 * filled))
                grown[:filled] = self._unfinished
                self._unfinished = grown
            self._buffer = memoryview(self._unfinished)
        else:
            self._buffer = self._receive_buffer.memory[self._receive_buffer.used :]
            self._buffer[:filled] = self._unfinished
        return self._buffer[filled:]

    def buffer_updated(self, nbytes: int) -> None:
        """Pass on every complete frame; keep the beginning of the next one."""
        self.idle_ticks = 0
        before = self._filled
        size = before + nbytes
        limits = self._limits
        try:
            frames, consumed = split_frames(
                self._buffer, size, frame_size_max=limits.frame_size_max, header_size_max=limits.header_size_max
            )
        except RemoteProtocolError as error:
            limits.refused += 1
            self.abort(str(error))
            return
        if before or consumed != size:  # Most reads consist of complete frames.
            self._keep_unfinished(self._buffer[:size], consumed)
        if frames:
            buffer = self._receive_buffer
            used = buffer.used
            if before < _LARGE_FRAME_SIZE:
                buffer.used = used + consumed
            if not self._owner.frames_received(self, frames):
                buffer.used = used

    def _keep_unfinished(self, data: memoryview, consumed: int) -> None:
        """Keep the bytes after the complete frames of a read, in place of those that were kept before."""
        before = self._filled
        remaining = self._filled = len(data) - consumed
        # A large frame stays in its buffer: if it arrives byte by byte, it must not be copied byte by byte.
        if consumed or before < _LARGE_FRAME_SIZE:
            self._unfinished = bytes(data[consumed:]) if remaining else b""
        if before > UNMETERED_MAX or remaining > UNMETERED_MAX:
            if consumed:
                # Free the buffer of a completed frame now, because the connection may stay silent for long.
                self._buffer = self._receive_buffer.memory
            self._meter()

    def eof_received(self) -> bool:
        """Close our side, too: this protocol has no use for half-open connections."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the owner; nothing will be sent or received any more."""
        self._transport = None
        self._unfinished, self._filled, self._buffer, self._is_backlogged = b"", 0, self._receive_buffer.memory, False
        self._meter()
        self._owner.channel_closed(self, self.closing_reason or (str(exc) if exc else "closed by the peer"))

    def pause_writing(self) -> None:
        """Begin to meter a peer that does not read its answers."""
        self._is_backlogged = True
        self._meter()

    def resume_writing(self) -> None:
        """Resume reading: the peer has caught up."""
        self._is_backlogged = False
        self._meter()
        self._resume_transport()

    def pause_reading(self) -> None:
        """Read nothing more until `resume_reading`."""
        self._is_paused = True
        if self._transport is not None:
            with contextlib.suppress(RuntimeError):  # already closing
                self._transport.pause_reading()

    def resume_reading(self) -> None:
        """End the pause of `pause_reading`."""
        self._is_paused = False
        self._resume_transport()
        self._meter()  # It pauses again while the peer has too many unread answers.

    def _resume_transport(self) -> None:
        if self._transport is not None and not self._is_paused:
            with contextlib.suppress(RuntimeError):  # already closing
                self._transport.resume_reading()

    def _meter(self) -> None:
        """Report the held bytes to the budget, and stop reading from a peer with a large backlog."""
        held = len(self._unfinished) if self._filled > UNMETERED_MAX else 0
        if self._is_backlogged and self._transport is not None:
            backlog = self._transport.get_write_buffer_size()
            held += backlog
            if backlog > WRITE_BACKLOG_MAX:
                with contextlib.suppress(RuntimeError):  # already paused or closing
                    self._transport.pause_reading()
        if self._budget is not None:
            self._budget.record_held(self, held)

    def send(self, pieces: Sequence[Piece]) -> None:
        """Write *pieces* in one call; ignored if the connection is closed."""
        transport = self._transport
        if transport is None:
            return
        self.idle_ticks = 0
        if len(pieces) == 1:
            transport.write(pieces[0])
        elif sum(map(len, pieces)) < len(pieces) * _PIECE_SIZE_MIN:
            transport.write(b"".join(pieces))
        else:
            transport.writelines(pieces)
        if self._is_backlogged:
            self._meter()

    def close(self, reason: str) -> None:
        """Close after all written bytes have been sent."""
        self.closing_reason = self.closing_reason or reason
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str) -> None:
        """Close at once. A peer that sends malformed data gets no answer."""
        self.closing_reason = self.closing_reason or reason
        if self._transport is not None:
            self._transport.abort()

    def disown(self) -> None:
        """Release the socket in a forked child without affecting the parent's connection.

        The descriptor is redirected to an empty file. So the inherited event loop can reach neither the socket, whose
        bytes belong to the parent, nor the parent's `epoll`, which the child shares.
        """
        plain_socket = None if self._transport is None else self._transport.get_extra_info("socket")
        self._transport = None
        if plain_socket is not None and plain_socket.fileno() >= 0:
            with contextlib.suppress(OSError):
                null_device = os.open(os.devnull, os.O_RDONLY)
                os.dup2(null_device, plain_socket.fileno(), inheritable=False)
                os.close(null_device)

    @property
    def is_open(self) -> bool:
        """Whether bytes that are sent now can arrive."""
        return self._transport is not None and not self._transport.is_closing()


ChannelFactory = Callable[[], Channel]


def peer_text(peername: object) -> str:
    """Return the address of a peer, as lists and log lines show it."""
    if isinstance(peername, tuple) and len(peername) >= 2:
        host, port = peername[:2]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    return str(peername or "unknown")
