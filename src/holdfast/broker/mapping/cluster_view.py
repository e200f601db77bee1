"""The known addresses of other brokers, and the known leaders of logical queues.

    name servers ─ 106 addresses, 105 leaders ─┐
    reports of other brokers ──────────────────┴─> valid until something newer arrives, or a request proves it wrong

An entry may be stale; it never justifies a write. If a request based on it reaches the wrong broker, that broker
reports it. The caller then marks the entry as suspect, and the name servers are asked again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from holdfast.broker.flow.awaitables import Pause, PeerCall, call_all
from holdfast.broker.options import BrokerOptions
from holdfast.model.errors import MappingRefused, PeerFailed, RemoteProtocolError
from holdfast.model.leadership import NO_LEADER, Leader, find_leaders, update_leaders
from holdfast.model.mapping import LogicalQueue, TopicMapping
from holdfast.model.queue import LogicalQueueId, MessageQueue
from holdfast.model.route import MASTER_ID, Route
from holdfast.model.scope import GLOBAL, NO_BROKER, covers
from holdfast.model.segment import is_newer
from holdfast.wire.cluster.deletions import DELETIONS_FIELD
from holdfast.wire.cluster.mapping import from_detail
from holdfast.wire.cluster.route import MAPPING_FIELD, REPORTS_FIELD, ClusterInfo, decode_route
from holdfast.wire.cluster.units import SCOPE_FIELD
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.requests.moves import MappingsAnswer, decode_body

QUERY_TIMEOUT_MS: Final = 1_000
_WAIT_MS: Final = 20
_TOPICS_AT_ONCE: Final = 128


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of the name servers' knowledge of a topic and of the brokers in its scope.

    Attributes:
        is_answered: Whether any name server answered; also true if none is configured.
        brokers: The brokers in the topic's scope and their addresses.
        records: The last reported mapping of each broker of the topic, including brokers that are down.
    """

    is_answered: bool
    brokers: dict[str, str]
    records: list[TopicMapping]


