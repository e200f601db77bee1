"""Holds the routes that a client knows, and decides which are due for a poll.

    unknown ── put ──> known ── poll finds the same, or a different route ──> known
       ├──── put_template: the topic does not exist yet, a broker will create it on the first send ──> borrowed
       └──── put_missing: the name server does not know it ──> missing ── poll finds it ──> known

    known ── put_missing: it was deleted ──────────────────────────────────────────────────> missing
          └─ put_missing, deletion not reported ──> known ── a broker lacks it, too: drop ──> missing

A client that only sends may forget topics: an unused one (`expire`), and the oldest of too many missing ones.

A route that a name server no longer knows stays: the name server may have been restarted, and the brokers know better
whether they still accept messages.

A broker that drops out of a route has crashed, is restarting, or is gone for good; at first the client cannot know. The
table remembers it for one poll interval: a client that only polls would not notice its absence sooner. Meanwhile its
queues count as readable, so that their owners keep them and their positions in them; no new messages are sent to it.

    a, b ── poll finds a ──> route a, extended route a + b ──┬─ b is back within 30 s ──> a, b: no member lost a queue
                                                             └─ it is not ─────────────> a: members share its queues

The logical queues of a static topic always exist; only their leaders change. The table replaces a queue's leader only
by a newer one, whichever name server answers first:

    route: generation 2 is a's ──> a ── route: generation 3 is b's ──> b ── late route: generation 2 is a's ──> b
                                     └─ or a itself reports it, in an answer from b that a relayed

Performs no I/O; the caller supplies the time.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Final, TypeVar

import msgspec

from holdfast.client.routes.missing_topics import MissingTopics
from holdfast.model.leadership import NO_LEADER, Leader, find_leaders, update_leaders
from holdfast.model.mapping import TopicMapping
from holdfast.model.queue import MessageQueue
from holdfast.model.route import MASTER_ID, BrokerData, QueueData, Route
from holdfast.model.scope import covers, mock_broker
from holdfast.model.topic import Permission

POLL_INTERVAL_MS: Final = 30_000
# A borrowed route ends with the first send: the real one is needed soon.
_TEMPLATE_INTERVAL_MS: Final = 5_000
# A broker dropped out of the route, or its connection broke: expect a new route soon.
_UNSURE_INTERVAL_MS: Final = 3_000
# A unit was closed: commit and unlock its queues meanwhile; no request goes there afterwards.
_CLOSING_MS: Final = 2_500

_Data = TypeVar("_Data", BrokerData, QueueData)


class TopicRoute(msgspec.Struct, frozen=True):
    """A route and the values derived from it, computed once.

    Attributes:
        route: The latest answer of the name server.
        extended_route: *route*, and the brokers that dropped out of it recently.
        publishable: The queues of *route* that accept messages; keys are spread over them.
        sendable: The publishable queues that are reachable now, as far as the client knows.
        readable: The queues of *extended_route* that can be consumed.
        leaders: Logical queue -> its leader; empty unless the topic is static.
        masters: Broker name -> address of its master, of *extended_route*.
        is_template: The topic does not exist; this is the template of automatic creation under its name.
        generation: Rises with every change of any route. Values derived from a route are valid until it changes.
    """

    topic: str
    route: Route
    extended_route: Route
    publishable: tuple[MessageQueue, ...]
    sendable: tuple[MessageQueue, ...]
    readable: tuple[MessageQueue, ...]
    leaders: dict[MessageQueue, Leader]
    masters: dict[str, str]
    is_template: bool
    generation: int

    def broker_of(self, queue: MessageQueue) -> str:
        """Return the name of the broker that serves *queue*; for a logical queue that is its leader."""
        leader = self.leaders.get(queue)
        return queue.broker_name if leader is None else leader.broker

    def address_of(self, queue: MessageQueue) -> str | None:
        """Return the address of the broker that serves *queue*, or None."""
        return self.masters.get(self.broker_of(queue))

    def any_address_of(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """Return the address of replica *broker_id* of *broker_name*; else the master's, else that of any replica."""
        for broker in self.extended_route.broker_datas:
            if broker.broker_name == broker_name:
                addresses = broker.broker_addrs
                found = addresses.get(broker_id) or addresses.get(MASTER_ID)
                return found or next(iter(addresses.values()), None)
        return None


