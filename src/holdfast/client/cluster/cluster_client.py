"""Owns the connections to name servers and brokers, the routes and the heartbeats of one client.

Every producer, consumer and admin tool is built on it.

    name servers  <── route of a topic, cluster info         asked one at a time; the next one if it does not answer
                  ──> these routes changed                   from the one in use, if it can; otherwise routes are polled
                  <── who leads the queues of a topic now?   all at once, when a broker says that it no longer leads one
    brokers       <── requests by address                    one connection each
                  ──> their requests, answered by the given handlers
                  <── heartbeats every 30 s, at once on a new connection

    connection to a broker lost ─> broker_down, its routes polled again, redialled until connected or no route has it
                      connected ─> heartbeat, the first request on the connection ─ answered ─> broker_up

`name_server_session` knows the name server in use, `route_refresher` keeps the routes. Knows neither messages nor
groups.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from random import Random
from typing import Any, Final, Self

import msgspec

from holdfast.client.access.authenticator import Authenticator
from holdfast.client.access.refusal import refusal
from holdfast.client.cluster.heartbeat import INTERVAL_MS as HEARTBEAT_INTERVAL_MS
from holdfast.client.cluster.server_request import Handler, decode_request
from holdfast.client.messages.arguments import check_text
from holdfast.client.options import ClientOptions
from holdfast.client.routes.name_server_session import NameServerSession
from holdfast.client.routes.route_refresher import RouteRefresher
from holdfast.client.routes.route_table import TopicRoute
from holdfast.machine.effects import Log
from holdfast.model.errors import ConnectionLost, HoldfastError, RequestTimeout
from holdfast.model.leadership import Leader
from holdfast.model.queue import MessageQueue
from holdfast.model.route import MASTER_ID
from holdfast.runtime.pool import Connection, ConnectionPool, is_caller_cancelled
from holdfast.runtime.process.fork import register_after_fork
from holdfast.runtime.tls import WatchedContext, client_context
from holdfast.wire.cluster.route import ClusterInfo
from holdfast.wire.cluster.watch import ROUTES_CHANGED
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command, response
from holdfast.wire.requests.heartbeat import CAPABILITIES_FIELD

_UNIT_CLOSE_PAUSE_S: Final = 1.0
_NO_CAPABILITIES: Final[frozenset[str]] = frozenset()

log = logging.getLogger("holdfast.client")


def now_ms() -> int:
    """Return the wall clock in milliseconds, the only clock shared with brokers."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Return a monotonic clock in milliseconds, for use within this process."""
    return time.monotonic_ns() // 1_000_000


def ignore(_: object) -> None:
    """Do nothing: the default of a callback."""


async def ignore_broker(_: str) -> None:
    """Do nothing: the default of a callback."""


class ClientCallbacks(msgspec.Struct, frozen=True):
    """What a producer or consumer adds to its client.

    Attributes:
        handlers: Request code -> handler of that request from a broker.
        heartbeat: Builds the heartbeat; None to send none.
        goodbyes: Builds the requests that unregister this client at brokers.
        routes_changed: Called with a topic whose route has changed.
        broker_up: Called with the address of a broker that has answered our heartbeat on a new connection, the first
            included.
        broker_down: Called with the address of a broker whose connection is gone.
        topics_forgotten: Called with topics that were forgotten.
    """

    handlers: Mapping[int, Handler] = {}
    heartbeat: Callable[[], Command] | None = None
    goodbyes: Callable[[], Iterable[Command]] = tuple
    routes_changed: Callable[[str], None] = ignore
    broker_up: Callable[[str], Awaitable[None]] = ignore_broker
    broker_down: Callable[[str], None] = ignore
    topics_forgotten: Callable[[list[str]], None] = ignore


