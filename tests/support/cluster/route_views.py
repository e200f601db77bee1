"""Routes as clients of each kind understand them: which queues a producer or a consumer takes for its own."""

import json
from typing import NamedTuple

from tests.support.cluster.raw_requests import Answer


class RouteView(NamedTuple):
    """A route, as the client that asked for it works it out."""

    code: int
    writes: set[tuple[str, int]]
    reads: set[tuple[str, int]]
    brokers: set[str]

    @property
    def written_at(self) -> set[str]:
        """The brokers, real or not, to which a producer sends."""
        return {name for name, _ in self.writes}

    @property
    def read_at(self) -> set[str]:
        """The brokers, real or not, whose queues a consumer shares out."""
        return {name for name, _ in self.reads}


def route_view(answer: Answer) -> RouteView:
    """Return what a client makes of the answer to its route request; no queues if it was refused."""
    if answer.code != 0:
        return RouteView(answer.code, set(), set(), set())
    brokers = {data["brokerName"] for data in json.loads(answer.body)["brokerDatas"]}
    return RouteView(0, set(java_publish(answer.body)), set(java_subscribe(answer.body)), brokers)


def java_publish(body: bytes) -> list[tuple[str, int]]:
    """Return the queues that a Java 5 producer takes for its own, as its client works them out."""
    route = json.loads(body)
    if order := route.get("orderTopicConf"):
        pairs = [item.split(":") for item in order.split(";")]
        return [(name, number) for name, count in pairs for number in range(int(count))]
    if route.get("topicQueueMappingByBroker"):
        return java_subscribe(body)
    return [
        (data["brokerName"], number)
        for data in route["queueDatas"]
        if data["perm"] & 2
        for number in range(data["writeQueueNums"])
    ]


def java_subscribe(body: bytes) -> list[tuple[str, int]]:
    """Return the queues that a Java 5 consumer shares out."""
    route = json.loads(body)
    parts = (route.get("topicQueueMappingByBroker") or {}).values()
    if parts:
        totals = {part["scope"]: part["totalQueues"] for part in parts}
        return sorted((mock_name(scope), number) for scope, total in totals.items() for number in range(total))
    return [
        (data["brokerName"], number)
        for data in route["queueDatas"]
        if data["perm"] & 4
        for number in range(data["readQueueNums"])
    ]


def mock_name(scope: str) -> str:
    """Return the name that a Java 5 client makes up for the broker of all logical queues of a scope."""
    return "__syslo__" + scope.removeprefix("__" if scope == "__global__" else "")
