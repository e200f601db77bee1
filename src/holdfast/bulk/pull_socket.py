"""Blocking connections for the pulls of one task, with one receive buffer that every answer reuses.

    request ─> broker ─> answer ─> buffer ─> columns ─> the next answer overwrites the buffer
                                      └─> the next request: the broker works while columns are made

A task waits for each answer anyway, and an event loop would only add copies: a third of the work per row, measured
with records of 1 KiB. This module knows neither routes nor retries: `cluster_session` finds the broker, `task_reader`
retries.
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
from holdfast.wire.frames.frame import Frame, peek_frame_size, split_frames

_SIZE_BYTES: Final = 4
_BUFFER_SIZE: Final = 13 * 1024 * 1024  # Fits the largest usual answer; a larger one makes the buffer grow.
_opaques: Final = itertools.count(1)


class _SentRequest(NamedTuple):
    """A request without an answer yet."""

    address: str
    command: Command
    opaque: int


class PullSocket:
    """One connection to each broker, and the buffer for the answers."""

    def __init__(self) -> None:
        self._sockets: dict[str, socket.socket] = {}
        self._buffer = bytearray(_BUFFER_SIZE)
        self._sent: _SentRequest | None = None

    def request(self, address: str, command: Command, timeout_s: float) -> tuple[Command, memoryview]:
        """Send *command* and return its answer and the answer's body, which is valid until the next answer.

        Raises:
            ConnectionLost, RequestTimeout: there was no answer.
            RemoteProtocolError: the received bytes are not a valid answer.
        """
        sent = self._sent
        with self._translate_errors(address):
            if sent is None or (sent.address, sent.command) != (address, command):
                sent = self._send(address, command, timeout_s)
            self._sent = None
            sock = self._sockets[address]
            sock.settimeout(timeout_s)
            while True:
                frame = self._receive(sock)
                answer = decode_command(Frame(frame.serializer, frame.header, frame.body[:0]))
                if answer.is_response and answer.opaque == sent.opaque:
                    return answer, frame.body

    def request_ahead(self, address: str, command: Command, timeout_s: float) -> None:
        """Send the request that the next call of `request` is expected to make.

        If that call makes another request, or if this one fails, only time is lost.
        """
        with contextlib.suppress(ConnectionLost, RequestTimeout), self._translate_errors(address):
            self._sent = self._send(address, command, timeout_s)

    def cancel(self) -> None:
        """Drop the pending request, if any, by closing its connection: its answer is no longer needed."""
        if self._sent is not None:
            self.disconnect(self._sent.address)

    def _send(self, address: str, command: Command, timeout_s: float) -> _SentRequest:
        self.cancel()
        opaque = next(_opaques) & 0x7FFFFFFF
        sock = self._sockets.get(address) or self._dial(address, timeout_s)
        sock.settimeout(timeout_s)
        sock.sendall(encode_command(msgspec.structs.replace(command, opaque=opaque)))
        return _SentRequest(address, command, opaque)

    @contextmanager
    def _translate_errors(self, address: str) -> Iterator[None]:
        """Convert socket errors into Holdfast's errors, and close a connection that failed."""
        try:
            yield
        except TimeoutError:
            self.disconnect(address)
            raise RequestTimeout(f"no answer from {address} in time") from None
        except OSError as error:
            self.disconnect(address)
            raise ConnectionLost(f"no connection to {address}: {error}") from None
        except RemoteProtocolError:
            self.disconnect(address)
            raise

    def disconnect(self, address: str) -> None:
        """Close one connection."""
        if self._sent is not None and self._sent.address == address:
            self._sent = None
        sock = self._sockets.pop(address, None)
        if sock is not None:
            sock.close()

    def _dial(self, address: str, timeout_s: float) -> socket.socket:
        host, _, port = address.rpartition(":")
        sock = socket.create_connection((host.strip("[]"), int(port)), timeout_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sockets[address] = sock
        return sock

    def _receive(self, sock: socket.socket) -> Frame:
        self._fill(sock, 0, _SIZE_BYTES)
        # Validate the size before waiting for that many bytes, as every receiver does.
        split_frames(memoryview(self._buffer)[:_SIZE_BYTES])
        size = peek_frame_size(memoryview(self._buffer)[:_SIZE_BYTES])
        if size > len(self._buffer):
            self._buffer = self._buffer[:_SIZE_BYTES] + bytearray(size)
        self._fill(sock, _SIZE_BYTES, size)
        frames, _ = split_frames(memoryview(self._buffer)[:size])
        if len(frames) != 1:
            raise RemoteProtocolError(f"a frame of {size} bytes has no header")
        return frames[0]

    def _fill(self, sock: socket.socket, start: int, end: int) -> None:
        view = memoryview(self._buffer)
        while start < end:
            count = sock.recv_into(view[start:end])
            if not count:
                raise ConnectionError("the broker closed it")
            start += count


_idle_sockets: Final[list[PullSocket]] = []


@contextmanager
def borrow_pull_socket() -> Iterator[PullSocket]:
    """Lend a socket; later tasks of this process reuse it."""
    pull_socket = _idle_sockets.pop() if _idle_sockets else PullSocket()
    try:
        yield pull_socket
    finally:
        pull_socket.cancel()
        _idle_sockets.append(pull_socket)
