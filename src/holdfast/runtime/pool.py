"""Outgoing connections: send requests, match answers with their waiters, pass on the peer's own requests.

    request ─> opaque + future ─┐                                  ┌─> future of its opaque
    request ─> opaque + future ─┼─ one write per loop turn ⇢ peer ⇢ one read ─┼─> future of its opaque
    one-way ────────────────────┘                                  └─> on_request (the peer's requests)

Everything written in one turn of the event loop leaves in one write: a thousand sends in flight cost one system call,
not a thousand. Answers to sends, the most frequent ones, are decoded straight into a separate struct.

A broken connection is dialled again when it is needed next, and automatically if its owner wants it to stay open:

    lost ── 0.1 s ── dial ── 0.2 s ── dial ── 0.4 s ── ... ── 2 s ── dial ...      each pause varies a little

Independent of roles, and of the meaning of all codes but the one with which a server asks to wait.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Final

import msgspec

from holdfast.machine.effects import Piece
from holdfast.model.access.credentials import Credentials
from holdfast.model.errors import ConnectionLost, ForkedClient, RemoteProtocolError, RequestTimeout
from holdfast.runtime.access.authentication import Authenticator, authenticate
from holdfast.runtime.channel import Channel
from holdfast.runtime.process.fork import register_after_fork
from holdfast.runtime.throttle import Throttle
from holdfast.runtime.tls import WatchedContext, describe_tls_error
from holdfast.wire.access.signature import sign
from holdfast.wire.frames.command import ONE_WAY, RESPONSE, Command, decode_command, encode_command
from holdfast.wire.frames.frame import JSON, Frame
from holdfast.wire.requests.exchange import Exchange
from holdfast.wire.requests.send_request import SendReply, decode_send_reply, send_reply

CONNECT_TIMEOUT_S: Final = 3.0
# More requests in flight do not make a server faster; they only increase latency and memory use.
IN_FLIGHT_MAX: Final = 4096
_CLOSE_TIMEOUT_S: Final = 1.0
# If a request times out and the peer has sent nothing for this long, the peer is considered dead.
_SILENCE_MS_MAX: Final = 3000
REDIAL_S: Final = 0.1
REDIAL_S_MAX: Final = 2.0
# A connection that lived this long was good: if it breaks, redialling begins with the shortest pause.
_HEALTHY_AFTER_S: Final = 2.0

_PIECES: Final = (bytes, bytearray, memoryview)

Answer = asyncio.Future[Command]
SendAnswer = asyncio.Future[SendReply]
OnRequest = Callable[["Connection", Command], None]
OnChange = Callable[["Connection"], None]


def redial_pause_s(failures: int, rng: Random) -> float:
    """Return the pause before the next dial, after *failures* dials failed in a row.

    It includes jitter, so that the clients of a restarted server do not all dial at the same moment.
    """
    return float(min(REDIAL_S * 2 ** min(failures, 10), REDIAL_S_MAX)) * rng.uniform(0.7, 1.0)


def is_caller_cancelled() -> bool:
    """Return whether the running task itself is being cancelled, as opposed to shared work that it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class _CommandWaiter(msgspec.Struct, frozen=True, gc=False):
    """A waiter for an answer that is decoded on the general path. A send's waiter is the bare future."""

    future: Answer


