"""The route table: the brokers, and how many queues of which topic each has.

    brokers   name  -> cluster, addresses by id, its queue shapes, its encoded text
    topics    topic -> broker name -> Hosting
    static    topic -> the brokers' reports about its logical queues (`static_topics.py`)
    departed  name  -> cluster and topics of a broker that is down; in memory only, until the broker is back

A route is assembled on demand, from parts that were encoded when they changed. Brokers have few shapes (4 queues,
readable and writable, ...) and many topics, so all topics of one shape share one `Hosting`. Comparing a registration of
ten thousand topics with the table takes ten thousand lookups and allocates nothing.

Does not know which brokers are alive (`broker_liveness.py`), nor the format of requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from holdfast.machine.turn import Turn
from holdfast.model.route import MASTER_ID, BrokerData, QueueData
from holdfast.model.scope import covers
from holdfast.model.topic import Permission, TopicConfig
from holdfast.nameserver.route_changes import RouteChanges
from holdfast.nameserver.routes.static_topics import NORMAL_TOPIC_CONFLICT, StaticTopics
from holdfast.nameserver.routes.unit_visibility import FULL_VISIBILITY, Visibility
from holdfast.wire.cluster.route import DepartedBroker, encode_broker, encode_queue, join_cluster_info, join_route

# A broker that keeps using new shapes starts over at this limit: sharing only affects speed.
_SHAPES_MAX: Final = 1024
_DEPARTED_MAX: Final = 256


class Hosting(msgspec.Struct, frozen=True, gc=False):
    """One broker's queues of a topic, with their encoded forms in a route.

    Attributes:
        text: As registered.
        read_only_text: Without write permission.
        foreign_text: For clients of other units: without write permission and without write queues.
    """

    queue: QueueData
    text: bytes
    read_only_text: bytes
    foreign_text: bytes


class Broker:
    """One broker name: a master (id 0), its slaves, or both."""

    __slots__ = ("addresses", "cluster", "is_acting_master_allowed", "is_wiped", "name", "shapes", "text", "zone")

    def __init__(self, name: str) -> None:
        self.name = name
        self.cluster = ""
        self.addresses: dict[int, str] = {}
        self.zone: str | None = None
        self.is_acting_master_allowed = False
        self.is_wiped = False  # an operator withdrew write permission; until it is restored or the broker leaves
        self.shapes: dict[tuple[int, int, int, int], Hosting] = {}
        self.text = b""

    @property
    def is_read_only(self) -> bool:
        """Whether routes deny writing on this broker, whatever the permissions of its topics are."""
        return self.is_wiped or (self.is_acting_master_allowed and MASTER_ID not in self.addresses)

    def shape(self, read_queues: int, write_queues: int, permission: int, sys_flag: int) -> Hosting:
        """Return the shared value for these queue counts and flags on this broker."""
        key = (read_queues, write_queues, permission, sys_flag)
        found = self.shapes.get(key)
        if found is None:
            if len(self.shapes) >= _SHAPES_MAX:
                self.shapes.clear()
            queue = QueueData(
                broker_name=self.name,
                read_queues=read_queues,
                write_queues=write_queues,
                permission=permission,
                sys_flag=sys_flag,
            )
            read_only = msgspec.structs.replace(queue, permission=permission & ~Permission.WRITE)
            foreign = msgspec.structs.replace(read_only, write_queues=0)
            found = self.shapes[key] = Hosting(queue, *map(encode_queue, (queue, read_only, foreign)))
        return found

    def encode_queues(self, hosting: Hosting, *, is_foreign: bool) -> bytes:
        """Return the encoded form of *hosting* for a route."""
        if is_foreign:
            return hosting.foreign_text
        return hosting.read_only_text if self.is_read_only else hosting.text

    def update_text(self) -> None:
        """Update the encoded text."""
        self.text = encode_broker(
            BrokerData(
                cluster=self.cluster,
                broker_name=self.name,
                broker_addrs=self.addresses,
                zone_name=self.zone,
                enable_acting_master=self.is_acting_master_allowed,
            )
        )


class RouteTable:
    """Brokers and topics.

    Args:
        turn: The turn of the name server.
        changes: Learns which routes change.
    """

    def __init__(self, turn: Turn, changes: RouteChanges) -> None:
        self.changes = changes
        self.brokers: dict[str, Broker] = {}
        self.topics: dict[str, dict[str, Hosting]] = {}
        self.static = StaticTopics(turn, self.brokers, changes, self._cluster_of)
        self._departed: dict[str, DepartedBroker] = {}
        self._filter_servers: dict[str, list[str]] = {}

    def _cluster_of(self, name: str) -> str | None:
        broker = self.brokers.get(name)
        return None if broker is None else broker.cluster

    # Brokers.

    def add_address(
        self, name: str, broker_id: int, address: str, *, cluster: str, zone: str | None, is_acting_master_allowed: bool
    ) -> None:
        """Set *address* as *broker_id* of a broker name, and remove it from other ids of that name."""
        broker = self.brokers.get(name)
        if broker is None:
            broker = self.brokers[name] = Broker(name)
            self._departed.pop(name, None)
        elif broker_id != MASTER_ID:
            # Only the master decides cluster and zone of the name: a replica may be anywhere.
            cluster, zone = broker.cluster, broker.zone
        addresses = {number: other for number, other in broker.addresses.items() if other != address}
        addresses[broker_id] = address
        if (broker.addresses, broker.cluster, broker.zone, broker.is_acting_master_allowed) != (
            addresses,
            cluster,
            zone,
            is_acting_master_allowed,
        ):
            broker.addresses, broker.cluster, broker.zone = addresses, cluster, zone
            broker.is_acting_master_allowed = is_acting_master_allowed
            self._mark_broker_changed(broker)

    def remove_address(self, name: str, address: str, *, is_down: bool = True) -> None:
        """Remove *address* from a broker name. Without any address left, the name and all its queues are removed.

        Args:
            name: The broker name.
            address: One of its addresses.
            is_down: Whether the broker then counts as down, because it is expected back.
        """
        self._filter_servers.pop(address, None)
        broker = self.brokers.get(name)
        if broker is None or address not in broker.addresses.values():
            return
        broker.addresses = {number: other for number, other in broker.addresses.items() if other != address}
        self._mark_broker_changed(broker)
        if broker.addresses:
            return
        hosted = [topic for topic, hosts in self.topics.items() if name in hosts]
        if is_down:
            counts = {topic: self.topics[topic][name].queue.read_queues for topic in hosted}
            self._departed[name] = DepartedBroker(broker.cluster, counts)
            if len(self._departed) > _DEPARTED_MAX:
                del self._departed[next(iter(self._departed))]
        del self.brokers[name]
        for topic in hosted:
            self._drop(topic, name)
        self.static.broker_left(name)

    def forget_departed(self, name: str) -> None:
        """Count a broker as down no longer: an operator removed it."""
        self._departed.pop(name, None)

    def set_filter_servers(self, name: str, address: str, servers: list[str]) -> None:
        """Set the class filter servers of *address*, which routes carry."""
        if self._filter_servers.get(address, []) == servers:
            return
        if servers:
            self._filter_servers[address] = servers
        else:
            del self._filter_servers[address]
        self._mark_broker_changed(self.brokers[name])

    def _mark_broker_changed(self, broker: Broker) -> None:
        broker.update_text()
        self.changes.add(topic for topic, hosts in self.topics.items() if broker.name in hosts)
        self.changes.add(topic.name for topic in self.static.topics_held_by(broker.name))

    # Topics.

    def update_topics(self, name: str, topics: Iterable[TopicConfig]) -> None:
        """Add or change topics of a registered broker. Topics that are not named stay unchanged."""
        broker = self.brokers[name]
        for topic in topics:
            hosting = broker.shape(topic.read_queues, topic.write_queues, topic.permission, topic.sys_flag)
            self._set(topic.name, name, hosting)

    def find_conflicts(self, name: str, topics: Iterable[str]) -> Iterator[str]:
        """Yield a text for each of *topics* that is not served on this broker because of a static one of its name."""
        for topic in topics if self.static.topics else ():
            found = self.static.by_name.get(topic, {}).values()
            if any(name in static.conflicting_hosts for static in found):
                yield f"{topic} on {name}: {NORMAL_TOPIC_CONFLICT}"

    def update_topic_queues(self, topic: str, queues: Iterable[QueueData]) -> str | None:
        """Add or change one topic on several brokers; if one of them is unknown, change nothing and return its name."""
        queues = list(queues)
        for queue in queues:
            if queue.broker_name not in self.brokers:
                return queue.broker_name
        for queue in queues:
            shape = self.brokers[queue.broker_name].shape
            hosting = shape(queue.read_queues, queue.write_queues, queue.permission, queue.sys_flag)
            self._set(topic, queue.broker_name, hosting)
        return None

    def update_mappings(self, name: str, mappings: Mapping[str, Any]) -> dict[str, str]:
        """Apply a broker's reports of static topics, before its topics are hosted; return those refused, and why."""
        refused = {}
        for topic, plain in mappings.items():
            hosts = self.topics.get(topic, {})
            reason = self.static.accept_report(name, topic, plain, normal_hosts=hosts.keys())
            if reason is not None:
                refused[topic] = reason
            else:
                self.static.note_normal_hosts(topic, hosts.keys())
        return refused

    def delete_topic(self, topic: str, *, cluster: str | None = None) -> bool:
        """Remove a topic, everywhere or in one cluster; return whether there was something to remove."""
        names = {*self.topics.get(topic, {})}
        if cluster is not None:
            names = {name for name in names if self.brokers[name].cluster == cluster}
        for static in self.static.by_name.get(topic, {}).values():
            for name in static.reports:
                broker_cluster = self._cluster_of(name)
                # The cluster of a dead broker is unknown: only the scope indicates it.
                if cluster is None or (
                    covers(static.scope, cluster) if broker_cluster is None else broker_cluster == cluster
                ):
                    names.add(name)
        for name in names:
            self._drop(topic, name)
        self.static.drop(topic, names)
        for departed in self._departed.values():
            if cluster in {None, departed.cluster}:
                departed.read_queues.pop(topic, None)
        return bool(names)

    def set_wiped(self, name: str, *, is_wiped: bool) -> int:
        """Withdraw or restore write permission on a whole broker; return how many topics it has."""
        broker = self.brokers.get(name)
        if broker is None:
            return 0
        if broker.is_wiped != is_wiped:
            broker.is_wiped = is_wiped
            self._mark_broker_changed(broker)
        return sum(name in hosts for hosts in self.topics.values())

    def _set(self, topic: str, name: str, hosting: Hosting) -> None:
        hosts = self.topics.get(topic)
        if hosts is None:
            hosts = self.topics[topic] = {}
        if hosts.get(name) is not hosting:
            hosts[name] = hosting
            self.changes.add([topic])
            self.static.note_normal_hosts(topic, hosts.keys())

    def _drop(self, topic: str, name: str) -> None:
        hosts = self.topics.get(topic, {})
        if hosts.pop(name, None) is not None:
            self.changes.add([topic])
            self.static.note_normal_hosts(topic, hosts.keys())
            if not hosts:
                del self.topics[topic]

    # Queries.

    def find_body(
        self, topic: str, *, order_topic_conf: str | None = None, visibility: Visibility = FULL_VISIBILITY
    ) -> bytes | None:
        """Return the body of the route answer of a normal topic; None if no broker serves it."""
        served = self._find_served(topic, visibility)
        if not served and not self._is_in_other_zones(topic, visibility):
            return None
        brokers = [broker for broker, _ in served]
        return join_route(
            [broker.text for broker in brokers],
            [text for _, text in served],
            filter_servers=self._find_filter_servers(brokers),
            order_topic_conf=self._narrow_order(order_topic_conf, visibility),
        )

    def route_digest(
        self, topic: str, *, order_topic_conf: str | None = None, visibility: Visibility = FULL_VISIBILITY
    ) -> int:
        """Return a number that changes when `find_body` does, at much lower cost; 0 if no broker serves the topic."""
        served = self._find_served(topic, visibility)
        if not served and not self._is_in_other_zones(topic, visibility):
            return 0
        filters = self._find_filter_servers([broker for broker, _ in served])
        order = self._narrow_order(order_topic_conf, visibility)
        # All topics of a shape share these texts, and a text caches its hash.
        return hash((*[(broker.text, text) for broker, text in served], repr(filters), order))

    def is_normal_in(self, topic: str, unit: str) -> bool:
        """Return whether a broker of *unit* serves *topic* as a normal topic."""
        return bool(self._find_served(topic, Visibility(unit, sees_other_units=False)))

    def _is_in_other_zones(self, topic: str, visibility: Visibility) -> bool:
        """Return whether a client sees no broker only because of its zone: upstream returns an empty route then."""
        return bool(visibility.zone) and bool(self._find_served(topic, visibility.without_zone()))

    def _find_served(self, topic: str, visibility: Visibility) -> list[tuple[Broker, bytes]]:
        """Return the brokers that serve a normal topic, by name, with the encoded form of their queues."""
        hosts = self.topics.get(topic, {})
        statics = self.static.by_name.get(topic, {}).values()
        served = []
        for name in sorted(hosts):
            broker = self.brokers[name]
            is_hidden = any(
                name not in static.normal_hosts and covers(static.scope, broker.cluster) for static in statics
            )
            # If the master is down, clients read from a replica, in whichever zone that is.
            is_in_zone = MASTER_ID not in broker.addresses or visibility.shows_zone(broker.zone)
            if visibility.shows(broker.cluster) and is_in_zone and not is_hidden:
                served.append(
                    (broker, broker.encode_queues(hosts[name], is_foreign=not visibility.can_write(broker.cluster)))
                )
        return served

    def _narrow_order(self, order_topic_conf: str | None, visibility: Visibility) -> str | None:
        """Return the queue counts of an ordered topic, restricted to writable brokers."""
        if order_topic_conf is None or visibility.is_plain:
            return order_topic_conf
        kept = [
            item
            for item in order_topic_conf.split(";")
            if (cluster := self._cluster_of(item.partition(":")[0])) is not None and visibility.can_write(cluster)
        ]
        return ";".join(kept) or None

    def _find_filter_servers(self, brokers: Iterable[Broker]) -> dict[str, list[str]]:
        if not self._filter_servers:
            return {}
        return {
            address: servers
            for broker in brokers
            for address in broker.addresses.values()
            if (servers := self._filter_servers.get(address))
        }

    def has_cluster(self, cluster: str) -> bool:
        """Return whether a broker of *cluster* is registered."""
        return any(broker.cluster == cluster for broker in self.brokers.values())

    def has_zone(self, zone: str) -> bool:
        """Return whether a broker registered with *zone*, given in lower case."""
        return any(broker.zone is not None and broker.zone.lower() == zone for broker in self.brokers.values())

    def clusters(self) -> dict[str, list[str]]:
        """Return the broker names of every cluster."""
        clusters: dict[str, list[str]] = {}
        for name in sorted(self.brokers):
            clusters.setdefault(self.brokers[name].cluster, []).append(name)
        return clusters

    def cluster_body(self, *, departed: Mapping[str, DepartedBroker] | None = None) -> bytes:
        """Return the body of the answer to 106, with the *departed* brokers if the caller asked for them."""
        brokers = {name: self.brokers[name].text for name in sorted(self.brokers)}
        return join_cluster_info(brokers, self.clusters(), departed)

    def find_departed(self, topics: Iterable[str]) -> dict[str, DepartedBroker]:
        """Return the brokers that left, each with the queues that it had of *topics*; logical queues do not count."""
        requested = set(topics)
        found = {}
        for name, departed in sorted(self._departed.items()):
            counts = {topic: departed.read_queues[topic] for topic in requested if departed.read_queues.get(topic)}
            scopes = {topic: self.static.by_name.get(topic, {}) for topic in counts}
            normal = {
                topic: count
                for topic, count in counts.items()
                if not any(covers(scope, departed.cluster) for scope in scopes[topic])
            }
            found[name] = DepartedBroker(departed.cluster, normal)
        return found

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Return the topics that at least one broker of *cluster* has."""
        names = self.clusters().get(cluster, [])
        return [topic for topic, hosts in self.topics.items() if not hosts.keys().isdisjoint(names)]
