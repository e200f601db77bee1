"""Topics: brokers, queues, configuration and statistics; create, change and delete topics."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from holdfast.admin.cluster_access import Broker, ClusterAccess, NotFound, PartlyDone, body_of, gather
from holdfast.model.errors import BrokerRefused, ConfigError, ConnectionLost, HoldfastError, RequestTimeout
from holdfast.model.queue import LogicalQueueId
from holdfast.model.route import MASTER_ID, Route
from holdfast.model.topic import (
    AUTO_CREATE_TOPIC,
    CHECK_MAX_TOPIC,
    DEAD_LETTER_PREFIX,
    NOT_SENDABLE_TOPICS,
    RETRY_PREFIX,
    SYSTEM_PREFIX,
    Permission,
    TopicConfig,
    find_name_fault,
)
from holdfast.wire.cluster.mapping import MappingInfo
from holdfast.wire.cluster.registration import Topics as TopicTable
from holdfast.wire.cluster.route import TopicList
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.requests.admin import TopicOffsetTable

# System topics of RocketMQ and Holdfast whose names do not follow a system pattern.
_SYSTEM_NAMES: Final = NOT_SENDABLE_TOPICS | {
    AUTO_CREATE_TOPIC,
    CHECK_MAX_TOPIC,
    "BenchmarkTest",
    "SYS_HOLDFAST_MAPPING",
}
_ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"
# How long to wait for a new route at the name server. Brokers register it at once, so this is rarely used up.
_ROUTE_WAIT_S: Final = 5.0
_ROUTE_PAUSE_S: Final = 0.02


class TopicSummary(msgspec.Struct, frozen=True):
    """A topic in a list.

    Attributes:
        queues: Writable queues on all brokers together; for a static topic its logical queues.
        kind: normal, static, retry, dead-letter or system; `static, incomplete` while the name server withholds it.
        batches: Whether it is indexed by record, so that batches stay whole.
    """

    name: str
    kind: str
    queues: int
    brokers: list[str]
    permission: str
    batches: bool = False


class TopicHost(msgspec.Struct, frozen=True):
    """The configuration of a topic on one broker."""

    broker: str
    address: str
    read_queues: int
    write_queues: int
    permission: str
    order: bool
    attributes: dict[str, str]


class QueueState(msgspec.Struct, frozen=True):
    """The range of one queue: offsets [offset_min, offset_max)."""

    broker: str
    queue: LogicalQueueId
    offset_min: int
    offset_max: int
    last_stored_ms: int | None

    @property
    def messages(self) -> int:
        """How many messages can be read."""
        return self.offset_max - self.offset_min


class TopicDescription(msgspec.Struct, frozen=True):
    """Everything about a topic except its messages.

    Attributes:
        batches: Whether it is indexed by record, so that batches stay whole.
    """

    name: str
    kind: str
    hosts: list[TopicHost]
    groups: list[str]
    queues: list[QueueState]
    batches: bool = False


class TopicStats(msgspec.Struct, frozen=True):
    """The size and growth of a topic."""

    name: str
    messages: int
    puts_per_second: float
    put_bytes_per_second: float
    queues: list[QueueState]


class TopicChange(msgspec.Struct, frozen=True):
    """The effect of creating or changing a topic on one broker; `before` is None when the topic is new there."""

    broker: str
    before: TopicHost | None
    after: TopicHost


class _Rate(msgspec.Struct, frozen=True):
    tps: float = 0.0


class _StatsBody(msgspec.Struct, frozen=True, rename="camel"):
    stats_minute: _Rate = _Rate()


class _GroupListBody(msgspec.Struct, frozen=True, rename="camel"):
    group_list: list[str] = []


class Topics:
    """Operations on topics."""

    def __init__(self, access: ClusterAccess) -> None:
        self._access = access

    async def names(self) -> list[str]:
        """Return the names of all topics, including system topics."""
        answer = await self._access.invoke_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(body_of(answer, TopicList).topic_list)

    async def summaries(self, *, with_system: bool = False) -> list[TopicSummary]:
        """Return the topics that users created; with *with_system*, all topics."""
        info = await self._access.cluster_info()
        own_names = {*info.cluster_addr_table, *info.broker_addr_table}
        kinds = {name: kind_of(name, own_names) for name in await self.names()}
        selected = [name for name, kind in kinds.items() if with_system or kind == "normal"]
        found = await gather(selected, lambda name: self._summary(name, kinds[name]))
        batched = await self._find_batch_topics()
        known = [summary for summary in found if summary is not None]
        return [msgspec.structs.replace(summary, batches=summary.name in batched) for summary in known]

    async def _find_batch_topics(self) -> set[str]:
        """Return the topics that are indexed by record on any broker that answers."""

        async def query(broker: Broker) -> set[str]:
            try:
                answer = await self._access.invoke(broker.address, RequestCode.GET_ALL_TOPIC_CONFIG)
            except (BrokerRefused, ConnectionLost, RequestTimeout):
                return set()
            table = body_of(answer, TopicTable).topic_config_table
            return {name for name, config in table.items() if config.accepts_batches}

        masters = [broker for broker in await self._access.brokers() if broker.id == MASTER_ID]
        return set().union(*await gather(masters, query))

    async def _summary(self, name: str, kind: str) -> TopicSummary | None:
        """Return the summary of a topic; None if it was deleted since its name was listed."""
        try:
            found = await self._access.find_route_and_reports(name)
        except BrokerRefused as refusal:
            if refusal.code != ResponseCode.SYSTEM_BUSY:
                raise
            return TopicSummary(name, "static, incomplete", 0, [], "-")
        return None if found is None else _summary(name, kind, *found)

    async def describe(self, name: str, *, hosts: Sequence[Broker] | None = None) -> TopicDescription:
        """Return the brokers, consumer groups and queue ranges of topic *name*.

        Args:
            name: The topic.
            hosts: The brokers that have it; if left out, the brokers in the name server's route.

        Raises:
            RouteNotFound: there is no such topic.
        """
        masters = await self.hosts(name) if hosts is None else hosts
        configs = await gather(masters, lambda broker: self.find_config(broker, name))
        consumed = await gather(masters, lambda broker: self._consumer_groups(broker, name))
        states = await gather(masters, lambda broker: self.queue_states(broker, name))
        return TopicDescription(
            name,
            kind_of(name, {name for broker in masters for name in (broker.name, broker.cluster)}),
            [_to_host(broker, config) for broker, config in zip(masters, configs, strict=True) if config is not None],
            sorted({group for groups in consumed for group in groups}),
            [state for broker_states in states for state in broker_states],
            batches=any(config is not None and config.accepts_batches for config in configs),
        )

    async def stats(self, name: str) -> TopicStats:
        """Return the size of topic *name* and its growth in the last minute.

        Raises:
            RouteNotFound: there is no such topic.
        """
        masters = self._masters_of(await self._access.get_route(name))
        states = [state for part in await gather(masters, lambda b: self.queue_states(b, name)) for state in part]
        puts = await gather(masters, lambda broker: self._rate(broker, "TOPIC_PUT_NUMS", name))
        sizes = await gather(masters, lambda broker: self._rate(broker, "TOPIC_PUT_SIZE", name))
        return TopicStats(name, sum(state.messages for state in states), sum(puts), sum(sizes), states)

    async def plan(
        self,
        name: str,
        *,
        queues: int | None = None,
        permission: int | None = None,
        order: bool | None = None,
        attributes: dict[str, str] | None = None,
        cluster: str | None = None,
        brokers: Sequence[str] = (),
    ) -> list[TopicChange]:
        """Return the changes of creating or changing topic *name*, by broker. None leaves a setting unchanged.

        Raises:
            ConfigError: the name is not a valid topic name.
            NotFound: there is no such broker or cluster.
        """
        fault = find_name_fault(name)
        if fault is not None:
            raise ConfigError(fault)
        masters = await self._access.masters(cluster=cluster, names=brokers)
        changes = []
        for broker, before in zip(
            masters, await gather(masters, lambda broker: self.find_config(broker, name)), strict=True
        ):
            after = before or TopicConfig(name=name, read_queues=8, write_queues=8)
            settings = {
                "read_queues": queues,
                "write_queues": queues,
                "permission": permission,
                "order": order,
                "attributes": {**after.attributes, **attributes} if attributes else None,
            }
            after = msgspec.structs.replace(
                after, **{key: value for key, value in settings.items() if value is not None}
            )
            changes.append(
                TopicChange(broker.name, None if before is None else _to_host(broker, before), _to_host(broker, after))
            )
        return changes

    async def apply(self, name: str, changes: Sequence[TopicChange]) -> None:
        """Carry out a plan and wait until the name server shows the new route.

        Raises:
            BrokerRefused: a broker refuses its change.
            RequestTimeout: the brokers have the topic, but the name server does not show it.
        """
        await gather(changes, lambda change: self._put(name, change))
        await self._store_order(name, changes)
        deadline_s = asyncio.get_running_loop().time() + _ROUTE_WAIT_S
        while True:
            if _shows(await self._access.find_route(name), changes):
                return
            if asyncio.get_running_loop().time() > deadline_s:
                raise RequestTimeout(f"the brokers have topic {name}, but the name server does not show it yet")
            await asyncio.sleep(_ROUTE_PAUSE_S)  # a name server does not report changes to us: poll

    async def hosts(self, name: str) -> list[Broker]:
        """Return the masters that host *name*.

        Raises:
            RouteNotFound: there is no such topic.
        """
        return self._masters_of(await self._access.get_route(name))

    async def delete(self, name: str) -> None:
        """Delete *name* with its messages: on its brokers first, then from the name servers' tables.

        A deletion that was interrupted can be repeated: a broker that has deleted the topic already is skipped.

        Raises:
            RouteNotFound: there is no such topic.
            PartlyDone: a name server did not receive the deletion.
        """

        async def delete(broker: Broker) -> None:
            try:
                await self._access.invoke(broker.address, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name})
            except BrokerRefused as refusal:
                if refusal.code != ResponseCode.TOPIC_NOT_EXIST:
                    raise

        hosts = await self.hosts(name)
        await gather(hosts, delete)
        # Without a cluster name, the topic would be deleted for all clusters.
        of_unit = {"clusterName": self._access.unit} if self._access.unit is not None else {}
        marking = self._access.mark_deleted(name, {"topic": name, **of_unit}, [broker.name for broker in hosts])
        try:
            await marking
        except PartlyDone:
            with contextlib.suppress(HoldfastError):
                await self._forget_order_of_deleted(name)
            raise
        await self._forget_order_of_deleted(name)

    async def _forget_order_of_deleted(self, name: str) -> None:
        if self._access.unit is None or await self._access.for_unit(None).find_route(name) is None:
            await self.forget_order(name)

    async def find_config(self, broker: Broker, name: str) -> TopicConfig | None:
        """Return the configuration of topic *name* on *broker*, or None if the broker does not have it."""
        try:
            answer = await self._access.invoke(
                broker.address, RequestCode.GET_TOPIC_CONFIG, {"topic": name, "lo": "true"}
            )
        except BrokerRefused as refusal:
            if refusal.code == ResponseCode.TOPIC_NOT_EXIST:
                return None
            if refusal.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            # A 4.x broker can only return the configurations of all of its topics.
            answer = await self._access.invoke(broker.address, RequestCode.GET_ALL_TOPIC_CONFIG)
            return body_of(answer, TopicTable).topic_config_table.get(name)
        return body_of(answer, TopicConfig)

    async def queue_states(self, broker: Broker, name: str) -> list[QueueState]:
        """Return the ranges of the queues of *name* on *broker*; empty if the broker does not have the topic."""
        fields = {"topic": name, "lo": "false"}
        try:
            answer = await self._access.invoke(broker.address, RequestCode.GET_TOPIC_STATS_INFO, fields)
        except BrokerRefused as refusal:
            if refusal.code == ResponseCode.TOPIC_NOT_EXIST:
                return []
            raise
        states = body_of(answer, TopicOffsetTable).rows()
        return [
            QueueState(
                queue.broker_name,
                LogicalQueueId(queue.queue_id),
                stats.min_offset,
                stats.max_offset,
                stats.last_update_timestamp if stats.last_update_timestamp > 0 else None,
            )
            for queue, stats in sorted(states, key=lambda state: state[0])
        ]

    async def _put(self, name: str, change: TopicChange) -> None:
        after = change.after
        attributes = ",".join(f"+{key}={value}" for key, value in after.attributes.items())
        fields = {
            "topic": name,
            "defaultTopic": AUTO_CREATE_TOPIC,
            "readQueueNums": str(after.read_queues),
            "writeQueueNums": str(after.write_queues),
            "perm": str(permission_from(after.permission)),
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "true" if after.order else "false",
            "attributes": attributes,
        }
        await self._access.invoke(after.address, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)

    async def _store_order(self, name: str, changes: Sequence[TopicChange]) -> None:
        """Store the queue counts of an ordered topic, so that keys keep their queues while a broker is away."""
        if any(change.after.order for change in changes):
            counts = ";".join(f"{change.broker}:{change.after.write_queues}" for change in changes)
            fields = {"namespace": _ORDER_NAMESPACE, "key": name, "value": counts}
            await self._access.invoke_all_name_servers(RequestCode.PUT_KV_CONFIG, fields)
        elif any(change.before is not None and change.before.order for change in changes):
            await self.forget_order(name)

    async def forget_order(self, name: str) -> None:
        """Delete the stored queue counts of an ordered topic."""
        fields = {"namespace": _ORDER_NAMESPACE, "key": name}
        await self._access.invoke_all_name_servers(RequestCode.DELETE_KV_CONFIG, fields)

    async def _rate(self, broker: Broker, statistic: str, name: str) -> float:
        fields = {"statsName": statistic, "statsKey": name}
        try:
            answer = await self._access.invoke(broker.address, RequestCode.VIEW_BROKER_STATS_DATA, fields)
        except BrokerRefused:
            return 0.0  # the broker has no such statistic yet
        return body_of(answer, _StatsBody).stats_minute.tps

    async def _consumer_groups(self, broker: Broker, name: str) -> Sequence[str]:
        answer = await self._access.invoke(broker.address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": name})
        return body_of(answer, _GroupListBody).group_list

    def _masters_of(self, route: Route) -> list[Broker]:
        masters = [
            Broker(data.broker_name, data.cluster, MASTER_ID, data.broker_addrs[MASTER_ID])
            for data in route.broker_datas
            if MASTER_ID in data.broker_addrs
        ]
        if not masters:
            raise NotFound("no broker of this topic is running")
        return sorted(masters, key=lambda broker: broker.name)


def kind_of(name: str, own_names: set[str]) -> str:
    """Return the kind of a topic. *own_names* are the names of clusters and brokers: each has a topic with its name."""
    if name.startswith(RETRY_PREFIX):
        return "retry"
    if name.startswith(DEAD_LETTER_PREFIX):
        return "dead-letter"
    if (
        name in _SYSTEM_NAMES
        or name in own_names
        or name.lower().startswith(SYSTEM_PREFIX)
        or name.endswith("_REPLY_TOPIC")
    ):
        return "system"
    return "normal"


def permission_text(permission: int) -> str:
    """Return a permission as text: `rw`, `r`, `w` or `-`."""
    return ("r" if permission & Permission.READ else "") + ("w" if permission & Permission.WRITE else "") or "-"


def permission_from(text: str) -> int:
    """Return the wire's number for `rw`, `r`, `w` or `-`.

    Raises:
        ConfigError: *text* is something else.
    """
    if not text or set(text) - set("rw-"):
        raise ConfigError(f"permission {text!r} is none of rw, r, w, -")
    return (Permission.READ if "r" in text else 0) | (Permission.WRITE if "w" in text else 0)


def _to_host(broker: Broker, config: TopicConfig) -> TopicHost:
    return TopicHost(
        broker.name,
        broker.address,
        config.read_queues,
        config.write_queues,
        permission_text(config.permission),
        config.order,
        dict(config.attributes),
    )


def _summary(name: str, kind: str, route: Route, reports: Mapping[str, MappingInfo]) -> TopicSummary:
    permission = 0
    for data in route.queue_datas:
        permission |= data.permission
    if reports:
        # Several clusters may each have a topic with this name.
        newest = {report.scope: report.total for report in sorted(reports.values(), key=lambda report: report.epoch)}
        leaders = sorted(broker for broker, report in reports.items() if report.led_queues)
        return TopicSummary(name, "static", sum(newest.values()), leaders, permission_text(permission))
    return TopicSummary(
        name,
        kind,
        sum(data.write_queues for data in route.queue_datas),
        sorted(data.broker_name for data in route.queue_datas),
        permission_text(permission),
    )


def _shows(route: Route | None, changes: Sequence[TopicChange]) -> bool:
    """Return whether a route shows all changes."""
    if route is None:
        return False
    shown = {
        data.broker_name: (data.read_queues, data.write_queues, permission_text(data.permission))
        for data in route.queue_datas
    }
    return all(
        shown.get(change.broker) == (change.after.read_queues, change.after.write_queues, change.after.permission)
        for change in changes
    )
