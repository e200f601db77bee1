"""Requests that this broker sends to other brokers and name servers.

    call ─> its connection ─┬─ open: sent at once            answered ─> the waiter, with the answer
                            ├─ dialing: sent when it opens   late     ─> the waiter, with None and the reason
                            └─ none: dialed                  lost     ─> the waiter, with None and the reason

There is one connection per address; it stays open until the peer or the network closes it. Requests are sent in the
order of their calls, so that requests relayed for one queue arrive in order. This module knows neither the content of a
request nor its waiter.

Invariant: a request reported as unsent is never sent later. If a request times out while its connection is still being
dialed, it is dropped: its waiter may have asked another server by then.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from holdfast.machine.effects import Effect, OpenChannel, SendBytes, SetTimer
from holdfast.machine.events import ChannelId
from holdfast.wire.frames.command import Command, encode_command
from holdfast.wire.requests.exchange import Exchange

TIMER: Final = "calls"
PURPOSE: Final = "calls"
WAITING_MAX: Final = 100_000


class CallOutcome(msgspec.Struct, frozen=True):
    """The outcome of a call.

    Attributes:
        answer: The response; None if there is none.
        reason: Why there is no response.
        is_unsent: The peer cannot have received the request.
    """

    waiter: Any
    answer: Command | None
    reason: str = ""
    is_unsent: bool = False


class _PeerConnection(msgspec.Struct):
    """The connection to one address, open or being dialed.

    Attributes:
        outgoing: Frames to send once the connection is open, by opaque.
    """

    address: str
    channel: ChannelId | None = None
    exchange: Exchange[Any] = msgspec.field(default_factory=Exchange)
    outgoing: dict[int, bytes] = {}


class PeerCalls:
    """Requests in flight to other servers."""

    def __init__(self) -> None:
        self._connections: dict[str, _PeerConnection] = {}
        self._by_channel: dict[ChannelId, _PeerConnection] = {}
        self._timer_ms: int | None = None

    def call(self, address: str, command: Command, waiter: Any, deadline_ms: int, effects: list[Effect]) -> bool:
        """Send *command* to *address*. The outcome is a `CallOutcome` with *waiter*.

        Return False, and send nothing, if too many calls to the address are in flight.
        """
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = _PeerConnection(address)
            effects.append(OpenChannel(address, PURPOSE))
        if len(connection.exchange) >= WAITING_MAX:
            return False
        command.opaque = connection.exchange.begin(waiter, deadline_ms)
        frame = encode_command(command)
        if connection.channel is None:
            connection.outgoing[command.opaque] = frame
        else:
            effects.append(SendBytes(connection.channel, [frame]))
        self._set_timer(deadline_ms, effects)
        return True

    def send_one_way(self, address: str, command: Command, effects: list[Effect]) -> None:
        """Send a one-way request to *address*, if there is an open connection to it; otherwise drop it."""
        connection = self._connections.get(address)
        if connection is not None and connection.channel is not None:
            command.opaque = connection.exchange.next_opaque()
            effects.append(SendBytes(connection.channel, [encode_command(command)]))

    def channel_opened(self, channel: ChannelId, address: str) -> list[Effect]:
        """Register an opened connection and send the requests that waited for it."""
        connection = self._connections.get(address)
        if connection is None:  # All of its waiters have given up.
            connection = self._connections[address] = _PeerConnection(address)
        connection.channel = channel
        self._by_channel[channel] = connection
        frames, connection.outgoing = list(connection.outgoing.values()), {}
        return [SendBytes(channel, [*frames])] if frames else []

    def channel_failed(self, address: str, reason: str) -> list[CallOutcome]:
        """Fail every call that waited for the connection to *address*."""
        connection = self._connections.pop(address, None)
        if connection is None:
            return []
        text = f"cannot connect to {address}: {reason}"
        return [CallOutcome(waiter, None, text, is_unsent=True) for waiter in connection.exchange.cancel_all()]

    def channel_closed(self, channel: ChannelId) -> list[CallOutcome]:
        """Fail every call that is in flight on a connection that closed."""
        connection = self._by_channel.pop(channel, None)
        if connection is None:
            return []
        del self._connections[connection.address]
        text = f"the connection to {connection.address} was lost"
        return [CallOutcome(waiter, None, text) for waiter in connection.exchange.cancel_all()]

    def handle_response(self, channel: ChannelId, command: Command) -> CallOutcome | None:
        """Complete the call that *command* answers; return None if there is no such call."""
        connection = self._by_channel.get(channel)
        waiter = None if connection is None else connection.exchange.finish(command.opaque)
        return None if waiter is None else CallOutcome(waiter, command)

    def on_timer(self, now_ms: int, effects: list[Effect]) -> list[CallOutcome]:
        """Fail every call whose deadline has passed, and set the timer for the next deadline."""
        expired = [
            CallOutcome(
                waiter, None, f"{connection.address} did not answer in time", is_unsent=connection.channel is None
            )
            for connection in self._connections.values()
            for waiter in _expire(connection, now_ms)
        ]
        self._timer_ms = None
        deadlines = [connection.exchange.next_deadline_ms for connection in self._connections.values()]
        earliest = min((deadline for deadline in deadlines if deadline is not None), default=None)
        if earliest is not None:
            self._set_timer(max(earliest, now_ms + 1), effects)
        return expired

    def _set_timer(self, deadline_ms: int, effects: list[Effect]) -> None:
        if self._timer_ms is None or deadline_ms < self._timer_ms:
            self._timer_ms = deadline_ms
            effects.append(SetTimer(TIMER, deadline_ms))


def _expire(connection: _PeerConnection, now_ms: int) -> list[Any]:
    """Return the waiters on *connection* whose deadline has passed, and drop their requests that are still unsent."""
    waiters = connection.exchange.expire(now_ms)
    if waiters and connection.outgoing:
        connection.outgoing = {
            opaque: frame for opaque, frame in connection.outgoing.items() if opaque in connection.exchange
        }
    return waiters
