"""A plain connection for pulls of one task: one request, one answer, into one buffer that is used again and again.

    request ─> broker ─> answer ─> buffer ─> columns ─> the next request overwrites the buffer

A task waits for each answer anyway; what an event loop would add is copies. (Measured with records of 1 KiB: a third
of the work of a row.) Knows neither routes nor retries: `link` says where to, `reading` asks again.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from holdfast.model.errors import ConnectionLost, RemoteProtocolError, RequestTimeout
from holdfast.wire.command import Command, decode_command, encode_command
from holdfast.wire.frame import Frame, frame_size_wanted, split_frames

_SIZE: Final = 4
_BUFFER_SIZE: Final = 5 * 1024 * 1024  # an answer with as much as a broker gives; larger ones let it grow
_opaques: Final = itertools.count(1)


class PullLine:
    """Connections to brokers, one each, and the buffer for what they answer."""

    def __init__(self) -> None:
        self._sockets: dict[str, socket.socket] = {}
        self._buffer = bytearray(_BUFFER_SIZE)

    def ask(self, address: str, command: Command, timeout_s: float) -> tuple[Command, memoryview]:
        """Return the answer to *command* without its body, and the body, which lives until the next question.

        Raises:
            ConnectionLost, RequestTimeout: there was no answer.
            RemoteProtocolError: what came is no answer.
        """
        opaque = next(_opaques) & 0x7FFFFFFF
        try:
            line = self._sockets.get(address) or self._dial(address, timeout_s)
            line.settimeout(timeout_s)
            line.sendall(encode_command(msgspec.structs.replace(command, opaque=opaque)))
            while True:
                frame = self._receive(line)
                answer = decode_command(Frame(frame.serializer, frame.header, frame.body[:0]))
                if answer.is_response and answer.opaque == opaque:
                    return answer, frame.body
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
        _idle.append(line)
