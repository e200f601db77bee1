"""A plain connection for pulls of one task: one request, one answer, into one buffer that is used again and again.

    request ─> broker ─> answer ─> buffer ─> columns ─> the next answer overwrites the buffer
                                      └─> the next request: the broker works while columns are made

A task waits for each answer anyway; what an event loop would add is copies. (Measured with records of 1 KiB: a third
of the work of a row.) Knows neither routes nor retries: `link` says where to, `reading` asks again.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

import msgspec

from holdfast.model.errors import ConnectionLost, RemoteProtocolError, RequestTimeout
from holdfast.wire.frames.command import Command, decode_command, encode_command
from holdfast.wire.frames.frame import Frame, frame_size_wanted, split_frames

_SIZE: Final = 4
_BUFFER_SIZE: Final = 13 * 1024 * 1024  # an answer with as much as a broker gives; larger ones let it grow
_opaques: Final = itertools.count(1)


class _Question(NamedTuple):
    """What was sent and not answered yet."""

    address: str
    command: Command
    opaque: int


class PullLine:
    """Connections to brokers, one each, and the buffer for what they answer."""

    def __init__(self) -> None:
        self._sockets: dict[str, socket.socket] = {}
        self._buffer = bytearray(_BUFFER_SIZE)
        self._asked: _Question | None = None

    def ask(self, address: str, command: Command, timeout_s: float) -> tuple[Command, memoryview]:
        """Return the answer to *command* without its body, and the body, which lives until the next answer.

        Raises:
            ConnectionLost, RequestTimeout: there was no answer.
            RemoteProtocolError: what came is no answer.
        """
        asked = self._asked
        with self._judged(address):
            if asked is None or (asked.address, asked.command) != (address, command):
                asked = self._send(address, command, timeout_s)
            self._asked = None
            line = self._sockets[address]
            line.settimeout(timeout_s)
            while True:
                frame = self._receive(line)
                answer = decode_command(Frame(frame.serializer, frame.header, frame.body[:0]))
                if answer.is_response and answer.opaque == asked.opaque:
                    return answer, frame.body

    def ask_ahead(self, address: str, command: Command, timeout_s: float) -> None:
        """Ask what `ask` will ask next. If that is something else, or this fails, nothing is lost but time."""
        with contextlib.suppress(ConnectionLost, RequestTimeout), self._judged(address):
            self._asked = self._send(address, command, timeout_s)

    def forget(self) -> None:
        """Ask no more for now: an answer that is on its way is of no use."""
        if self._asked is not None:
            self.hang_up(self._asked.address)

    def _send(self, address: str, command: Command, timeout_s: float) -> _Question:
        self.forget()
        opaque = next(_opaques) & 0x7FFFFFFF
        line = self._sockets.get(address) or self._dial(address, timeout_s)
        line.settimeout(timeout_s)
        line.sendall(encode_command(msgspec.structs.replace(command, opaque=opaque)))
        return _Question(address, command, opaque)

    @contextmanager
    def _judged(self, address: str) -> Iterator[None]:
        """Tell what became of a connection in our words; one that failed is not used again."""
        try:
            yield
        except TimeoutError:
            self.hang_up(address)
            raise RequestTimeout(f"no answer from {address} in time") from None
        except OSError as error:
            self.hang_up(address)
            raise ConnectionLost(f"no connection to {address}: {error}") from None
        except RemoteProtocolError:
            self.hang_up(address)
            raise

    def hang_up(self, address: str) -> None:
        """Close one connection."""
        if self._asked is not None and self._asked.address == address:
            self._asked = None
        line = self._sockets.pop(address, None)
        if line is not None:
            line.close()

    def _dial(self, address: str, timeout_s: float) -> socket.socket:
        host, _, port = address.rpartition(":")
        line = socket.create_connection((host.strip("[]"), int(port)), timeout_s)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sockets[address] = line
        return line

    def _receive(self, line: socket.socket) -> Frame:
        self._fill(line, 0, _SIZE)
        # Judged before it is waited for, as everywhere.
        split_frames(memoryview(self._buffer)[:_SIZE])
        size = frame_size_wanted(memoryview(self._buffer)[:_SIZE])
        if size > len(self._buffer):
            self._buffer = self._buffer[:_SIZE] + bytearray(size)
        self._fill(line, _SIZE, size)
        frames, _ = split_frames(memoryview(self._buffer)[:size])
        if len(frames) != 1:
            raise RemoteProtocolError(f"a frame of {size} bytes has no header")
        return frames[0]

    def _fill(self, line: socket.socket, start: int, end: int) -> None:
        view = memoryview(self._buffer)
        while start < end:
            count = line.recv_into(view[start:end])
            if not count:
                raise ConnectionError("closed by the broker")
            start += count


_idle: Final[list[PullLine]] = []


@contextmanager
def a_line() -> Iterator[PullLine]:
    """Lend a line; tasks of this process that come later use it again."""
    line = _idle.pop() if _idle else PullLine()
    try:
        yield line
    finally:
        line.forget()
        _idle.append(line)
