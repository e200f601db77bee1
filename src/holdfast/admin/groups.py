"""Consumer groups: members, lag and settings; create and delete groups."""

from __future__ import annotations

from collections.abc import Collection, Container, Sequence
from typing import Final

import msgspec

from holdfast.admin.cluster_access import Broker, ClusterAccess, NotFound, body_of, gather
from holdfast.model.errors import BrokerRefused, ConfigError, ConnectionLost, RequestTimeout
from holdfast.model.group import GroupConfig, Subscription, find_group_fault
from holdfast.model.mapping import merge_scopes
from holdfast.model.queue import LogicalQueueId, MessageQueue
from holdfast.model.route import Route
from holdfast.model.scope import to_shown_broker
from holdfast.model.spelling_hint import did_you_mean
from holdfast.model.topic import RETRY_PREFIX, retry_topic
from holdfast.wire.cluster.mapping import from_info
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode

SYSTEM_PREFIXES: Final = ("CID_ONS", "CID_RMQ_SYS_", "CID_SYS_RMQ_", "TOOLS_", "FILTERSRV_", "SELF_TEST_", "DEFAULT_")


class Member(msgspec.Struct, frozen=True):
    """One consumer that is online."""

    client_id: str
    address: str
    language: str
    version: int


class GroupSummary(msgspec.Struct, frozen=True):
    """A group in a list. Kind and model are None while no member is online."""

    name: str
    members: int
    kind: str | None
    model: str | None
    topics: list[str]


class QueueLag(msgspec.Struct, frozen=True):
    """The lag of a group in one queue.

    Attributes:
        committed: The offset of the next message to consume; None if the group committed nothing.
        end: The offset of the next message that will be stored.
        lag: How many messages are left to consume. A group that committed nothing lags from where its consumer would
            start.
        gap: How many offsets before the end do not count: they have no message, or the group will not read them.
        consumed_ms: When the last consumed message was stored.
    """

    topic: str
    broker: str
    queue: LogicalQueueId
    committed: int | None
    end: int
    lag: int
    consumed_ms: int | None
    gap: int = 0


class DownQueue(msgspec.Struct, frozen=True):
    """A logical queue with unknown lag: its leader is down."""

    topic: str
    queue: LogicalQueueId
    leader: str


class DownQueues(msgspec.Struct, frozen=True):
    """Queues of a normal topic with unknown lag: their broker is down.

    Attributes:
        count: How many queues.
    """

    topic: str
    broker: str
    count: int


class GroupLag(msgspec.Struct, frozen=True):
    """The lag of a group, in total and by queue.

    Attributes:
        lag: The sum over the topics that it subscribes to; queues in `unknown` and `down` are not counted. None if no
            broker that is up knows the group.
        retry_lag: How many of its messages wait in its retry topic for another attempt; not part of `lag`.
        queues: The queues of its topics.
        retries: The queues of its retry topic.
    """

    group: str
    lag: int | None
    consumes_per_second: float
    queues: list[QueueLag]
    unknown: list[DownQueue] = []
    down: list[DownQueues] = []
    retry_lag: int = 0
    retries: list[QueueLag] = []

    def with_shown_brokers(self) -> GroupLag:
        """Return this lag with the broker names that people see."""

        def shown(queues: Sequence[QueueLag]) -> list[QueueLag]:
            return [msgspec.structs.replace(each, broker=to_shown_broker(each.broker)) for each in queues]

        return msgspec.structs.replace(self, queues=shown(self.queues), retries=shown(self.retries))


class GroupDescription(msgspec.Struct, frozen=True):
    """Everything about a group."""

    name: str
    config: GroupConfig
    brokers: list[str]
    members: list[Member]
    kind: str | None
    model: str | None
    begins: str | None
    subscriptions: dict[str, str]
    lag: int | None
    retry_lag: int = 0


class _Connection(msgspec.Struct, frozen=True, rename="camel"):
    client_id: str
    client_addr: str = ""
    language: str | int = ""
    version: int = 0


