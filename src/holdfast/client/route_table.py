"""What a client knows about who serves which topic.

    unknown ── put ──> known ── poll finds the same, or another route ──> known
       └──── put_template: the topic does not exist yet, a broker will create it on the first send ──> borrowed

A route that cannot be found any more stays: brokers may still take what they took a moment ago, and they know better.
Decides what is due for a poll; asks nobody. Time comes in.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.model.queue import MessageQueue
from holdfast.model.route import MASTER_ID, Route

POLL_INTERVAL_MS: Final = 30_000
# A borrowed route ends with the first send: the real one is wanted soon.
_BORROWED_INTERVAL_MS: Final = 5_000


class TopicRoute(msgspec.Struct, frozen=True):
    """A route and what follows from it, worked out once.

    Attributes:
        is_borrowed: The topic does not exist; this is the template of automatic creation under its name.
        masters: Broker name -> address of its master.
        generation: Rises with every change of any route, so that what was derived from a route can be kept until then.
    """

    topic: str
    route: Route
    publishable: tuple[MessageQueue, ...]
    readable: tuple[MessageQueue, ...]
    masters: dict[str, str]
    is_borrowed: bool
    generation: int

    def master_of(self, broker_name: str) -> str | None:
        """Return where the master of *broker_name* listens, or None."""
        return self.masters.get(broker_name)

    def any_address_of(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """Return where *broker_id* of *broker_name* listens; if it is unknown the master, else any slave."""
        for broker in self.route.broker_datas:
            if broker.broker_name == broker_name:
                addresses = broker.broker_addrs
                found = addresses.get(broker_id) or addresses.get(MASTER_ID)
                return found or next(iter(addresses.values()), None)
        return None


class _Entry(msgspec.Struct):
    route: TopicRoute | None = None
    checked_ms: int | None = None


class RouteTable:
    """The routes of one client."""

    def __init__(self, poll_interval_ms: int = POLL_INTERVAL_MS) -> None:
        self._poll_interval_ms = poll_interval_ms
        self._entries: dict[str, _Entry] = {}
        self._generation = 0

    def find(self, topic: str) -> TopicRoute | None:
        """Return the route of *topic*, or None when it was never found."""
        entry = self._entries.get(topic)
        return None if entry is None else entry.route

    def watch(self, topic: str) -> None:
        """Let *topic* be polled even before its route was found."""
        self._entries.setdefault(topic, _Entry())

    def put(self, topic: str, route: Route, now_ms: int) -> bool:
        """Take note of the route of *topic* and say whether it is another one than before."""
        return self._put(topic, route, now_ms, is_borrowed=False)

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

    def put_missing(self, topic: str, now_ms: int) -> None:
        """Take note that nobody knew *topic* just now. What was known before stays."""
        self._entries.setdefault(topic, _Entry()).checked_ms = now_ms

    def due(self, now_ms: int) -> list[str]:
        """Return the topics whose routes were not looked at for a poll interval."""
        return [topic for topic, entry in self._entries.items() if self._is_due(entry, now_ms)]

    def find_address(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """Return where a broker listens according to any route, or None."""
        for entry in self._entries.values():
            if entry.route is not None:
                address = entry.route.route.address_of(broker_name, broker_id)
                if address is not None:
                    return address
        return None

    def broker_addresses(self, *, masters_only: bool) -> list[str]:
        """Return every broker address of every route, each once."""
        found = {
            address: None
            for entry in self._entries.values()
            if entry.route is not None
            for broker in entry.route.route.broker_datas
            for broker_id, address in broker.broker_addrs.items()
            if broker_id == MASTER_ID or not masters_only
        }
        return list(found)

    def _is_due(self, entry: _Entry, now_ms: int) -> bool:
        if entry.checked_ms is None:
            return True
        is_borrowed = entry.route is not None and entry.route.is_borrowed
        interval_ms = _BORROWED_INTERVAL_MS if is_borrowed else self._poll_interval_ms
        return now_ms - entry.checked_ms >= interval_ms

    def _put(self, topic: str, route: Route, now_ms: int, *, is_borrowed: bool) -> bool:
        entry = self._entries.setdefault(topic, _Entry())
        entry.checked_ms = now_ms
        old = entry.route
        if old is not None and old.is_borrowed == is_borrowed and old.route == route:
            return False
        self._generation += 1
        entry.route = TopicRoute(
            topic=topic,
            route=route,
            publishable=tuple(route.publishable(topic)),
            readable=tuple(route.readable(topic)),
            masters={
                broker.broker_name: broker.broker_addrs[MASTER_ID]
                for broker in route.broker_datas
                if MASTER_ID in broker.broker_addrs
            },
            is_borrowed=is_borrowed,
            generation=self._generation,
        )
        return True
