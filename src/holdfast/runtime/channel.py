"""One TCP connection: the asyncio skin around the frame splitter.

The unit of work is one read, not one message: all whole frames of a read are handed over together, and whatever is
written in answer leaves as one write (measured: a task or an await per frame costs a factor of four).

All connections of an event loop share one receive buffer. A connection owns only the beginning of a frame that
has not arrived whole, so that ten thousand idle connections cost next to nothing:

    shared buffer   | unfinished part, copied in front | fresh bytes .......... |
                      ^ start of a frame

A frame larger than the shared buffer gets a buffer of its own, grown as its bytes really arrive: a declared size alone
reserves nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import Final, Protocol, cast

from holdfast.machine.effects import Piece
from holdfast.model.errors import RemoteProtocolError
from holdfast.wire.frame import FRAME_SIZE_MAX, Frame, frame_size_wanted, split_frames

SHARED_BUFFER_SIZE: Final = 512 * 1024
# A peer that does not read its answers is not read from either: its backlog stays about this large.
WRITE_BACKLOG_MAX: Final = 4 * 1024 * 1024
# Below this, joining small pieces costs less than a vector write.
_JOIN_BELOW: Final = 64 * 1024

_shared = memoryview(bytearray(SHARED_BUFFER_SIZE))


class ChannelOwner(Protocol):
    """Who is told what happens on a channel."""

    def channel_opened(self, channel: Channel) -> None:
        """Take note of a new connection."""
        ...

    def frames_received(self, channel: Channel, frames: list[Frame]) -> None:
        """Take the whole frames of one read. They are views: gone when this returns."""
        ...

    def channel_closed(self, channel: Channel, reason: str) -> None:
        """Take note that the connection is gone."""
        ...


class Channel(asyncio.BufferedProtocol):
    """A connection that speaks frames."""

    __slots__ = ("_buffer", "_filled", "_owner", "_rest", "_transport", "closing_reason", "peer", "quiet_ticks", "tag")

    def __init__(self, owner: ChannelOwner) -> None:
        self._owner = owner
        self._rest: bytes | bytearray = b""  # of an unfinished frame; of a large one a buffer that is not full yet
        self._filled = 0  # how much of it has come
        self._buffer = _shared
        self._transport: asyncio.Transport | None = None
        self.peer = ""
        self.tag = 0  # the owner's number for this channel
        self.closing_reason = ""
        self.quiet_ticks = 0  # counted up by the owner's clock, down to 0 by traffic

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the socket up and tell the owner."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BACKLOG_MAX)
        plain_socket = transport.get_extra_info("socket")
        if plain_socket is not None and plain_socket.family in {socket.AF_INET, socket.AF_INET6}:
            plain_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with contextlib.suppress(OSError, AttributeError):  # not every system has or allows it
                # Large answers on a machine whose default is bbr leave up to twice as fast (docs/performance.md).
                plain_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
        self.peer = _peer_text(transport.get_extra_info("peername"))
        self._owner.channel_opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Offer the shared buffer behind what is left of an unfinished frame."""
        filled = self._filled
        if filled >= SHARED_BUFFER_SIZE // 2:
            if filled == len(self._rest):
                # A large frame: at least double what has really come, never more than the frame will need.
                grown = bytearray(min(max(frame_size_wanted(memoryview(self._rest)), filled + 1), 2 * filled))
                grown[:filled] = self._rest
                self._rest = grown
            self._buffer = memoryview(self._rest)
        else:
            self._buffer = _shared
            self._buffer[:filled] = self._rest
        return self._buffer[filled:]

    def buffer_updated(self, nbytes: int) -> None:
        """Hand over every whole frame; keep the beginning of the next."""
        self.quiet_ticks = 0
        received = self._buffer[: self._filled + nbytes]
        try:
            frames, taken = split_frames(received, frame_size_max=FRAME_SIZE_MAX)
        except RemoteProtocolError as error:
            self.abort(str(error))
            return
        if frames:
            self._owner.frames_received(self, frames)
        self._filled = len(received) - taken
        # A large frame stays where it is: whoever sends it byte by byte must not have it copied byte by byte.
        if taken or self._buffer is _shared:
            self._rest = bytes(received[taken:]) if self._filled else b""

    def eof_received(self) -> bool:
        """Close our side too: half-open connections are of no use to this protocol."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the owner; nothing will be sent or received any more."""
        self._transport = None
        self._rest, self._filled = b"", 0
        self._owner.channel_closed(self, self.closing_reason or (str(exc) if exc else "closed by the peer"))

    def pause_writing(self) -> None:
        """Stop reading from a peer that does not take its answers."""
        if self._transport is not None:
            with contextlib.suppress(RuntimeError):  # already paused or closing
                self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Read on: the peer has caught up."""
        if self._transport is not None:
            with contextlib.suppress(RuntimeError):  # already closing
                self._transport.resume_reading()

    def send(self, pieces: Sequence[Piece]) -> None:
        """Write *pieces* in one go; ignored when the connection is gone."""
        transport = self._transport
        if transport is None:
            return
        self.quiet_ticks = 0
        if len(pieces) == 1:
            transport.write(pieces[0])
        elif sum(map(len, pieces)) < _JOIN_BELOW:
            transport.write(b"".join(pieces))
        else:
            transport.writelines(pieces)

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
