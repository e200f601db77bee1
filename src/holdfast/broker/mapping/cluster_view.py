"""What this broker believes of the others: where they are, and who leads which logical queue.

    name servers ─ 106 addresses, 105 leaders ─┐
    what other brokers say in passing ─────────┴─> believed until something newer is told, or it proved wrong

A belief may be old; it is never a reason to write. Whoever acts on it is told by the other side when it was wrong,
doubts it here, and asks the name servers again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from holdfast.broker.flow.awaitables import Pause, PeerCall, Procedure, ask_all
from holdfast.broker.options import BrokerOptions
from holdfast.model.errors import MappingRefused, PeerFailed, RemoteProtocolError
from holdfast.model.leadership import NO_LEADER, Leader, advance, find_leaders
from holdfast.model.mapping import UNKNOWN_GENERATION, LogicalQueue, TopicMapping
from holdfast.model.queue import MessageQueue
from holdfast.model.route import MASTER_ID, Route
from holdfast.model.scope import GLOBAL, NOBODY, covers
from holdfast.wire.cluster.deletions import DELETIONS_FIELD
from holdfast.wire.cluster.route import MAPPING_FIELD, REPORTS_FIELD, ClusterInfo, decode_route
from holdfast.wire.cluster.units import SCOPE_FIELD
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command

ASK_TIMEOUT_MS: Final = 1_000
_WAIT_MS: Final = 20
_TOPICS_AT_ONCE: Final = 128


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """What name servers tell at one moment of a topic and of those who may have a part in it.

    Attributes:
        is_told: Whether any of them answered; also where there is none to ask.
        brokers: The brokers that they list in the topic's scope, and where each is reached.
        records: What brokers reported of the topic last, those that are down too.
    """

    is_told: bool
    brokers: dict[str, str]
    records: list[TopicMapping]


class ClusterView:
    """Addresses by broker name, and leaders by topic and queue.

    Attributes:
        on_markers: Is called with the deletion markers of a topic that a name server sent along.
    """

    def __init__(self, options: BrokerOptions) -> None:
        self._name = options.name
        self._cluster = options.cluster
        self._clusters: dict[str, str] = {}  # of the others, as far as name servers told
        self._namesrv = options.namesrv
        self._addresses: dict[str, str] = {options.name: options.address}
        self._replicas: dict[str, str] = {}  # of each broker that has one, the one with the lowest number
        self._leaders: dict[str, dict[MessageQueue, Leader]] = {}
        self._retired: dict[str, dict[str, dict[int, int]]] = {}  # topic, broker, queue: the generation it forgot last
        self._asking: set[str] = set()
        self._told: set[str] = set()  # topics of which a name server knew, and "" when one told addresses
        self._static: set[str] = set()  # topics that are static, by what a name server said last
        self._is_doubted = False
        self.on_markers: Callable[[str], None] = lambda _: None

    # Asking what is believed.

    def address(self, broker: str) -> str | None:
        """Return where *broker* is reached; None when that is unknown, or in doubt until the next refresh."""
        return None if self._is_doubted and broker != self._name else self._addresses.get(broker)

    def replica(self, broker: str) -> str | None:
        """Return where a replica of *broker* is reached, which can be read while the broker is down; None without."""
        return self._replicas.get(broker)

    def replicas(self) -> list[str]:
        """Return where replicas are reached."""
        return sorted(self._replicas.values())

    def brokers(self, scope: str = GLOBAL) -> list[str]:
        """Return every other broker that is known, of those in *scope*."""
        others = sorted(self._addresses.keys() - {self._name})
        return others if scope == GLOBAL else [name for name in others if covers(scope, self.cluster_of(name))]

    def cluster_of(self, broker: str) -> str:
        """Return the cluster of *broker*; ours, where nobody told."""
        return self._clusters.get(broker, self._cluster)

    def leader(self, topic: str, queue: int) -> str | None:
        """Return who leads a logical queue, or None when nobody is known to."""
        found = self.find_leader(topic, queue)
        return None if found.broker == NOBODY else found.broker

    def is_told(self, topic: str = "") -> bool:
        """Say whether a name server that knows *topic* has ever answered; without a topic, whether any has at all.

        It tells everything that brokers registered, whether they are alive or not, and so of a newer leader, too. One
        that is busy has heard of the topic, and believes nobody: then there is no newer leader that it knows of.
        """
        return topic in self._told

    def is_static(self, topic: str) -> bool:
        """Say whether *topic* is static, by what name servers said when they were last asked for it.

        One that is busy has heard of it, and cannot tell yet who leads its queues.
        """
        return topic in self._static

    def leader_above(self, topic: str, queue: int, generation: int) -> str | None:
        """Return who leads a logical queue if that is newer than *generation*."""
        found = self.find_leader(topic, queue)
        return found.broker if found.generation > generation and found.broker != NOBODY else None

    def require_newest(self, topic: str, queue: LogicalQueue) -> None:
        """See that no other broker leads a logical queue in a newer generation, and that its leader did not forget it.

        Raises:
            MappingRefused: another leads it, or it was forgotten: its next home begins above its floor.
        """
        retired = self._retired.get(topic, {}).get(queue.leader.broker, {})
        if retired.get(queue.queue, UNKNOWN_GENERATION) >= queue.generation > UNKNOWN_GENERATION:
            raise MappingRefused(
                "never twice",
                f"{queue.leader.broker} was made to forget logical queue {queue.queue} of {topic}: give it a new home"
                f" with `holdfast queue set {topic} {queue.queue}`",
            )
        newer = self.leader_above(topic, queue.queue, queue.generation)
        if newer is not None and newer != self._name:
            raise MappingRefused(
                "newest leader",
                f"{newer} leads logical queue {queue.queue} of {topic} in a newer generation than {queue.generation}:"
                " read the mapping again",
            )

    def find_leader(self, topic: str, queue: int) -> Leader:
        """Return who leads a logical queue, and since when; nobody when nobody is known to."""
        held = self._leaders.get(topic, {})
        found = [leader for place, leader in held.items() if place.queue_id == queue]
        return max(found, key=lambda leader: (leader.generation, leader.epoch), default=NO_LEADER)

    # Learning.

    def teach(self, broker: str, address: str) -> None:
        """Take note of where a broker is, by its own word."""
        self._addresses[broker] = address

    def teach_leader(self, place: MessageQueue, leader: Leader) -> None:
        """Take note of who leads a queue; what is older than what is believed changes nothing."""
        self._leaders[place.topic] = advance(self._leaders.get(place.topic, {}), {place: leader})

    def learn(self, topic: str, records: Iterable[TopicMapping]) -> None:
        """Take note of who leads the queues of *topic* by what its brokers recorded.

        Other clusters may have a static topic of that name, too: theirs does not concern us.
        """
        ours = [record for record in records if covers(record.scope, self._cluster)]
        self._leaders[topic] = advance(self._leaders.get(topic, {}), find_leaders(topic, ours))
        self._retired.setdefault(topic, {}).update(
            (record.broker, {number: floor.generation for number, floor in record.floors.items()}) for record in ours
        )

    def forget(self, address: str) -> None:
        """Believe no longer that somebody is reached at *address*."""
        gone = [name for name, known in self._addresses.items() if known == address and name != self._name]
        for name in gone:
            del self._addresses[name]

    def forget_broker(self, broker: str) -> None:
        """Believe no longer that there is such a broker: it was removed."""
        if broker != self._name:
            self._addresses.pop(broker, None)

    def forget_topic(self, topic: str) -> None:
        """Believe nothing of a topic: it was deleted."""
        self._leaders.pop(topic, None)
        self._retired.pop(topic, None)
        self._told.discard(topic)
        self._static.discard(topic)

    def forget_leader(self, topic: str, queue: int) -> None:
        """Believe nothing of who leads a queue: its leader says something else."""
        held = self._leaders.get(topic, {})
        self._leaders[topic] = {place: leader for place, leader in held.items() if place.queue_id != queue}

    def doubt(self) -> None:
        """Believe in no address until the name servers were asked again: somebody who should lead says it does not."""
        self._is_doubted = True

    # Asking name servers.

    def refresh(self, topic: str | None = None) -> Procedure[None]:
        """Ask the name servers, all of them at once, for addresses and for the leaders of *topic*.

        What several ask for at once is asked for once. That nobody answers is no failure: the old belief stays.
        """
        key = topic or ""
        if key in self._asking:
            while key in self._asking:
                yield Pause(_WAIT_MS)
            return
        self._asking.add(key)
        try:
            calls = [call for server in self._namesrv for call in self._questions(server, topic)]
            answers = yield from ask_all(calls)
            kinds: set[bool | None] = set()
            for call, answer in zip(calls, answers, strict=True):
                if call.command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
                    self._take_addresses(answer)
                elif topic is not None:
                    kinds.add(self._take_leaders(answer, topic))
            if topic is not None:
                self._note_kind(topic, kinds)
        finally:
            self._asking.discard(key)
            self._is_doubted = False

    def refresh_topics(self, topics: Sequence[str]) -> Procedure[None]:
        """Ask the name servers about *topics*, many at a time. Where none of them answers, the old belief stays."""
        for at in range(0, len(topics), _TOPICS_AT_ONCE):
            chunk = topics[at : at + _TOPICS_AT_ONCE]
            asked = [(topic, self._ask_leaders(server, topic)) for topic in chunk for server in self._namesrv]
            answers = yield from ask_all(call for _, call in asked)
            kinds: dict[str, set[bool | None]] = {}
            for (topic, _), answer in zip(asked, answers, strict=True):
                kinds.setdefault(topic, set()).add(self._take_leaders(answer, topic))
            for topic, found in kinds.items():
                self._note_kind(topic, found)

    def survey(self, topic: str, scope: str) -> Procedure[Survey]:
        """Ask all name servers at once what they know of *topic*, and of the brokers in *scope*."""
        calls = [call for server in self._namesrv for call in self._questions(server, topic)]
        answers = yield from ask_all(calls)
        brokers: dict[str, str] = {}
        records: list[TopicMapping] = []
        is_told = not calls
        for call, answer in zip(calls, answers, strict=True):
            if call.command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
                self._take_addresses(answer)
                info = _read_info(answer)
                is_told = is_told or info is not None
                brokers |= {} if info is None else info.masters
            elif (route := _read_route(answer)) is not None:
                records += [record for record in route.mappings.values() if record.scope == scope]
        inside = {
            name: address
            for name, address in brokers.items()
            if name != self._name and covers(scope, self.cluster_of(name))
        }
        return Survey(is_told=is_told, brokers=inside, records=records)

    def find_address(self, broker: str) -> Procedure[str]:
        """Return where *broker* is reached, asking if that is unknown.

        Raises:
            PeerFailed: nobody knows.
        """
        found = self.address(broker)
        if found is None:
            yield from self.refresh()
            found = self.address(broker)
        if found is None:
            raise PeerFailed(f"broker {broker} is not known to any name server: it is down", is_unsent=True)
        return found

    def _note_kind(self, topic: str, kinds: set[bool | None]) -> None:
        """Take note of whether *topic* is static; *kinds* has what each name server says, None where one is silent."""
        if kinds != {None}:
            (self._static.add if True in kinds else self._static.discard)(topic)

    def _take_addresses(self, answer: Command | PeerFailed) -> None:
        info = _read_info(answer)
        if info is None:
            return
        self._told.add("")
        for name, data in info.broker_addr_table.items():
            copies = [address for number, address in sorted(data.broker_addrs.items()) if number != MASTER_ID]
            if copies:
                self._replicas[name] = copies[0]
            else:
                self._replicas.pop(name, None)
            if name != self._name and MASTER_ID in data.broker_addrs:
                self._addresses[name] = data.broker_addrs[MASTER_ID]
                self._clusters[name] = data.cluster

    def _take_leaders(self, answer: Command | PeerFailed, topic: str) -> bool | None:
        """Learn who leads the queues of a topic; return whether it is static, if that is said."""
        if isinstance(answer, PeerFailed):
            return None
        if DELETIONS_FIELD in answer.fields:
            self.on_markers(answer.fields[DELETIONS_FIELD])
        if answer.code == ResponseCode.SYSTEM_BUSY:
            self._told.add(topic)
            return True
        if answer.code != ResponseCode.SUCCESS:
            return False if answer.code == ResponseCode.TOPIC_NOT_EXIST else None
        route = _read_route(answer)
        if route is None:
            return None
        self._told.add(topic)
        for data in route.broker_datas:
            if data.broker_name != self._name and MASTER_ID in data.broker_addrs:
                self._addresses[data.broker_name] = data.broker_addrs[MASTER_ID]
        self.learn(topic, route.mappings.values())
        return any(covers(record.scope, self._cluster) for record in route.mappings.values())

    def _questions(self, server: str, topic: str | None) -> list[PeerCall]:
        """Return what a name server is asked: where brokers are, and who leads the queues of *topic*."""
        calls = [PeerCall(server, Command(code=RequestCode.GET_BROKER_CLUSTER_INFO), ASK_TIMEOUT_MS)]
        if topic is not None:
            calls.append(self._ask_leaders(server, topic))
        return calls

    def _ask_leaders(self, server: str, topic: str) -> PeerCall:
        fields = {"topic": topic, MAPPING_FIELD: "1", REPORTS_FIELD: "1", SCOPE_FIELD: self._cluster}
        return PeerCall(server, Command(code=RequestCode.GET_ROUTEINFO_BY_TOPIC, fields=fields), ASK_TIMEOUT_MS)


def _read_info(answer: Command | PeerFailed) -> ClusterInfo | None:
    """Return the brokers that a name server lists; None if it does not tell."""
    if isinstance(answer, PeerFailed) or answer.code != ResponseCode.SUCCESS:
        return None
    try:
        return java_json.decode(answer.body, ClusterInfo)
    except RemoteProtocolError:
        return None


def _read_route(answer: Command | PeerFailed) -> Route | None:
    """Return the route that a name server tells; None if it does not."""
    if isinstance(answer, PeerFailed) or answer.code != ResponseCode.SUCCESS:
        return None
    try:
        return decode_route(answer.body)
    except RemoteProtocolError:
        return None
