"""The base class of all simulated clients: connections, requests with deadlines, routes and heartbeats.

A client is a machine like the broker, so that the same shell runs it and the same nemesis strikes it. The pure half of
`holdfast.client` makes its decisions; this module replaces the asyncio half.

    request(address, command, then) ─> dial, and log in ─> then(answer)
                                                     └───> then(error): not sent, lost on the way, or no answer in time
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

import msgspec

from holdfast.client.cluster.server_request import ServerRequest, decode_request
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
from holdfast.model.access.credentials import Credentials
from holdfast.model.errors import BrokerRefused, ConnectionLost, HoldfastError, RequestTimeout
from holdfast.model.queue import MessageQueue
from holdfast.model.route import Route
from holdfast.wire.access.client_login import ClientLogin
from holdfast.wire.access.login import NONCE_SIZE
from holdfast.wire.access.signature import sign
from holdfast.wire.cluster.route import MAPPING_FIELD, decode_route
from holdfast.wire.cluster.units import SCOPE_FIELD
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import ONE_WAY, Command, decode_command, encode_command
from holdfast.wire.records.inner_batch import BATCH_SUPPORT_FIELD
from holdfast.wire.requests.exchange import Exchange

AnswerHandler = Callable[[Command | HoldfastError], None]
Action = Callable[[], None]

REQUEST_TIMEOUT_MS: Final = 3_000
ROUTE_POLL_MS: Final = 4_000
HEARTBEAT_MS: Final = 4_000
_DELTA_FIELD: Final = "offsetDelta"  # of a pull's answer; old clients do not know it
_TICK: Final = "tick"
_TICK_MS: Final = 500
_LEAVE_MS: Final = 1_000


class _ServerConnection(msgspec.Struct):
    """The connection to one address.

    Attributes:
        is_ready: The connection is open, and the login, if one is needed, has ended.
        waiting: Requests to send as soon as it is ready.
        received_ms: When the other end last sent something.
    """

    address: str
    channel: ChannelId | None = None
    is_ready: bool = False
    waiting: list[tuple[Command, AnswerHandler | None, int]] = []
    exchange: Exchange[AnswerHandler] = msgspec.field(default_factory=Exchange)
    received_ms: int = 0


class SimClient:
    """A client without any work to do; subclasses add it.

    Args:
        name: Its client id.
        name_servers: `host:port;host:port`.
        is_old: It supports neither mappings nor inner batches, and does not claim to.
        unit: The unit whose queues it sees; empty for all queues.

    Attributes:
        credentials: With which it logs in; an old client signs every request. None: there is no access control.
    """

    credentials: Credentials | None = None

    def __init__(self, name: str, name_servers: str, rng: Random, *, is_old: bool = False, unit: str = "") -> None:
        self.name = name
        self.is_old = is_old
        self.unit = unit
        self.rng = rng
        self.now_ms = 0
        self.routes = RouteTable(ROUTE_POLL_MS, unit=unit or None)
        self._name_servers = NameServers(name_servers, rng)
        self._connections: dict[str, _ServerConnection] = {}
        self._address_of: dict[ChannelId, str] = {}
        self._timers: dict[str, Action] = {}
        self._timer_count = 0
        self._effects: list[Effect] = []
        self._route_requests: set[str] = set()
        self._leader_requests: set[str] = set()

    # Hooks for subclasses.

    def started(self) -> None:
        """Start the work of this client."""

    def heartbeat(self) -> Command | None:
        """Return the heartbeat for brokers; None to send none."""
        return None

    def handle_request(self, request: ServerRequest) -> None:
        """Handle a request of a server."""

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
                self.after(self.rng.randrange(200), self._send_heartbeats_regularly)
                self.after(self.rng.randrange(ROUTE_POLL_MS), self._poll_routes)
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
        for connection in list(self._connections.values()):
            expired = connection.exchange.expire(self.now_ms)
            for then in expired:
                then(RequestTimeout(f"no answer from {connection.address} in time"))
            if (
                expired
                and connection.channel is not None
                and connection.received_ms + REQUEST_TIMEOUT_MS <= self.now_ms
            ):
                # Close it, as the real client does: a half-open connection would swallow all later requests.
                self._abort(connection.channel)
        self._effects.append(SetTimer(_TICK, self.now_ms + _TICK_MS))

    # Requests.

    def request(
        self, address: str, command: Command, then: AnswerHandler, *, timeout_ms: int = REQUEST_TIMEOUT_MS
    ) -> None:
        """Send a request; *then* receives the answer, or the error if there is none."""
        self._submit(address, command, then, timeout_ms)

    def send_one_way(self, address: str, command: Command) -> None:
        """Send a one-way request."""
        command.flag |= ONE_WAY
        self._submit(address, command, None, 0)

    def _submit(self, address: str, command: Command, then: AnswerHandler | None, timeout_ms: int) -> None:
        if self.is_old:
            command.fields.pop(MAPPING_FIELD, None)
            command.fields.pop(BATCH_SUPPORT_FIELD, None)
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = _ServerConnection(address)
            self._effects.append(OpenChannel(address))
        if not connection.is_ready:
            connection.waiting.append((command, then, timeout_ms))
        else:
            self._write(connection, command, then, timeout_ms)

    def _write(
        self, connection: _ServerConnection, command: Command, then: AnswerHandler | None, timeout_ms: int
    ) -> None:
        assert connection.channel is not None
        if then is None:
            command.opaque = connection.exchange.next_opaque()
        else:
            command.opaque = connection.exchange.begin(then, self.now_ms + timeout_ms)
        if self.is_old and self.credentials is not None:
            command.fields = sign(command.fields, command.body, self.credentials)
        self._effects.append(SendBytes(connection.channel, [encode_command(command)]))

    # Connections.

    def _opened(self, event: ChannelOpened) -> None:
        assert event.dialed is not None, "a client accepts no connections"
        connection = self._connections.get(event.dialed)
        if connection is None or connection.channel is not None:
            self._effects.append(CloseChannel(event.channel))
            return
        connection.channel = event.channel
        connection.received_ms = self.now_ms
        self._address_of[event.channel] = event.dialed
        if self.credentials is None or self.is_old:
            self._send_waiting(connection)
        else:
            self._log_in(connection, event.channel, self.credentials)

    def _log_in(self, connection: _ServerConnection, channel: ChannelId, credentials: Credentials) -> None:
        """Send the waiting requests after a login. If it fails, close the connection, and fail them."""
        login = ClientLogin(credentials, connection.address, nonce=self.rng.randbytes(NONCE_SIZE), is_strict=True)

        def begun(answer: Command | HoldfastError) -> None:
            try:
                proof = login.second_request(_answered(answer))
            except HoldfastError:
                self._abort(channel)
                return
            assert proof is not None, "a strict login has two requests"
            self._write(connection, proof, ended, REQUEST_TIMEOUT_MS)

        def ended(answer: Command | HoldfastError) -> None:
            try:
                login.finish(_answered(answer))
            except HoldfastError:
                self._abort(channel)
                return
            self._send_waiting(connection)

        self._write(connection, login.first_request(), begun, REQUEST_TIMEOUT_MS)

    def _abort(self, channel: ChannelId) -> None:
        if channel in self._address_of:
            self._effects.append(CloseChannel(channel))
            self._closed(channel)

    def _send_waiting(self, connection: _ServerConnection) -> None:
        connection.is_ready = True
        waiting, connection.waiting = connection.waiting, []
        for command, then, timeout_ms in waiting:
            self._write(connection, command, then, timeout_ms)

    def _failed(self, event: ChannelFailed) -> None:
        connection = self._connections.pop(event.dialed, None)
        if connection is not None:
            self._fail_waiting(connection, event.reason)

    def _closed(self, channel: ChannelId) -> None:
        address = self._address_of.pop(channel, None)
        if address is None:
            return
        connection = self._connections.pop(address)
        for then in connection.exchange.cancel_all():
            text = f"the connection to {address} was lost; the request may have been carried out"
            then(ConnectionLost(text, was_sent=True))
        self._fail_waiting(connection, "the connection was lost")

    def _fail_waiting(self, connection: _ServerConnection, reason: str) -> None:
        for _, then, _ in connection.waiting:
            if then is not None:
                then(ConnectionLost(f"no connection to {connection.address}: {reason}"))

    def _frames_received(self, event: FramesReceived) -> None:
        for frame in event.frames:
            command = decode_command(frame)
            address = self._address_of.get(event.channel)
            if address is None:
                return
            connection = self._connections[address]
            connection.received_ms = self.now_ms
            if not command.is_response:
                request = decode_request(address, command)
                if request is not None:
                    self.handle_request(request)
                continue
            then = connection.exchange.finish(command.opaque)
            if self.is_old:
                command.fields.pop(_DELTA_FIELD, None)
            if then is not None:
                then(command)

    # Routes and heartbeats.

    def refresh_route(self, topic: str) -> None:
        """Request the route of *topic*, unless a request is in flight."""
        if topic in self._route_requests:
            return
        self._route_requests.add(topic)
        address = self._name_servers.current

        def answered(answer: Command | HoldfastError) -> None:
            self._route_requests.discard(topic)
            if isinstance(answer, HoldfastError):
                self._name_servers.fail_over(address)
            elif answer.code == ResponseCode.SUCCESS:
                if self.routes.put(topic, decode_route(answer.body), self.now_ms):
                    self.route_changed(topic)
            else:
                self.routes.put_missing(topic, self.now_ms)

        self.request(address, route_query(topic, self.unit), answered)

    def refresh_leaders(self, topic: str) -> None:
        """Ask every name server for the leaders of *topic*, unless requests are in flight, and keep the newest."""
        addresses = self._name_servers.addresses
        if self.is_old or topic in self._leader_requests:
            self.refresh_route(topic)
            return
        self._leader_requests.add(topic)
        remaining = len(addresses)
        routes: list[Route] = []

        def answered(answer: Command | HoldfastError) -> None:
            nonlocal remaining
            remaining -= 1
            if isinstance(answer, Command) and answer.code == ResponseCode.SUCCESS:
                routes.append(decode_route(answer.body))
            if remaining:
                return
            self._leader_requests.discard(topic)
            is_complete = len(routes) == len(addresses)
            if routes and self.routes.put_all(topic, routes, self.now_ms, is_complete=is_complete):
                self.route_changed(topic)

        for address in addresses:
            self.request(address, route_query(topic, self.unit), answered)

    def find_address(self, queue: MessageQueue) -> str | None:
        """Return the address of the broker that serves *queue*; None if it is unknown."""
        route = self.routes.find(queue.topic)
        return self.routes.find_address(queue.broker_name if route is None else route.broker_of(queue))

    def route(self, topic: str) -> TopicRoute | None:
        """Return the known route of *topic*; request it if there is none."""
        found = self.routes.find(topic)
        if found is None:
            self.routes.watch(topic)
            self.refresh_route(topic)
        return found

    def _poll_routes(self) -> None:
        for topic in self.routes.due(self.now_ms):
            self.refresh_route(topic)
        self.after(ROUTE_POLL_MS, self._poll_routes)

    def send_heartbeats(self) -> None:
        """Send a heartbeat to every known master."""
        command = self.heartbeat()
        if command is not None:
            for address in self.routes.broker_addresses(masters_only=True):
                self.request(address, msgspec.structs.replace(command), _ignore)

    def leave_closed_units(self, unregister_command: Command) -> None:
        """After a moment, unregister from brokers that are in no route any more because their unit was closed."""
        self.after(_LEAVE_MS, lambda: self._leave_closed_units(unregister_command))

    def _leave_closed_units(self, unregister_command: Command) -> None:
        known = {*self.routes.broker_addresses(masters_only=False), *self._name_servers.addresses}
        for connection in [connection for address, connection in self._connections.items() if address not in known]:
            if connection.channel is not None:
                self._submit(connection.address, msgspec.structs.replace(unregister_command), None, 0)
                self._effects.append(CloseChannel(connection.channel))
                self._closed(connection.channel)

    def _send_heartbeats_regularly(self) -> None:
        self.send_heartbeats()
        self.after(HEARTBEAT_MS, self._send_heartbeats_regularly)


def refusal(answer: Command, address: str) -> BrokerRefused:
    """Return the error for an answer with a failure code."""
    return BrokerRefused(answer.code, answer.remark or "", address=address)


def route_query(topic: str, unit: str = "") -> Command:
    """Return the request for the route of *topic*, as seen from *unit* if one is given."""
    fields = {"topic": topic, MAPPING_FIELD: "1"} | ({SCOPE_FIELD: unit} if unit else {})
    return Command(code=RequestCode.GET_ROUTEINFO_BY_TOPIC, fields=fields)


def _ignore(_answer: Command | HoldfastError) -> None:
    """Ignore the answer to a heartbeat: the next heartbeat follows soon."""


def _answered(answer: Command | HoldfastError) -> Command:
    """Return an answer.

    Raises:
        HoldfastError: there is none.
    """
    if isinstance(answer, HoldfastError):
        raise answer
    return answer
