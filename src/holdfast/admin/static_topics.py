"""Static topics of a cluster: who records what of them, and what all records say together.

    every broker ──7007──> its records ─┐
    (Java: 351 for each topic)          ├─ merge ─> leaders, homes, contradictions
    name server ──105────> dead rows ───┘

The rows of the name server count only for brokers that do not answer: they are the last word of a dead leader.
Reads, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from holdfast.admin.cluster_access import Broker, NotAllowed, NotFound, Reach, body_of, gather
from holdfast.model.errors import BrokerRefused, ConnectionLost, RequestTimeout
from holdfast.model.mapping import MergedTopic, TopicMapping, merge_scopes
from holdfast.model.scope import GLOBAL, covers, to_shown_scope
from holdfast.model.spelling_hint import nearest
from holdfast.model.topic import TopicConfig
from holdfast.wire.cluster.mapping import Info, MappedTopic, decode, from_detail, from_info
from holdfast.wire.cluster.route import TopicList
from holdfast.wire.cluster.units import UnitState
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.requests.moves import Mappings, Move

FIRST_WITH_MAPPINGS: Final = 413
"""The protocol version of RocketMQ 5.0.0: what is older drops mappings."""
_NAMES_SHOWN: Final = 10


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """One broker, as far as static topics go.

    Attributes:
        speaks: Whether it moves queues as we do; a Java broker only records them.
        knows_mappings: Whether it can record them at all; RocketMQ 4.x cannot.
        fault: Why it did not answer; None when it did.
        topics: Its record of each static topic, with how it hosts the topic.
        moves: The moves that it drives.
        draining: It was drained: it gets queues only by orders that name it.
    """

    name: str
    cluster: str
    address: str
    speaks: bool = True
    knows_mappings: bool = True
    fault: str | None = None
    topics: dict[str, MappedTopic] = {}
    moves: list[Move] = []
    draining: bool = False

    @property
    def is_ready(self) -> bool:
        """Whether queues can be moved to it and away from it."""
        return self.fault is None and self.speaks


class StaticTopic(msgspec.Struct, frozen=True, kw_only=True):
    """One static topic.

    Attributes:
        name: Its name.
        merged: What all records say together.
        records: Broker to its own record; of a dead broker the one that the name server remembers.
        configs: Broker to how it hosts the topic; only of those that answered.
    """

    name: str
    merged: MergedTopic
    records: dict[str, TopicMapping]
    configs: dict[str, TopicConfig]

    @property
    def config(self) -> TopicConfig:
        """How the topic is hosted, but for the number of queues, which differs from broker to broker."""
        return next(iter(self.configs.values()), TopicConfig(name=self.name))

    def next_physical(self, broker: str) -> int:
        """Return a physical queue of *broker* that the topic never used."""
        used = {number for record in self.records.values() for number in record.used_on(broker)}
        config = self.configs.get(broker)
        return max([*(number + 1 for number in used), 0 if config is None else config.write_queues])


class ClusterMappings(msgspec.Struct, frozen=True, kw_only=True):
    """Every broker and every static topic, at one moment.

    Attributes:
        topics: By name.
        twins: Those of which there are several of a name, by name and scope; not among the others.
    """

    holders: dict[str, Holder]
    topics: dict[str, StaticTopic]
    twins: dict[str, dict[str, StaticTopic]] = {}

    @property
    def every(self) -> list[StaticTopic]:
        """All of them."""
        return [topic for name in (*self.topics, *self.twins) for topic in self.find(name)]

    def find(self, name: str) -> list[StaticTopic]:
        """Return the static topics of this name, whatever their scopes."""
        twins = self.twins.get(name)
        return list(twins.values()) if twins else [self.topics[name]] if name in self.topics else []

    def within(self, unit: str) -> ClusterMappings:
        """Return the same with those topics only that are fixed in *unit*, or everywhere."""
        return self._keep(lambda topic: covers(topic.merged.scope, unit))

    def around(self, broker: str) -> ClusterMappings:
        """Return the same with those topics only in which *broker* may have a part."""
        holder = self.holders.get(broker)
        if holder is not None:
            return self.within(holder.cluster)
        return self._keep(lambda topic: topic.merged.scope == GLOBAL or broker in topic.records)

    def _keep(self, is_kept: Callable[[StaticTopic], bool]) -> ClusterMappings:
        return to_mappings(self.holders, filter(is_kept, self.every))

    def require_inside(self, topic: StaticTopic, names: Iterable[str]) -> None:
        """Do nothing when *topic* may have queues on all of *names*.

        Raises:
            NotFound: the name server knows no such broker.
            NotAllowed: one is outside of its scope.
        """
        for name in names:
            holder = self.get_holder(name)
            if not covers(topic.merged.scope, holder.cluster):
                scope = to_shown_scope(topic.merged.scope)
                raise NotAllowed(
                    f"broker {name} is in cluster {holder.cluster}, and {topic.name} is fixed in {scope}: choose one"
                    " there"
                )

    def apart(self) -> list[ClusterMappings]:
        """Return the same for each scope by itself: there a name has one meaning."""
        by_scope: dict[str, list[StaticTopic]] = {}
        for topic in self.every:
            by_scope.setdefault(topic.merged.scope, []).append(topic)
        return [to_mappings(self.holders, topics) for _, topics in sorted(by_scope.items())]

    def by_scope(self, *, cluster: str | None = None) -> list[tuple[dict[str, dict[int, str]], list[str]]]:
        """Return the leaders of all topics, apart for each scope, and the brokers that get queues in it.

        Args:
            cluster: Leave out what is fixed elsewhere.

        Raises:
            NotAllowed: a name is that of several topics.
        """
        for name, scopes in self.twins.items():
            raise _ambiguous(name, scopes)
        groups: dict[str, dict[str, dict[int, str]]] = {}
        for name, topic in self.topics.items():
            groups.setdefault(topic.merged.scope, {})[name] = topic.merged.leaders
        return [
            (leaders, [name for name in self.takers if covers(scope, self.holders[name].cluster)])
            for scope, leaders in sorted(groups.items())
            if cluster is None or covers(scope, cluster)
        ]

    @property
    def leaders(self) -> dict[str, dict[int, str]]:
        """Topic to logical queue to the broker that leads it. Of several of a name each stands under name and scope."""
        twins = [topic for scopes in self.twins.values() for topic in scopes.values()]
        return {name: topic.merged.leaders for name, topic in self.topics.items()} | {
            f"{topic.name} of {to_shown_scope(topic.merged.scope)}": topic.merged.leaders for topic in twins
        }

    @property
    def moves(self) -> list[Move]:
        """Every move that a broker drives, the newest last."""
        found = [move for holder in self.holders.values() for move in holder.moves]
        return sorted(found, key=lambda move: (move.started_ms, move.id))

    @property
    def ready(self) -> list[str]:
        """The brokers that queues can be moved to."""
        return [name for name, holder in self.holders.items() if holder.is_ready]

    @property
    def takers(self) -> list[str]:
        """The brokers that get queues where nobody is named: those that can, but for the drained."""
        return [name for name in self.ready if not self.holders[name].draining]

    @property
    def lost(self) -> list[str]:
        """Brokers that have a part in a queue, and that the name server does not know any more: they are down."""
        homes = [home for topic in self.every for queue in topic.merged.queues.values() for home in queue.readable]
        return sorted({home.broker for home in homes} - self.holders.keys())

    def get_holder(self, name: str) -> Holder:
        """Return the broker *name*.

        Raises:
            NotFound: the name server knows none; the text names the nearest.
        """
        holder = self.holders.get(name)
        if holder is None and name in self.lost:
            raise NotFound(f"broker {name} is down, and the name server has forgotten it: start it, or choose another")
        if holder is None:
            raise NotFound(f"no broker {name!r}{nearest(name, self.holders)}")
        return holder

    def get_topic(self, name: str) -> StaticTopic:
        """Return the static topic *name*.

        Raises:
            NotFound: there is none; the text says what there is.
            NotAllowed: there are several.
        """
        topic = self.topics.get(name)
        if name in self.twins:
            raise _ambiguous(name, self.twins[name])
        if topic is None:
            known = {each for holder in self.holders.values() for each in holder.topics}
            is_short = 0 < len(known) <= _NAMES_SHOWN
            hint = nearest(name, known) if is_short else ": `holdfast topic list` shows what there is"
            raise NotFound(f"no static topic {name!r}{hint}")
        return topic

    def require_ready(self, names: Iterable[str]) -> None:
        """Do nothing when all of *names* can take part in a move.

        Raises:
            NotFound: the name server knows no such broker.
            NotAllowed: one does not answer, or does not speak our codes.
        """
        for name in names:
            holder = self.get_holder(name)
            if holder.fault is not None:
                raise NotAllowed(f"broker {name} does not answer ({holder.fault}): start it, or choose another")
            if not holder.speaks:
                raise NotAllowed(
                    f"broker {name} does not know how to move single queues: it is not a Holdfast broker, or an older"
                    " one. Upgrade it, or remap the whole topic with RocketMQ's `mqadmin remappingStaticTopic`"
                )


class StaticTopics:
    """Questions about static topics."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach

    async def require_support(self) -> None:
        """Do nothing when every name server that answers can keep mappings.

        Raises:
            NotAllowed: one drops them; the text says which and what to do.
        """
        for address in self._reach.name_servers:
            try:
                answer = await self._reach.ask(address, RequestCode.GET_BROKER_CLUSTER_INFO)
            except (ConnectionLost, RequestTimeout):
                continue  # Whether any answers is found out by whoever asks next.
            if answer.version < FIRST_WITH_MAPPINGS:
                raise NotAllowed(
                    f"the name server at {address} is older than RocketMQ 5.0 (protocol version {answer.version}) and"
                    " drops mappings: static topics cannot work under it. Replace it by a Holdfast name server; normal"
                    " topics work meanwhile"
                )

    async def read(self, *, topic: str | None = None, thorough: bool = False) -> ClusterMappings:
        """Return every static topic, or only *topic*, as the brokers record it now.

        Args:
            topic: The only one that is wanted.
            thorough: Look also for topics that nobody but a dead broker recorded: asks about every topic there is.

        Raises:
            NotFound: the name server knows no broker.
            RemoteProtocolError: a broker's record cannot be read.
        """
        masters = await self._reach.all_masters()
        holders = {holder.name: holder for holder in await gather(masters, lambda one: self._ask(one, topic))}
        names = {name for holder in holders.values() for name in holder.topics}
        dead = {topic} if topic is not None else {*await self._names()} if thorough else await self._orphans(holders)
        wanted = sorted(names | dead if topic is None else {topic})
        found = await gather(wanted, lambda name: self._merge(name, holders, thorough=name in dead))
        view = to_mappings(holders, (each for group in found for each in group))
        return view if self._reach.unit is None else view.within(self._reach.unit)

    async def _orphans(self, holders: dict[str, Holder]) -> set[str]:
        """Return the topics that are fixed in a cluster of which no broker is left: nobody here records them."""
        try:
            answer = await self._reach.ask_name_server(RequestCode.GET_SWITCH)
        except BrokerRefused:
            return set()  # It knows nothing of units.
        alive = {holder.cluster for holder in holders.values()}
        units = body_of(answer, UnitState).units
        return {name for unit, known in units.items() if unit not in alive for name in known.topics}

    async def find(self, topic: str) -> StaticTopic | None:
        """Return *topic* as the brokers record it now; None when it is no static topic."""
        return (await self.read(topic=topic)).topics.get(topic)

    async def _ask(self, broker: Broker, topic: str | None) -> Holder:
        """Return what *broker* tells; *topic* limits what a Java broker is asked for."""
        holder = Holder(name=broker.name, cluster=broker.cluster, address=broker.address)
        try:
            answer = await self._reach.ask(broker.address, RequestCode.GET_MAPPINGS)
        except (ConnectionLost, RequestTimeout) as error:
            return msgspec.structs.replace(holder, fault=str(error))
        except BrokerRefused as refusal:
            if refusal.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return await self._ask_java(holder, topic)
            return msgspec.structs.replace(holder, fault=str(refusal))
        told = body_of(answer, Mappings)
        return msgspec.structs.replace(
            holder,
            topics={each.name: each for each in told.topics if each.mapping is not None},
            moves=told.moves,
            draining=told.draining,
        )

    async def _names(self) -> list[str]:
        answer = await self._reach.ask_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(body_of(answer, TopicList).topic_list)

    async def _ask_java(self, holder: Holder, topic: str | None) -> Holder:
        """Return what a broker tells that is asked topic by topic."""
        names = await self._names() if topic is None else [topic]
        found: dict[str, MappedTopic] = {}
        knows_mappings = True

        async def ask(name: str) -> None:
            nonlocal knows_mappings
            try:
                header = {"topic": name, "lo": "true"}
                answer = await self._reach.ask(holder.address, RequestCode.GET_TOPIC_CONFIG, header)
            except BrokerRefused as refusal:
                knows_mappings = knows_mappings and refusal.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED
                return
            told = decode(answer.body, MappedTopic)
            if told.mapping is not None:
                found[name] = told

        await gather(names or ["TBW102"], ask)
        return msgspec.structs.replace(holder, speaks=False, knows_mappings=knows_mappings, topics=found)

    async def _merge(self, name: str, holders: dict[str, Holder], *, thorough: bool) -> list[StaticTopic]:
        """Return the static topics of a name, by scope; if *thorough*, also one whose brokers are all dead."""
        told = {broker: holder.topics[name] for broker, holder in holders.items() if name in holder.topics}
        records = {broker: from_detail(each.mapping) for broker, each in told.items() if each.mapping is not None}
        merged = merge_scopes(records)
        if thorough or not merged or any(each.unled or each.missing for each in merged.values()):
            # Somebody is missing: the name server remembers what a dead broker said last.
            rows = await self._find_rows(name)
            silent = {broker for broker, holder in holders.items() if holder.fault is not None}
            for broker, row in rows.items():
                if broker not in records and (broker in silent or broker not in holders):
                    records[broker] = from_info(row)
            merged = merge_scopes(records)
        configs = dict(_configs(told))
        return [
            StaticTopic(
                name=name,
                merged=each,
                records={broker: record for broker, record in records.items() if record.scope == scope},
                configs={broker: config for broker, config in configs.items() if records[broker].scope == scope},
            )
            for scope, each in merged.items()
        ]

    async def _find_rows(self, name: str) -> dict[str, Info]:
        try:
            return await self._reach.find_reports(name)
        except BrokerRefused:
            return {}  # It withholds a topic that never was complete: the brokers' own records are all there is.


def _configs(told: dict[str, MappedTopic]) -> Iterable[tuple[str, TopicConfig]]:
    for broker, each in told.items():
        fields = {name: getattr(each, name) for name in TopicConfig.__struct_fields__}
        yield broker, TopicConfig(**fields)


def to_mappings(holders: dict[str, Holder], topics: Iterable[StaticTopic]) -> ClusterMappings:
    """Return brokers and topics, those apart whose names are not theirs alone."""
    by_name: dict[str, dict[str, StaticTopic]] = {}
    for topic in topics:
        by_name.setdefault(topic.name, {})[topic.merged.scope] = topic
    return ClusterMappings(
        holders=holders,
        topics={name: next(iter(found.values())) for name, found in by_name.items() if len(found) == 1},
        twins={name: found for name, found in by_name.items() if len(found) > 1},
    )


def _ambiguous(name: str, scopes: Iterable[str]) -> NotAllowed:
    shown = ", ".join(map(to_shown_scope, sorted(scopes)))
    return NotAllowed(f"{name} is a static topic of its own in each of {shown}: say which with --unit")
