"""Asks the name server in use, fails over to the next one, and receives route push.

    asked ── no answer ──> the next one ──┐
    list changed (API, DNS, HTTP) ────────┴─> 329 with all topics to the old one; `watches_lost`: request all again
    connection lost ──> `watches_lost`; if it pushed routes, it is redialled until connected
    328 from the one in use ──> its topics; from another ──> 329 to that one, so that only one notifies us

The asyncio shell around `name_server_choice`, `name_server_discovery` and `route_watch`. Knows how to ask for a route,
but does not decode routes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable
from random import Random
from typing import Any, Final

from holdfast.client.options import ClientOptions
from holdfast.client.routes.name_server_choice import NameServers
from holdfast.client.routes.name_server_discovery import NameServerDiscovery
from holdfast.client.routes.route_watch import RouteWatch
from holdfast.model.errors import ConnectionLost, HoldfastError, RequestTimeout
from holdfast.runtime.pool import ConnectionPool
from holdfast.wire.cluster.route import MAPPING_FIELD
from holdfast.wire.cluster.units import GROUP_FIELD, SCOPE_FIELD
from holdfast.wire.cluster.watch import TOPICS_FIELD, UNWATCH, WATCH_FIELD, WATCHING_FIELD, join_topics, split_topics
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command

log = logging.getLogger("holdfast.client")

Spawn = Callable[[Coroutine[Any, Any, None]], object]

# Not a list of our requests: what name servers of every version and maker answer, and brokers of none.
_SUPPORTED_BY_ALL: Final = frozenset({RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO})


def require_name_server(address: str, command: Command, answer: Command) -> None:
    """Raise if the answer shows that *address* is not a name server: it rejects a request that all of them support.

    Raises:
        ConnectionLost: it is not a name server.
    """
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and command.code in _SUPPORTED_BY_ALL:
        raise ConnectionLost(f"{address} is no name server but perhaps a broker; give the address of a name server")


class NameServerSession:
    """The connection to the name servers.

    Args:
        options: The options of the client.
        pool: The connections.
        random: Chooses the name server to use.
        spawn: Runs background work.
        watches_lost: Called when the watched topics are lost: the client has to ask for all routes again.
    """

    def __init__(
        self,
        options: ClientOptions,
        *,
        pool: ConnectionPool,
        random: Random,
        spawn: Spawn,
        watches_lost: Callable[[], None],
    ) -> None:
        self._request_fields = _client_fields(options)
        self._tls = options.tls
        self._discovery = NameServerDiscovery(options.namesrv, refresh_s=options.name_server_refresh_s, tls=options.tls)
        self._servers = NameServers(";".join(self._discovery.listed), random)
        self._watch = RouteWatch()
        self._pool = pool
        self._timeout_s = options.timeout_s
        self._refresh_s = options.name_server_refresh_s
        self._spawn = spawn
        self._watches_lost = watches_lost
        self._former: set[str] = set()  # removed from the list, but perhaps still connected or being dialled
        self._silent: set[str] = set()  # did not answer, which was logged already
        self._discovery_changed = asyncio.Event()

    @property
    def addresses(self) -> list[str]:
        """The addresses of all name servers."""
        return self._servers.addresses

    @property
    def current(self) -> str:
        """The address of the name server in use."""
        return self._servers.current

    def is_name_server(self, address: str) -> bool:
        """Return whether *address* is a name server, not a broker."""
        return address in self._servers.addresses or address in self._former

    def is_wanted(self, address: str) -> bool:
        """Return whether to keep a connection open: a name server can push routes only while connected."""
        return self._watch.pushes and address == self._watch.address

    # The list.

    async def start(self) -> None:
        """Resolve the list of name servers.

        Raises:
            ConnectionLost: the address server returned no list.
        """
        if self._discovery.refresh_s is not None:
            self._use_addresses(await self._discovery.read())
        self._spawn(self._refresh_forever())

    async def change(self, namesrv: str) -> None:
        """Use another list, or another source of it.

        Raises:
            ConfigError: *namesrv* is not valid.
            ConnectionLost: the address server returned no list. Then nothing changes.
        """
        discovery = NameServerDiscovery(namesrv, refresh_s=self._refresh_s, tls=self._tls)
        addresses = await discovery.read()
        self._discovery = discovery
        self._discovery_changed.set()
        self._use_addresses(addresses)

    async def _refresh_forever(self) -> None:
        while True:
            discovery = self._discovery
            self._discovery_changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(discovery.refresh_s):
                    await self._discovery_changed.wait()
                continue
            try:
                addresses = await discovery.read()
            except ConnectionLost as error:
                log.warning("the list of name servers could not be refreshed and stays unchanged: %s", error)
                continue
            if discovery is self._discovery:
                self._use_addresses(addresses)

    def _use_addresses(self, addresses: list[str]) -> None:
        self._pool.certified_names = dict(self._discovery.certified_names)
        before = list(self._servers.addresses)
        used = self._servers.current if before else None
        if not self._servers.change(addresses):
            return
        log.info("the name servers are %s now; %s is used", "; ".join(addresses), self._servers.current)
        removed = {*before} - {*addresses}
        self._former = removed | {address for address in self._former - {*addresses} if self._pool.is_used(address)}
        if used is not None and used != self._servers.current:
            self._leave(used)
        for address in removed:
            self._disconnect(address)

    # Requests.

    async def request(self, command: Command, timeout_s: float | None = None) -> Command:
        """Send *command* to the name server in use, or to the next one that answers. Return the answer of any code.

        Raises:
            ConnectionLost, RequestTimeout: no name server answered.
        """
        return (await self._request(lambda _: command, timeout_s))[1]

    async def request_route(self, topic: str) -> tuple[str, Command]:
        """Ask for the route of *topic* and for notification of its changes. Return the server's address and answer.

        Raises:
            ConnectionLost, RequestTimeout: no name server answered.
        """

        def build_request(address: str) -> Command:
            self._watch.record_request(address, topic)
            return self.route_query(topic, watch=True)

        address, answer = await self._request(build_request, None)
        pushes = answer.fields.get(WATCHING_FIELD) == "true"
        if address != self._servers.current:
            if pushes:
                self._unwatch(address, [topic])
        elif self._watch.record_answer(address, pushes=pushes) and not pushes:
            log.debug("name server %s does not push routes: they are polled every 30 s", address)
        return address, answer

    def route_query(self, topic: str, *, watch: bool = False) -> Command:
        """Return the request for the route of *topic*."""
        fields = {"topic": topic, MAPPING_FIELD: "1", **self._request_fields}
        if watch:
            fields[WATCH_FIELD] = "true"
        return Command(code=RequestCode.GET_ROUTEINFO_BY_TOPIC, fields=fields)

    async def _request(self, build_request: Callable[[str], Command], timeout_s: float | None) -> tuple[str, Command]:
        tried: dict[str, HoldfastError] = {}
        while (address := self._servers.current) not in tried:
            command = build_request(address)
            try:
                answer = await self._pool.invoke(address, command, self._timeout_s if timeout_s is None else timeout_s)
                require_name_server(address, command, answer)
            except (ConnectionLost, RequestTimeout) as error:
                tried[address] = error
                self._fail_over(address, error)
            else:
                self._silent.discard(address)
                return address, answer
        raise tried[address]

    def _fail_over(self, address: str, error: HoldfastError) -> None:
        if address not in self._silent and address in self._servers.addresses:
            # Log it once, however many requests fail on it meanwhile.
            log.warning("name server %s does not answer: %s", address, error)
            self._silent.add(address)
        if self._servers.fail_over(address):
            self._leave(address)

    # Route push.

    def opened(self, address: str) -> None:
        """Handle a new connection to a name server: it has to be asked again to watch our topics."""
        if address not in self._servers.addresses:
            self._disconnect(address)  # It was removed from the list while it was dialled.
        elif self.is_wanted(address):
            self._watches_lost()

    def closed(self, address: str) -> None:
        """Handle the loss of a connection to a name server."""
        self._former.discard(address)
        if self._watch.record_loss(address) and address in self._servers.addresses:
            self._watches_lost()

    def changed_topics(self, address: str, command: Command) -> list[str]:
        """Return the topics whose routes changed according to the name server in use. Ask any other one to unwatch."""
        topics = split_topics(command.fields.get(TOPICS_FIELD))
        if address == self._servers.current:
            return topics
        self._unwatch(address, topics)
        return []

    def unwatch(self, topics: Iterable[str]) -> None:
        """Stop watching *topics*."""
        if self._watch.address is not None:
            self._unwatch(self._watch.address, self._watch.drop(topics))

    def _leave(self, address: str) -> None:
        """Unwatch all topics at *address*, which is no longer in use, and request all routes again."""
        self._unwatch(address, self._watch.record_switch())
        self._watches_lost()

    def _unwatch(self, address: str, topics: Iterable[str]) -> None:
        """Ask *address* to unwatch *topics*, if we are connected to it.

        Written at once, so that requests which we send if we return to it later arrive after this one.
        """
        connection = self._pool.find(address)
        if connection is None:
            return
        for text in join_topics(topics):
            command = Command(code=UNWATCH, fields={TOPICS_FIELD: text})
            # No task waits for the answer: a task would be cancelled when the client closes.
            connection.request(command, self._timeout_s).add_done_callback(lambda answer: _log_failure(address, answer))

    def _disconnect(self, address: str) -> None:
        """Close the connection to a name server that is not on the list, if there is one.

        Requests written before are still sent. A caller that waits for an answer on it asks the server in use now.
        """
        connection = self._pool.find(address)
        if connection is not None:
            self._spawn(connection.close("no name server of ours any more"))


def _client_fields(options: ClientOptions) -> dict[str, str]:
    """Return the fields of a route request that identify the unit of a client and the group that it reads for."""
    if options.unit is None:
        return {}  # A client without a unit sees everything.
    group = {} if options.reader_group is None else {GROUP_FIELD: options.reader_group}
    return {SCOPE_FIELD: options.unit, **group}


def _log_failure(address: str, answer: asyncio.Future[Command]) -> None:
    if not answer.cancelled() and (error := answer.exception()) is not None:
        log.debug("name server %s did not confirm the topics to unwatch: %s", address, error)
