"""Renders the route of a static topic, in one of two forms for clients.

aware   the brokers that hold records, the queues of those that lead, and the queues that each broker leads. A Java
        client merges these parts by the highest epoch. All parts have the same epoch and queue count, and no queue
        is in two parts, so the client can only reach the same result as we do.
mock    one broker that does not exist. It has all queues, and the address of a live broker that relays requests to
        the leaders: for clients that cannot read the aware form.

Several topics may share a name, each with its own scope. A client may see more than one of them: each has its own mock
broker name. Topics that a client may only read are without write permission in either form.

Brokers get every report as it was registered. A broker asks whether it was replaced, so it does not matter whether
brokers are alive, or whether the reports are usable for clients.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

import msgspec

from holdfast.model.mapping import LogicalQueue, MergedTopic, TopicMapping
from holdfast.model.queue import LogicalQueueId
from holdfast.model.route import MASTER_ID, BrokerData, QueueData
from holdfast.model.scope import NO_BROKER, mock_broker
from holdfast.model.topic import Permission
from holdfast.nameserver.routes.route_table import Broker, Hosting
from holdfast.nameserver.routes.static_topics import Report, StaticTopic
from holdfast.wire.cluster.mapping import MappingInfo, encode, to_extras, to_info
from holdfast.wire.cluster.route import encode_broker, encode_queue, join_route

_HOSTS_REMEMBERED: Final = 4096


class RoutePart(msgspec.Struct, frozen=True):
    """A static topic of the queried name that is served.

    Attributes:
        is_foreign: Whether it is read-only for the viewer.
    """

    topic: StaticTopic
    is_foreign: bool = False

    @property
    def served(self) -> MergedTopic:
        """The merged state that clients see."""
        assert self.topic.served is not None, "a withheld topic has no route"
        return self.topic.served


def aware_body(parts: Iterable[RoutePart], brokers: Mapping[str, Broker], hosts: Mapping[str, Hosting]) -> bytes:
    """Return the route of the served parts, for clients that read mappings."""
    parts = list(parts)
    present: dict[str, bytes] = {}
    queues: list[bytes] = []
    mappings: dict[str, bytes] = {}
    for part in parts:
        holders = [brokers[name] for name in sorted(part.topic.holders) if name in brokers]
        leaders = set(part.served.leaders.values())
        present |= {broker.name: broker.text for broker in holders}
        queues += [
            broker.encode_queues(hosts[broker.name], is_foreign=part.is_foreign)
            for broker in holders
            if broker.name in leaders and broker.name in hosts
        ]
        mappings |= {name: encode(info) for name, info in to_infos(part.served, part.topic.reports).items()}
    return join_route(
        present.values(),
        queues,
        filter_servers={},
        order_topic_conf=_find_writable(parts) if any(part.is_foreign for part in parts) else None,
        mappings=mappings,
    )


def _find_writable(parts: Iterable[RoutePart]) -> str:
    """Return the writable queues, in the form that ordered topics use.

    If it is present, Java's producers take their queues from it, and their consumers still take them from the mapping;
    both find the leader of a queue in the mapping. It must be absent if all queues are writable, so that producers see
    a new queue as soon as the mapping has it.
    """
    own = [f"{mock_broker(part.topic.scope)}:{part.served.total}" for part in parts if not part.is_foreign]
    return ";".join(own) or f"{NO_BROKER}:0"


def static_route_digest(parts: Iterable[RoutePart], brokers: Mapping[str, Broker], hosts: Mapping[str, Hosting]) -> int:
    """Return a number that changes when the route changes, in either form."""
    parts = list(parts)
    return hash((aware_body(parts, brokers, hosts), find_proxies(parts, brokers)))


def reports_body(topics: Iterable[StaticTopic], brokers: Mapping[str, Broker]) -> bytes:
    """Return all reports about the topics of a name, for brokers."""
    topics = list(topics)
    holders = {name for topic in topics for name in topic.holders}
    return join_route(
        [brokers[name].text for name in sorted(holders) if name in brokers],
        [],
        filter_servers={},
        mappings={
            name: encode(registered_info(report)) for topic in topics for name, report in sorted(topic.reports.items())
        },
    )


def registered_info(report: Report) -> MappingInfo:
    """Return the info that a broker registered."""
    info = to_info(report.mapping)
    return info if report.has_segments else msgspec.structs.replace(info, extras=None)


def to_infos(served: MergedTopic, reports: Mapping[str, object]) -> dict[str, MappingInfo]:
    """Return the queues that each broker leads, with one epoch and one queue count for all."""
    led: dict[str, dict[LogicalQueueId, LogicalQueue]] = {name: {} for name in sorted(reports)}
    for number, queue in sorted(served.queues.items()):
        if number < served.total:
            led.setdefault(queue.leader.broker, {})[number] = queue
    return {name: _to_info(served, name, queues) for name, queues in led.items()}


def _to_info(served: MergedTopic, broker: str, led: dict[LogicalQueueId, LogicalQueue]) -> MappingInfo:
    known = {number: queue for number, queue in led.items() if queue.generation is not None}
    return MappingInfo(
        broker=broker,
        led_queues={number: queue.leader.queue_id for number, queue in led.items()},
        epoch=served.epoch,
        extras=to_extras(TopicMapping(topic=served.topic, broker=broker, queues=known)) if known else None,
        scope=served.scope,
        topic=served.topic,
        total=served.total,
    )


def find_proxies(parts: Iterable[RoutePart], brokers: Mapping[str, Broker]) -> tuple[tuple[str, ...], ...]:
    """Return, for each part, the live brokers that can stand in for its mock broker."""
    return tuple(_find_proxies(part.topic, brokers) for part in parts)


def _find_proxies(topic: StaticTopic, brokers: Mapping[str, Broker]) -> tuple[str, ...]:
    """Return the live Holdfast brokers that report, or else all live brokers that report."""
    present = [
        (name, report)
        for name, report in sorted(topic.reports.items())
        if name in brokers and MASTER_ID in brokers[name].addresses
    ]
    # A Java broker does not relay, but it serves at least the queues that it leads.
    holdfast_brokers = tuple(name for name, report in present if report.has_segments)
    return holdfast_brokers or tuple(name for name, _ in present)


def host_of(peer: str) -> str:
    """Return the host of a peer that is `host:port`."""
    return peer.rpartition(":")[0]


def choose_proxies(host: str, proxies: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """Return, for each part, the broker that stands in for clients on *host*; empty if there is none."""
    return tuple(choose_proxy(host, each) if each else "" for each in proxies)


@lru_cache(maxsize=_HOSTS_REMEMBERED)
def choose_proxy(host: str, proxies: tuple[str, ...]) -> str:
    """Return the broker that stands in for clients on *host*.

    It is the same for all clients and topics there. When a broker comes or leaves, only the necessary hosts move.
    """
    return max(proxies, key=lambda name: hashlib.blake2b(f"{host} {name}".encode(), digest_size=8).digest())


def mock_body(
    parts: Iterable[RoutePart], proxies: Iterable[str], brokers: Mapping[str, Broker], hosts: Mapping[str, Hosting]
) -> bytes:
    """Return the route of the served parts, for clients that read no mappings: one mock broker for each part."""
    rendered = [
        _mock_part(part, brokers[proxy], brokers, hosts) for part, proxy in zip(parts, proxies, strict=True) if proxy
    ]
    return join_route([broker for broker, _ in rendered], [queue for _, queue in rendered], filter_servers={})


def _mock_part(
    part: RoutePart, stand_in: Broker, brokers: Mapping[str, Broker], hosts: Mapping[str, Hosting]
) -> tuple[bytes, bytes]:
    served = part.served
    name = mock_broker(served.scope)
    leading = {leader for leader in served.leaders.values() if leader in hosts and leader in brokers}
    sources = sorted(leading) or sorted(name for name in part.topic.reports if name in hosts and name in brokers)
    # Single brokers may be closed for writing. The topic is closed only when all that lead are.
    permission = 0
    for source in sources:
        withdrawn = Permission.WRITE if part.is_foreign or brokers[source].is_read_only else 0
        permission |= hosts[source].queue.permission & ~withdrawn
    broker = BrokerData(
        cluster=stand_in.cluster, broker_name=name, broker_addrs={MASTER_ID: stand_in.addresses[MASTER_ID]}
    )
    queue = QueueData(
        broker_name=name,
        read_queues=served.total,
        write_queues=0 if part.is_foreign else served.total,
        permission=permission,
        sys_flag=hosts[sources[0]].queue.sys_flag if sources else 0,
    )
    return encode_broker(broker), encode_queue(queue)
