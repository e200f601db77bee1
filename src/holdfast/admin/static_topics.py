"""Static topics of a cluster: the mapping records of every broker, merged into one view. Read-only.

    every broker ──7007──> its records ─┐
    (Java: 351 for each topic)          ├─ merge ─> leaders, segments, contradictions
    name server ──105────> dead rows ───┘

The rows of the name server count only for brokers that do not answer: they are the last report of a dead leader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from holdfast.admin.cluster_access import Broker, ClusterAccess, NotAllowed, NotFound, body_of, gather
from holdfast.model.errors import BrokerRefused, ConnectionLost, RequestTimeout
from holdfast.model.mapping import MergedTopic, TopicMapping, merge_scopes
from holdfast.model.queue import LogicalQueueId, PhysicalQueueId
from holdfast.model.scope import GLOBAL, covers, to_shown_scope
from holdfast.model.spelling_hint import hint_suffix
from holdfast.model.topic import TopicConfig
from holdfast.wire.cluster.mapping import MappedTopic, MappingInfo, decode, from_detail, from_info
from holdfast.wire.cluster.route import TopicList
from holdfast.wire.cluster.units import UnitState
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.requests.moves import MappingsAnswer, Move

FIRST_WITH_MAPPINGS: Final = 413
"""The protocol version of RocketMQ 5.0.0: older versions drop mappings."""
_HINT_NAMES_MAX: Final = 10


class BrokerMappings(msgspec.Struct, frozen=True, kw_only=True):
    """One broker and its part in static topics.

    Attributes:
        can_move_queues: Whether it can move single queues, like Holdfast; a Java broker only records mappings.
        supports_mappings: Whether it can record mappings at all; RocketMQ 4.x cannot.
        fault: Why it did not answer; None when it did.
        topics: Its record of each static topic, with the topic's configuration there.
        moves: The moves that it drives.
        draining: Whether it was drained: then it gets queues only by orders that name it.
    """

    name: str
    cluster: str
    address: str
    can_move_queues: bool = True
    supports_mappings: bool = True
    fault: str | None = None
    topics: dict[str, MappedTopic] = {}
    moves: list[Move] = []
    draining: bool = False

    @property
    def is_ready(self) -> bool:
        """Whether queues can be moved to it and away from it."""
        return self.fault is None and self.can_move_queues


class StaticTopic(msgspec.Struct, frozen=True, kw_only=True):
    """One static topic.

    Attributes:
        name: Its name.
        merged: The merge of all records.
        records: Broker to its own record; for a dead broker the record that the name server remembers.
        configs: Broker to the topic's configuration there; only for brokers that answered.
    """

    name: str
    merged: MergedTopic
    records: dict[str, TopicMapping]
    configs: dict[str, TopicConfig]

    @property
    def config(self) -> TopicConfig:
        """The topic's configuration, except the number of queues, which differs from broker to broker."""
        return next(iter(self.configs.values()), TopicConfig(name=self.name))

    def next_physical_queue(self, broker: str) -> PhysicalQueueId:
        """Return the lowest number above all physical queues of *broker* that the topic ever used."""
        config = self.configs.get(broker)
        lowest = PhysicalQueueId(0 if config is None else config.write_queues)
        return max([lowest, *(record.next_physical_queue(broker) for record in self.records.values())])


