"""One TCP connection: the asyncio skin around the frame splitter.

The unit of work is one read, not one message: all whole frames of a read are handed over together, and whatever is
written in answer leaves as one write (measured: a task or an await per frame costs a factor of four).

All connections of a server share one receive buffer. A connection owns only the beginning of a frame that has not
arrived whole, so that ten thousand idle connections cost next to nothing:

    receive buffer   | reads kept for this turn | unfinished part, copied in front | fresh bytes .......... |
                     0                          used: a frame starts here

A frame that does not fit gets a buffer of its own, grown as its bytes really arrive: a declared size alone reserves
nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Sequence
from typing import Final, Protocol, cast

from holdfast.machine.effects import Piece
from holdfast.machine.events import ChannelId
from holdfast.model.errors import RemoteProtocolError
from holdfast.runtime.budget import UNMETERED_MAX, MemoryBudget
from holdfast.wire.frames.frame import Frame, frame_size_wanted, split_frames

RECEIVE_BUFFER_SIZE: Final = 1024 * 1024
# Whoever keeps reads lets go of them above this, so that there is always room for a good one.
KEPT_SIZE_MAX: Final = RECEIVE_BUFFER_SIZE // 2
_LARGE_FRAME_SIZE: Final = 256 * 1024
# A peer that does not read its answers is not read from either: its backlog stays about this large.
WRITE_BACKLOG_MAX: Final = 4 * 1024 * 1024
# Pieces that are smaller than this on average cost less to copy into one than to write by their addresses.
_PIECE_SIZE_MIN: Final = 16 * 1024


class ReceiveBuffer:
    """Where the bytes of many connections arrive.

    Attributes:
        used: How much of it, from its beginning, holds frames that somebody keeps.
    """

    __slots__ = ("memory", "used")

    def __init__(self) -> None:
        self.memory = memoryview(bytearray(RECEIVE_BUFFER_SIZE))
        self.used = 0


# Of everybody who takes what is read at once.
_shared = ReceiveBuffer()


class ChannelOwner(Protocol):
    """Who is told what happens on a channel."""

    def channel_opened(self, channel: Channel) -> None:
        """Take note of a new connection."""
        ...

    def frames_received(self, channel: Channel, frames: list[Frame]) -> bool:
        """Take the whole frames of one read. They are views: gone when this returns.

        Unless it returns True: then they stay until the owner sets its receive buffer's `used` back.
        """
        ...

    def channel_closed(self, channel: Channel, reason: str) -> None:
        """Take note that the connection is gone."""
        ...


class Channel(asyncio.BufferedProtocol):
    """A connection that speaks frames."""

    __slots__ = (
        "_behind",
        "_budget",
        "_buffer",
        "_filled",
        "_owner",
        "_received",
        "_rest",
        "_transport",
        "closing_reason",
        "peer",
        "quiet_ticks",
        "tag",
    )

    def __init__(
        self, owner: ChannelOwner, budget: MemoryBudget | None = None, received: ReceiveBuffer = _shared
    ) -> None:
        self._owner = owner
        self._received = received
        self._budget = budget  # of a server; a client chose its peers
        self._behind = False  # the peer has not taken a good deal of its answers
        self._rest: bytes | bytearray = b""  # of an unfinished frame; of a large one a buffer that is not full yet
        self._filled = 0  # how much of it has come
        self._buffer = received.memory  # where the read at hand goes, the unfinished frame before it included
        self._transport: asyncio.Transport | None = None
        self.peer = ""
        self.tag = ChannelId(0)  # the owner's number for this channel
        self.closing_reason = ""
        self.quiet_ticks = 0  # counted up by the owner's clock, down to 0 by traffic

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the socket up and tell the owner."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BACKLOG_MAX if self._budget is None else UNMETERED_MAX)
        plain_socket = transport.get_extra_info("socket")
        if plain_socket is not None and plain_socket.family in {socket.AF_INET, socket.AF_INET6}:
            plain_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with contextlib.suppress(OSError, AttributeError):  # not every system has or allows it
                # Large answers on a machine whose default is bbr leave up to twice as fast (docs/performance.md).
                plain_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
        self.peer = _peer_text(transport.get_extra_info("peername"))
        self._owner.channel_opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Offer the receive buffer behind what is left of an unfinished frame."""
        filled = self._filled
        if not filled:
            received = self._received
            self._buffer = received.memory[received.used :]
            return self._buffer
        if filled >= _LARGE_FRAME_SIZE:
            if filled == len(self._rest):
                # A large frame: at least double what has really come, never more than the frame will need.
                grown = bytearray(min(max(frame_size_wanted(memoryview(self._rest)), filled + 1), 2 * filled))
                grown[:filled] = self._rest
                self._rest = grown
            self._buffer = memoryview(self._rest)
        else:
            self._buffer = self._received.memory[self._received.used :]
            self._buffer[:filled] = self._rest
        return self._buffer[filled:]

    def buffer_updated(self, nbytes: int) -> None:
        """Hand over every whole frame; keep the beginning of the next."""
        self.quiet_ticks = 0
        before = self._filled
        size = before + nbytes
        try:
            frames, taken = split_frames(self._buffer, size)
        except RemoteProtocolError as error:
            self.abort(str(error))
            return
        if before or taken != size:  # Mostly a read is whole frames.
            self._keep_rest(self._buffer[:size], taken)
        if frames:
            buffer = self._received
            used = buffer.used
            if before < _LARGE_FRAME_SIZE:
                buffer.used = used + taken
            if not self._owner.frames_received(self, frames):
                buffer.used = used

    def _keep_rest(self, received: memoryview, taken: int) -> None:
        """Keep what is behind the whole frames of a read; nothing is left of what was kept before."""
        before = self._filled
        left = self._filled = len(received) - taken
        # A large frame stays where it is: whoever sends it byte by byte must not have it copied byte by byte.
        if taken or before < _LARGE_FRAME_SIZE:
            self._rest = bytes(received[taken:]) if left else b""
        if before > UNMETERED_MAX or left > UNMETERED_MAX:
            if taken:
                # The buffer of a frame that has come whole must not stay as long as its connection is silent.
                self._buffer = self._received.memory
            self._meter()

    def eof_received(self) -> bool:
        """Close our side too: half-open connections are of no use to this protocol."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the owner; nothing will be sent or received any more."""
        self._transport = None
        self._rest, self._filled, self._buffer, self._behind = b"", 0, self._received.memory, False
        self._meter()
        self._owner.channel_closed(self, self.closing_reason or (str(exc) if exc else "closed by the peer"))

    def pause_writing(self) -> None:
        """Keep an eye on a peer that does not take its answers."""
        self._behind = True
        self._meter()

    def resume_writing(self) -> None:
        """Read on: the peer has caught up."""
        self._behind = False
        self._meter()
        if self._transport is not None:
            with contextlib.suppress(RuntimeError):  # already closing
                self._transport.resume_reading()

    def _meter(self) -> None:
        """Tell the budget what this connection holds, and stop reading from a peer that is far behind."""
        held = len(self._rest) if self._filled > UNMETERED_MAX else 0
        if self._behind and self._transport is not None:
            backlog = self._transport.get_write_buffer_size()
            held += backlog
            if backlog > WRITE_BACKLOG_MAX:
                with contextlib.suppress(RuntimeError):  # already paused or closing
                    self._transport.pause_reading()
        if self._budget is not None:
            self._budget.hold(self, held)

    def send(self, pieces: Sequence[Piece]) -> None:
        """Write *pieces* in one go; ignored when the connection is gone."""
        transport = self._transport
        if transport is None:
            return
        self.quiet_ticks = 0
        if len(pieces) == 1:
            transport.write(pieces[0])
        elif sum(map(len, pieces)) < len(pieces) * _PIECE_SIZE_MIN:
            transport.write(b"".join(pieces))
        else:
            transport.writelines(pieces)
        if self._behind:
            self._meter()

    def close(self, reason: str) -> None:
        """Close after everything sent has left."""
        self.closing_reason = self.closing_reason or reason
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str) -> None:
        """Close at once. Nothing is said to a peer that cannot be understood."""
        self.closing_reason = self.closing_reason or reason
        if self._transport is not None:
            self._transport.abort()

    def disown(self) -> None:
        """Let go of the socket in a forked child: the parent's connection is not touched.

        The descriptor becomes one of an empty file. Whatever the inherited event loop may still do with it reaches
        neither the socket, whose bytes are for the parent alone, nor the parent's `epoll`, which the child shares.
        """
        plain_socket = None if self._transport is None else self._transport.get_extra_info("socket")
        self._transport = None
        if plain_socket is not None and plain_socket.fileno() >= 0:
            with contextlib.suppress(OSError):
                nothing = os.open(os.devnull, os.O_RDONLY)
                os.dup2(nothing, plain_socket.fileno(), inheritable=False)
                os.close(nothing)

    @property
    def is_open(self) -> bool:
        """Whether something sent now can arrive."""
        return self._transport is not None and not self._transport.is_closing()


ChannelFactory = Callable[[], Channel]


def _peer_text(peername: object) -> str:
    if isinstance(peername, tuple) and len(peername) >= 2:
        host, port = peername[:2]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    return str(peername or "unknown")
