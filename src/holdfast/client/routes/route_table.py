"""What a client knows about who serves which topic.

    unknown ── put ──> known ── poll finds the same, or another route ──> known
       ├──── put_template: the topic does not exist yet, a broker will create it on the first send ──> borrowed
       └──── put_missing: nobody knows it ──> missing ── poll finds it ──> known

    known ── put_missing: it was deleted ──────────────────────────────────────────────> missing
          └─ put_missing, no word of a deletion ──> known ── a broker does not have it either: drop ──> missing

Whoever only sends may forget: a topic that nobody uses (`expire`), and the oldest of too many missing ones.

A route that a name server does not know any more stays: the name server may have been restarted, and brokers know
better whether they still accept messages.

A broker that drops out of a route has crashed, is being restarted, or is gone for good; nobody can tell at first. So it
is remembered for as long as a client that polls would not have noticed. Meanwhile its queues count as readable, so that
their owners keep them and their places in them; nothing is sent to it of its own accord.

    a, b ── poll finds a ──> route a, reach a + b ──┬─ b is back within 30 s ──> a, b: nobody lost anything
                                                    └─ it is not ─────────────> a: others share what is left

Of a static topic all logical queues are there, always; what changes is who leads them. A queue's leader is given up
only for a newer one, whichever name server answers first:

    route: generation 2 is a's ──> a ── route: generation 3 is b's ──> b ── late route: generation 2 is a's ──> b
                                     └─ or a itself says so, in an answer that came from b by way of it

Decides what is due for a poll; asks nobody. Time comes in.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Final, TypeVar

import msgspec

from holdfast.client.routes.missing_topics import MissingTopics
from holdfast.model.leadership import NO_LEADER, Leader, advance, find_leaders
from holdfast.model.mapping import TopicMapping
from holdfast.model.queue import MessageQueue
from holdfast.model.route import MASTER_ID, BrokerData, QueueData, Route
from holdfast.model.scope import covers, mock_broker
from holdfast.model.topic import Permission

POLL_INTERVAL_MS: Final = 30_000
# A borrowed route ends with the first send: the real one is wanted soon.
_BORROWED_INTERVAL_MS: Final = 5_000
# A broker dropped out of the route, or its connection broke: news is expected.
_UNSURE_INTERVAL_MS: Final = 3_000
# A unit was closed: what was read there is committed and unlocked, then nobody is asked any more.
_PARTING_MS: Final = 2_500

_Data = TypeVar("_Data", BrokerData, QueueData)


class TopicRoute(msgspec.Struct, frozen=True):
    """A route and what follows from it, worked out once.

    Attributes:
        route: What the name server said last.
        reach: The same, and the brokers that dropped out of it a moment ago.
        publishable: The queues of *route* that take messages; keys are spread over them.
        sendable: Those of them that can be reached now, as far as is known.
        readable: The queues of *reach* that can be consumed.
        leaders: Of a static topic: each of its logical queues and who leads it.
        masters: Broker name -> address of its master, of *reach*.
        is_borrowed: The topic does not exist; this is the template of automatic creation under its name.
        generation: Rises with every change of any route, so that what was derived from a route can be kept until then.
    """

    topic: str
    route: Route
    reach: Route
    publishable: tuple[MessageQueue, ...]
    sendable: tuple[MessageQueue, ...]
    readable: tuple[MessageQueue, ...]
    leaders: dict[MessageQueue, Leader]
    masters: dict[str, str]
    is_borrowed: bool
    generation: int

    def broker_of(self, queue: MessageQueue) -> str:
        """Return the name of the broker that serves *queue*: of a logical queue its leader's."""
        leader = self.leaders.get(queue)
        return queue.broker_name if leader is None else leader.broker

    def address_of(self, queue: MessageQueue) -> str | None:
        """Return where the broker that serves *queue* listens, or None."""
        return self.masters.get(self.broker_of(queue))

    def any_address_of(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """Return where *broker_id* of *broker_name* listens; if it is unknown the master, else any slave."""
        for broker in self.reach.broker_datas:
            if broker.broker_name == broker_name:
                addresses = broker.broker_addrs
                found = addresses.get(broker_id) or addresses.get(MASTER_ID)
                return found or next(iter(addresses.values()), None)
        return None


class _Entry(msgspec.Struct):
    """What is known of one topic.

    Attributes:
        missing: Broker name -> since when it is missing in the route; those that *reach* still has.
        parting: The same of brokers whose unit was closed: they are reached a moment longer, to give their queues up.
        leaders: Of a static topic: who is believed to lead each logical queue.
        used_s: When somebody sent to it last, by a clock that never goes back; None when nobody did yet.
        is_kept: Whether it is wanted however long nobody uses it.
        is_unlisted: Whether the name server did not know it when it was last asked.
        is_deleted: Whether the name server said that it was deleted.
    """

    route: TopicRoute | None = None
    checked_ms: int | None = None
    missing: dict[str, int] = {}
    parting: dict[str, int] = {}
    leaders: dict[MessageQueue, Leader] = {}
    used_s: float | None = None
    is_kept: bool = False
    is_unlisted: bool = False
    is_deleted: bool = False


class RouteTable:
    """The routes of one client.

    Args:
        poll_interval_ms: How old a route may get; for as long is a broker remembered that dropped out of one.
        missing_max: How many topics may be remembered that do not exist; None for all.
        unit: Whose routes these are; None for all.
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
        """Return the route of *topic*, or None when it was never found."""
        entry = self._entries.get(topic)
        return None if entry is None else entry.route

    def use(self, topic: str, now_s: float) -> TopicRoute | None:
        """Do the same for somebody who sends to *topic*. Every send comes here: it costs one store more."""
        entry = self._entries.get(topic)
        if entry is None:
            return None
        entry.used_s = now_s
        return entry.route

    def keep(self, topic: str) -> None:
        """Let *topic* not expire."""
        entry = self._entries.get(topic)
        if entry is not None:
            entry.is_kept = True

    def expire(self, now_s: float, after_s: float) -> list[str]:
        """Forget the topics that nobody used for *after_s*, and return them.

        Of one that was never used the time begins with the first call.
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

    def is_interested(self, topic: str) -> bool:
        """Say whether anybody here wants to know of *topic*."""
        return topic in self._entries

    def is_missing(self, topic: str) -> bool:
        """Say whether it is known that *topic* does not exist."""
        return topic in self._missing

    def is_unlisted(self, topic: str) -> bool:
        """Say whether the name server did not know *topic* when it was last asked."""
        entry = self._entries.get(topic)
        return entry is not None and entry.is_unlisted

    def is_deleted(self, topic: str) -> bool:
        """Say whether the name server said that *topic* was deleted when it was last asked."""
        entry = self._entries.get(topic)
        return entry is not None and entry.is_deleted

    def watch(self, topic: str) -> None:
        """Let *topic* be polled even before its route was found."""
        self._entries.setdefault(topic, _Entry())

    def put(self, topic: str, route: Route, now_ms: int) -> bool:
        """Take note of the route of *topic* and say whether it is another one than before."""
        return self._put(topic, route, now_ms, is_borrowed=False)

    def put_all(self, topic: str, routes: Sequence[Route], now_ms: int, *, is_everybody: bool) -> bool:
        """Take note of what several name servers say of *topic* now, the newest of it.

        Args:
            topic: The topic.
            routes: What they say; at least one.
            now_ms: When.
            is_everybody: Whether that is all of them. Then what none of them says any more is forgotten: the topic
                was deleted and made anew, and its generations begin again.
        """
        told = [route for route in routes if route.mappings] or routes
        records = [record for route in told for record in route.mappings.values()]
        entry = self._entries.setdefault(topic, _Entry())
        if is_everybody:
            found = find_leaders(topic, records)
            entry.leaders = {
                queue: entry.leaders.get(queue, leader) if leader == NO_LEADER else leader
                for queue, leader in found.items()
            }
        else:
            entry.leaders = advance(entry.leaders, find_leaders(topic, records))
        return self._put(topic, _join(told), now_ms, is_borrowed=False)

    def put_template(self, topic: str, template: Route, now_ms: int, *, queues_max: int) -> bool:
        """Let *topic*, which does not exist, be served as the template of automatic creation says."""
        datas = [
            msgspec.structs.replace(
                data,
                read_queues=min(queues_max, data.read_queues),
                write_queues=min(queues_max, data.read_queues),
            )
            for data in template.queue_datas
        ]
        return self._put(topic, msgspec.structs.replace(template, queue_datas=datas), now_ms, is_borrowed=True)

    def learn(self, queue: MessageQueue, leader: Leader) -> bool:
        """Take note of who leads a logical queue, by the word of a broker, and say whether that is news.

        What is older than what is believed changes nothing; neither does a broker that no route tells of.
        """
        entry = self._entries.get(queue.topic)
        route = None if entry is None else entry.route
        if entry is None or route is None or queue not in route.leaders or leader.broker not in route.masters:
            return False
        leaders = advance(entry.leaders, {queue: leader})
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
        """Take note that the name server did not know *topic* just now, perhaps because it was deleted.

        A route that was known before stays; see `drop`.

        Returns:
            The topics that were forgotten because too many are missing.
        """
        entry = self._entries.setdefault(topic, _Entry())
        entry.checked_ms = now_ms
        entry.is_unlisted, entry.is_deleted = True, is_deleted
        return [] if entry.route is not None else self._add_missing(topic)

    def drop(self, topic: str) -> list[str]:
        """Let *topic*, which the name server did not know just now, be missing, whatever was known of it before.

        Returns:
            The topics that were forgotten because too many are missing.
        """
        entry = self._entries.get(topic)
        if entry is None:
            return []
        entry.route, entry.leaders, entry.missing, entry.parting = None, {}, {}, {}
        return self._add_missing(topic)

    def due(self, now_ms: int) -> list[str]:
        """Return the topics whose routes were not looked at for a poll interval."""
        return [topic for topic, entry in self._entries.items() if self._is_due(entry, now_ms)]

    def doubt(self, topic: str) -> None:
        """Let *topic* be due for a poll, if anybody is interested in it."""
        entry = self._entries.get(topic)
        if entry is not None:
            entry.checked_ms = None

    def doubt_all(self) -> None:
        """Let every topic be due for a poll."""
        for entry in self._entries.values():
            entry.checked_ms = None

    def suspect(self, address: str) -> None:
        """Take note that the connection to *address* broke: look at its routes now, and often until `trust`."""
        self._suspects.add(address)
        for entry in self._entries.values():
            if self._is_suspect(entry):
                entry.checked_ms = None

    def trust(self, address: str) -> None:
        """Take note that *address* is there again."""
        self._suspects.discard(address)

    def find_address(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """Return where a broker listens according to any route, or None."""
        for entry in self._entries.values():
            if entry.route is not None:
                address = entry.route.reach.address_of(broker_name, broker_id)
                if address is not None:
                    return address
        return None

    def find_broker(self, address: str) -> str | None:
        """Return the name of the broker that listens at *address* according to any route, or None."""
        for entry in self._entries.values():
            if entry.route is not None:
                for broker in entry.route.reach.broker_datas:
                    if address in broker.broker_addrs.values():
                        return broker.broker_name
        return None

    def broker_addresses(self, *, masters_only: bool) -> list[str]:
        """Return every broker address of every route, each once; also of those that dropped out a moment ago."""
        found = {
            address: None
            for entry in self._entries.values()
            if entry.route is not None
            for broker in entry.route.reach.broker_datas
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
        if entry.route is not None and entry.route.is_borrowed:
            interval_ms = _BORROWED_INTERVAL_MS
        elif entry.missing or entry.parting or self._is_suspect(entry) or NO_LEADER in entry.leaders.values():
            interval_ms = min(interval_ms, _UNSURE_INTERVAL_MS)
        return now_ms - entry.checked_ms >= interval_ms

    def _is_suspect(self, entry: _Entry) -> bool:
        if entry.route is None or not self._suspects:
            return False
        datas = entry.route.reach.broker_datas
        return any(address in self._suspects for broker in datas for address in broker.broker_addrs.values())

    def _put(self, topic: str, route: Route, now_ms: int, *, is_borrowed: bool) -> bool:
        entry = self._entries.setdefault(topic, _Entry())
        entry.checked_ms = now_ms
        self._missing.discard(topic)
        if not is_borrowed:
            entry.is_unlisted = entry.is_deleted = False
        old = entry.route
        reach = self._reach(entry, route, now_ms)
        entry.leaders = leaders = self._advance(entry, route, topic) if route.mappings else {}
        if (
            old is not None
            and (old.is_borrowed, old.route, old.reach) == (is_borrowed, route, reach)
            and old.leaders == leaders
        ):
            return False
        self._generation += 1
        current = self._current(route, leaders)
        publishable = tuple(filter(route.may_write, current)) if route.mappings else tuple(route.publishable(topic))
        entry.route = TopicRoute(
            topic=topic,
            route=route,
            reach=reach,
            publishable=publishable,
            sendable=_sendable(route, current) if route.mappings else publishable,
            readable=tuple(current) if route.mappings else tuple(reach.readable(topic)),
            leaders=leaders,
            masters={
                broker.broker_name: broker.broker_addrs[MASTER_ID]
                for broker in reach.broker_datas
                if MASTER_ID in broker.broker_addrs
            },
            is_borrowed=is_borrowed,
            generation=self._generation,
        )
        return True

    def _advance(self, entry: _Entry, route: Route, topic: str) -> dict[MessageQueue, Leader]:
        found = route.leaders(topic)
        held = entry.leaders
        if self._unit is not None:
            told = {queue.broker_name for queue in found}
            held = {
                queue: leader
                for queue, leader in held.items()
                if queue.broker_name in told or leader.broker in entry.parting
            }
        return advance(held, found)

    def _current(self, route: Route, leaders: dict[MessageQueue, Leader]) -> dict[MessageQueue, Leader]:
        """Return the logical queues that there are, without those of a unit that was closed a moment ago."""
        if self._unit is None:
            return leaders
        told = {mock_broker(record.scope) for record in route.mappings.values()}
        return {queue: leader for queue, leader in leaders.items() if queue.broker_name in told}

    @staticmethod
    def _own_brokers(route: Route, unit: str) -> Iterator[str]:
        """Return the brokers of our unit, and of topics that belong to it. Others are seen while their unit is open."""
        for broker in route.broker_datas:
            record = route.mappings.get(broker.broker_name)
            if broker.cluster == unit or (record is not None and covers(record.scope, unit)):
                yield broker.broker_name

    def _reach(self, entry: _Entry, route: Route, now_ms: int) -> Route:
        """Return *route* and what dropped out of it a moment ago; take note since when."""
        if entry.route is None or entry.route.is_borrowed:
            return route
        before = entry.route.reach
        lost = {broker.broker_name for broker in before.broker_datas}
        lost -= {broker.broker_name for broker in route.broker_datas}
        foreign = set() if self._unit is None else lost - set(self._own_brokers(before, self._unit))
        since = {name: entry.missing.get(name, now_ms) for name in lost - foreign}
        entry.missing = {name: at_ms for name, at_ms in since.items() if now_ms - at_ms < self._poll_interval_ms}
        parted = {name: entry.parting.get(name, now_ms) for name in foreign}
        entry.parting = {name: at_ms for name, at_ms in parted.items() if now_ms - at_ms < _PARTING_MS}
        if not entry.missing and not entry.parting:
            return route
        return msgspec.structs.replace(
            route,
            broker_datas=[*route.broker_datas, *_of(before.broker_datas, {**entry.missing, **entry.parting})],
            queue_datas=[*route.queue_datas, *_of(before.queue_datas, entry.missing)],
        )


def _sendable(route: Route, leaders: dict[MessageQueue, Leader]) -> tuple[MessageQueue, ...]:
    """Return the logical queues whose leaders are up, and were not told to take nothing."""
    ready = {broker.broker_name for broker in route.broker_datas if MASTER_ID in broker.broker_addrs}
    ready -= {data.broker_name for data in route.queue_datas if not data.permission & Permission.WRITE}
    return tuple(queue for queue, leader in leaders.items() if leader.broker in ready and route.may_write(queue))


def _join(routes: Sequence[Route]) -> Route:
    """Return the newest of *routes* with what only the others know: a broker that has registered there only."""
    newest = max(routes, key=lambda route: max((record.epoch for record in route.mappings.values()), default=0))
    # Which units are seen, and which of them may be written to, is one name server's word: they belong together.
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


def _of(datas: Sequence[_Data], brokers: Container[str]) -> list[_Data]:
    return [data for data in datas if data.broker_name in brokers]