class Connection:
    """One outgoing connection. Created by `ConnectionPool.connect`.

    Attributes:
        signer: The credentials that sign every request; None if requests are not signed.
        throttle: Whether the server has asked to wait. Logins do not wait.
        is_offered: Whether callers can use the connection. Until then, its owner is not notified of anything: a peer
            that has not proven its identity cannot request anything.
    """

    def __init__(self, address: str, *, on_request: OnRequest, on_close: OnChange, is_offered: bool = True) -> None:
        self.address = address
        self.signer: Credentials | None = None
        self.is_offered = is_offered
        self.throttle = Throttle(address, self._wake_writers)
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._on_request = on_request
        self._on_close = on_close
        self._exchange: Exchange[_CommandWaiter | SendAnswer] = Exchange()
        self._has_sent = False  # whether anything was ever sent with `begin_send`
        self._channel: _DialedChannel | None = None
        self._outgoing: list[Piece] = []
        self._expiry: asyncio.TimerHandle | None = None
        self._last_received_ms = self._opened_ms = self._now_ms()
        self._is_paused = False  # while the peer does not read what we write
        self._waiting_writers: deque[asyncio.Future[None]] = deque()

    @property
    def is_open(self) -> bool:
        """Whether bytes that are sent now can arrive."""
        return self._channel is not None and self._channel.is_open

    @property
    def age_s(self) -> float:
        """How long the connection has been open."""
        return (self._now_ms() - self._opened_ms) / 1000

    @property
    def in_flight(self) -> int:
        """The number of requests that wait for their answers."""
        return len(self._exchange)

    @property
    def is_full(self) -> bool:
        """Whether the peer does not keep up or wants no more: await `wait_until_writable` before writing more."""
        return self._is_paused or self.throttle.is_active or len(self._exchange) >= IN_FLIGHT_MAX

    async def dial(self, tls: WatchedContext | None = None, certified_name: str | None = None) -> None:
        """Connect.

        Args:
            tls: Use TLS.
            certified_name: The host that the certificate must name, if it is not the host of the address.

        Raises:
            ConnectionLost: no server listens there, it did not accept in time, or its certificate is not trusted.
        """
        host, _, port = self.address.rpartition(":")
        host = host.strip("[]")
        context = None if tls is None else tls.refresh()
        name = None if context is None else certified_name or host
        channel = _DialedChannel(self)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._loop.create_connection(lambda: channel, host, int(port), ssl=context, server_hostname=name)
        except TimeoutError:
            raise ConnectionLost(f"no connection to {self.address} within {CONNECT_TIMEOUT_S:g} s") from None
        except (OSError, ValueError) as error:
            raise ConnectionLost(f"cannot connect to {self.address}: {describe_tls_error(error)}") from error

    # Requests and answers.

    def begin(self, timeout_s: float) -> tuple[int, Answer]:
        """Return the opaque for a request that the caller writes next, and the future of its answer.

        The future ends with `RequestTimeout` or `ConnectionLost` if no answer arrives.

        Raises:
            ConnectionLost: the connection is not open; nothing was sent.
        """
        if not self.is_open:
            raise ConnectionLost(f"the connection to {self.address} is closed; the request was not sent")
        answer: Answer = self._loop.create_future()
        return self._begin(_CommandWaiter(answer), timeout_s), answer

    def begin_send(self, timeout_s: float) -> tuple[int, SendAnswer]:
        """Return the opaque and the answer's future for a send. The caller has checked that the connection is open."""
        self._has_sent = True
        answer: SendAnswer = self._loop.create_future()
        return self._begin(answer, timeout_s), answer

    def _begin(self, waiter: _CommandWaiter | SendAnswer, timeout_s: float) -> int:
        exchange = self._exchange
        deadline_ms = int((self._loop.time() + timeout_s) * 1000) + 1
        earliest_ms = exchange.next_deadline_ms
        if earliest_ms is None or deadline_ms < earliest_ms:
            self._set_expiry(deadline_ms)
        return exchange.begin(waiter, deadline_ms)

    def write(self, *pieces: Piece) -> None:
        """Write at the end of this turn of the loop, together with everything else that is written in this turn.

        Raises:
            TypeError: a piece is not bytes. Nothing was written: an invalid piece must not break other callers' writes.
        """
        for piece in pieces:
            if not isinstance(piece, _PIECES):
                raise TypeError(f"only bytes can be written, not {type(piece).__name__}")
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing += pieces

    def forget(self, opaque: int) -> None:
        """Drop the waiter of a request that could not be written."""
        self._exchange.finish(opaque)

    def request(self, command: Command, timeout_s: float) -> Answer:
        """Send *command* and return the future of its answer. See `begin`; this sets the command's opaque."""
        command.opaque, answer = self.begin(timeout_s)
        try:
            self.write(self._encode(command))
        except BaseException:
            # A request that was never sent must not time out: the healthy peer would be considered dead.
            self.forget(command.opaque)
            raise
        return answer

    def send_one_way(self, command: Command) -> None:
        """Send a request that gets no answer.

        Raises:
            ConnectionLost: the connection is not open; nothing was sent.
        """
        if not self.is_open:
            raise ConnectionLost(f"the connection to {self.address} is closed; the request was not sent")
        command.opaque = self._exchange.next_opaque()
        command.flag |= ONE_WAY
        self.write(self._encode(command))

    def _encode(self, command: Command) -> bytes:
        """Return the frame of a request, signed if requests to this server are."""
        if self.signer is None:
            return encode_command(command)
        fields = sign(command.fields, command.body, self.signer)
        return encode_command(msgspec.structs.replace(command, fields=fields))

    def answer(self, command: Command) -> None:
        """Answer a request of the peer; ignored if the connection is closed."""
        if self.is_open:
            self.write(encode_command(command))

    async def wait_until_writable(self) -> None:
        """Return once the peer keeps up, or the connection is lost. Await it before writing without another limit."""
        while self.is_full and self.is_open:
            writable: asyncio.Future[None] = self._loop.create_future()
            self._waiting_writers.append(writable)
            await writable

    async def close(self, reason: str = "closed by the client") -> None:
        """Send everything that was written, then close."""
        self._flush()
        channel = self._channel
        if channel is None:
            return
        channel.close(reason)
        done, _ = await asyncio.wait({self.closed}, timeout=_CLOSE_TIMEOUT_S)
        if not done:
            channel.abort(reason)

    def abort(self, reason: str) -> None:
        """Close at once."""
        if self._channel is not None:
            self._channel.abort(reason)

    def disown(self) -> None:
        """Release the connection in a forked child, without affecting the parent's."""
        if self._channel is not None:
            self._channel.disown()
            self._channel = None

    # Events of the channel.

    def channel_opened(self, channel: Channel) -> None:
        """Store the channel: the connection is open."""
        assert isinstance(channel, _DialedChannel)
        self._channel = channel
        self._opened_ms = self._now_ms()

    def frames_received(self, channel: Channel, frames: list[Frame]) -> bool:
        """Pass each answer to its waiter, and each request of the peer to the owner."""
        self._last_received_ms = self._now_ms()
        try:
            for frame in frames:
                if not (self._has_sent and self._handle_send_reply(frame)):
                    self._handle_frame(frame)
        except RemoteProtocolError as error:
            channel.abort(str(error))
            return False
        if self._waiting_writers:
            self._wake_writers()
        return False

    def _handle_send_reply(self, frame: Frame) -> bool:
        """Handle a frame that is probably the answer to a send; return False if it needs the general path."""
        if frame.serializer != JSON:
            return False
        try:
            reply = decode_send_reply(frame.header)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return False  # The general path accepts more headers, and reports malformed ones.
        if not reply.flag & RESPONSE:
            return False
        waiter = self._exchange.finish(reply.opaque)
        if isinstance(waiter, _CommandWaiter):
            if not waiter.future.done():
                waiter.future.set_result(decode_command(frame))
        elif waiter is not None and not waiter.done():
            waiter.set_result(reply)
        return True

    def _handle_frame(self, frame: Frame) -> None:
        """Handle any frame on the general path.

        Raises:
            RemoteProtocolError: the frame is malformed.
        """
        command = decode_command(frame)
        if not command.is_response:
            if not self.throttle.accept(command) and self.is_offered:
                self._on_request(self, command)
            return
        waiter = self._exchange.finish(command.opaque)
        if isinstance(waiter, _CommandWaiter):
            if not waiter.future.done():
                waiter.future.set_result(command)
        elif waiter is not None and not waiter.done():
            waiter.set_result(send_reply(command))

    def channel_closed(self, channel: Channel, reason: str) -> None:  # noqa: ARG002 - there is only one
        """Notify every waiter and the owner."""
        if self._expiry is not None:
            self._expiry.cancel()
        self.throttle.cancel()
        self._channel = None
        for answer in map(_future_of, self._exchange.cancel_all()):
            if not answer.done():
                answer.set_exception(
                    ConnectionLost(
                        f"the connection to {self.address} was lost ({reason}) with the request on it; "
                        "it may have been executed",
                        was_sent=True,
                    )
                )
        self.set_paused(is_paused=False)
        if not self.closed.done():
            self.closed.set_result(None)
        if self.is_offered:
            self._on_close(self)

    def set_paused(self, *, is_paused: bool) -> None:
        """Record whether the peer has stopped reading what we write."""
        self._is_paused = is_paused
        self._wake_writers()

    def _wake_writers(self) -> None:
        """Wake as many waiting writers as `IN_FLIGHT_MAX` permits."""
        capacity = 0 if self._is_paused or self.throttle.is_active else IN_FLIGHT_MAX - len(self._exchange)
        while self._waiting_writers and capacity > 0:
            waiting = self._waiting_writers.popleft()
            if not waiting.done():
                waiting.set_result(None)
                capacity -= 1

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        if outgoing and self._channel is not None:
            self._channel.send(outgoing)

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _set_expiry(self, deadline_ms: int) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry = self._loop.call_at(deadline_ms / 1000, self._expire)

    def _expire(self) -> None:
        """Fail overdue requests, and abort a connection whose peer is silent altogether."""
        now_ms = math.ceil(self._loop.time() * 1000)
        late = self._exchange.expire(now_ms)
        for answer in map(_future_of, late):
            if not answer.done():
                answer.set_exception(
                    RequestTimeout(f"no answer from {self.address} in time; the request may have been executed")
                )
        self._expiry = None
        self._wake_writers()
        if late and now_ms - self._last_received_ms >= _SILENCE_MS_MAX and self._channel is not None:
            self._channel.abort("no answer to anything")
        elif (deadline_ms := self._exchange.next_deadline_ms) is not None:
            self._set_expiry(deadline_ms)


