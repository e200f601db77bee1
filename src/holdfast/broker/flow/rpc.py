"""Requests that this broker sends: to other brokers, to name servers, and to clients.

    to an address ─> its connection ─┬─ open: sent at once            answered ─> the waiter, with the answer
                                     ├─ dialing: sent when it opens   late     ─> the waiter, with a failure
                                     └─ none: dialed                  lost     ─> the waiter, with a failure
    to a client ───> the connection that the client opened, which is never dialed

With a cluster secret, a connection is open only after a login (`peer_login.py`), which comes before all requests:

    dialing ─> logging in ─┬─ usable ──> open
                           └─ refused, or no answer in time ─> closed; the address is dialed again after a second

There is one connection per address and purpose; it stays open until the peer or the network closes it. Requests are
sent in the order of their calls, so that requests relayed for one queue arrive in order. An answer counts only if it
comes from the connection that the request was sent on. This module knows neither the content of a request nor its
waiter.

Invariant: a request reported as unsent is never sent later. If a request times out while its connection is still being
dialed or logged in, it is dropped: its waiter may have asked another server by then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from holdfast.broker.flow.awaitables import CALLS
from holdfast.broker.flow.peer_login import LoginResult, LoginSettings, PeerLogin
from holdfast.machine.events import ChannelId
from holdfast.machine.turn import Turn
from holdfast.model.access.credentials import Credentials
from holdfast.model.errors import PeerFailed
from holdfast.wire.access.signature import sign
from holdfast.wire.frames.command import Command, encode_command
from holdfast.wire.requests.exchange import Exchange

TIMER: Final = "calls"
WAITING_MAX: Final = 100_000
CLIENT_WAITING_MAX: Final = 10_000
LOGIN_TIMEOUT_MS: Final = 3_000
REDIAL_MS: Final = 1_000
"""How long an address is not dialed after a failed login."""
_LOG_AGAIN_MS: Final = 60_000


class CallOutcome(msgspec.Struct, frozen=True):
    """The outcome of a call: the response, or the reason why there is none."""

    waiter: Any
    result: Command | PeerFailed


class _PeerConnection(msgspec.Struct):
    """A connection to another server, open or not yet.

    Attributes:
        channel: None until it is dialed.
        is_open: Requests are sent at once.
        outgoing: Requests to send once the connection is open, by opaque.
        login: The login in progress.
        login_opaque: The number of the login's request that is in flight.
        due_ms: When to dial, or until when the login has time; None if neither is so.
        is_trusted: The peer has proven the cluster secret.
        signer: Signs each request; None: they are not signed.
    """

    address: str
    purpose: str
    channel: ChannelId | None = None
    is_open: bool = False
    is_trusted: bool = False
    exchange: Exchange[Any] = msgspec.field(default_factory=Exchange)
    outgoing: dict[int, Command] = {}
    login: PeerLogin | None = None
    login_opaque: int = 0
    due_ms: int | None = None
    signer: Credentials | None = None

    def encode(self, command: Command) -> bytes:
        """Return the frame of a request, signed if the peer wants that."""
        if self.signer is not None:
            signed = sign(command.fields, command.body, self.signer)
            command = msgspec.structs.replace(command, fields=signed)
        return encode_command(command)


class _InFlight(msgspec.Struct, frozen=True):
    """A request in flight to a client."""

    channel: ChannelId
    waiter: Any


class Rpc:
    """Requests in flight to other servers and to clients.

    Args:
        turn: The turn of the broker.
        login: How to log in at other servers; None: connections are used without a login.
        on_trusted: Called with the channel of a peer that has proven the cluster secret.
    """

    def __init__(
        self,
        turn: Turn,
        login: LoginSettings | None = None,
        on_trusted: Callable[[ChannelId], None] = lambda _channel: None,
    ) -> None:
        self._turn = turn
        self._login = login
        self._on_trusted = on_trusted
        self._clients: Exchange[_InFlight] = Exchange()
        self._connections: dict[tuple[str, str], _PeerConnection] = {}
        self._by_channel: dict[ChannelId, _PeerConnection] = {}
        self._redial_ms: dict[tuple[str, str], int] = {}  # After a failed login: when to dial again.
        self._logged_ms: dict[str, int] = {}  # By address, when a failed login was last logged.
        self._timer_ms: int | None = None

    def call_peer(self, address: str, command: Command, waiter: Any, deadline_ms: int, purpose: str = CALLS) -> bool:
        """Send *command* to *address*. The outcome is a `CallOutcome` with *waiter*.

        Return False, and send nothing, if too many calls to the address are in flight.
        """
        connection = self._connections.get((address, purpose)) or self._dial(address, purpose)
        if len(connection.exchange) >= WAITING_MAX:
            return False
        command.opaque = connection.exchange.begin(waiter, deadline_ms)
        if connection.is_open:
            assert connection.channel is not None
            self._turn.send(connection.channel, [connection.encode(command)])
        else:
            connection.outgoing[command.opaque] = msgspec.structs.replace(command)  # The caller may send it elsewhere.
        self._set_timer(deadline_ms)
        return True

    def _dial(self, address: str, purpose: str) -> _PeerConnection:
        """Dial *address*, or do so later if a login there has just failed."""
        key = (address, purpose)
        connection = self._connections[key] = _PeerConnection(address, purpose)
        redial_ms = self._redial_ms.pop(key, 0)
        if redial_ms > self._turn.now_ms:
            connection.due_ms = redial_ms
            self._set_timer(redial_ms)
        else:
            self._turn.open_channel(address, purpose)
        return connection

    def call_client(self, channel: ChannelId, command: Command, waiter: Any, deadline_ms: int) -> CallOutcome | None:
        """Send *command* to the client on *channel*. The outcome is a `CallOutcome` with *waiter*.

        If too many calls to clients are in flight, give up the oldest one and return its outcome.
        """
        oldest = self._clients.cancel_oldest() if len(self._clients) >= CLIENT_WAITING_MAX else None
        command.opaque = self._clients.begin(_InFlight(channel, waiter), deadline_ms)
        self._turn.send(channel, [encode_command(command)])
        self._set_timer(deadline_ms)
        return None if oldest is None else CallOutcome(oldest.waiter, PeerFailed("too many requests wait for clients"))

    def send_one_way(self, address: str, command: Command, purpose: str = CALLS) -> None:
        """Send *command* to *address* and wait for no response, if there is an open connection; otherwise drop it."""
        connection = self._connections.get((address, purpose))
        if connection is not None and connection.is_open:
            assert connection.channel is not None
            command.opaque = connection.exchange.next_opaque()
            self._turn.send(connection.channel, [connection.encode(command)])

    def is_connected(self, address: str, purpose: str = CALLS) -> bool:
        """Return whether there is an open connection to *address*."""
        connection = self._connections.get((address, purpose))
        return connection is not None and connection.is_open

    def is_trusted(self, address: str, purpose: str = CALLS) -> bool:
        """Return whether there is an open connection to *address*, whose peer has proven the cluster secret."""
        connection = self._connections.get((address, purpose))
        return connection is not None and connection.is_open and connection.is_trusted

    def address_of(self, channel: ChannelId) -> str | None:
        """Return the address that was dialed for *channel*; None if the peer has dialed."""
        connection = self._by_channel.get(channel)
        return None if connection is None else connection.address

    def disconnect(self, address: str, purpose: str = CALLS) -> None:
        """Close the open connection to *address*: the next call dials again.

        The calls that are in flight on it fail when it is closed, or at their deadline.
        """
        channel = self._connections.pop((address, purpose)).channel
        assert channel is not None
        self._turn.close(channel)

    def channel_opened(self, channel: ChannelId, address: str, purpose: str = CALLS) -> None:
        """Register a connection that was dialed: log in there, or send the requests that waited for it."""
        connection = self._connections.get((address, purpose))
        if connection is None:  # All of its waiters have given up.
            connection = self._connections[address, purpose] = _PeerConnection(address, purpose)
        connection.channel = channel
        self._by_channel[channel] = connection
        if self._login is None:
            self._open(connection, channel)
            return
        connection.login = PeerLogin(self._login, connection.address)
        connection.due_ms = self._turn.now_ms + LOGIN_TIMEOUT_MS
        self._set_timer(connection.due_ms)
        self._send_login(connection, channel, connection.login.begin())

    def _open(self, connection: _PeerConnection, channel: ChannelId) -> None:
        """Send the requests that waited for the connection, in the order of their calls."""
        connection.is_open, connection.login, connection.due_ms = True, None, None
        waiting, connection.outgoing = connection.outgoing, {}
        if waiting:
            self._turn.send(channel, [connection.encode(command) for command in waiting.values()])

    def _send_login(self, connection: _PeerConnection, channel: ChannelId, command: Command) -> None:
        command.opaque = connection.login_opaque = connection.exchange.next_opaque()
        self._turn.send(channel, [encode_command(command)])

    def _advance_login(self, connection: _PeerConnection, login: PeerLogin, answer: Command) -> list[CallOutcome]:
        """Handle an answer to a request of the login."""
        assert connection.channel is not None
        if answer.opaque != connection.login_opaque:
            return []
        result = login.advance(answer)
        if isinstance(result, Command):
            self._send_login(connection, connection.channel, result)
            return []
        if not result.is_usable:
            return self._fail_login(connection, result.problem)
        if result.problem:
            self._log_unproven(connection.address, result)
        if result.is_trusted:
            connection.is_trusted = True
            self._on_trusted(connection.channel)
        connection.signer = result.signer
        self._open(connection, connection.channel)
        return []

    def _fail_login(self, connection: _PeerConnection, problem: str) -> list[CallOutcome]:
        """Close a connection whose peer must not be used, and fail the calls that waited for it."""
        assert connection.channel is not None
        key = (connection.address, connection.purpose)
        if self._connections.get(key) is connection:
            del self._connections[key]
        connection.login = connection.due_ms = None
        connection.outgoing = {}
        self._redial_ms[key] = self._turn.now_ms + REDIAL_MS
        self._turn.close(connection.channel)
        self._log_unproven(connection.address, LoginResult(is_usable=False, problem=problem))
        failure = PeerFailed(f"cannot connect to {connection.address}: login failed: {problem}", is_unsent=True)
        return [CallOutcome(waiter, failure) for waiter in connection.exchange.cancel_all()]

    def _log_unproven(self, address: str, result: LoginResult) -> None:
        """Log that a server has not proven the cluster secret, once a minute for each."""
        now_ms = self._turn.now_ms
        if now_ms - self._logged_ms.get(address, -_LOG_AGAIN_MS) < _LOG_AGAIN_MS:
            return
        self._logged_ms[address] = now_ms
        event = "server used without proof" if result.is_usable else "login at another server failed"
        self._turn.log("warning", event, server=address, reason=result.problem)

    def channel_failed(self, address: str, reason: str, purpose: str = CALLS) -> list[CallOutcome]:
        """Fail every call that waited for the connection to *address*."""
        connection = self._connections.pop((address, purpose), None)
        if connection is None:
            return []
        text = f"cannot connect to {address}: {reason}"
        return [CallOutcome(waiter, PeerFailed(text, is_unsent=True)) for waiter in connection.exchange.cancel_all()]

    def channel_closed(self, channel: ChannelId) -> list[CallOutcome]:
        """Fail every call that is in flight on a connection that closed."""
        connection = self._by_channel.pop(channel, None)
        if connection is None:
            lost = self._clients.cancel(lambda call: call.channel == channel) if self._clients else []
            return [CallOutcome(call.waiter, PeerFailed("the connection to the client was lost")) for call in lost]
        key = (connection.address, connection.purpose)
        if self._connections.get(key) is connection:  # Not so if it was disconnected, and perhaps dialed again.
            del self._connections[key]
        text = f"the connection to {connection.address} was lost"
        if connection.login is not None:
            self._redial_ms[key] = self._turn.now_ms + REDIAL_MS
            text = f"cannot connect to {connection.address}: it closed the connection during the login"
        failure = PeerFailed(text, is_unsent=not connection.is_open)
        return [CallOutcome(waiter, failure) for waiter in connection.exchange.cancel_all()]

    def handle_response(self, channel: ChannelId, command: Command) -> list[CallOutcome]:
        """Complete the call that *command* answers, if there is one. A failed login fails all that wait for it."""
        connection = self._by_channel.get(channel)
        if connection is not None:
            if connection.login is not None:
                return self._advance_login(connection, connection.login, command)
            waiter = connection.exchange.finish(command.opaque)
            return [] if waiter is None else [CallOutcome(waiter, command)]
        call = self._clients.find(command.opaque)
        if call is None or call.channel != channel:
            return []
        self._clients.finish(command.opaque)
        return [CallOutcome(call.waiter, command)]

    def on_timer(self) -> list[CallOutcome]:
        """Fail every call whose deadline has passed, and set the timer for the next deadline."""
        now_ms = self._turn.now_ms
        dialing = [connection for connection in self._connections.values() if connection.channel is None]
        connections = [*self._by_channel.values(), *dialing]
        expired = [
            CallOutcome(
                waiter,
                PeerFailed(f"{connection.address} did not answer in time", is_unsent=not connection.is_open),
            )
            for connection in connections
            for waiter in _expire(connection, now_ms)
        ]
        expired += [
            CallOutcome(call.waiter, PeerFailed("the client did not answer in time"))
            for call in self._clients.expire(now_ms)
        ]
        for connection in connections:
            if connection.due_ms is not None and connection.due_ms <= now_ms:
                expired += self._act_when_due(connection)
        self._timer_ms = None
        exchanges = [self._clients, *(connection.exchange for connection in connections)]
        deadlines = [exchange.next_deadline_ms for exchange in exchanges]
        deadlines += [connection.due_ms for connection in connections]
        earliest = min((deadline for deadline in deadlines if deadline is not None), default=None)
        if earliest is not None:
            self._set_timer(max(earliest, now_ms + 1))
        return expired

    def _act_when_due(self, connection: _PeerConnection) -> list[CallOutcome]:
        """Dial again after a failed login, or end a login that takes too long."""
        if connection.channel is not None:
            return self._fail_login(connection, "it did not answer the login in time")
        connection.due_ms = None
        if connection.outgoing:
            self._turn.open_channel(connection.address, connection.purpose)
        else:  # All of its waiters have given up.
            del self._connections[connection.address, connection.purpose]
        return []

    def _set_timer(self, deadline_ms: int) -> None:
        if self._timer_ms is None or deadline_ms < self._timer_ms:
            self._timer_ms = deadline_ms
            self._turn.set_timer(TIMER, deadline_ms)


def _expire(connection: _PeerConnection, now_ms: int) -> list[Any]:
    """Return the waiters on *connection* whose deadline has passed, and drop their requests that are still unsent."""
    waiters = connection.exchange.expire(now_ms)
    if waiters and connection.outgoing:
        connection.outgoing = {
            opaque: frame for opaque, frame in connection.outgoing.items() if opaque in connection.exchange
        }
    return waiters
