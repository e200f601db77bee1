"""Requests that the broker itself makes of other servers: brokers and name servers.

    call ─> link to the address ─┬─ open: sent at once            answered ─> the waiter, with the answer
                                 ├─ dialing: sent when it opens   late     ─> the waiter, with None and why
                                 └─ none: dialed                  lost     ─> the same

One connection per address, kept while it lasts. Requests leave in the order in which they were made, so that what is
relayed for a queue arrives in order. Knows nothing of what is asked, nor of who waits.

Invariant: what is called unsent is never sent later. A request whose time is up while its connection is dialed is
dropped: its waiter may have asked somebody else.
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
    """How a call ended.

    Attributes:
        answer: What the other side said; None when it did not.
        reason: Why there is no answer.
        is_unsent: No answer, and the other side cannot have heard the question.
    """

    waiter: Any
    answer: Command | None
    reason: str = ""
    is_unsent: bool = False


class _Link(msgspec.Struct):
    """The connection to one address, or what is left of it.

    Attributes:
        outgoing: What is sent as soon as it is open, by the number of the request.
    """

    address: str
    channel: ChannelId | None = None
    exchange: Exchange[Any] = msgspec.field(default_factory=Exchange)
    outgoing: dict[int, bytes] = {}


class Calls:
    """Everything asked and not yet answered."""

    def __init__(self) -> None:
        self._links: dict[str, _Link] = {}
        self._of_channel: dict[ChannelId, _Link] = {}
        self._timer_ms: int | None = None

    def call(self, address: str, command: Command, waiter: Any, deadline_ms: int, effects: list[Effect]) -> bool:
        """Ask *address*; *waiter* comes back in a `Called`. False when far too many calls wait already."""
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
        """Say something that is not answered, if there is a connection to *address* just now."""
        link = self._links.get(address)
        if link is not None and link.channel is not None:
            command.opaque = link.exchange.next_opaque()
            effects.append(SendBytes(link.channel, [encode_command(command)]))

    def opened(self, channel: ChannelId, address: str) -> list[Effect]:
        """Send what waited for the connection."""
        link = self._links.get(address)
        if link is None:  # Everybody who waited for it has given up.
            link = self._links[address] = _Link(address)
        link.channel = channel
        self._of_channel[channel] = link
        frames, link.outgoing = list(link.outgoing.values()), {}
        return [SendBytes(channel, [*frames])] if frames else []

    def failed(self, address: str, reason: str) -> list[Called]:
        """Tell everybody who wanted to ask there."""
        link = self._links.pop(address, None)
        if link is None:
            return []
        text = f"cannot connect to {address}: {reason}"
        return [Called(waiter, None, text, is_unsent=True) for waiter in link.exchange.abandon()]

    def closed(self, channel: ChannelId) -> list[Called]:
        """Tell everybody who asked there and got no answer."""
        link = self._of_channel.pop(channel, None)
        if link is None:
            return []
        del self._links[link.address]
        text = f"the connection to {link.address} was lost"
        return [Called(waiter, None, text) for waiter in link.exchange.abandon()]

    def answered(self, channel: ChannelId, command: Command) -> Called | None:
        """Return whom this answer is for; None when nobody here asked."""
        link = self._of_channel.get(channel)
        waiter = None if link is None else link.exchange.finish(command.opaque)
        return None if waiter is None else Called(waiter, command)

    def on_timer(self, now_ms: int, effects: list[Effect]) -> list[Called]:
        """Return those whose time is up."""
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
    """Return those on *link* whose time is up. What they asked is not sent any more."""
    waiters = link.exchange.expire(now_ms)
    if waiters and link.outgoing:
        link.outgoing = {opaque: frame for opaque, frame in link.outgoing.items() if opaque in link.exchange}
    return waiters
