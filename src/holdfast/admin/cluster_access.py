"""Access to servers: any name server, every name server, one broker, or many brokers concurrently.

An answer with a failure code is raised as `BrokerRefused`, so that operations show only the path of success. Where a
code is a valid answer (no such topic, no member online), the operation catches it by name.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, Self, TypeVar

import msgspec

from holdfast.client.access.credentials_options import CredentialsOptions
from holdfast.client.access.refusal import refusal
from holdfast.client.cluster.cluster_client import ClusterClient
from holdfast.client.options import ClientOptions
from holdfast.model.access.client_tls import ClientTls
from holdfast.model.errors import BrokerRefused, ConnectionLost, HoldfastError, RequestTimeout, RouteNotFound
from holdfast.model.route import MASTER_ID, BrokerData, Route
from holdfast.model.scope import covers
from holdfast.model.spelling_hint import did_you_mean, hint_suffix
from holdfast.wire.cluster.mapping import MappingInfo
from holdfast.wire.cluster.route import (
    DEPARTED_FIELD,
    REPORTS_FIELD,
    ClusterInfo,
    DepartedBroker,
    TopicList,
    decode_route,
)
from holdfast.wire.cluster.units import SCOPE_FIELD
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import from_fields, to_fields

# How many servers or topics are queried concurrently; more only makes all of them slower.
IN_FLIGHT_MAX: Final = 64
# On a route query: we read mappings, and want the real brokers of a static topic instead of its logical broker name.
_MAPPING_AWARE: Final = {"hf.mapping": "1"}

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_Body = TypeVar("_Body")
_Header = TypeVar("_Header", bound=msgspec.Struct)

Header = msgspec.Struct | Mapping[str, str] | None


class NameServerUnreachable(ConnectionLost):
    """No name server answers."""


class NotFound(HoldfastError):
    """There is no topic, group, broker or cluster with that name."""


class NotAllowed(HoldfastError):
    """The current state of the cluster forbids the operation; the text says what would have to change."""


class PartlyDone(HoldfastError):
    """Some servers applied a change and others did not. The text says which, and what to run."""


class Broker(msgspec.Struct, frozen=True):
    """One broker process. A broker name may have a master (id 0) and replicas."""

    name: str
    cluster: str
    id: int
    address: str


class _MappedRoute(msgspec.Struct, frozen=True, rename="camel"):
    """The mapping rows in a route: broker name to the mapping that this broker registered for a static topic."""

    topic_queue_mapping_by_broker: dict[str, MappingInfo] | None = None


class ClusterAccess:
    """Connections to one cluster.

    Args:
        namesrv: Addresses of name servers, `;` between them, or the URL of an address server.
        timeout_s: How long one answer may take.
        unit: The unit (a cluster) to which queries are limited; None for all units.
        tls: Use TLS on every connection; None for plain connections.
        credentials: What proves our identity to servers; None for no access control.
    """

    unit: str | None = None
    preferred_name_server: str | None = None  # the name server to query first

    def __init__(
        self,
        namesrv: str,
        *,
        timeout_s: float,
        unit: str | None = None,
        tls: ClientTls | None = None,
        credentials: CredentialsOptions | None = None,
    ) -> None:
        self.unit = unit
        self._client = ClusterClient(ClientOptions(namesrv, timeout_s=timeout_s, tls=tls, credentials=credentials))

    async def __aenter__(self) -> Self:
        try:
            await self._client.start()
        except ConnectionLost as error:
            raise NameServerUnreachable(str(error)) from error
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.close()

    async def invoke(self, address: str, code: RequestCode, header: Header = None, body: bytes = b"") -> Command:
        """Return the answer of the server at *address*.

        Raises:
            BrokerRefused: it answered with a failure code.
            ConnectionLost, RequestTimeout: it did not answer.
        """
        return await self._client.invoke(address, _command(code, header, body))

    async def invoke_unchecked(
        self, address: str, code: RequestCode, header: Header, *, timeout_s: float | None = None
    ) -> Command:
        """Return the answer of the server at *address*, whatever its code.

        Raises:
            ConnectionLost, RequestTimeout: it did not answer.
        """
        return await self._client.ask(address, _command(code, header), timeout_s)

    async def invoke_name_server(self, code: RequestCode, header: Header = None, body: bytes = b"") -> Command:
        """Return the answer of the first name server that gives one.

        Raises:
            BrokerRefused: it answered with a failure code.
            NameServerUnreachable: no name server answers.
        """
        if self.preferred_name_server is not None:
            with contextlib.suppress(ConnectionLost, RequestTimeout):
                return await self.invoke(self.preferred_name_server, code, header, body)
        try:
            answer = await self._client.ask_name_server(_command(code, header, body))
        except (ConnectionLost, RequestTimeout) as error:
            raise NameServerUnreachable(str(error)) from error
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer.code, answer.remark)
        return answer

    async def invoke_all_name_servers(self, code: RequestCode, header: Header) -> None:
        """Send a request to every name server, because they do not talk to each other."""
        await self._client.every_name_server(_command(code, header))

    async def try_all_name_servers(self, code: RequestCode, header: Header) -> dict[str, HoldfastError]:
        """Send a request to every name server; return the errors of those that failed, by address."""

        async def attempt(address: str) -> HoldfastError | None:
            try:
                await self.invoke(address, code, header)
            except HoldfastError as error:
                return error
            return None

        failures = zip(self.name_servers, await gather(self.name_servers, attempt), strict=True)
        return {address: error for address, error in failures if error is not None}

    async def mark_deleted(self, topic: str, fields: Mapping[str, str], brokers: Iterable[str]) -> None:
        """Make all name servers forget a topic that is deleted at *brokers*, and mark it as deleted.

        Raises:
            PartlyDone: a name server did not receive the deletion.
        """
        errors = await self.try_all_name_servers(RequestCode.DELETE_TOPIC_IN_NAMESRV, fields)
        if not errors:
            return
        marked = ", ".join(address for address in self.name_servers if address not in errors) or "no name server"
        missing = ", ".join(errors)
        reasons = "; ".join(str(error) for error in errors.values())
        first_missing = next(iter(errors))
        raise PartlyDone(
            f"topic {topic} is deleted at {', '.join(sorted(brokers)) or 'no broker'} and marked as deleted at"
            f" {marked}, but not at {missing} ({reasons}). Brokers report the deletion to it when it is back; if "
            "`holdfast"
            f" topic route {topic} --namesrv {first_missing}` still shows the topic then, run `holdfast topic delete "
            f"{topic}"
            f" --namesrv {first_missing}`"
        )

    @property
    def name_servers(self) -> tuple[str, ...]:
        """The addresses of the name servers."""
        return self._client.name_servers

    async def set_name_servers(self, namesrv: str) -> None:
        """Use other name servers from now on: `host:port;host:port`, or the URL of an address server.

        Raises:
            ConfigError: *namesrv* is not valid.
            ConnectionLost: the address server does not return a list. The current name servers stay in use.
        """
        await self._client.set_name_servers(namesrv)

    async def find_route(self, topic: str) -> Route | None:
        """Return the route of *topic*, or None if no broker serves it. A static topic's route has its real brokers."""
        found = await self.find_route_and_reports(topic)
        return None if found is None else found[0]

    async def find_route_reports(self, topic: str) -> dict[str, MappingInfo]:
        """Return the mappings that brokers, dead ones too, registered for a static topic; empty for other topics."""
        found = await self.find_route_and_reports(topic)
        return {} if found is None else found[1]

    async def find_route_and_reports(
        self, topic: str, *, unit: str | None = None
    ) -> tuple[Route, dict[str, MappingInfo]] | None:
        """Return the route of *topic* and, for a static topic, its registered mappings; None if no broker serves it.

        The result is limited to *unit*, or to the unit of this object if *unit* is left out.
        """
        effective_unit = unit or self.unit
        found = await self._query_route(topic, effective_unit)
        return found if found is None or effective_unit is None else _narrow(*found, effective_unit)

    async def get_client_route(self, topic: str) -> Route:
        """Return the route that a client of this unit receives, including queues of other units that are open to it.

        Raises:
            RouteNotFound: there is no route.
        """
        found = await self._query_route(topic, self.unit)
        if found is None:
            raise await self._topic_not_found(topic)
        return found[0]

    async def _query_route(self, topic: str, unit: str | None) -> tuple[Route, dict[str, MappingInfo]] | None:
        fields = {"topic": topic, **_MAPPING_AWARE, **({SCOPE_FIELD: unit} if unit else {})}
        try:
            answer = await self.invoke_name_server(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
        except BrokerRefused as refusal:
            if refusal.code == ResponseCode.TOPIC_NOT_EXIST:
                return None
            raise
        return decode_route(answer.body), body_of(answer, _MappedRoute).topic_queue_mapping_by_broker or {}

    async def find_reports(self, topic: str) -> dict[str, MappingInfo]:
        """Return every registered mapping of a static topic that is still valid, of live and dead brokers."""
        fields = {"topic": topic, **_MAPPING_AWARE, REPORTS_FIELD: "1"}
        try:
            answer = await self.invoke_name_server(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
        except BrokerRefused as refusal:
            if refusal.code == ResponseCode.TOPIC_NOT_EXIST:
                return {}
            raise
        reports = body_of(answer, _MappedRoute).topic_queue_mapping_by_broker or {}
        return {
            name: report for name, report in reports.items() if self.unit is None or covers(report.scope, self.unit)
        }

    def for_unit(self, unit: str | None) -> Self:
        """Return a copy on the same connections that is limited to one unit; None removes the limit."""
        access = copy.copy(self)
        access.unit = unit
        return access

    def preferring(self, name_server: str) -> Self:
        """Return a copy on the same connections that queries this name server first, as long as it answers."""
        access = copy.copy(self)
        access.preferred_name_server = name_server
        return access

    async def get_route(self, topic: str) -> Route:
        """Return the route of *topic*.

        Raises:
            RouteNotFound: no broker serves it.
        """
        return (await self.get_route_and_reports(topic))[0]

    async def get_route_and_reports(self, topic: str) -> tuple[Route, dict[str, MappingInfo]]:
        """Return the route of *topic* and, for a static topic, its registered mappings.

        Raises:
            RouteNotFound: no broker serves it.
        """
        found = await self.find_route_and_reports(topic)
        if found is None:
            raise await self._topic_not_found(topic)
        return found

    async def _topic_not_found(self, topic: str) -> RouteNotFound:
        answer = await self.invoke_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        hint = did_you_mean(topic, body_of(answer, TopicList).topic_list)
        return RouteNotFound(f"topic {topic!r} does not exist; {hint or '`holdfast topic list` shows those that do'}")

    async def cluster_info(self) -> ClusterInfo:
        """Return every broker that the name server knows."""
        answer = await self.invoke_name_server(RequestCode.GET_BROKER_CLUSTER_INFO)
        return java_json.decode(answer.body, ClusterInfo)

    async def find_left_brokers(self, topics: Sequence[str]) -> dict[str, DepartedBroker]:
        """Return the brokers of this unit that left and did not return, with their queues of *topics*.

        A name server knows the brokers that left since it started; Java's name servers know none.
        """
        body = java_json.encode(topics)

        async def query(address: str) -> ClusterInfo:
            try:
                answer = await self.invoke(address, RequestCode.GET_BROKER_CLUSTER_INFO, {DEPARTED_FIELD: "1"}, body)
            except (ConnectionLost, RequestTimeout):
                return ClusterInfo()
            return java_json.decode(answer.body, ClusterInfo)

        answers = await gather(
            self.name_servers if self.preferred_name_server is None else (self.preferred_name_server,), query
        )
        registered = {name for info in answers for name in info.broker_addr_table}
        found = {
            name: left_broker
            for info in answers
            for name, left_broker in info.left_brokers.items()
            if name not in registered
        }
        return {name: found[name] for name in sorted(found) if self.unit in {None, found[name].cluster}}

    async def brokers(self) -> list[Broker]:
        """Return every broker process of this unit, or of every cluster if no unit is set, by name and id."""
        brokers = await self._all_brokers()
        return [broker for broker in brokers if self.unit in {None, broker.cluster}]

    async def _all_brokers(self) -> list[Broker]:
        info = await self.cluster_info()
        return sorted(
            (broker for data in info.broker_addr_table.values() for broker in brokers_of(data)),
            key=lambda broker: (broker.cluster, broker.name, broker.id),
        )

    async def all_masters(self) -> list[Broker]:
        """Return the masters of every unit.

        Raises:
            NotFound: there is none.
        """
        masters = [broker for broker in await self._all_brokers() if broker.id == MASTER_ID]
        if not masters:
            raise NotFound("the name server knows no broker; is one running?")
        return masters

    async def readable_brokers(self) -> list[Broker]:
        """Return one readable process for each broker name of this unit: the master, or a replica while it is down.

        Raises:
            NotFound: there is no broker.
        """
        found: dict[str, Broker] = {}
        for broker in await self.brokers():  # by name and id: the master comes first
            found.setdefault(broker.name, broker)
        return list(found.values()) or await self.masters()

    async def masters(self, *, cluster: str | None = None, names: Iterable[str] | None = None) -> list[Broker]:
        """Return the masters of this unit, optionally only those of one cluster or with these names.

        Raises:
            NotFound: no broker matches; the text lists the known ones.
        """
        masters = [broker for broker in await self.brokers() if broker.id == MASTER_ID]
        if not masters and self.unit is not None:
            units = ", ".join(sorted({broker.cluster for broker in await self.all_masters()}))
            raise NotFound(f"unit {self.unit!r} has no broker; there is {units}")
        if not masters:
            raise NotFound("the name server knows no broker; is one running?")
        if cluster is not None:
            known = sorted({broker.cluster for broker in masters})
            masters = [broker for broker in masters if broker.cluster == cluster]
            if not masters:
                raise NotFound(f"no cluster {cluster!r}; there is {', '.join(known)}")
        requested = set(names or ())
        missing = requested - {broker.name for broker in masters}
        if missing:
            raise NotFound(
                f"no broker {min(missing)!r}{hint_suffix(min(missing), [broker.name for broker in masters])}"
            )
        return [broker for broker in masters if not requested or broker.name in requested]


def _narrow(route: Route, reports: dict[str, MappingInfo], unit: str) -> tuple[Route, dict[str, MappingInfo]] | None:
    """Return the part of a route that belongs to *unit*, without open queues of other units; None if it is empty."""
    own_reports = {name: report for name, report in reports.items() if covers(report.scope, unit)}
    brokers = [
        data for data in route.broker_datas if data.broker_name in own_reports or (not reports and data.cluster == unit)
    ]
    if not brokers and not own_reports:
        return None
    names = {data.broker_name for data in brokers}
    narrowed = msgspec.structs.replace(
        route,
        broker_datas=brokers,
        queue_datas=[data for data in route.queue_datas if data.broker_name in names],
        mappings={name: record for name, record in route.mappings.items() if name in own_reports},
    )
    return narrowed, own_reports


async def gather(items: Iterable[_Item], work: Callable[[_Item], Awaitable[_Result]]) -> list[_Result]:
    """Return the result of *work* for each item, in order, with bounded concurrency. Raise the first failure."""
    limit = asyncio.Semaphore(IN_FLIGHT_MAX)

    async def bounded(item: _Item) -> _Result:
        async with limit:
            return await work(item)

    return await asyncio.gather(*(bounded(item) for item in items))


def body_of(answer: Command, kind: type[_Body]) -> _Body:
    """Return the body of an answer as *kind*.

    Raises:
        RemoteProtocolError: the body has another form.
    """
    return java_json.decode(answer.body, kind)


def header_of(answer: Command, kind: type[_Header]) -> _Header:
    """Return the header fields of an answer as *kind*.

    Raises:
        BadField: one is missing.
    """
    return from_fields(kind, answer.fields)


def brokers_of(data: BrokerData) -> list[Broker]:
    """Return the processes of one broker name."""
    return [Broker(data.broker_name, data.cluster, id_, address) for id_, address in data.broker_addrs.items()]


def _command(code: RequestCode, header: Header, body: bytes = b"") -> Command:
    fields = to_fields(header) if isinstance(header, msgspec.Struct) else dict(header or {})
    return Command(code=code, fields=fields, body=body)