class _Entry(msgspec.Struct):
    """The state of one topic.

    Attributes:
        route: The route, or None if it was never found or the topic is missing.
        checked_ms: When the route was last looked up; None to look it up now.
        missing: Broker name -> since when the route lacks it; these brokers are still in the extended
            route.
        closing: Broker name -> since when the route lacks it because its unit was closed. Such a broker stays in
            the extended route a little longer, so that its queues can be given up.
        leaders: Logical queue -> its leader, as far as known; empty unless the topic is static.
        used_s: When a caller last sent to the topic, by a monotonic clock; None if no caller did yet.
        is_kept: Whether the topic never expires.
        is_unlisted: Whether the name server did not know it when last asked.
        is_deleted: Whether the name server reported its deletion when last asked.
    """

    route: TopicRoute | None = None
    checked_ms: int | None = None
    missing: dict[str, int] = {}
    closing: dict[str, int] = {}
    leaders: dict[MessageQueue, Leader] = {}
    used_s: float | None = None
    is_kept: bool = False
    is_unlisted: bool = False
    is_deleted: bool = False


class RouteTable:
    """The routes of one client.

    Args:
        poll_interval_ms: The maximum age of a route, and how long to remember a broker that dropped out of one.
        missing_max: How many missing topics to remember; None for all.
        unit: The unit whose routes these are; None for all.
    """

    def __init__(
        self, poll_interval_ms: int = POLL_INTERVAL_MS, missing_max: int | None = None, unit: str | None = None
    ) -> None:
        self._poll_interval_ms = poll_interval_ms
        self._unit = unit
        self._missing = MissingTopics(missing_max)
        self._suspects: set[str] = set()
        self._entries: dict[str, _Entry] = {}
        self._generation = 0

    def find(self, topic: str) -> TopicRoute | None:
        """Return the route of *topic*, or None if it was never found."""
        entry = self._entries.get(topic)
        return None if entry is None else entry.route

    def use(self, topic: str, now_s: float) -> TopicRoute | None:
        """Return the route of *topic* for a sender, and mark the topic as used. On the hot path of every send."""
        entry = self._entries.get(topic)
        if entry is None:
            return None
        entry.used_s = now_s
        return entry.route

    def keep(self, topic: str) -> None:
        """Exclude *topic* from expiry."""
        entry = self._entries.get(topic)
        if entry is not None:
            entry.is_kept = True

    def expire(self, now_s: float, after_s: float) -> list[str]:
        """Forget the topics that were not used for *after_s*, and return them.

        For a topic that was never used, that time begins with the first call.
        """
        for entry in self._entries.values():
            if entry.used_s is None:
                entry.used_s = now_s
        idle = [
            topic
            for topic, entry in self._entries.items()
            if entry.used_s is not None and now_s - entry.used_s >= after_s and not entry.is_kept
        ]
        for topic in idle:
            self._forget(topic)
        return idle

    def has_topic(self, topic: str) -> bool:
        """Return whether this client uses *topic*."""
        return topic in self._entries

    def is_missing(self, topic: str) -> bool:
        """Return whether *topic* is known not to exist."""
        return topic in self._missing

    def is_unlisted(self, topic: str) -> bool:
        """Return whether the name server did not know *topic* when last asked."""
        entry = self._entries.get(topic)
        return entry is not None and entry.is_unlisted

    def is_deleted(self, topic: str) -> bool:
        """Return whether the name server, when last asked, reported that *topic* was deleted."""
        entry = self._entries.get(topic)
        return entry is not None and entry.is_deleted

    def watch(self, topic: str) -> None:
        """Poll *topic* from now on, even before its route was found."""
        self._entries.setdefault(topic, _Entry())

    def put(self, topic: str, route: Route, now_ms: int) -> bool:
        """Store the route of *topic* and return whether it changed."""
        return self._put(topic, route, now_ms, is_template=False)

    def put_all(self, topic: str, routes: Sequence[Route], now_ms: int, *, is_complete: bool) -> bool:
        """Merge the routes of *topic* that several name servers returned at once, store the result, newest data first.

        Args:
            topic: The topic.
            routes: Their answers; at least one.
            now_ms: The current time.
            is_complete: Whether all name servers answered. Then generations that none of them reports are forgotten:
                the topic was deleted and created again, and its generations start over.

        Returns:
            Whether the route changed.
        """
        static_routes = [route for route in routes if route.mappings] or routes
        records = [record for route in static_routes for record in route.mappings.values()]
        entry = self._entries.setdefault(topic, _Entry())
        if is_complete:
            found = find_leaders(topic, records)
            entry.leaders = {
                queue: entry.leaders.get(queue, leader) if leader == NO_LEADER else leader
                for queue, leader in found.items()
            }
        else:
            entry.leaders = update_leaders(entry.leaders, find_leaders(topic, records))
        return self._put(topic, _merge(static_routes), now_ms, is_template=False)

    def put_template(self, topic: str, template: Route, now_ms: int, *, queues_max: int) -> bool:
        """Serve *topic*, which does not exist, by the template of automatic creation."""
        datas = [
            msgspec.structs.replace(
                data,
                read_queues=min(queues_max, data.read_queues),
                write_queues=min(queues_max, data.read_queues),
            )
            for data in template.queue_datas
        ]
        return self._put(topic, msgspec.structs.replace(template, queue_datas=datas), now_ms, is_template=True)

    def update_leader(self, queue: MessageQueue, leader: Leader) -> bool:
        """Store the leader of a logical queue that a broker reported, and return whether it is new.

        Ignores a leader that is older than the known one, and a broker that the route does not have.
        """
        entry = self._entries.get(queue.topic)
        route = None if entry is None else entry.route
        if entry is None or route is None or queue not in route.leaders or leader.broker not in route.masters:
            return False
        leaders = update_leaders(entry.leaders, {queue: leader})
        if leaders == entry.leaders:
            return False
        self._generation += 1
        entry.leaders = leaders
        entry.route = msgspec.structs.replace(
            route,
            leaders=leaders,
            sendable=_sendable(route.route, {known: leaders[known] for known in route.readable}),
            generation=self._generation,
        )
        return True

    def put_missing(self, topic: str, now_ms: int, *, is_deleted: bool = False) -> list[str]:
        """Record that the name server did not know *topic* just now, perhaps because it was deleted.

        A route that was known before stays; see `drop`.

        Returns:
            The topics that were forgotten because too many are missing.
        """
        entry = self._entries.setdefault(topic, _Entry())
        entry.checked_ms = now_ms
        entry.is_unlisted, entry.is_deleted = True, is_deleted
        return [] if entry.route is not None else self._add_missing(topic)

    def drop(self, topic: str) -> list[str]:
        """Mark *topic*, which the name server did not know just now, as missing, and discard its known route.

        Returns:
            The topics that were forgotten because too many are missing.
        """
        entry = self._entries.get(topic)
        if entry is None:
            return []
        entry.route, entry.leaders, entry.missing, entry.closing = None, {}, {}, {}
        return self._add_missing(topic)

    def due(self, now_ms: int) -> list[str]:
        """Return the topics whose routes are older than their poll interval."""
        return [topic for topic, entry in self._entries.items() if self._is_due(entry, now_ms)]

    def mark_stale(self, topic: str) -> None:
        """Make *topic* due for a poll, if this client uses it."""
        entry = self._entries.get(topic)
        if entry is not None:
            entry.checked_ms = None

    def mark_all_stale(self) -> None:
        """Make every topic due for a poll."""
        for entry in self._entries.values():
            entry.checked_ms = None

    def suspect_broker(self, address: str) -> None:
        """Record that the connection to *address* broke: poll its routes now, and often until `trust_broker`."""
        self._suspects.add(address)
        for entry in self._entries.values():
            if self._is_suspect(entry):
                entry.checked_ms = None

    def trust_broker(self, address: str) -> None:
        """Record that *address* is connected again."""
        self._suspects.discard(address)

    def find_address(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """Return the address of a broker according to any route, or None."""
        for entry in self._entries.values():
            if entry.route is not None:
                address = entry.route.extended_route.address_of(broker_name, broker_id)
                if address is not None:
                    return address
        return None

    def find_broker(self, address: str) -> str | None:
        """Return the name of the broker at *address* according to any route, or None."""
        for entry in self._entries.values():
            if entry.route is not None:
                for broker in entry.route.extended_route.broker_datas:
                    if address in broker.broker_addrs.values():
                        return broker.broker_name
        return None

    def broker_addresses(self, *, masters_only: bool) -> list[str]:
        """Return every broker address of every route, each once, including brokers that dropped out recently."""
        found = {
            address: None
            for entry in self._entries.values()
            if entry.route is not None
            for broker in entry.route.extended_route.broker_datas
            for broker_id, address in broker.broker_addrs.items()
            if broker_id == MASTER_ID or not masters_only
        }
        return list(found)

    def _add_missing(self, topic: str) -> list[str]:
        forgotten = self._missing.add(topic)
        for name in forgotten:
            self._forget(name)
        return forgotten

    def _forget(self, topic: str) -> None:
        self._missing.discard(topic)
        del self._entries[topic]

    def _is_due(self, entry: _Entry, now_ms: int) -> bool:
        if entry.checked_ms is None:
            return True
        interval_ms = self._poll_interval_ms
        if entry.route is not None and entry.route.is_template:
            interval_ms = _TEMPLATE_INTERVAL_MS
        elif entry.missing or entry.closing or self._is_suspect(entry) or NO_LEADER in entry.leaders.values():
            interval_ms = min(interval_ms, _UNSURE_INTERVAL_MS)
        return now_ms - entry.checked_ms >= interval_ms

    def _is_suspect(self, entry: _Entry) -> bool:
        if entry.route is None or not self._suspects:
            return False
        datas = entry.route.extended_route.broker_datas
        return any(address in self._suspects for broker in datas for address in broker.broker_addrs.values())

    def _put(self, topic: str, route: Route, now_ms: int, *, is_template: bool) -> bool:
        entry = self._entries.setdefault(topic, _Entry())
        entry.checked_ms = now_ms
        self._missing.discard(topic)
        if not is_template:
            entry.is_unlisted = entry.is_deleted = False
        old = entry.route
        extended = self._extend(entry, route, now_ms)
        entry.leaders = leaders = self._advance(entry, route, topic) if route.mappings else {}
        if (
            old is not None
            and (old.is_template, old.route, old.extended_route) == (is_template, route, extended)
            and old.leaders == leaders
        ):
            return False
        self._generation += 1
        current = self._current(route, leaders)
        publishable = tuple(filter(route.may_write, current)) if route.mappings else tuple(route.publishable(topic))
        entry.route = TopicRoute(
            topic=topic,
            route=route,
            extended_route=extended,
            publishable=publishable,
            sendable=_sendable(route, current) if route.mappings else publishable,
            readable=tuple(current) if route.mappings else tuple(extended.readable(topic)),
            leaders=leaders,
            masters={
                broker.broker_name: broker.broker_addrs[MASTER_ID]
                for broker in extended.broker_datas
                if MASTER_ID in broker.broker_addrs
            },
            is_template=is_template,
            generation=self._generation,
        )
        return True

    def _advance(self, entry: _Entry, route: Route, topic: str) -> dict[MessageQueue, Leader]:
        found = route.leaders(topic)
        known = entry.leaders
        if self._unit is not None:
            reported = {queue.broker_name for queue in found}
            known = {
                queue: leader
                for queue, leader in known.items()
                if queue.broker_name in reported or leader.broker in entry.closing
            }
        return update_leaders(known, found)

    def _current(self, route: Route, leaders: dict[MessageQueue, Leader]) -> dict[MessageQueue, Leader]:
        """Return the existing logical queues, without those of a unit that was closed recently."""
        if self._unit is None:
            return leaders
        reported = {mock_broker(record.scope) for record in route.mappings.values()}
        return {queue: leader for queue, leader in leaders.items() if queue.broker_name in reported}

    @staticmethod
    def _own_brokers(route: Route, unit: str) -> Iterator[str]:
        """Yield our unit's brokers, and those whose mapping covers it. Others are visible while their unit is open."""
        for broker in route.broker_datas:
            record = route.mappings.get(broker.broker_name)
            if broker.cluster == unit or (record is not None and covers(record.scope, unit)):
                yield broker.broker_name

    def _extend(self, entry: _Entry, route: Route, now_ms: int) -> Route:
        """Return *route* and the brokers that dropped out of it recently; record since when."""
        if entry.route is None or entry.route.is_template:
            return route
        before = entry.route.extended_route
        lost = {broker.broker_name for broker in before.broker_datas}
        lost -= {broker.broker_name for broker in route.broker_datas}
        foreign = set() if self._unit is None else lost - set(self._own_brokers(before, self._unit))
        since = {name: entry.missing.get(name, now_ms) for name in lost - foreign}
        entry.missing = {name: at_ms for name, at_ms in since.items() if now_ms - at_ms < self._poll_interval_ms}
        closing = {name: entry.closing.get(name, now_ms) for name in foreign}
        entry.closing = {name: at_ms for name, at_ms in closing.items() if now_ms - at_ms < _CLOSING_MS}
        if not entry.missing and not entry.closing:
            return route
        return msgspec.structs.replace(
            route,
            broker_datas=[*route.broker_datas, *_of_brokers(before.broker_datas, {**entry.missing, **entry.closing})],
            queue_datas=[*route.queue_datas, *_of_brokers(before.queue_datas, entry.missing)],
        )


def _sendable(route: Route, leaders: dict[MessageQueue, Leader]) -> tuple[MessageQueue, ...]:
    """Return the logical queues whose leaders are up and writable."""
    ready = {broker.broker_name for broker in route.broker_datas if MASTER_ID in broker.broker_addrs}
    ready -= {data.broker_name for data in route.queue_datas if not data.permission & Permission.WRITE}
    return tuple(queue for queue, leader in leaders.items() if leader.broker in ready and route.may_write(queue))


def _merge(routes: Sequence[Route]) -> Route:
    """Return the newest of *routes*, with the brokers and mappings that only the other routes have."""
    newest = max(routes, key=lambda route: max((record.epoch for record in route.mappings.values()), default=0))
    # The name server of the newest route decides alone which units are visible and which of them are writable.
    clusters = {data.cluster for data in newest.broker_datas}
    scopes = {record.scope for record in newest.mappings.values()}
    datas = [data for route in (*routes, newest) for data in route.broker_datas if data.cluster in clusters]
    brokers = {data.broker_name: data for data in datas}
    queues = {
        data.broker_name: data
        for route in (*routes, newest)
        for data in route.queue_datas
        if data.broker_name in brokers
    }
    records: dict[str, TopicMapping] = {}
    for record in (record for route in routes for record in route.mappings.values() if record.scope in scopes):
        known = records.get(record.broker)
        if known is None or record.epoch > known.epoch:
            records[record.broker] = record
    return msgspec.structs.replace(
        newest, broker_datas=list(brokers.values()), queue_datas=list(queues.values()), mappings=records
    )


def _of_brokers(datas: Sequence[_Data], brokers: Container[str]) -> list[_Data]:
    return [data for data in datas if data.broker_name in brokers]
