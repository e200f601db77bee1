"""The route of a topic as clients receive it: its brokers, and the logical queues under the names that clients see."""

from __future__ import annotations

from collections import Counter

import msgspec

from holdfast.admin.topics import permission_text
from holdfast.model.route import Route
from holdfast.model.scope import to_shown_broker


class RouteBroker(msgspec.Struct, frozen=True):
    """One broker of a route.

    Attributes:
        cluster: Its cluster; null, as without addresses, if the name server has forgotten the broker.
        permission: `rw`, `r`, `w` or `-`.
        addresses: Its processes by id; 0 is the master.
    """

    broker: str
    cluster: str | None
    read_queues: int
    write_queues: int
    permission: str
    addresses: dict[int, str] | None


class RouteName(msgspec.Struct, frozen=True):
    """The logical queues that clients see under one broker name."""

    shown_to_clients_as: str
    read_queues: int
    write_queues: int
    permission: str


class RouteView(msgspec.Struct, frozen=True):
    """The route of a topic.

    Attributes:
        logical: By the broker name that clients see; empty for a normal topic.
    """

    topic: str
    brokers: list[RouteBroker]
    logical: list[RouteName]


def view_route(topic: str, route: Route) -> RouteView:
    """Return a route as values for people."""
    data_by_name = {data.broker_name: data for data in route.broker_datas}
    brokers = []
    for queues in sorted(route.queue_datas, key=lambda queues: queues.broker_name):
        data = data_by_name.get(queues.broker_name)
        brokers.append(
            RouteBroker(
                queues.broker_name,
                None if data is None else data.cluster,
                queues.read_queues,
                queues.write_queues,
                permission_text(queues.permission),
                None if data is None else dict(sorted(data.broker_addrs.items())),
            )
        )
    return RouteView(topic, brokers, view_logical(topic, route))


def view_logical(topic: str, route: Route) -> list[RouteName]:
    """Return the logical queues of a route by the broker name that clients see; empty for a normal topic."""
    readable = Counter(queue.broker_name for queue in route.readable(topic)) if route.mappings else Counter()
    writable = Counter(queue.broker_name for queue in route.publishable(topic))
    return [
        RouteName(to_shown_broker(name), count, writable[name], "rw" if writable[name] else "r")
        for name, count in sorted(readable.items())
    ]