class ClusterView:
    """Addresses by broker name, and leaders by topic and queue.

    Attributes:
        on_markers: Called with the deletion markers in a name server's response.
    """

    def __init__(self, options: BrokerOptions, on_markers: Callable[[str], None] = lambda _: None) -> None:
        self._name = options.name
        self._cluster = options.cluster
        self._clusters: dict[str, str] = {}  # of other brokers, as reported by name servers
        self._namesrv = options.namesrv
        self._addresses: dict[str, str] = {options.name: options.address}
        self._replicas: dict[str, str] = {}  # broker -> address of its replica with the lowest id
        self._leaders: dict[str, dict[MessageQueue, Leader]] = {}
        self._forgotten: dict[
            str, dict[str, dict[LogicalQueueId, int | None]]
        ] = {}  # topic, broker, queue -> generation last forgotten
        self._refreshing: set[str] = set()
        self._answered: set[str] = set()  # topics known to a name server; "" if one has sent addresses
        self._static: set[str] = set()  # topics that are static by the last answer of a name server
        self._is_suspect = False
        self._on_markers = on_markers

    # Queries.

    def address(self, broker: str) -> str | None:
        """Return the address of *broker*; None if it is unknown, or suspect until the next refresh."""
        return None if self._is_suspect and broker != self._name else self._addresses.get(broker)

    def replica(self, broker: str) -> str | None:
        """Return the address of a replica of *broker*, for reads while the broker is down, or None."""
        return self._replicas.get(broker)

    def replicas(self) -> list[str]:
        """Return the addresses of all known replicas."""
        return sorted(self._replicas.values())

    def brokers(self, scope: str = GLOBAL) -> list[str]:
        """Return the names of all other known brokers in *scope*."""
        names = sorted(self._addresses.keys() - {self._name})
        return names if scope == GLOBAL else [name for name in names if covers(scope, self.cluster_of(name))]

    def cluster_of(self, broker: str) -> str:
        """Return the cluster of *broker*; this broker's cluster if it is unknown."""
        return self._clusters.get(broker, self._cluster)

    def leader(self, topic: str, queue: LogicalQueueId) -> str | None:
        """Return the name of the broker that leads a logical queue, or None if it is unknown."""
        found = self.find_leader(topic, queue)
        return None if found.broker == NO_BROKER else found.broker

    def has_answer(self, topic: str = "") -> bool:
        """Return whether a name server that knows *topic* has ever answered; without a topic, whether any has.

        A name server returns everything that brokers registered, alive or not, and so a newer leader, too. A busy one
        knows the topic but no leader: then no newer leader is known to it.
        """
        return topic in self._answered

    def is_static(self, topic: str) -> bool:
        """Return whether *topic* is static, by the last answers of the name servers.

        A busy name server knows that the topic is static, but not yet who leads its queues.
        """
        return topic in self._static

    def leader_above(self, topic: str, queue: LogicalQueueId, generation: int | None) -> str | None:
        """Return the leader of a logical queue if its generation is above *generation*, otherwise None."""
        found = self.find_leader(topic, queue)
        return found.broker if is_newer(found.generation, generation) and found.broker != NO_BROKER else None

    def require_newest(self, topic: str, queue: LogicalQueue) -> None:
        """Check that no other broker leads a logical queue in a newer generation, and that its leader still knows it.

        Raises:
            MappingRefused: Another broker leads it, or it was forgotten: its next segment begins above its floor.
        """
        forgotten = self._forgotten.get(topic, {}).get(queue.leader.broker, {})
        if queue.generation is not None and not is_newer(queue.generation, forgotten.get(queue.queue)):
            raise MappingRefused(
                "never twice",
                f"{queue.leader.broker} was made to forget logical queue {queue.queue} of {topic}: give it a segment"
                f" with `holdfast queue set {topic} {queue.queue}`",
            )
        newer = self.leader_above(topic, queue.queue, queue.generation)
        if newer is not None and newer != self._name:
            raise MappingRefused(
                "newest leader",
                f"{newer} leads logical queue {queue.queue} of {topic} in a newer generation than {queue.generation}:"
                " read the mapping again",
            )

    def find_leader(self, topic: str, queue: LogicalQueueId) -> Leader:
        """Return the known leader of a logical queue with the highest generation and epoch; `NO_LEADER` if unknown."""
        leaders = self._leaders.get(topic, {})
        found = [leader for place, leader in leaders.items() if place.queue_id == queue]
        return max(found, key=lambda leader: leader.age, default=NO_LEADER)

    # Updates.

    def record_address(self, broker: str, address: str) -> None:
        """Record the address that a broker gave for itself."""
        self._addresses[broker] = address

    def record_leader(self, queue: MessageQueue, leader: Leader) -> None:
        """Record the leader of a queue, unless it is older than the known one."""
        self._leaders[queue.topic] = update_leaders(self._leaders.get(queue.topic, {}), {queue: leader})

    def record_mappings(self, topic: str, records: Iterable[TopicMapping]) -> None:
        """Record the leaders of *topic* from the mappings that its brokers reported.

        Mappings of other clusters, which may have a static topic of the same name, are ignored.
        """
        in_scope = [record for record in records if covers(record.scope, self._cluster)]
        self._leaders[topic] = update_leaders(self._leaders.get(topic, {}), find_leaders(topic, in_scope))
        self._forgotten.setdefault(topic, {}).update(
            (record.broker, {number: floor.generation for number, floor in record.floors.items()})
            for record in in_scope
        )

    def forget_address(self, address: str) -> None:
        """Drop the addresses of other brokers that equal *address*."""
        names = [name for name, known in self._addresses.items() if known == address and name != self._name]
        for name in names:
            del self._addresses[name]

    def forget_broker(self, broker: str) -> None:
        """Drop the address of a broker that was removed."""
        if broker != self._name:
            self._addresses.pop(broker, None)

    def forget_topic(self, topic: str) -> None:
        """Drop everything about a deleted topic."""
        self._leaders.pop(topic, None)
        self._forgotten.pop(topic, None)
        self._answered.discard(topic)
        self._static.discard(topic)

    def forget_leader(self, topic: str, queue: LogicalQueueId) -> None:
        """Drop the known leader of a queue, because that broker contradicts it."""
        leaders = self._leaders.get(topic, {})
        self._leaders[topic] = {known: leader for known, leader in leaders.items() if known.queue_id != queue}

    def suspect_addresses(self) -> None:
        """Suspect all addresses until the next refresh: a presumed leader reports that it does not lead."""
        self._is_suspect = True

    # Requests to name servers.

    async def refresh(self, topic: str | None = None) -> None:
        """Ask all name servers at once for addresses and for the leaders of *topic*.

        Concurrent calls for the same topic share one request. If no name server answers, the known entries stay.
        """
        key = topic or ""
        if key in self._refreshing:
            while key in self._refreshing:
                await Pause(_WAIT_MS)
            return
        self._refreshing.add(key)
        try:
            calls = [call for server in self._namesrv for call in self._build_queries(server, topic)]
            answers = await call_all(calls)
            kinds: set[bool | None] = set()
            for call, answer in zip(calls, answers, strict=True):
                if call.command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
                    self._record_addresses(answer)
                elif topic is not None:
                    kinds.add(self._record_leaders(answer, topic))
            if topic is not None:
                self._record_kind(topic, kinds)
        finally:
            self._refreshing.discard(key)
            self._is_suspect = False

    async def refresh_everywhere(self, topic: str) -> None:
        """Ask name servers and all brokers who leads *topic*: this broker may have been replaced before it leads."""
        await self.refresh(topic)
        await self.refresh_from_brokers()

    async def refresh_from_brokers(self) -> None:
        """Ask all brokers for their mappings."""
        calls = []
        for broker in self.brokers():
            with suppress(PeerFailed):
                address = await self.find_address(broker)
                calls.append(PeerCall(address, Command(code=RequestCode.GET_MAPPINGS), QUERY_TIMEOUT_MS))
        answers = await call_all(calls)
        for record in itertools.chain.from_iterable(map(read_mappings, answers)):
            self.record_mappings(record.topic, [record])

    async def refresh_topics(self, topics: Sequence[str]) -> None:
        """Ask the name servers about *topics*, many at a time. If none answers, the known entries stay."""
        for at in range(0, len(topics), _TOPICS_AT_ONCE):
            chunk = topics[at : at + _TOPICS_AT_ONCE]
            queries = [(topic, self._leader_query(server, topic)) for topic in chunk for server in self._namesrv]
            answers = await call_all(call for _, call in queries)
            kinds: dict[str, set[bool | None]] = {}
            for (topic, _), answer in zip(queries, answers, strict=True):
                kinds.setdefault(topic, set()).add(self._record_leaders(answer, topic))
            for topic, found in kinds.items():
                self._record_kind(topic, found)

    async def survey(self, topic: str, scope: str) -> Survey:
        """Ask all name servers at once about *topic* and the brokers in *scope*."""
        calls = [call for server in self._namesrv for call in self._build_queries(server, topic)]
        answers = await call_all(calls)
        brokers: dict[str, str] = {}
        records: list[TopicMapping] = []
        is_answered = not calls
        for call, answer in zip(calls, answers, strict=True):
            if call.command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
                self._record_addresses(answer)
                info = _read_info(answer)
                is_answered = is_answered or info is not None
                brokers |= {} if info is None else info.masters
            elif (route := _read_route(answer)) is not None:
                records += [record for record in route.mappings.values() if record.scope == scope]
        in_scope = {
            name: address
            for name, address in brokers.items()
            if name != self._name and covers(scope, self.cluster_of(name))
        }
        return Survey(is_answered=is_answered, brokers=in_scope, records=records)

    async def find_address(self, broker: str) -> str:
        """Return the address of *broker*; ask the name servers if it is unknown.

        Raises:
            PeerFailed: No name server knows it.
        """
        found = self.address(broker)
        if found is None:
            await self.refresh()
            found = self.address(broker)
        if found is None:
            raise PeerFailed(
                f"broker {broker} is not known to any name server: it is down or not registered", is_unsent=True
            )
        return found

    def _record_kind(self, topic: str, kinds: set[bool | None]) -> None:
        """Record whether *topic* is static; *kinds* has the verdict of each name server, None if it gave none."""
        if kinds != {None}:
            (self._static.add if True in kinds else self._static.discard)(topic)

    def _record_addresses(self, answer: Command | PeerFailed) -> None:
        info = _read_info(answer)
        if info is None:
            return
        self._answered.add("")
        for name, data in info.broker_addr_table.items():
            replicas = [address for number, address in sorted(data.broker_addrs.items()) if number != MASTER_ID]
            if replicas:
                self._replicas[name] = replicas[0]
            else:
                self._replicas.pop(name, None)
            if name != self._name and MASTER_ID in data.broker_addrs:
                self._addresses[name] = data.broker_addrs[MASTER_ID]
                self._clusters[name] = data.cluster

    def _record_leaders(self, answer: Command | PeerFailed, topic: str) -> bool | None:
        """Record the leaders in a name server's answer; return whether the topic is static, or None if unclear."""
        if isinstance(answer, PeerFailed):
            return None
        if DELETIONS_FIELD in answer.fields:
            self._on_markers(answer.fields[DELETIONS_FIELD])
        if answer.code == ResponseCode.SYSTEM_BUSY:
            self._answered.add(topic)
            return True
        if answer.code != ResponseCode.SUCCESS:
            return False if answer.code == ResponseCode.TOPIC_NOT_EXIST else None
        route = _read_route(answer)
        if route is None:
            return None
        self._answered.add(topic)
        for data in route.broker_datas:
            if data.broker_name != self._name and MASTER_ID in data.broker_addrs:
                self._addresses[data.broker_name] = data.broker_addrs[MASTER_ID]
        self.record_mappings(topic, route.mappings.values())
        return any(covers(record.scope, self._cluster) for record in route.mappings.values())

    def _build_queries(self, server: str, topic: str | None) -> list[PeerCall]:
        """Return the requests to one name server: the brokers' addresses, and the leaders of *topic*."""
        calls = [PeerCall(server, Command(code=RequestCode.GET_BROKER_CLUSTER_INFO), QUERY_TIMEOUT_MS)]
        if topic is not None:
            calls.append(self._leader_query(server, topic))
        return calls

    def _leader_query(self, server: str, topic: str) -> PeerCall:
        fields = {"topic": topic, MAPPING_FIELD: "1", REPORTS_FIELD: "1", SCOPE_FIELD: self._cluster}
        return PeerCall(server, Command(code=RequestCode.GET_ROUTEINFO_BY_TOPIC, fields=fields), QUERY_TIMEOUT_MS)


def _read_info(answer: Command | PeerFailed) -> ClusterInfo | None:
    """Decode the brokers in a name server's answer; return None if it is an error or cannot be decoded."""
    if isinstance(answer, PeerFailed) or answer.code != ResponseCode.SUCCESS:
        return None
    try:
        return java_json.decode(answer.body, ClusterInfo)
    except RemoteProtocolError:
        return None


def _read_route(answer: Command | PeerFailed) -> Route | None:
    """Decode the route in a name server's answer; return None if it is an error or cannot be decoded."""
    if isinstance(answer, PeerFailed) or answer.code != ResponseCode.SUCCESS:
        return None
    try:
        return decode_route(answer.body)
    except RemoteProtocolError:
        return None


def read_mappings(answer: Command | PeerFailed) -> list[TopicMapping]:
    """Return the mappings in a broker's answer; an empty list if the call failed."""
    if isinstance(answer, PeerFailed) or answer.code != ResponseCode.SUCCESS:
        return []
    try:
        topics = decode_body(answer.body, MappingsAnswer).topics
        return [from_detail(topic.mapping) for topic in topics if topic.mapping is not None]
    except RemoteProtocolError:
        return []