class _Connections(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the answer to 203."""

    connection_set: list[_Connection] = []
    subscription_table: dict[str, Subscription] = {}
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None


class _GroupTable(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the answer to 201."""

    subscription_group_table: dict[str, GroupConfig] = {}


class _OffsetPair(msgspec.Struct, frozen=True, rename="camel"):
    broker_offset: int
    consumer_offset: int
    last_timestamp: int = 0
    gap: int = 0


class _ConsumeStats(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the answer to 208; each key is a queue, encoded as JSON text."""

    consume_tps: float = 0.0
    offset_table: dict[str, _OffsetPair] = {}


class Groups:
    """Operations on consumer groups."""

    def __init__(self, access: ClusterAccess) -> None:
        self._access = access

    async def configs(self) -> dict[str, dict[str, GroupConfig]]:
        """Return the configuration of every group, by group and broker."""
        brokers = await self._access.readable_brokers()
        found: dict[str, dict[str, GroupConfig]] = {}
        for broker, table in zip(brokers, await gather(brokers, self._table), strict=True):
            for name, config in table.items():
                found.setdefault(name, {})[broker.name] = config
        return dict(sorted(found.items()))

    async def summaries(self, *, with_system: bool = False) -> list[GroupSummary]:
        """Return the groups that users created; with *with_system*, all groups."""
        brokers = await self._access.readable_brokers()
        names = [name for name in await self.configs() if with_system or not name.startswith(SYSTEM_PREFIXES)]
        found = await gather(names, lambda name: self._connections(brokers, name))
        return [_summary(name, connections) for name, connections in zip(names, found, strict=True)]

    async def describe(self, name: str) -> GroupDescription:
        """Return the settings, members, subscriptions and lag of group *name*.

        Raises:
            NotFound: no broker knows the group.
        """
        configs = await self._get_configs(name)
        connections = await self._connections(await self._access.readable_brokers(), name)
        summary = _summary(name, connections)
        lag = await self.lag(name)
        return GroupDescription(
            name=name,
            config=next(iter(configs.values())),
            brokers=sorted(configs),
            members=_members(connections),
            kind=summary.kind,
            model=summary.model,
            begins=next((part.consume_from_where for part in connections if part.consume_from_where), None),
            subscriptions={
                topic: subscription.sub_string
                for part in connections
                for topic, subscription in sorted(part.subscription_table.items())
            },
            lag=lag.lag,
            retry_lag=lag.retry_lag,
        )

    async def members(self, name: str) -> list[Member]:
        """Return the members of group *name* that are online."""
        return _members(await self._connections(await self._access.readable_brokers(), name))

    async def lag(self, name: str, topic: str | None = None) -> GroupLag:
        """Return the lag of group *name* in one topic, or in all topics that it consumes.

        Raises:
            NotFound: no broker knows the group.
        """
        listed = await self._access.readable_brokers()
        tables = dict(zip(listed, await gather(listed, self._table_if_up), strict=True))
        brokers = [broker for broker, table in tables.items() if table is not None]
        silent = [broker for broker, table in tables.items() if table is None]
        # A group may not consume from other clusters at all: its clients may belong to a unit.
        clusters = {broker.cluster for broker, table in tables.items() if name in (table or ())}
        if not clusters:
            known_groups = {each for table in tables.values() for each in table or ()}
            return await self._lag_at_down_brokers(name, topic, silent, known_groups)
        queried = [broker for broker in brokers if broker.cluster in clusters]
        found = await self._stats_of(name, queried, topic)
        # During a move, or after a forced one, two brokers may answer for a queue: the newer leader knows a higher end.
        queues: dict[tuple[str, str, int], QueueLag] = {}
        for each in (_queue_lag(key, pair) for stats in found for key, pair in stats.offset_table.items()):
            known = queues.get((each.topic, each.broker, each.queue))
            if known is None or known.end < each.end:
                queues[each.topic, each.broker, each.queue] = each
        rows = [queues[queue_key] for queue_key in sorted(queues)]
        retries = [row for row in rows if row.topic.startswith(RETRY_PREFIX)]
        subscribed = [row for row in rows if not row.topic.startswith(RETRY_PREFIX)]
        topics = sorted({row.topic for row in rows} if topic is None else {topic})
        alive = {broker.name for broker in brokers}
        checked_topics = topics if topic is not None else sorted({*topics, retry_topic(name)})
        down = await self._find_down_queues(checked_topics, silent, clusters)
        return GroupLag(
            group=name,
            lag=sum(row.lag for row in subscribed),
            consumes_per_second=sum(stats.consume_tps for stats in found),
            queues=subscribed,
            unknown=[
                queue
                for part in await gather(topics, lambda each: self._find_down_logical_queues(each, alive))
                for queue in part
            ],
            down=down,
            retry_lag=sum(row.lag for row in retries),
            retries=retries,
        )

    async def _lag_at_down_brokers(
        self, name: str, topic: str | None, silent: Sequence[Broker], known_groups: Collection[str]
    ) -> GroupLag:
        """Return the lag of a group that only brokers that are down know: only queues that are not counted.

        Raises:
            NotFound: there is no sign that the group exists.
        """
        retries = retry_topic(name)
        down = await self._find_down_queues([retries] if topic is None else [retries, topic], silent)
        group_brokers = {each.broker for each in down if each.topic == retries}
        if not group_brokers:
            raise await self._group_not_found(name, known_groups, silent)
        return GroupLag(name, None, 0.0, [], down=[each for each in down if each.broker in group_brokers])

    async def _find_down_queues(
        self, topics: Sequence[str], silent: Sequence[Broker], clusters: Container[str] | None = None
    ) -> list[DownQueues]:
        """Return the queues of *topics* at brokers that are down, without logical queues.

        Args:
            topics: Names of topics.
            silent: Brokers that the name server lists although they do not answer.
            clusters: Consider only these clusters; None for all.
        """
        left_brokers = await self._access.find_left_brokers(topics)
        found = [
            DownQueues(topic, name, count)
            for name, broker in left_brokers.items()
            if clusters is None or broker.cluster in clusters
            for topic, count in sorted(broker.read_queues.items())
        ]
        names = {broker.name for broker in silent if clusters is None or broker.cluster in clusters}
        for topic in topics if names else ():
            route, reports = await self._access.find_route_and_reports(topic) or (Route(), {})
            if not reports:
                queues = [data for data in route.queue_datas if data.broker_name in names]
                found += [DownQueues(topic, data.broker_name, data.read_queues) for data in queues]
        return found

    async def _stats_of(self, name: str, brokers: Sequence[Broker], topic: str | None) -> list[_ConsumeStats]:
        """Return the brokers' answers to 208, for one topic or for all topics that the group consumes.

        A broker where the group committed nothing may not know that the group consumes a topic: query it for each topic
        that another broker, or a subscription, names.
        """
        found = await gather(brokers, lambda broker: self._consume_stats(broker, name, topic))
        if topic is not None:
            return found
        consumed = {broker.name: _topics_in(stats) for broker, stats in zip(brokers, found, strict=True)}
        connections = await self._connections(brokers, name)
        subscribed = (part.subscription_table for part in connections if part.message_model != "BROADCASTING")
        topics = set().union(*consumed.values(), *subscribed)
        missing = [(broker, each) for broker in brokers for each in sorted(topics - consumed[broker.name])]
        return found + await gather(missing, lambda pair: self._consume_stats(pair[0], name, pair[1]))

    async def _find_down_logical_queues(self, topic: str, alive: Container[str]) -> list[DownQueue]:
        """Return the logical queues of *topic* whose leader is down."""
        try:
            reports = await self._access.find_route_reports(topic)
        except BrokerRefused:
            return []  # The name server withholds the topic, so its leaders are unknown.
        found = merge_scopes({name: from_info(report) for name, report in reports.items()}).values()
        return [
            DownQueue(topic, queue, leader)
            for merged in found
            for queue, leader in merged.leaders.items()
            if leader not in alive
        ]

    async def put(self, config: GroupConfig, *, cluster: str | None = None, brokers: Sequence[str] = ()) -> list[str]:
        """Create or change a group and return the names of the brokers that have it now.

        Raises:
            ConfigError: the name is not a valid group name.
        """
        if fault := find_group_fault(config):
            raise ConfigError(fault)
        masters = await self._access.masters(cluster=cluster, names=brokers)
        body = java_json.encode(config)
        await gather(
            masters,
            lambda broker: self._access.invoke(
                broker.address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body
            ),
        )
        return [broker.name for broker in masters]

    async def delete(self, name: str, *, keep_offsets: bool = False) -> list[str]:
        """Delete a group, its offsets and its retry topic; return the brokers that had it. Dead letters stay.

        Raises:
            NotFound: no broker knows the group.
        """
        configs = await self._get_configs(name)
        masters = [broker for broker in await self._access.masters() if broker.name in configs]
        fields = {"groupName": name, "cleanOffset": "false" if keep_offsets else "true"}
        await gather(
            masters,
            lambda broker: self._access.invoke(broker.address, RequestCode.DELETE_SUBSCRIPTIONGROUP, fields),
        )
        retry = {"topic": retry_topic(name)}
        if await self._access.find_route(retry_topic(name)) is not None:
            await gather(
                masters,
                lambda broker: self._access.invoke(broker.address, RequestCode.DELETE_TOPIC_IN_BROKER, retry),
            )
            await self._access.invoke_all_name_servers(RequestCode.DELETE_TOPIC_IN_NAMESRV, retry)
        return [broker.name for broker in masters]

    async def check_exists(self, name: str) -> None:
        """Check that a broker knows the group.

        Raises:
            NotFound: no broker knows it.
        """
        await self._get_configs(name)

    async def _get_configs(self, name: str) -> dict[str, GroupConfig]:
        known = await self.configs()
        if name not in known:
            raise await self._group_not_found(name, known, [])
        return known[name]

    async def _group_not_found(self, name: str, known_groups: Collection[str], silent: Sequence[Broker]) -> NotFound:
        """Return the error for a group that no live broker knows."""
        hint = did_you_mean(name, known_groups) or "`holdfast group list` shows those that do"
        down = sorted({*await self._access.find_left_brokers([]), *(broker.name for broker in silent)})
        if not down:
            return NotFound(f"group {name!r} does not exist; {hint}")
        down_text = f"{', '.join(down)} {'is' if len(down) == 1 else 'are'} down"
        return NotFound(
            f"no broker that is up knows group {name!r}, and {down_text}: start it, if it may know it; {hint}"
        )

    async def _table(self, broker: Broker) -> dict[str, GroupConfig]:
        answer = await self._access.invoke(broker.address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        return body_of(answer, _GroupTable).subscription_group_table

    async def _table_if_up(self, broker: Broker) -> dict[str, GroupConfig] | None:
        try:
            return await self._table(broker)
        except (ConnectionLost, RequestTimeout):
            return None

    async def _connections(self, brokers: Sequence[Broker], name: str) -> list[_Connections]:
        async def query(broker: Broker) -> _Connections:
            fields = {"consumerGroup": name}
            try:
                answer = await self._access.invoke(broker.address, RequestCode.GET_CONSUMER_CONNECTION_LIST, fields)
            except BrokerRefused as refusal:
                if refusal.code in {ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SYSTEM_ERROR}:
                    return _Connections()  # no member is connected to this broker
                raise
            return body_of(answer, _Connections)

        return await gather(brokers, query)

    async def _consume_stats(self, broker: Broker, name: str, topic: str | None) -> _ConsumeStats:
        # Ask for the logical queues of static topics: a physical queue has only its own segment of the offsets.
        fields = {"consumerGroup": name, "lo": "true"} | ({} if topic is None else {"topic": topic})
        answer = await self._access.invoke(broker.address, RequestCode.GET_CONSUME_STATS, fields)
        return body_of(answer, _ConsumeStats)


def _topics_in(stats: _ConsumeStats) -> set[str]:
    return {msgspec.json.decode(key, type=MessageQueue).topic for key in stats.offset_table}


def _queue_lag(key: str, pair: _OffsetPair) -> QueueLag:
    queue = msgspec.json.decode(key, type=MessageQueue)
    committed = pair.consumer_offset if pair.consumer_offset >= 0 else None
    return QueueLag(
        queue.topic,
        queue.broker_name,
        LogicalQueueId(queue.queue_id),
        committed,
        pair.broker_offset,
        max(0, pair.broker_offset - (committed or 0) - pair.gap),
        pair.last_timestamp if pair.last_timestamp > 0 else None,
        pair.gap,
    )


def _summary(name: str, connections: Sequence[_Connections]) -> GroupSummary:
    kinds = {"CONSUME_ACTIVELY": "pull", "CONSUME_PASSIVELY": "push", "CONSUME_POP": "pop"}
    kind = next((part.consume_type for part in connections if part.consume_type), None)
    model = next((part.message_model for part in connections if part.message_model), None)
    topics = {topic for part in connections for topic in part.subscription_table if not topic.startswith(RETRY_PREFIX)}
    return GroupSummary(
        name,
        len(_members(connections)),
        None if kind is None else kinds.get(kind, kind),
        None if model is None else model.lower(),
        sorted(topics),
    )


def _members(connections: Sequence[_Connections]) -> list[Member]:
    """Return each client once, although it is connected to every broker."""
    found = {
        connection.client_id: Member(
            connection.client_id, connection.client_addr, str(connection.language), connection.version
        )
        for part in connections
        for connection in part.connection_set
    }
    return [found[client_id] for client_id in sorted(found)]
