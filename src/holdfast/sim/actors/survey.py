"""Asks every name server for the routes of a run's topics, and compares them with the running brokers."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from holdfast.model.errors import HoldfastError
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
        found: The route of each topic at each name server; None if there was no answer.
    """

    def __init__(
        self, name_servers: str, chance: Random, *, leaders: Callable[[str], dict[int, str]], unit: str = ""
    ) -> None:
        super().__init__(f"surveyor{unit}", name_servers, chance, unit=unit)
        self.found: dict[tuple[str, str], Route | None] = {}
        self._leaders = leaders

    def started(self) -> None:
        """Ask every name server about every topic, and repeat every second."""
        for address in self._name_servers.addresses:
            for topic in _TOPICS:
                self._ask(address, topic)
        self.after(1_000, self.started)

    def _ask(self, address: str, topic: str) -> None:
        def answered(answer: Command | HoldfastError) -> None:
            if isinstance(answer, HoldfastError):
                self.found[address, topic] = None
            elif answer.code == ResponseCode.SUCCESS:
                self.found[address, topic] = decode_route(answer.body)
            else:
                self.found[address, topic] = Route()

        self.ask(address, route_query(topic, self.unit), answered)

    def find_wrong(self, alive: list[str]) -> str | None:
        """Return the error in the routes if exactly the brokers *alive* are up; None if the routes are true."""
        for address in self._name_servers.addresses:
            for topic in _TOPICS:
                route = self.found.get((address, topic))
                if route is None:
                    return f"{address} does not answer about {topic}"
                named = sorted(broker.broker_name for broker in route.broker_datas)
                # A unit without running brokers has no leaders; its route must name no broker.
                leaders = self._leaders(topic) if alive else {}
                if leaders:
                    wrong = _find_wrong_leader(route, topic, leaders, named, alive)
                    if wrong is not None:
                        return f"{address} {wrong}"
                elif named != alive:
                    return f"{address} says that {topic} is at {named}, alive are {alive}"
        return None


def _find_wrong_leader(
    route: Route, topic: str, leaders: dict[int, str], named: list[str], alive: list[str]
) -> str | None:
    """Return the error in the route of a static topic, in its leaders or its brokers; None if it is true."""
    told = {queue.queue_id: leader.broker for queue, leader in route.leaders(topic).items()}
    if told != leaders:
        return f"says that {topic} is led by {told}, it is led by {leaders}"
    if not set(named) <= set(alive):
        return f"says that {topic} is at {named}, alive are {alive}"
    lost = {leader for leader in leaders.values() if leader in alive} - set(named)
    return f"has no address of {lost}, though they lead {topic} now" if lost else None
