"""How clients are told of a static topic: in one of two forms.

aware   brokers that hold something, queues of those that lead, and for every broker what it leads. A Java client
        merges these parts itself, by the highest epoch: all wear the same epoch and number of queues, and no queue
        is in two of them, so that it can come to no other result than ours.
mock    one broker that does not exist, has all the queues, and the address of a live one, which passes on what
        reaches it: for clients that cannot read the first form.

And how brokers are told: every report as it was registered. Whether anybody is alive, and whether clients can go by it,
is no matter to a broker that asks if it was replaced.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import msgspec

from holdfast.model.mapping import UNKNOWN_GENERATION, LogicalQueue, MergedTopic, TopicMapping
from holdfast.model.route import MASTER_ID, BrokerData, QueueData
from holdfast.model.scope import mock_broker
from holdfast.model.topic import Permission
from holdfast.nameserver.routes import Broker, Hosting
from holdfast.nameserver.static_topics import Report, StaticTopic
from holdfast.wire.mapping import Info, encode, to_extras, to_info
from holdfast.wire.route import encode_broker, encode_queue, join_route

_HOSTS_REMEMBERED: Final = 4096
_WAIT: Final = 1


def aware_body(topic: StaticTopic, brokers: Mapping[str, Broker], hosts: Mapping[str, Hosting]) -> bytes:
    """Return the route of a topic that is served, for clients that read mappings."""
    served = topic.served
    assert served is not None, "what is withheld has no route"
    present = [brokers[name] for name in sorted(topic.holders) if name in brokers]
    leaders = set(served.leaders.values())
    return join_route(
        [broker.text for broker in present],
        [_queue_text(broker, hosts) for broker in present if broker.name in leaders and broker.name in hosts],
        filter_servers={},
        # Never an order configuration: it would hide the mapping from producers.
        mappings={name: encode(info) for name, info in to_infos(served, topic.reports).items()},
    )


def look_at_static(topic: StaticTopic, brokers: Mapping[str, Broker], hosts: Mapping[str, Hosting]) -> int:
    """Return a number that differs when what clients are told does, in either form; but not why they are to wait."""
    if topic.served is None or topic.holders.isdisjoint(brokers):
        return _WAIT
    return hash((aware_body(topic, brokers, hosts), find_proxies(topic, brokers)))


def reports_body(topic: StaticTopic, brokers: Mapping[str, Broker]) -> bytes:
    """Return everything that is known of a topic, for brokers."""
    return join_route(
        [brokers[name].text for name in sorted(topic.holders) if name in brokers],
        [],
        filter_servers={},
        mappings={name: encode(to_report(report)) for name, report in sorted(topic.reports.items())},
    )


def to_report(report: Report) -> Info:
    """Return what a broker registered."""
    info = to_info(report.mapping)
    return info if report.tells_homes else msgspec.structs.replace(info, extras=None)


def _queue_text(broker: Broker, hosts: Mapping[str, Hosting]) -> bytes:
    return hosts[broker.name].read_only_text if broker.is_read_only else hosts[broker.name].text


def to_infos(served: MergedTopic, reporting: Mapping[str, object]) -> dict[str, Info]:
    """Return what each broker leads, with one epoch and one number of queues for all."""
    led: dict[str, dict[int, LogicalQueue]] = {name: {} for name in sorted(reporting)}
    for number, queue in sorted(served.queues.items()):
        if number < served.total:
            led.setdefault(queue.leader.broker, {})[number] = queue
    return {name: _to_info(served, name, queues) for name, queues in led.items()}


def _to_info(served: MergedTopic, broker: str, led: dict[int, LogicalQueue]) -> Info:
    told = {number: queue for number, queue in led.items() if queue.generation != UNKNOWN_GENERATION}
    return Info(
        broker=broker,
        led={number: queue.leader.queue_id for number, queue in led.items()},
        epoch=served.epoch,
        extras=to_extras(TopicMapping(topic=served.topic, broker=broker, queues=told)) if told else None,
        scope=served.scope,
        topic=served.topic,
        total=served.total,
    )


def find_proxies(topic: StaticTopic, brokers: Mapping[str, Broker]) -> tuple[str, ...]:
    """Return the live brokers that can stand in for the mock one: ours, and where there are none, any that report."""
    present = [
        (name, report)
        for name, report in sorted(topic.reports.items())
        if name in brokers and MASTER_ID in brokers[name].addresses
    ]
    # Any is better than none: a Java broker serves at least what it leads.
    ours = tuple(name for name, report in present if report.tells_homes)
    return ours or tuple(name for name, _ in present)


def host_of(peer: str) -> str:
    """Return the host of a peer that is `host:port`."""
    return peer.rpartition(":")[0]


@lru_cache(maxsize=_HOSTS_REMEMBERED)
def choose_proxy(host: str, proxies: tuple[str, ...]) -> str:
    """Return the broker that stands in for clients on *host*.

    The same for all clients and topics there; when a broker comes or leaves, only those move that must.
    """
    return max(proxies, key=lambda name: hashlib.blake2b(f"{host} {name}".encode(), digest_size=8).digest())


def mock_body(topic: StaticTopic, proxy: str, brokers: Mapping[str, Broker], hosts: Mapping[str, Hosting]) -> bytes:
    """Return the route of a topic that is served, for clients that read no mappings."""
    served = topic.served
    assert served is not None, "what is withheld has no route"
    name = mock_broker(served.scope)
    stand_in = brokers[proxy]
    leading = {leader for leader in served.leaders.values() if leader in hosts and leader in brokers}
    speaking = sorted(leading) or sorted(name for name in topic.reports if name in hosts and name in brokers)
    # One broker may be closed for writing while others lead too: only when all are is the topic.
    permission = 0
    for speaker in speaking:
        withdrawn = Permission.WRITE if brokers[speaker].is_read_only else 0
        permission |= hosts[speaker].queue.permission & ~withdrawn
    broker = BrokerData(
        cluster=stand_in.cluster, broker_name=name, broker_addrs={MASTER_ID: stand_in.addresses[MASTER_ID]}
    )
    queue = QueueData(
        broker_name=name,
        read_queues=served.total,
        write_queues=served.total,
        permission=permission,
        sys_flag=hosts[speaking[0]].queue.sys_flag if speaking else 0,
    )
    return join_route([encode_broker(broker)], [encode_queue(queue)], filter_servers={})
