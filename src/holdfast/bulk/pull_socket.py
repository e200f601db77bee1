"""Blocking connections for the pulls of one task, with one receive buffer that every answer reuses.

    request ─> broker ─> answer ─> buffer ─> columns ─> the next answer overwrites the buffer
                                      └─> the next request: the broker works while columns are made

A connection logs in, or its requests are signed, as the connections of other clients do: see `client.access`.

A task waits for each answer anyway, and an event loop would only add copies: a third of the work per row, measured
with records of 1 KiB. This module knows neither routes nor retries: `queue_pulls` finds the broker, `task_reader`
retries.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, Protocol

import msgspec

from holdfast.client.access.authenticator import Proven, SecretWatch, log_in
from holdfast.client.access.credentials_options import AuthMode, CredentialsOptions
from holdfast.model.access.credentials import Credentials
from holdfast.model.errors import ConnectionLost, LoginFailed, RemoteProtocolError, RequestTimeout
from holdfast.wire.access.client_login import Outcome
from holdfast.wire.access.signature import sign
from holdfast.wire.access.throttle import read_wait_ms
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command, decode_command, encode_command
from holdfast.wire.frames.frame import Frame, peek_frame_size, split_frames

log = logging.getLogger("holdfast.bulk")

_SIZE_BYTES: Final = 4
_BUFFER_SIZE: Final = 13 * 1024 * 1024  # Fits the largest usual answer; a larger one makes the buffer grow.
_LOGIN_BUFFER_SIZE: Final = 4096
# After a broker refused a new secret, the next attempt with it comes this much later.
_RENEW_PAUSE_S: Final = 5.0
_opaques: Final = itertools.count(1)


class _SentRequest(NamedTuple):
    """A request without an answer yet."""

    address: str
    command: Command
    opaque: int


class TlsContext(Protocol):
    """The TLS context of the cluster's client, which follows its files."""

    def refresh(self) -> ssl.SSLContext:
        """Return the context to use now."""
        ...