class ClusterMappings(msgspec.Struct, frozen=True, kw_only=True):
    """Every broker and every static topic, at one moment.

    Attributes:
        topics: Topics with a unique name, by name.
        same_named: Topics that share their name with topics of other scopes, by name and scope; not in `topics`.
    """

    brokers: dict[str, BrokerMappings]
    topics: dict[str, StaticTopic]
    same_named: dict[str, dict[str, StaticTopic]] = {}

    @property
    def all_topics(self) -> list[StaticTopic]:
        """All static topics, including those that share a name."""
        return [topic for name in (*self.topics, *self.same_named) for topic in self.find(name)]

    def find(self, name: str) -> list[StaticTopic]:
        """Return the static topics with this name, in all scopes."""
        same_named = self.same_named.get(name)
        return list(same_named.values()) if same_named else [self.topics[name]] if name in self.topics else []

    def for_unit(self, unit: str) -> ClusterMappings:
        """Return these mappings with only the topics that are fixed in *unit*, or global."""
        return self._filter(lambda topic: covers(topic.merged.scope, unit))

    def for_broker(self, broker: str) -> ClusterMappings:
        """Return these mappings with only the topics that may have queues on *broker*."""
        mappings = self.brokers.get(broker)
        if mappings is not None:
            return self.for_unit(mappings.cluster)
        return self._filter(lambda topic: topic.merged.scope == GLOBAL or broker in topic.records)

    def _filter(self, is_included: Callable[[StaticTopic], bool]) -> ClusterMappings:
        return to_mappings(self.brokers, filter(is_included, self.all_topics))

    def require_in_scope(self, topic: StaticTopic, names: Iterable[str]) -> None:
        """Check that *topic* may have queues on all brokers in *names*.

        Raises:
            NotFound: the name server knows no such broker.
            NotAllowed: a broker is outside the topic's scope.
        """
        for name in names:
            mappings = self.get_broker(name)
            if not covers(topic.merged.scope, mappings.cluster):
                scope = to_shown_scope(topic.merged.scope)
                raise NotAllowed(
                    f"broker {name} is in cluster {mappings.cluster}, and {topic.name} is fixed in {scope}: choose one"
                    " there"
                )

    def split_by_scope(self) -> list[ClusterMappings]:
        """Return these mappings split by scope. Within a scope, topic names are unique."""
        by_scope: dict[str, list[StaticTopic]] = {}
        for topic in self.all_topics:
            by_scope.setdefault(topic.merged.scope, []).append(topic)
        return [to_mappings(self.brokers, topics) for _, topics in sorted(by_scope.items())]

    def leaders_by_scope(
        self, *, cluster: str | None = None
    ) -> list[tuple[dict[str, dict[LogicalQueueId, str]], list[str]]]:
        """Return, for each scope, the leaders of its topics and the brokers that may get queues in it.

        Args:
            cluster: Leave out topics that are fixed in other clusters.

        Raises:
            NotAllowed: several topics share a name.
        """
        for name, scopes in self.same_named.items():
            raise _ambiguous(name, scopes)
        groups: dict[str, dict[str, dict[LogicalQueueId, str]]] = {}
        for name, topic in self.topics.items():
            groups.setdefault(topic.merged.scope, {})[name] = topic.merged.leaders
        return [
            (leaders, [name for name in self.default_targets if covers(scope, self.brokers[name].cluster)])
            for scope, leaders in sorted(groups.items())
            if cluster is None or covers(scope, cluster)
        ]

    @property
    def leaders(self) -> dict[str, dict[LogicalQueueId, str]]:
        """Topic to logical queue to its leader. Topics that share a name are listed as name and scope."""
        same_named = [topic for scopes in self.same_named.values() for topic in scopes.values()]
        return {name: topic.merged.leaders for name, topic in self.topics.items()} | {
            f"{topic.name} of {to_shown_scope(topic.merged.scope)}": topic.merged.leaders for topic in same_named
        }

    @property
    def moves(self) -> list[Move]:
        """The moves that brokers drive, newest last."""
        found = [move for mappings in self.brokers.values() for move in mappings.moves]
        return sorted(found, key=lambda move: (move.started_ms, move.id))

    @property
    def ready_brokers(self) -> list[str]:
        """The brokers that queues can be moved to."""
        return [name for name, mappings in self.brokers.items() if mappings.is_ready]

    @property
    def default_targets(self) -> list[str]:
        """The brokers that get queues when the user names no target: all ready brokers that are not drained."""
        return [name for name in self.ready_brokers if not self.brokers[name].draining]

    @property
    def lost_brokers(self) -> list[str]:
        """Brokers with a readable segment that the name server no longer knows: they are down."""
        segments = [
            segment for topic in self.all_topics for queue in topic.merged.queues.values() for segment in queue.readable
        ]
        return sorted({segment.broker for segment in segments} - self.brokers.keys())

    def get_broker(self, name: str) -> BrokerMappings:
        """Return the broker *name*.

        Raises:
            NotFound: the name server does not know it; the text suggests the closest name.
        """
        mappings = self.brokers.get(name)
        if mappings is None and name in self.lost_brokers:
            raise NotFound(f"broker {name} is down, and the name server has forgotten it: start it, or choose another")
        if mappings is None:
            raise NotFound(f"no broker {name!r}{hint_suffix(name, self.brokers)}")
        return mappings

    def get_topic(self, name: str) -> StaticTopic:
        """Return the static topic *name*.

        Raises:
            NotFound: there is none; the text suggests others.
            NotAllowed: there are several.
        """
        topic = self.topics.get(name)
        if name in self.same_named:
            raise _ambiguous(name, self.same_named[name])
        if topic is None:
            known = {each for mappings in self.brokers.values() for each in mappings.topics}
            is_short = 0 < len(known) <= _HINT_NAMES_MAX
            hint = hint_suffix(name, known) if is_short else ": `holdfast topic list` shows those that exist"
            raise NotFound(f"no static topic {name!r}{hint}")
        return topic

    def require_ready(self, names: Iterable[str]) -> None:
        """Check that all brokers in *names* can take part in a move.

        Raises:
            NotFound: the name server knows no such broker.
            NotAllowed: a broker does not answer, or does not support Holdfast's request codes.
        """
        for name in names:
            mappings = self.get_broker(name)
            if mappings.fault is not None:
                raise NotAllowed(f"broker {name} does not answer ({mappings.fault}): start it, or choose another")
            if not mappings.can_move_queues:
                raise NotAllowed(
                    f"broker {name} cannot move single queues: it is not a Holdfast broker, or an older one. Upgrade"
                    " it, or remap the whole topic with RocketMQ's `mqadmin remappingStaticTopic`"
                )