def _future_of(waiter: _CommandWaiter | SendAnswer) -> Answer | SendAnswer:
    return waiter.future if isinstance(waiter, _CommandWaiter) else waiter


class _DialedChannel(Channel):
    """A channel that notifies its connection of back-pressure, and continues to read under it.

    A server stops reading from a peer that does not read. If we did so, too, both could wait for each other.
    """

    __slots__ = ("_connection",)

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._connection = connection

    def pause_writing(self) -> None:
        self._connection.set_paused(is_paused=True)

    def resume_writing(self) -> None:
        self._connection.set_paused(is_paused=False)


class ConnectionPool:
    """At most one connection per address, dialled when it is first needed and again after it broke.

    Args:
        on_request: Called with a peer's request, within the read that delivered it. Must not block.
        on_open: Called when a connection is open, before anything else is sent on it.
        on_close: Called when a connection is lost.
        is_wanted: Whether a connection shall stay open: once requested, it is redialled until it is open.
        authenticator: Proves our identity on each new connection before callers get it; None for no access control.
        rng: The source of jitter, which spreads the dials of many clients.
        tls: Use TLS on every connection.

    Attributes:
        tls: The context for TLS; None for plain connections.
        certified_names: For addresses that a host name was resolved to: the name, which certificates contain.
    """

    def __init__(
        self,
        *,
        on_request: OnRequest,
        on_open: OnChange | None = None,
        on_close: OnChange | None = None,
        is_wanted: Callable[[str], bool] = lambda _: False,
        authenticator: Authenticator | None = None,
        rng: Random | None = None,
        tls: WatchedContext | None = None,
    ) -> None:
        self._on_request = on_request
        self._on_open = on_open
        self._on_close = on_close
        self._is_wanted = is_wanted
        self._authenticator = authenticator
        self._rng = rng or Random()
        self.tls = tls
        self.certified_names: dict[str, str] = {}
        self._connections: dict[str, Connection] = {}
        self._dialing: dict[str, asyncio.Task[Connection]] = {}
        self._redials: dict[str, asyncio.TimerHandle] = {}
        self._failures: dict[str, int] = {}
        self._is_closed = False
        self._is_inherited = False

    def bind(self) -> None:
        """Bind the pool to this process: a forked child cannot use it any more."""
        register_after_fork(self._disown)

    def check_process(self) -> None:
        """Check that this process is the one that opened the pool.

        Raises:
            ForkedClient: this process is a fork of that one.
        """
        if self._is_inherited:
            raise ForkedClient

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a fork of the one that opened the pool."""
        return self._is_inherited

    def _disown(self) -> None:
        self._is_inherited = self._is_closed = True
        for timer in self._redials.values():
            timer.cancel()
        for connection in self._connections.values():
            connection.disown()
        self._connections = {}

    def find(self, address: str) -> Connection | None:
        """Return the open connection to *address*, or None: then use `connect`."""
        connection = self._connections.get(address)
        return connection if connection is not None and connection.is_open else None

    def is_used(self, address: str) -> bool:
        """Return whether there is a connection to *address*, or one is being dialled."""
        return address in self._dialing or self.find(address) is not None

    def addresses(self) -> list[str]:
        """Return the addresses of the open connections."""
        return [address for address, connection in self._connections.items() if connection.is_open]

    async def connect(self, address: str) -> Connection:
        """Return an open connection to *address*. Concurrent callers share one dial.

        Raises:
            ConnectionLost: the dial failed, or the pool is closed.
            LoginFailed: the server refused our login, or did not prove its identity.
            ForkedClient: this process is a fork of the one that opened the pool.
        """
        connection = self.find(address)
        if connection is not None:
            return connection
        if self._is_closed:
            self.check_process()
            raise ConnectionLost(f"this client is closed; nothing was sent to {address}")
        try:
            return await asyncio.shield(self._dialing.get(address) or self._begin_dial(address))
        except asyncio.CancelledError:
            if is_caller_cancelled():
                raise
            raise ConnectionLost(f"this client was closed; nothing was sent to {address}") from None

    async def invoke(self, address: str, command: Command, timeout_s: float) -> Command:
        """Send *command* and return the answer, whatever its code.

        Raises:
            ConnectionLost, RequestTimeout: see `Connection.begin`.
        """
        connection = self.find(address) or await self.connect(address)
        if connection.throttle.is_active:
            await connection.wait_until_writable()
        return await connection.request(command, timeout_s)

    async def send_one_way(self, address: str, command: Command) -> None:
        """Send *command*, which gets no answer, once the peer reads what we write.

        Raises:
            ConnectionLost: there is no connection; nothing was sent.
        """
        connection = self.find(address) or await self.connect(address)
        await connection.wait_until_writable()
        connection.send_one_way(command)

    async def close(self) -> None:
        """Close every connection after its written bytes were sent. Nothing can be dialled any more."""
        if self._is_inherited:
            return
        self._is_closed = True
        for timer in self._redials.values():
            timer.cancel()
        dialing = list(self._dialing.values())
        for task in dialing:
            task.cancel()
        await asyncio.gather(*dialing, return_exceptions=True)
        await asyncio.gather(*(connection.close() for connection in list(self._connections.values())))

    def _begin_dial(self, address: str) -> asyncio.Task[Connection]:
        self.bind()
        dialing = asyncio.ensure_future(self._dial(address))
        self._dialing[address] = dialing
        dialing.add_done_callback(lambda task: self._handle_dialed(address, task))
        return dialing

    async def _dial(self, address: str) -> Connection:
        if self._authenticator is not None:
            self._authenticator.check(address)
        connection = Connection(
            address,
            on_request=self._on_request,
            on_close=self._handle_closed,
            is_offered=self._authenticator is None,
        )
        await connection.dial(self.tls, self.certified_names.get(address))
        await authenticate(connection, self._authenticator)
        connection.is_offered = True
        self._connections[address] = connection
        if self._on_open is not None:
            self._on_open(connection)
        return connection

    def _handle_dialed(self, address: str, task: asyncio.Task[Connection]) -> None:
        self._dialing.pop(address, None)
        # Callers that wait for the dial receive the exception; no other caller needs it.
        if not task.cancelled() and task.exception() is not None:
            self._dial_later(address)

    def _handle_closed(self, connection: Connection) -> None:
        address = connection.address
        if self._connections.get(address) is connection:
            del self._connections[address]
        if self._on_close is not None:
            self._on_close(connection)
        if connection.age_s >= _HEALTHY_AFTER_S:
            self._failures.pop(address, None)
        self._dial_later(address)

    def _dial_later(self, address: str) -> None:
        """Dial *address* again after a growing pause, if its connection shall stay open."""
        if self._is_closed or address in self._redials:
            return
        if not self._is_wanted(address):
            self._failures.pop(address, None)
            return
        failures = self._failures.get(address, 0)
        self._failures[address] = failures + 1
        pause_s = redial_pause_s(failures, self._rng)
        self._redials[address] = asyncio.get_running_loop().call_later(pause_s, self._dial_again, address)

    def _dial_again(self, address: str) -> None:
        del self._redials[address]
        if self.find(address) is None and address not in self._dialing and self._is_wanted(address):
            self._begin_dial(address)
