"""Clusters and brokers: which exist, their status and their configuration."""

from __future__ import annotations

import msgspec

from holdfast.admin.cluster_access import Broker, ClusterAccess, NotFound, body_of, gather
from holdfast.admin.route_push import RoutePushStatus, find_route_push
from holdfast.model.errors import HoldfastError
from holdfast.wire.cluster.route import Table
from holdfast.wire.frames.codes import RequestCode


class BrokerStatus(msgspec.Struct, frozen=True):
    """The current status of one broker. The figures are None when it does not answer; `fault` then says why.

    Attributes:
        leads: How many logical queues it leads; None if it does not report that, like a broker without static topics.
        draining: Whether it was drained and gets no more logical queues.
        replication: For a replica, its state and, if it is stuck, the remedy; for a master, how many replicas are in
            sync. None if the broker reports neither.
        trusted_brokers: The addresses from which its replication port accepts brokers that prove nothing.
    """

    name: str
    cluster: str
    id: int
    address: str
    version: str | None = None
    puts_per_second: float | None = None
    gets_per_second: float | None = None
    puts_today: int | None = None
    gets_today: int | None = None
    disk_used_percent: float | None = None
    up_since_ms: int | None = None
    fault: str | None = None
    leads: int | None = None
    draining: bool = False
    replication: str | None = None
    trusted_brokers: list[str] = []


class BrokerDescription(msgspec.Struct, frozen=True):
    """Everything that a broker reports about itself."""

    status: BrokerStatus
    runtime: dict[str, str]
    config: dict[str, str]


class ClusterDescription(msgspec.Struct, frozen=True):
    """Every broker of every cluster, and their totals."""

    name_servers: list[str]
    clusters: dict[str, list[str]]
    brokers: list[BrokerStatus]
    topics: int
    puts_per_second: float
    gets_per_second: float
    route_push: list[RoutePushStatus]


class Cluster:
    """Operations on clusters and brokers."""

    def __init__(self, access: ClusterAccess) -> None:
        self._access = access

    async def statuses(self) -> list[BrokerStatus]:
        """Return the status of every broker, including brokers that do not answer."""
        return await gather(await self._access.brokers(), self._status)

    async def describe_broker(self, name: str) -> list[BrokerDescription]:
        """Return the master of *name* and its replicas, by id.

        Raises:
            NotFound: there is no such broker; the text lists the known ones.
        """
        known = await self._access.brokers()
        found = [broker for broker in known if name in {broker.name, broker.address}]
        if not found:
            names = sorted({broker.name for broker in known})
            raise NotFound(f"no broker {name!r}; there is {', '.join(names) or 'none'}")
        return await gather(found, self._describe)

    async def describe(self) -> ClusterDescription:
        """Return every cluster that the name server knows, with its brokers and totals."""
        info = await self._access.cluster_info()
        statuses = await self.statuses()
        answer = await self._access.invoke_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        topics = body_of(answer, dict[str, object]).get("topicList")
        return ClusterDescription(
            list(self._access.name_servers),
            {cluster: sorted(names) for cluster, names in sorted(info.cluster_addr_table.items())},
            statuses,
            len(topics) if isinstance(topics, list) else 0,
            sum(status.puts_per_second or 0.0 for status in statuses),
            sum(status.gets_per_second or 0.0 for status in statuses),
            await find_route_push(self._access),
        )

    async def _status(self, broker: Broker) -> BrokerStatus:
        try:
            runtime = await self._runtime(broker)
        except HoldfastError as error:
            return BrokerStatus(broker.name, broker.cluster, broker.id, broker.address, fault=str(error))
        return _to_status(broker, runtime)

    async def _describe(self, broker: Broker) -> BrokerDescription:
        runtime = await self._runtime(broker)
        answer = await self._access.invoke(broker.address, RequestCode.GET_BROKER_CONFIG)
        return BrokerDescription(_to_status(broker, runtime), runtime, parse_settings(answer.body))

    async def _runtime(self, broker: Broker) -> dict[str, str]:
        answer = await self._access.invoke(broker.address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return dict(sorted(body_of(answer, Table).table.items()))


def parse_settings(body: bytes) -> dict[str, str]:
    """Return a body of `name=value` lines as a dict, sorted by name."""
    lines = (line.partition("=") for line in body.decode("utf-8", "replace").splitlines())
    return {name.strip(): value.strip() for name, equals, value in sorted(lines) if equals}


def _to_status(broker: Broker, runtime: dict[str, str]) -> BrokerStatus:
    ratio = _number(runtime, "commitLogDiskRatio")
    return BrokerStatus(
        broker.name,
        broker.cluster,
        broker.id,
        broker.address,
        version=runtime.get("brokerVersionDesc"),
        puts_per_second=_number(runtime, "putTps"),
        gets_per_second=_number(runtime, "getTransferredTps"),
        puts_today=_difference(runtime, "msgPutTotalTodayNow", "msgPutTotalTodayMorning"),
        gets_today=_difference(runtime, "msgGetTotalTodayNow", "msgGetTotalTodayMorning"),
        disk_used_percent=None if ratio is None or ratio < 0 else round(100 * ratio, 1),
        up_since_ms=_integer(runtime, "bootTimestamp"),
        leads=_integer(runtime, "logicalQueuesLed"),
        draining=runtime.get("draining") == "true",
        replication=_replication(runtime),
        trusted_brokers=[each for each in runtime.get("trustedBrokers", "").split(",") if each],
    )


def _replication(runtime: dict[str, str]) -> str | None:
    if state := runtime.get("replicaState"):
        problem = runtime.get("replicaProblem")
        return f"{state}: {problem}" if problem else state
    if "replicas" not in runtime:
        return None
    text = f"{runtime.get('replicasInSync', '0')} of {runtime['replicas']} in sync"
    lagging = runtime.get("replicasBehind")
    return f"{text}; behind: {lagging}" if lagging else text


def _number(runtime: dict[str, str], name: str) -> float | None:
    """Return a figure. If the broker reports averages over 10 s, 60 s and 600 s, return the first."""
    try:
        return round(float(runtime[name].split()[0]), 3)
    except (KeyError, IndexError, ValueError):
        return None


def _integer(runtime: dict[str, str], name: str) -> int | None:
    number = runtime.get(name, "")
    return int(number) if number.isdecimal() else None


def _difference(runtime: dict[str, str], now: str, before: str) -> int | None:
    now_count, before_count = _integer(runtime, now), _integer(runtime, before)
    return None if now_count is None or before_count is None else now_count - before_count