class ClusterClient:
    """A client of one cluster.

    Args:
        options: The options, or only the name servers: `host:port;host:port`, or the URL of an address server.
        callbacks: What its owner adds.

    Raises:
        ConfigError: the secret file cannot be used.
    """

    def __init__(self, options: ClientOptions | str, callbacks: ClientCallbacks | None = None) -> None:
        if not isinstance(options, ClientOptions):
            options = ClientOptions(options)
        self._callbacks = callbacks or ClientCallbacks()
        self.random = Random()
        register_after_fork(self.random.seed)  # Otherwise all children of one parent would make the same choices.
        self.timeout_s = options.timeout_s
        self.client_id = ""
        self.local_address = "127.0.0.1"
        self._authenticator = None if options.credentials is None else Authenticator(options.credentials)
        self._pool = ConnectionPool(
            on_request=self._requested,
            on_open=self._opened,
            on_close=self._closed,
            is_wanted=self._is_wanted,
            authenticator=self._authenticator,
            rng=self.random,
            tls=None if options.tls is None else client_context(options.tls, _log_line),
        )
        self._name_servers = NameServerSession(
            options, pool=self._pool, random=self.random, spawn=self.spawn, watches_lost=self._refresh_all
        )
        self._refresher = RouteRefresher(
            options,
            self._name_servers,
            invoke=self.invoke,
            spawn=self.spawn,
            now_ms=monotonic_ms,
            changed=self._report_change,
            forgotten=self._callbacks.topics_forgotten,
        )
        self.unit = options.unit
        self.routes = self._refresher.table
        self._tasks: set[asyncio.Task[None]] = set()
        self._capabilities: dict[str, frozenset[str]] = {}  # of brokers, by address
        self._versions: dict[str, int] = {}  # of brokers, by address

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Begin to poll routes and to send heartbeats. Connects only to an address server, if there is one.

        Raises:
            ConnectionLost: the address server returned no name servers.
            ForkedClient: this process is a fork of the one that opened the client.
        """
        self._pool.check_process()
        self._pool.bind()
        await self._name_servers.start()
        self.local_address = _local_address(self._name_servers.current)
        # Unique among all clients that ever run on this machine: group membership is by this text.
        self.client_id = f"{self.local_address}@{os.getpid()}#{time.time_ns()}{self.random.randrange(1000):03}"
        if self.unit is not None:
            self.client_id += f"@{self.unit}"  # As in Java's clients: it shows operators where a member is.
        self.spawn(self._refresher.poll_forever())
        if self._authenticator is not None:
            self.spawn(self._authenticator.follow())
        if self._callbacks.heartbeat is not None:
            self.spawn(self._beat_forever())

    @property
    def tls(self) -> WatchedContext | None:
        """The context of its connections, for other connections to the same cluster; None for plain ones."""
        return self._pool.tls

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a fork of the one that opened the client, and so cannot use it."""
        return self._pool.is_inherited

    def check_process(self) -> None:
        """Check that this process opened the client.

        Raises:
            ForkedClient: it is a fork of the process that did.
        """
        self._pool.check_process()

    async def close(self) -> None:
        """Unregister at the connected brokers and close all connections. In a forked child this does nothing."""
        if self.is_inherited:
            return
        await self.stop_tasks()
        for command in self._callbacks.goodbyes():
            await asyncio.gather(*(self._try_invoke(address, command) for address in self.connected_brokers()))
        await self._pool.close()

    async def stop_tasks(self) -> None:
        """Cancel all background work; requests can still be made."""
        tasks = [*self._tasks, *self._refresher.tasks()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run *work* in the background until it ends or the client is closed. A failure is logged."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    # Requests.

    async def invoke(self, address: str, command: Command, timeout_s: float | None = None) -> Command:
        """Send *command* to *address* and return its successful answer.

        Raises:
            BrokerRefused: the answer is a refusal.
            ConnectionLost, RequestTimeout: there was no answer.
        """
        answer = await self.ask(address, command, timeout_s)
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer.code, answer.remark, address=address)
        return answer

    async def ask(self, address: str, command: Command, timeout_s: float | None = None) -> Command:
        """Send *command* to *address* and return the answer, whatever its code.

        Raises:
            ConnectionLost, RequestTimeout: there was no answer.
        """
        return await self._pool.invoke(address, command, self.timeout_s if timeout_s is None else timeout_s)

    async def send_one_way(self, address: str, command: Command) -> None:
        """Send *command*, which gets no answer.

        Raises:
            ConnectionLost: there is no connection; nothing was sent.
        """
        await self._pool.send_one_way(address, command)

    async def connection(self, address: str) -> Connection:
        """Return an open connection, for callers that write their own frames.

        Raises:
            ConnectionLost: the connection cannot be established.
        """
        return self._pool.find(address) or await self._pool.connect(address)

    def find_connection(self, address: str) -> Connection | None:
        """Return the connection if it is open already, else None."""
        return self._pool.find(address)

    async def ask_name_server(self, command: Command, timeout_s: float | None = None) -> Command:
        """Send *command* to the name server in use, or to the next one that answers. Return the answer of any code.

        Raises:
            ConnectionLost, RequestTimeout: no name server answered.
        """
        return await self._name_servers.request(command, timeout_s)

    async def every_name_server(self, command: Command) -> None:
        """Send *command* to every name server, as changes of their state require.

        Raises:
            BrokerRefused, ConnectionLost, RequestTimeout: one of them failed. All were asked nevertheless.
        """
        addresses = self._name_servers.addresses
        answers = await asyncio.gather(
            *(self.invoke(address, command) for address in addresses), return_exceptions=True
        )
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer

    @property
    def name_servers(self) -> tuple[str, ...]:
        """The addresses of the name servers."""
        return tuple(self._name_servers.addresses)

    async def set_name_servers(self, namesrv: str) -> None:
        """Use other name servers: `host:port;host:port`, or the URL of an address server.

        Raises:
            ConfigError: *namesrv* is not valid.
            ConnectionLost: the address server returned no list. Then nothing changes.
        """
        check_text("namesrv", namesrv)
        self.check_process()
        await self._name_servers.change(namesrv)

    # Routes and brokers.

    async def route(self, topic: str, *, refresh: bool = False) -> TopicRoute:
        """Return the route of *topic*, from memory or looked up.

        Raises:
            RouteNotFound: no name server knows the topic.
            ConnectionLost, RequestTimeout: no name server answered.
        """
        self.check_process()
        return await self._wait_for(self._refresher.route(topic, refresh=refresh))

    async def publish_route(self, topic: str, *, refresh: bool = False, timeout_s: float | None = None) -> TopicRoute:
        """Return the route to send to *topic*; if the topic does not exist, that of the brokers that would create it.

        Name servers that hang are tried one after another, which may last long: *timeout_s* limits the whole call.

        Raises:
            RouteNotFound: the topic does not exist, and no broker creates topics automatically.
            ConnectionLost, RequestTimeout: no name server answered.
        """
        self.check_process()
        try:
            async with asyncio.timeout(timeout_s):
                return await self._wait_for(self._refresher.publish_route(topic, refresh=refresh))
        except TimeoutError:
            raise RequestTimeout(f"no name server returned the route of {topic!r} in time") from None

    async def _wait_for(self, lookup: Awaitable[TopicRoute]) -> TopicRoute:
        """Return the result of a shared *lookup*. Raise ConnectionLost if the client is closed meanwhile."""
        try:
            return await lookup
        except asyncio.CancelledError:
            if is_caller_cancelled():
                raise
            raise ConnectionLost("this client was closed while a route was looked up") from None

    async def recheck_route(self, topic: str, timeout_s: float) -> None:
        """Look *topic* up because a broker does not have it; if the name server does not know it either, drop it.

        Raises:
            ConnectionLost, RequestTimeout: no name server answered.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._refresher.recheck(topic)
        except TimeoutError:
            raise RequestTimeout(f"no name server returned the route of {topic!r} in time") from None

    def mark_stale(self, topic: str) -> None:
        """Look up the route of *topic* again soon: it seems to be out of date."""
        self._refresher.mark_stale(topic)

    def learn_leader(self, queue: MessageQueue, leader: Leader | None) -> None:
        """Store the leader of a logical queue, if a broker that relayed a request reported it."""
        if leader is not None and self.routes.update_leader(queue, leader):
            self._report_change(queue.topic)

    async def refresh_leaders(self, topic: str) -> None:
        """Ask every name server who leads the queues of *topic*: the one in use may be the last to know.

        Concurrent callers share the same requests. If no name server answers, the known leaders stay.
        """
        await self._refresher.refresh_leaders(topic)

    async def cluster_info(self) -> ClusterInfo:
        """Return every cluster and broker that the name server knows.

        Raises:
            BrokerRefused, ConnectionLost, RequestTimeout: no name server returned them.
        """
        answer = await self.ask_name_server(Command(code=RequestCode.GET_BROKER_CLUSTER_INFO))
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer.code, answer.remark, address=self._name_servers.current)
        return java_json.decode(answer.body, ClusterInfo)

    async def cluster_brokers(self, cluster: str | None = None) -> dict[str, str]:
        """Return broker name -> master address of *cluster*, or of all clusters.

        Raises:
            BrokerRefused, ConnectionLost, RequestTimeout: no name server returned them.
        """
        info = await self.cluster_info()
        return {
            name: broker.broker_addrs[MASTER_ID]
            for name, broker in sorted(info.broker_addr_table.items())
            if MASTER_ID in broker.broker_addrs and (cluster is None or broker.cluster == cluster)
        }

    def connected_brokers(self) -> list[str]:
        """Return the addresses of the connected brokers."""
        return [address for address in self._pool.addresses() if not self._name_servers.is_name_server(address)]

    async def beat(self) -> None:
        """Send a heartbeat to every broker of every route now. A broker that does not answer is logged."""
        addresses = self.routes.broker_addresses(masters_only=False)
        await asyncio.gather(*(self.beat_one(address) for address in addresses))

    async def beat_one(self, address: str) -> None:
        """Send a heartbeat to one broker now. If it does not answer, that is logged."""
        if self._callbacks.heartbeat is not None:
            answer = await self._try_invoke(address, self._callbacks.heartbeat())
            if answer is not None:
                self._store_capabilities(address, answer)

    def capabilities_of(self, address: str) -> frozenset[str]:
        """Return the optional capabilities that the broker at *address* reported last."""
        return self._capabilities.get(address, _NO_CAPABILITIES)

    def version_of(self, address: str) -> int:
        """Return the version code of the broker at *address*; 0 before it has answered a heartbeat."""
        return self._versions.get(address, 0)

    def _report_change(self, topic: str) -> None:
        self._callbacks.routes_changed(topic)
        if self.unit is not None and self._find_unrouted():
            self.spawn(self._leave_closed_units())

    def _find_unrouted(self) -> list[str]:
        """Return the connected brokers that no route has: their unit is no longer open."""
        known = self.routes.broker_addresses(masters_only=False)
        return [address for address in self.connected_brokers() if address not in known]

    async def _leave_closed_units(self) -> None:
        """Unregister at brokers of other units: until then, they see a member that owns queues but reads none."""
        await asyncio.sleep(_UNIT_CLOSE_PAUSE_S)  # Let requests in flight finish.
        for address in self._find_unrouted():
            for command in self._callbacks.goodbyes():
                await self._try_invoke(address, command)
            connection = self._pool.find(address)
            if connection is not None:
                await connection.close("its unit is no longer open")

    def _refresh_all(self) -> None:
        self._refresher.mark_all_stale()

    # Heartbeats and requests from brokers.

    async def _beat_forever(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_INTERVAL_MS / 1000)
            await self.beat()

    async def _try_invoke(self, address: str, command: Command) -> Command | None:
        try:
            return await self.invoke(address, command)
        except HoldfastError as error:
            log.warning("broker %s did not confirm %s: %s", address, RequestCode(command.code).name, error)
            return None

    def _store_capabilities(self, address: str, answer: Command) -> None:
        """Store the version and the capabilities that the answer to a heartbeat reports."""
        self._versions[address] = answer.version
        text = answer.fields.get(CAPABILITIES_FIELD)
        if text:
            self._capabilities[address] = frozenset(text.split(","))
        else:
            self._capabilities.pop(address, None)

    def _is_wanted(self, address: str) -> bool:
        """Return whether to keep a connection open: a broker of our routes may send us a request at any time."""
        if self._name_servers.is_name_server(address):
            return self._name_servers.is_wanted(address)
        return self._callbacks.heartbeat is not None and address in self.routes.broker_addresses(masters_only=False)

    def _opened(self, connection: Connection) -> None:
        """Send a heartbeat first on a new connection to a broker: later requests may depend on it."""
        if self._name_servers.is_name_server(connection.address):
            self._name_servers.opened(connection.address)
            return
        self.routes.trust_broker(connection.address)
        if self._callbacks.heartbeat is not None:
            pending_answer = connection.request(self._callbacks.heartbeat(), self.timeout_s)
            self.spawn(self._await_heartbeat(connection.address, pending_answer))

    async def _await_heartbeat(self, address: str, pending_answer: Awaitable[Command]) -> None:
        try:
            answer = await pending_answer
        except (ConnectionLost, RequestTimeout) as error:
            log.warning("broker %s did not answer the heartbeat: %s", address, error)
        else:
            self._store_capabilities(address, answer)
            await self._callbacks.broker_up(address)

    def _closed(self, connection: Connection) -> None:
        if self._name_servers.is_name_server(connection.address):
            self._name_servers.closed(connection.address)
            return
        self._capabilities.pop(connection.address, None)
        self._versions.pop(connection.address, None)
        self._refresher.suspect_broker(connection.address)
        self._callbacks.broker_down(connection.address)

    def _requested(self, connection: Connection, command: Command) -> None:
        if command.code == ROUTES_CHANGED and self._name_servers.is_name_server(connection.address):
            topics = self._name_servers.changed_topics(connection.address, command)
            if topics:
                self.spawn(self._refresher.handle_notice(topics))
            return
        self.spawn(self._answer(connection, command))

    async def _answer(self, connection: Connection, command: Command) -> None:
        answer: Command | None
        try:
            request = decode_request(connection.address, command)
            handler = self._callbacks.handlers.get(command.code)
            if request is None or handler is None:
                text = f" request type {command.code} not supported"
                answer = response(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, text)
            else:
                answer = await handler(request)
        except Exception as error:  # a request of an unknown peer must not end the client
            log.exception("request %s of %s could not be answered", command.code, connection.address)
            answer = response(command, ResponseCode.SYSTEM_ERROR, str(error))
        if answer is not None and not command.is_one_way:
            connection.answer(answer)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a background task of the client failed", exc_info=error)


def _log_line(line: Log) -> None:
    text = ", ".join(f"{name}: {value}" for name, value in line.fields.items())
    log.log(logging.ERROR if line.level == "error" else logging.INFO, "%s (%s)", line.event, text)


def _local_address(remote: str) -> str:
    """Return the address of the local interface that leads to *remote*."""
    host, _, port = remote.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, int(port)))  # a datagram socket: nothing is sent
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"
