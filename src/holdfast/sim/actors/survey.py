"""Asks every name server for the routes of a run's topics, and compares them with the running brokers."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from holdfast.model.errors import HoldfastError
from holdfast.model.queue import LogicalQueueId
from holdfast.model.route import Route
from holdfast.sim.actors.client import SimClient, route_query
from holdfast.sim.world.workload import ORDERED_TOPIC, PLAIN_TOPIC
from holdfast.wire.cluster.route import decode_route
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.frames.command import Command

_TOPICS: Final = (PLAIN_TOPIC, ORDERED_TOPIC)


class Surveyor(SimClient):
    """Requests routes every second and checks them on demand.

    Args:
        leaders: Returns the real leader of each queue of a static topic; nothing for a normal topic.
        unit: The unit whose routes it requests; empty for all.

    Attributes:
        found_routes: The route of each topic at each name server; None if there was no answer.
    """

    def __init__(
        self, name_servers: str, rng: Random, *, leaders: Callable[[str], dict[LogicalQueueId, str]], unit: str = ""
    ) -> None:
        super().__init__(f"surveyor{unit}", name_servers, rng, unit=unit)
        self.found_routes: dict[tuple[str, str], Route | None] = {}
        self._leaders = leaders

    def started(self) -> None:
        """Ask every name server about every topic, and repeat every second."""
        for address in self._name_servers.addresses:
            for topic in _TOPICS:
                self._query(address, topic)
        self.after(1_000, self.started)

    def _query(self, address: str, topic: str) -> None:
        def answered(answer: Command | HoldfastError) -> None:
            if isinstance(answer, HoldfastError):
                self.found_routes[address, topic] = None
            elif answer.code == ResponseCode.SUCCESS:
                self.found_routes[address, topic] = decode_route(answer.body)
            else:
                self.found_routes[address, topic] = Route()

        self.request(address, route_query(topic, self.unit), answered)

    def find_error(self, alive: list[str]) -> str | None:
        """Return the error in the routes if exactly the brokers *alive* are up; None if the routes are true."""
        for address in self._name_servers.addresses:
            for topic in _TOPICS:
                route = self.found_routes.get((address, topic))
                if route is None:
                    return f"{address} does not answer about {topic}"
                listed = sorted(broker.broker_name for broker in route.broker_datas)
                # A unit without running brokers has no leaders; its route must name no broker.
                leaders = self._leaders(topic) if alive else {}
                if leaders:
                    error = _find_static_error(route, topic, leaders, listed, alive)
                    if error is not None:
                        return f"{address} {error}"
                elif listed != alive:
                    return f"{address} says that {topic} is at {listed}, alive are {alive}"
        return None


def _find_static_error(
    route: Route, topic: str, leaders: dict[LogicalQueueId, str], listed: list[str], alive: list[str]
) -> str | None:
    """Return the error in the route of a static topic, in its leaders or its brokers; None if it is true."""
    reported = {queue.queue_id: leader.broker for queue, leader in route.leaders(topic).items()}
    if reported != leaders:
        return f"says that {topic} is led by {reported}, it is led by {leaders}"
    if not set(listed) <= set(alive):
        return f"says that {topic} is at {listed}, alive are {alive}"
    unlisted = {leader for leader in leaders.values() if leader in alive} - set(listed)
    return f"has no address of {unlisted}, though they lead {topic} now" if unlisted else None