class PullSocket:
    """One connection to each broker, and the buffer for the answers.

    Args:
        tls: Use TLS on every connection; None for plain connections.
        credentials: What proves our identity to brokers; None for no access control.

    Raises:
        ConfigError: the secret file cannot be used.
    """

    def __init__(self, tls: TlsContext | None = None, credentials: CredentialsOptions | None = None) -> None:
        self.tls = tls
        self._watch = None if credentials is None else SecretWatch(credentials)
        self._proven: dict[str, Proven] = {}
        self._renew_s: dict[str, float] = {}  # when to try a new secret again that was refused
        self._sockets: dict[str, socket.socket] = {}
        self._buffer = bytearray(_BUFFER_SIZE)
        self._resume_s: dict[str, float] = {}  # until when a broker wants no more requests
        self._sent: _SentRequest | None = None

    def request(self, address: str, command: Command, timeout_s: float) -> tuple[Command, memoryview]:
        """Send *command* and return its answer and the answer's body, which is valid until the next answer.

        Raises:
            ConnectionLost, RequestTimeout: there was no answer.
            LoginFailed: the broker refused our login, or did not prove its identity.
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
                self._note_throttle(address, answer)

    def request_ahead(self, address: str, command: Command, timeout_s: float) -> None:
        """Send the request that the next call of `request` is expected to make.

        If that call makes another request, or if this one fails, only time is lost.
        """
        if self._wait_s(address) > 0:
            return
        with contextlib.suppress(ConnectionLost, RequestTimeout, LoginFailed), self._translate_errors(address):
            self._sent = self._send(address, command, timeout_s)

    def cancel(self) -> None:
        """Drop the pending request, if any, by closing its connection: its answer is no longer needed."""
        if self._sent is not None:
            self.disconnect(self._sent.address)

    def _send(self, address: str, command: Command, timeout_s: float) -> _SentRequest:
        self.cancel()
        sock = self._sockets.get(address) or self._dial(address, timeout_s)
        sock.settimeout(timeout_s)
        fields = command.fields
        if self._watch is not None:
            signer = self._authenticate(address, sock, self._watch)
            fields = fields if signer is None else sign(fields, command.body, signer)
        time.sleep(self._wait_s(address))
        opaque = _write(sock, msgspec.structs.replace(command, fields=fields))
        return _SentRequest(address, command, opaque)

    def _authenticate(self, address: str, sock: socket.socket, watch: SecretWatch) -> Credentials | None:
        """Log in on a new connection, or again after the secret has changed. Return what signs the next request."""
        credentials = watch.credentials()
        proven = self._proven.get(address)
        if proven is None:
            proven = self._log_in(address, sock, watch.mode, credentials)
        elif not proven.is_valid(credentials) and time.monotonic() >= self._renew_s.get(address, 0.0):
            try:
                proven = self._log_in(address, sock, watch.mode, credentials)
            except LoginFailed as error:
                log.warning("%s; the connection stays logged in with the earlier secret", error)
                self._renew_s[address] = time.monotonic() + _RENEW_PAUSE_S
        return proven.credentials if proven.outcome is Outcome.SIGNED else None

    def _log_in(self, address: str, sock: socket.socket, mode: AuthMode, credentials: Credentials) -> Proven:
        # The answers of a login must not overwrite the last answer: it may be in use.
        buffer, self._buffer = self._buffer, bytearray(_LOGIN_BUFFER_SIZE)
        try:
            outcome = log_in(credentials, address, mode, lambda command: self._exchange(address, sock, command))
        finally:
            self._buffer = buffer
        proven = self._proven[address] = Proven(credentials, outcome)
        return proven

    def _exchange(self, address: str, sock: socket.socket, command: Command) -> Command:
        """Send *command* and return its answer, while no other request is pending."""
        opaque = _write(sock, command)
        while True:
            answer = decode_command(self._receive(sock))
            if answer.is_response and answer.opaque == opaque:
                return answer
            self._note_throttle(address, answer)

    def _note_throttle(self, address: str, command: Command) -> None:
        """Record that a broker wants no more requests for a time; ignore every other request of a broker."""
        if not command.is_response and command.code == RequestCode.THROTTLE:
            end_s = time.monotonic() + read_wait_ms(command) / 1000
            self._resume_s[address] = max(end_s, self._resume_s.get(address, 0.0))

    def _wait_s(self, address: str) -> float:
        """Return for how long a broker wants no more requests."""
        return max(0.0, self._resume_s.get(address, 0.0) - time.monotonic())

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
        except (RemoteProtocolError, LoginFailed):
            self.disconnect(address)
            raise

    def disconnect(self, address: str) -> None:
        """Close one connection."""
        if self._sent is not None and self._sent.address == address:
            self._sent = None
        self._proven.pop(address, None)
        self._renew_s.pop(address, None)
        self._resume_s.pop(address, None)
        sock = self._sockets.pop(address, None)
        if sock is not None:
            sock.close()

    def _dial(self, address: str, timeout_s: float) -> socket.socket:
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        sock = socket.create_connection((host, int(port)), timeout_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.tls is not None:
            with sock:  # The handshake, which has the same timeout, moves the connection to another socket.
                sock = self.tls.refresh().wrap_socket(sock, server_hostname=host)
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


def _write(sock: socket.socket, command: Command) -> int:
    """Write a request under a new correlation number, and return the number."""
    opaque = next(_opaques) & 0x7FFFFFFF
    sock.sendall(encode_command(msgspec.structs.replace(command, opaque=opaque)))
    return opaque


_idle_sockets: Final[dict[tuple[TlsContext | None, CredentialsOptions | None], list[PullSocket]]] = {}


@contextmanager
def borrow_pull_socket(
    tls: TlsContext | None = None, credentials: CredentialsOptions | None = None
) -> Iterator[PullSocket]:
    """Lend a socket; later tasks of this process with the same TLS context and credentials reuse it.

    Raises:
        ConfigError: the secret file cannot be used.
    """
    idle = _idle_sockets.setdefault((tls, credentials), [])
    pull_socket = idle.pop() if idle else PullSocket(tls, credentials)
    try:
        yield pull_socket
    finally:
        pull_socket.cancel()
        idle.append(pull_socket)
