"""The base class of all simulated clients: connections, requests with deadlines, routes and heartbeats.

A client is a machine like the broker, so that the same shell runs it and the same nemesis strikes it. The pure half of
`holdfast.client` makes its decisions; this module replaces the asyncio half.

    ask(address, request, then) ─> dial if need be ─> then(answer)
                                                 └──> then(error): not sent, lost on the way, or no answer in time
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

import msgspec

from holdfast.client.routes.name_server_choice import NameServers
from holdfast.client.routes.route_table import RouteTable, TopicRoute
from holdfast.machine.effects import CloseChannel, Effect, OpenChannel, SendBytes, SetTimer
from holdfast.machine.events import (
    ChannelClosed,
    ChannelFailed,
    ChannelId,
    ChannelOpened,
    Event,
    FramesReceived,
    Started,
    TimerFired,
)
from holdfast.model.errors import BrokerRefused, ConnectionLost, HoldfastError, RequestTimeout
from holdfast.model.queue import MessageQueue
from holdfast.model.route import Route
from holdfast.wire.cluster.route import MAPPING_FIELD, decode_route
from holdfast.wire.cluster.units import SCOPE_FIELD
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import ONE_WAY, Command, decode_command, encode_command
from holdfast.wire.records.inner_batch import OPENS_FIELD
from holdfast.wire.requests.exchange import Exchange

Then = Callable[[Command | HoldfastError], None]
Action = Callable[[], None]

REQUEST_TIMEOUT_MS: Final = 3_000
ROUTE_POLL_MS: Final = 4_000
HEARTBEAT_MS: Final = 4_000
_DELTA: Final = "offsetDelta"  # of a pull's answer; old clients do not know it
_TICK: Final = "tick"
_TICK_MS: Final = 500
_PARTING_MS: Final = 1_000


class _Link(msgspec.Struct):
    """The connection to one address.

    Attributes:
        waiting: Requests to send as soon as the connection is open.
        heard_ms: When the other end last sent something.
    """

    address: str
    channel: ChannelId | None = None
    waiting: list[tuple[Command, Then | None, int]] = []
    exchange: Exchange[Then] = msgspec.field(default_factory=Exchange)
    heard_ms: int = 0


class SimClient:
    """A client without any work to do; subclasses add it.

    Args:
        name: Its client id.
        name_servers: `host:port;host:port`.
        is_old: It supports neither mappings nor inner batches, and does not claim to.
        unit: The unit whose queues it sees; empty for all queues.
    """

    def __init__(self, name: str, name_servers: str, chance: Random, *, is_old: bool = False, unit: str = "") -> None:
        self.name = name
        self.is_old = is_old
        self.unit = unit
        self.chance = chance
        self.now_ms = 0
        self.routes = RouteTable(ROUTE_POLL_MS, unit=unit or None)
        self._name_servers = NameServers(name_servers, chance)
        self._links: dict[str, _Link] = {}
        self._address_of: dict[ChannelId, str] = {}
        self._timers: dict[str, Action] = {}
        self._timer_count = 0
        self._effects: list[Effect] = []
        self._looking_up: set[str] = set()
        self._refreshing: set[str] = set()

    # Hooks for subclasses.

    def started(self) -> None:
        """Start the work of this client."""

    def heartbeat(self) -> Command | None:
        """Return the heartbeat for brokers; None to send none."""
        return None

    def requested(self, address: str, command: Command) -> None:
        """Handle a request from a broker."""

    def route_changed(self, topic: str) -> None:
        """Handle a new route."""

    # The machine.

    def handle(self, event: Event) -> list[Effect]:
        """Handle *event* and return the effects to perform, in order."""
        self.now_ms = event.now_ms
        match event:
            case FramesReceived():
                self._frames_received(event)
            case TimerFired():
                self._timer_fired(event.name)
            case ChannelOpened():
                self._opened(event)
            case ChannelFailed():
                self._failed(event)
            case ChannelClosed():
                self._closed(event.channel)
            case Started():
                self._effects.append(SetTimer(_TICK, event.now_ms + _TICK_MS))
                self.after(self.chance.randrange(200), self._beat)
                self.after(self.chance.randrange(ROUTE_POLL_MS), self._poll)
                self.started()
            case _:
                pass
        effects, self._effects = self._effects, []
        return effects

    def after(self, delay_ms: int, action: Action) -> None:
        """Run *action* after *delay_ms*."""
        self._timer_count += 1
        name = f"{self._timer_count}"
        self._timers[name] = action
        self._effects.append(SetTimer(name, self.now_ms + delay_ms))

    def _timer_fired(self, name: str) -> None:
        if name != _TICK:
            self._timers.pop(name)()
            return
        for link in list(self._links.values()):
            late = link.exchange.expire(self.now_ms)
            for then in late:
                then(RequestTimeout(f"no answer from {link.address} in time"))
            if late and link.channel is not None and link.heard_ms + REQUEST_TIMEOUT_MS <= self.now_ms:
                # Close it, as the real client does: a half-open connection would swallow all later requests.
                self._effects.append(CloseChannel(link.channel))
                self._closed(link.channel)
        self._effects.append(SetTimer(_TICK, self.now_ms + _TICK_MS))

    # Requests.

    def ask(self, address: str, command: Command, then: Then, *, timeout_ms: int = REQUEST_TIMEOUT_MS) -> None:
        """Send a request; *then* receives the answer, or the error if there is none."""
        self._put(address, command, then, timeout_ms)

    def tell(self, address: str, command: Command) -> None:
        """Send a one-way request."""
        command.flag |= ONE_WAY
        self._put(address, command, None, 0)

    def _put(self, address: str, command: Command, then: Then | None, timeout_ms: int) -> None:
        if self.is_old:
            command.fields.pop(MAPPING_FIELD, None)
            command.fields.pop(OPENS_FIELD, None)
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = _Link(address)
            self._effects.append(OpenChannel(address))
        if link.channel is None:
            link.waiting.append((command, then, timeout_ms))
        else:
            self._write(link, command, then, timeout_ms)

    def _write(self, link: _Link, command: Command, then: Then | None, timeout_ms: int) -> None:
        assert link.channel is not None
        if then is None:
            command.opaque = link.exchange.next_opaque()
        else:
            command.opaque = link.exchange.begin(then, self.now_ms + timeout_ms)
        self._effects.append(SendBytes(link.channel, [encode_command(command)]))

    # Connections.

    def _opened(self, event: ChannelOpened) -> None:
        assert event.dialed is not None, "a client accepts no connections"
        link = self._links.get(event.dialed)
        if link is None or link.channel is not None:
            self._effects.append(CloseChannel(event.channel))
            return
        link.channel = event.channel
        link.heard_ms = self.now_ms
        self._address_of[event.channel] = event.dialed
        waiting, link.waiting = link.waiting, []
        for command, then, timeout_ms in waiting:
            self._write(link, command, then, timeout_ms)

    def _failed(self, event: ChannelFailed) -> None:
        link = self._links.pop(event.dialed, None)
        if link is not None:
            self._refuse(link, event.reason)

    def _closed(self, channel: ChannelId) -> None:
        address = self._address_of.pop(channel, None)
        if address is None:
            return
        link = self._links.pop(address)
        for then in link.exchange.abandon():
            text = f"the connection to {address} was lost; the request may have been carried out"
            then(ConnectionLost(text, was_sent=True))
        self._refuse(link, "the connection was lost")

    def _refuse(self, link: _Link, reason: str) -> None:
        for _, then, _ in link.waiting:
            if then is not None:
                then(ConnectionLost(f"no connection to {link.address}: {reason}"))

    def _frames_received(self, event: FramesReceived) -> None:
        for frame in event.frames:
            command = decode_command(frame)
            address = self._address_of.get(event.channel)
            if address is None:
                return
            link = self._links[address]
            link.heard_ms = self.now_ms
            if not command.is_response:
                self.requested(address, command)
                continue
            then = link.exchange.finish(command.opaque)
            if self.is_old:
                command.fields.pop(_DELTA, None)
            if then is not None:
                then(command)

    # Routes and heartbeats.

    def look_up(self, topic: str) -> None:
        """Request the route of *topic*, unless a request is in flight."""
        if topic in self._looking_up:
            return
        self._looking_up.add(topic)
        address = self._name_servers.current

        def answered(answer: Command | HoldfastError) -> None:
            self._looking_up.discard(topic)
            if isinstance(answer, HoldfastError):
                self._name_servers.give_up(address)
            elif answer.code == ResponseCode.SUCCESS:
                if self.routes.put(topic, decode_route(answer.body), self.now_ms):
                    self.route_changed(topic)
            else:
                self.routes.put_missing(topic, self.now_ms)

        self.ask(address, route_query(topic, self.unit), answered)

    def refresh_leaders(self, topic: str) -> None:
        """Ask every name server for the leaders of *topic*, unless requests are in flight, and keep the newest."""
        addresses = self._name_servers.addresses
        if self.is_old or topic in self._refreshing:
            self.look_up(topic)
            return
        self._refreshing.add(topic)
        left = len(addresses)
        routes: list[Route] = []

        def answered(answer: Command | HoldfastError) -> None:
            nonlocal left
            left -= 1
            if isinstance(answer, Command) and answer.code == ResponseCode.SUCCESS:
                routes.append(decode_route(answer.body))
            if left:
                return
            self._refreshing.discard(topic)
            is_everybody = len(routes) == len(addresses)
            if routes and self.routes.put_all(topic, routes, self.now_ms, is_everybody=is_everybody):
                self.route_changed(topic)

        for address in addresses:
            self.ask(address, route_query(topic, self.unit), answered)

    def find_address(self, queue: MessageQueue) -> str | None:
        """Return the address of the broker that serves *queue*; None if it is unknown."""
        route = self.routes.find(queue.topic)
        return self.routes.find_address(queue.broker_name if route is None else route.broker_of(queue))

    def route(self, topic: str) -> TopicRoute | None:
        """Return the known route of *topic*; request it if there is none."""
        found = self.routes.find(topic)
        if found is None:
            self.routes.watch(topic)
            self.look_up(topic)
        return found

    def _poll(self) -> None:
        for topic in self.routes.due(self.now_ms):
            self.look_up(topic)
        self.after(ROUTE_POLL_MS, self._poll)

    def beat(self) -> None:
        """Send a heartbeat to every known master."""
        command = self.heartbeat()
        if command is not None:
            for address in self.routes.broker_addresses(masters_only=True):
                self.ask(address, msgspec.structs.replace(command), _ignore)

    def part(self, goodbye: Command) -> None:
        """After a moment, unregister from brokers that are in no route any more because their unit was closed."""
        self.after(_PARTING_MS, lambda: self._part(goodbye))

    def _part(self, goodbye: Command) -> None:
        known = {*self.routes.broker_addresses(masters_only=False), *self._name_servers.addresses}
        for link in [link for address, link in self._links.items() if address not in known]:
            if link.channel is not None:
                self._put(link.address, msgspec.structs.replace(goodbye), None, 0)
                self._effects.append(CloseChannel(link.channel))
                self._closed(link.channel)

    def _beat(self) -> None:
        self.beat()
        self.after(HEARTBEAT_MS, self._beat)


def refusal(answer: Command, address: str) -> BrokerRefused:
    """Return the error for an answer with a failure code."""
    return BrokerRefused(answer.code, answer.remark or "", address=address)


def route_query(topic: str, unit: str = "") -> Command:
    """Return the request for the route of *topic*, as seen from *unit* if one is given."""
    fields = {"topic": topic, MAPPING_FIELD: "1"} | ({SCOPE_FIELD: unit} if unit else {})
    return Command(code=RequestCode.GET_ROUTEINFO_BY_TOPIC, fields=fields)


def _ignore(_answer: Command | HoldfastError) -> None:
    """Ignore the answer to a heartbeat: the next heartbeat follows soon."""