class StaticTopics:
    """Reads static topics."""

    def __init__(self, access: ClusterAccess) -> None:
        self._access = access

    async def require_support(self) -> None:
        """Check that every name server that answers keeps mappings.

        Raises:
            NotAllowed: a name server drops them; the text says which and what to do.
        """
        for address in self._access.name_servers:
            try:
                answer = await self._access.invoke(address, RequestCode.GET_BROKER_CLUSTER_INFO)
            except (ConnectionLost, RequestTimeout):
                continue  # The next request fails if no name server answers at all.
            if answer.version < FIRST_WITH_MAPPINGS:
                raise NotAllowed(
                    f"the name server at {address} is older than RocketMQ 5.0 (protocol version {answer.version}) and"
                    " drops mappings: static topics cannot work with it. Replace it with a Holdfast name server; normal"
                    " topics work meanwhile"
                )

    async def read(self, *, topic: str | None = None, includes_dead: bool = False) -> ClusterMappings:
        """Return every static topic, or only *topic*, as the brokers record it now.

        Args:
            topic: Read only this topic.
            includes_dead: Also find topics that only a dead broker recorded. This queries every topic of the cluster.

        Raises:
            NotFound: the name server knows no broker.
            RemoteProtocolError: a broker's record cannot be read.
        """
        masters = await self._access.all_masters()
        brokers = {
            mappings.name: mappings for mappings in await gather(masters, lambda master: self._query(master, topic))
        }
        names = {name for mappings in brokers.values() for name in mappings.topics}
        dead = (
            {topic}
            if topic is not None
            else {*await self._topic_names()}
            if includes_dead
            else await self._find_orphaned_topics(brokers)
        )
        selected = sorted(names | dead if topic is None else {topic})
        found = await gather(selected, lambda name: self._merge(name, brokers, includes_dead=name in dead))
        view = to_mappings(brokers, (each for group in found for each in group))
        return view if self._access.unit is None else view.for_unit(self._access.unit)

    async def _find_orphaned_topics(self, brokers: dict[str, BrokerMappings]) -> set[str]:
        """Return the topics that are fixed in clusters without any live broker: no live broker records them."""
        try:
            answer = await self._access.invoke_name_server(RequestCode.GET_DR_SWITCH)
        except BrokerRefused:
            return set()  # The name server does not support units.
        alive = {mappings.cluster for mappings in brokers.values()}
        units = body_of(answer, UnitState).units
        return {name for unit, known in units.items() if unit not in alive for name in known.topics}

    async def find(self, topic: str) -> StaticTopic | None:
        """Return *topic* as the brokers record it now; None when it is no static topic."""
        return (await self.read(topic=topic)).topics.get(topic)

    async def _query(self, broker: Broker, topic: str | None) -> BrokerMappings:
        """Return *broker* with its reported mappings; *topic* limits the queries to a Java broker."""
        mappings = BrokerMappings(name=broker.name, cluster=broker.cluster, address=broker.address)
        try:
            answer = await self._access.invoke(broker.address, RequestCode.GET_MAPPINGS)
        except (ConnectionLost, RequestTimeout) as error:
            return msgspec.structs.replace(mappings, fault=str(error))
        except BrokerRefused as refusal:
            if refusal.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return await self._query_java(mappings, topic)
            return msgspec.structs.replace(mappings, fault=str(refusal))
        reported = body_of(answer, MappingsAnswer)
        return msgspec.structs.replace(
            mappings,
            topics={each.name: each for each in reported.topics if each.mapping is not None},
            moves=reported.moves,
            draining=reported.draining,
        )

    async def _topic_names(self) -> list[str]:
        answer = await self._access.invoke_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(body_of(answer, TopicList).topic_list)

    async def _query_java(self, mappings: BrokerMappings, topic: str | None) -> BrokerMappings:
        """Return the mappings of a Java broker, queried topic by topic."""
        names = await self._topic_names() if topic is None else [topic]
        found: dict[str, MappedTopic] = {}
        supports_mappings = True

        async def query(name: str) -> None:
            nonlocal supports_mappings
            try:
                header = {"topic": name, "lo": "true"}
                answer = await self._access.invoke(mappings.address, RequestCode.GET_TOPIC_CONFIG, header)
            except BrokerRefused as refusal:
                supports_mappings = supports_mappings and refusal.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED
                return
            reported = decode(answer.body, MappedTopic)
            if reported.mapping is not None:
                found[name] = reported

        await gather(names or ["TBW102"], query)
        return msgspec.structs.replace(
            mappings, can_move_queues=False, supports_mappings=supports_mappings, topics=found
        )

    async def _merge(self, name: str, brokers: dict[str, BrokerMappings], *, includes_dead: bool) -> list[StaticTopic]:
        """Return the static topics with one name, by scope; with *includes_dead*, also those without a live broker."""
        reported = {broker: mappings.topics[name] for broker, mappings in brokers.items() if name in mappings.topics}
        records = {broker: from_detail(each.mapping) for broker, each in reported.items() if each.mapping is not None}
        merged = merge_scopes(records)
        if includes_dead or not merged or any(each.unled or each.missing for each in merged.values()):
            # A record may be missing: the name server remembers the last report of a dead broker.
            reports = await self._find_reports(name)
            silent = {broker for broker, mappings in brokers.items() if mappings.fault is not None}
            for broker, report in reports.items():
                if broker not in records and (broker in silent or broker not in brokers):
                    records[broker] = from_info(report)
            merged = merge_scopes(records)
        configs = dict(_configs(reported))
        return [
            StaticTopic(
                name=name,
                merged=each,
                records={broker: record for broker, record in records.items() if record.scope == scope},
                configs={broker: config for broker, config in configs.items() if records[broker].scope == scope},
            )
            for scope, each in merged.items()
        ]

    async def _find_reports(self, name: str) -> dict[str, MappingInfo]:
        try:
            return await self._access.find_reports(name)
        except BrokerRefused:
            return {}  # The name server withholds topics that were never complete: only the brokers' records remain.


def _configs(reported: dict[str, MappedTopic]) -> Iterable[tuple[str, TopicConfig]]:
    for broker, each in reported.items():
        fields = {name: getattr(each, name) for name in TopicConfig.__struct_fields__}
        yield broker, TopicConfig(**fields)


def to_mappings(brokers: dict[str, BrokerMappings], topics: Iterable[StaticTopic]) -> ClusterMappings:
    """Return the mappings of brokers and topics. Topics that share a name go into `same_named`."""
    by_name: dict[str, dict[str, StaticTopic]] = {}
    for topic in topics:
        by_name.setdefault(topic.name, {})[topic.merged.scope] = topic
    return ClusterMappings(
        brokers=brokers,
        topics={name: next(iter(found.values())) for name, found in by_name.items() if len(found) == 1},
        same_named={name: found for name, found in by_name.items() if len(found) > 1},
    )


def _ambiguous(name: str, scopes: Iterable[str]) -> NotAllowed:
    shown = ", ".join(map(to_shown_scope, sorted(scopes)))
    return NotAllowed(f"{name} is a separate static topic in each of {shown}: choose one with --unit")
