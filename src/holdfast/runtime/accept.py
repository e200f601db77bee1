"""Accepts connections that may begin with TLS: the first byte decides.

    listening socket ─> accept ─> first byte, peeked ─┬─ 0x16 ─> handshake ─> channel
                                                      └─ other ─> channel, or closed if TLS is enforced

A connection on its way to a channel is *arriving*. Anybody can open any number of them, so arriving connections are
bounded in time and number. If there are too many, the one that arrived first is closed: the others have had less time.
A working peer needs milliseconds. One that sends nothing, a byte now and then, or garbage is closed.

Independent of roles. Without TLS the event loop accepts connections, and this module is not used.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections import Counter
from collections.abc import Iterator
from typing import Final

from holdfast.machine.effects import Log
from holdfast.machine.sample import Sample
from holdfast.runtime.channel import Channel, ChannelFactory, peer_text
from holdfast.runtime.tls import TLS_FIRST_BYTE, Emit, RoleTls, WatchedContext, describe_tls_error

WATCH_S: Final = 1.0
_BACKLOG: Final = 1024
# At most this many at a time, so that a storm of handshakes does not delay open connections.
_ACCEPTS_MAX: Final = 16
_OUT_OF_RESOURCES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_RESOURCE_PAUSE_S: Final = 1.0


class _Arrival:
    """A connection between accept and its channel."""

    __slots__ = ("channel", "factory", "peer", "sock", "task", "timer")

    def __init__(self, sock: socket.socket, peer: str, factory: ChannelFactory) -> None:
        self.sock = sock
        self.peer = peer
        self.factory = factory
        self.channel: Channel | None = None
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None

    def make_channel(self) -> Channel:
        """Return the channel of this connection; its owner is notified of it after the handshake."""
        self.channel = self.factory()
        return self.channel


class Acceptor:
    """The listening sockets of one role that has TLS.

    Args:
        tls: The settings.
        certificate: The context for accepted connections.
        emit: Writes one log line.
    """

    def __init__(self, tls: RoleTls, certificate: WatchedContext, emit: Emit) -> None:
        self._tls = tls
        self._certificate = certificate
        self._emit = emit
        self._loop = asyncio.get_running_loop()
        self._listening: list[socket.socket] = []
        self._arriving: dict[_Arrival, None] = {}  # ordered by time
        self._refused: Counter[str] = Counter()
        self._watch_timer = self._loop.call_later(WATCH_S, self._watch_files)
        self._is_closed = False

    async def listen(self, host: str, port: int, factory: ChannelFactory) -> int:
        """Accept connections on *host*:*port* (0: any free port) and return the port.

        Raises:
            OSError: the address cannot be used.
        """
        found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        with contextlib.ExitStack() as opened:
            for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
                sock = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
                opened.enter_context(sock)
                sock.setblocking(False)
                self._listening.append(sock)
                self._loop.add_reader(sock, self._accept, sock, factory)
            opened.pop_all()
        return int(self._listening[-1].getsockname()[1])

    def close(self) -> None:
        """Close the listening sockets and all arriving connections."""
        self._is_closed = True
        self._watch_timer.cancel()
        while self._listening:
            sock = self._listening.pop()
            self._loop.remove_reader(sock)
            sock.close()
        for arrival in list(self._arriving):
            self._refuse(arrival, "stopping", "")

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics of arriving connections."""
        about = "connections that have not finished their TLS handshake"
        yield Sample("connections_arriving", "gauge", about, len(self._arriving))
        about = "connections that were closed before they had a channel"
        for reason in ("crowded", "failed", "plain", "slow"):
            yield Sample("connections_refused", "counter", about, self._refused[reason], {"reason": reason})

    def _watch_files(self) -> None:
        self._watch_timer = self._loop.call_later(WATCH_S, self._watch_files)
        self._certificate.refresh()

    def _accept(self, listening: socket.socket, factory: ChannelFactory) -> None:
        for _ in range(_ACCEPTS_MAX):
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _OUT_OF_RESOURCES:
                    raise
                self._pause(listening, factory, error)
                return
            sock.setblocking(False)
            self._receive(_Arrival(sock, peer_text(address), factory))

    def _pause(self, listening: socket.socket, factory: ChannelFactory, error: OSError) -> None:
        """Accept nothing for a while: the system has no descriptor or memory for another connection."""
        self._emit(Log("error", "cannot accept connections", {"reason": error.strerror}))
        self._loop.remove_reader(listening)

        def resume() -> None:
            if not self._is_closed:
                self._loop.add_reader(listening, self._accept, listening, factory)

        self._loop.call_later(_RESOURCE_PAUSE_S, resume)

    def _receive(self, arrival: _Arrival) -> None:
        """Wait for the first byte of a new connection."""
        if len(self._arriving) >= self._tls.handshakes_max:
            self._refuse(next(iter(self._arriving)), "crowded", "too many connections had not finished theirs")
        self._arriving[arrival] = None
        timeout_s = self._tls.handshake_timeout_s
        arrival.timer = self._loop.call_later(timeout_s, self._expire, arrival)
        self._loop.add_reader(arrival.sock, self._look, arrival)

    def _expire(self, arrival: _Arrival) -> None:
        self._refuse(arrival, "slow", f"it had not ended after {self._tls.handshake_timeout_s:g} s")

    def _look(self, arrival: _Arrival) -> None:
        """Decide by the first byte, which stays in the socket for its reader."""
        try:
            first = arrival.sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        self._loop.remove_reader(arrival.sock)
        if not first:  # A probe of the port, or a client that gave up.
            self._forget(arrival)
            arrival.sock.close()
        elif first == TLS_FIRST_BYTE:
            self._open(arrival, self._certificate.current)
        elif self._tls.is_enforcing:
            self._refused["plain"] += 1
            self._forget(arrival)
            arrival.sock.close()
            self._tls.report_plain(arrival.peer)
        else:
            self._open(arrival, None)

    def _open(self, arrival: _Arrival, context: ssl.SSLContext | None) -> None:
        arrival.task = self._loop.create_task(self._connect(arrival, context))
        arrival.task.add_done_callback(lambda task: self._finish(arrival, task))

    async def _connect(self, arrival: _Arrival, context: ssl.SSLContext | None) -> None:
        if context is None:
            await self._loop.connect_accepted_socket(arrival.make_channel, arrival.sock)
            return
        await self._loop.connect_accepted_socket(
            arrival.make_channel,
            arrival.sock,
            ssl=context,
            ssl_handshake_timeout=2 * self._tls.handshake_timeout_s,  # `_expire` comes first
        )

    def _finish(self, arrival: _Arrival, task: asyncio.Task[None]) -> None:
        """Forget a connection that has a channel, or has failed."""
        self._forget(arrival)
        if task.cancelled():
            arrival.sock.close()  # The task may never have begun; a transport closes the socket itself.
            return
        error = task.exception()
        if error is None:
            return
        arrival.sock.close()
        if not isinstance(error, OSError):
            raise error
        self._report(arrival, "failed", describe_tls_error(error))

    def _refuse(self, arrival: _Arrival, kind: str, reason: str) -> None:
        """Close an arriving connection, unless it has just got its channel."""
        self._forget(arrival)
        if arrival.channel is not None and arrival.channel.is_open:
            return
        if arrival.task is not None:
            arrival.task.cancel()
        else:
            self._loop.remove_reader(arrival.sock)
            arrival.sock.close()
        if reason:
            self._report(arrival, kind, reason)

    def _report(self, arrival: _Arrival, kind: str, reason: str) -> None:
        self._refused[kind] += 1
        self._emit(Log("warning", "TLS handshake not finished", {"peer": arrival.peer, "reason": reason}))

    def _forget(self, arrival: _Arrival) -> None:
        self._arriving.pop(arrival, None)
        if arrival.timer is not None:
            arrival.timer.cancel()
