"""Requests that this broker sends to other brokers and name servers.

    call ─> link to the address ─┬─ open: sent at once            answered ─> the waiter, with the answer
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


class Called(msgspec.Struct, frozen=True):
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


class _Link(msgspec.Struct):
    """The connection to one address, open or being dialed.

    Attributes:
        outgoing: Frames to send once the connection is open, by opaque.
    """

    address: str
    channel: ChannelId | None = None
    exchange: Exchange[Any] = msgspec.field(default_factory=Exchange)
    outgoing: dict[int, bytes] = {}


class Calls:
    """Requests in flight to other servers."""

    def __init__(self) -> None:
        self._links: dict[str, _Link] = {}
        self._of_channel: dict[ChannelId, _Link] = {}
        self._timer_ms: int | None = None

    def call(self, address: str, command: Command, waiter: Any, deadline_ms: int, effects: list[Effect]) -> bool:
        """Send *command* to *address*. The outcome is a `Called` with *waiter*.

        Return False, and send nothing, if too many calls to the address are in flight.
        """
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = _Link(address)
            effects.append(OpenChannel(address, PURPOSE))
        if len(link.exchange) >= WAITING_MAX:
            return False
        command.opaque = link.exchange.begin(waiter, deadline_ms)
        frame = encode_command(command)
        if link.channel is None:
            link.outgoing[command.opaque] = frame
        else:
            effects.append(SendBytes(link.channel, [frame]))
        self._set_timer(deadline_ms, effects)
        return True

    def tell(self, address: str, command: Command, effects: list[Effect]) -> None:
        """Send a one-way request to *address*, if there is an open connection to it; otherwise drop it."""
        link = self._links.get(address)
        if link is not None and link.channel is not None:
            command.opaque = link.exchange.next_opaque()
            effects.append(SendBytes(link.channel, [encode_command(command)]))

    def opened(self, channel: ChannelId, address: str) -> list[Effect]:
        """Register an opened connection and send the requests that waited for it."""
        link = self._links.get(address)
        if link is None:  # All of its waiters have given up.
            link = self._links[address] = _Link(address)
        link.channel = channel
        self._of_channel[channel] = link
        frames, link.outgoing = list(link.outgoing.values()), {}
        return [SendBytes(channel, [*frames])] if frames else []

    def failed(self, address: str, reason: str) -> list[Called]:
        """Fail every call that waited for the connection to *address*."""
        link = self._links.pop(address, None)
        if link is None:
            return []
        text = f"cannot connect to {address}: {reason}"
        return [Called(waiter, None, text, is_unsent=True) for waiter in link.exchange.abandon()]

    def closed(self, channel: ChannelId) -> list[Called]:
        """Fail every call that is in flight on a connection that closed."""
        link = self._of_channel.pop(channel, None)
        if link is None:
            return []
        del self._links[link.address]
        text = f"the connection to {link.address} was lost"
        return [Called(waiter, None, text) for waiter in link.exchange.abandon()]

    def answered(self, channel: ChannelId, command: Command) -> Called | None:
        """Complete the call that *command* answers; return None if there is no such call."""
        link = self._of_channel.get(channel)
        waiter = None if link is None else link.exchange.finish(command.opaque)
        return None if waiter is None else Called(waiter, command)

    def on_timer(self, now_ms: int, effects: list[Effect]) -> list[Called]:
        """Fail every call whose deadline has passed, and set the timer for the next deadline."""
        late = [
            Called(waiter, None, f"{link.address} did not answer in time", is_unsent=link.channel is None)
            for link in self._links.values()
            for waiter in _expire(link, now_ms)
        ]
        self._timer_ms = None
        deadlines = [link.exchange.next_deadline_ms for link in self._links.values()]
        earliest = min((deadline for deadline in deadlines if deadline is not None), default=None)
        if earliest is not None:
            self._set_timer(max(earliest, now_ms + 1), effects)
        return late

    def _set_timer(self, deadline_ms: int, effects: list[Effect]) -> None:
        if self._timer_ms is None or deadline_ms < self._timer_ms:
            self._timer_ms = deadline_ms
            effects.append(SetTimer(TIMER, deadline_ms))


def _expire(link: _Link, now_ms: int) -> list[Any]:
    """Return the waiters on *link* whose deadline has passed, and drop their requests that are still unsent."""
    waiters = link.exchange.expire(now_ms)
    if waiters and link.outgoing:
        link.outgoing = {opaque: frame for opaque, frame in link.outgoing.items() if opaque in link.exchange}
    return waiters
