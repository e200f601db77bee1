"""Static topics as brokers report them to a name server, and as a Java client understands the route it gets back."""

import json
from collections.abc import Mapping
from typing import Any

from tests.support.cluster.machine import MachineHarness
from tests.support.cluster.name_server_machine import a_registration, a_topic, register

from holdfast.machine.events import ChannelId
from holdfast.model.mapping import LogicalQueue, Segment, TopicMapping
from holdfast.model.scope import GLOBAL
from holdfast.wire.cluster.mapping import to_info, to_plain
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command, encode_command

JAVA_5 = 413
NO_LEADER = "__syslo__none__"


def a_segment(
    broker: str, queue_id: int = 0, *, generation: int = 0, first: int | None = 0, end: int | None = None
) -> Segment:
    """Return one home of a logical queue."""
    return Segment(generation=generation, broker=broker, queue_id=queue_id, first=first, end=end)


def a_report(
    broker: str,
    queues: Mapping[int, list[Segment]],
    *,
    total: int,
    epoch: int = 1,
    topic: str = "orders",
    scope: str = GLOBAL,
) -> dict[str, Any]:
    """Return what one of our brokers registers."""
    logical = {number: LogicalQueue(number, tuple(segments)) for number, segments in queues.items()}
    mapping = TopicMapping(topic=topic, broker=broker, scope=scope, epoch=epoch, total=total, queues=logical)
    return to_plain(to_info(mapping))


def a_java_report(
    broker: str, led: Mapping[int, int], *, total: int, epoch: int = 1, topic: str = "orders"
) -> dict[str, Any]:
    """Return what a Java broker registers: no homes, only what it leads."""
    return {
        "bname": broker,
        "currIdMap": {str(number): queue_id for number, queue_id in led.items()},
        "dirty": False,
        "epoch": epoch,
        "scope": "__global__",
        "topic": topic,
        "totalQueues": total,
    }


def a_leader_report(broker: str, *numbers: int, total: int = 2, epoch: int = 1, scope: str = GLOBAL) -> dict[str, Any]:
    """Return the report of a broker that leads *numbers* since ever, each in a physical queue of the same number."""
    queues = {number: [a_segment(broker, number)] for number in numbers}
    return a_report(broker, queues, total=total, epoch=epoch, scope=scope)


def address_of(name: str) -> str:
    """Return where the broker *name*, one letter, listens."""
    return f"10.0.0.{ord(name) - ord('a') + 1}:10911"


def register_static(
    server: MachineHarness,
    name: str,
    *reports: dict[str, Any],
    queues: int = 4,
    channel: ChannelId | None = None,
    cluster: str = "C1",
) -> Command:
    """Let a broker register one static topic for each report; return the answer."""
    topics = [a_topic(report["topic"], queues) for report in reports]
    body = a_registration(*topics, mappings={report["topic"]: report for report in reports})
    channel = server.connect() if channel is None else channel
    return register(server, name, address_of(name), body=body, channel=channel, clusterName=cluster)


def request_aware(server: MachineHarness, topic: str = "orders", *, channel: ChannelId | None = None) -> Command:
    """Ask for a route as our own clients do."""
    fields = {"topic": topic, "hf.mapping": "1"}
    return server.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields, channel=channel)


def request_as(
    server: MachineHarness,
    language: str,
    version: int,
    topic: str = "orders",
    *,
    channel: ChannelId | None = None,
    **options: Any,
) -> Command:
    """Ask for a route as a client of that language and version does."""
    channel = server.connect() if channel is None else channel
    request = server.new_request(
        RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}, language=language, version=version, **options
    )
    server.receive(channel, encode_command(request))
    (answer,) = server.pop_answers(channel)
    return answer


def java_leaders(body: bytes) -> dict[int, str]:
    """Return who leads which logical queue, as a Java 5 client works it out for itself.

    For each queue the part with the highest epoch counts, the last of equals; the largest number of queues counts, and
    those that nobody leads belong to nobody.
    """
    parts = json.loads(body).get("topicQueueMappingByBroker", {}).values()
    found: dict[int, tuple[int, str]] = {}
    total = 0
    for part in sorted(parts, key=lambda part: -part["epoch"]):
        total = max(total, part["totalQueues"])
        for number in map(int, part["currIdMap"]):
            if number not in found or found[number][0] <= part["epoch"]:
                found[number] = (part["epoch"], part["bname"])
    return {number: found[number][1] if number in found else NO_LEADER for number in range(total)}


def leaders(server: MachineHarness, topic: str = "orders") -> dict[int, str] | str | None:
    """Return what an aware client is told: who leads what, or why it is busy, or None when there is no such topic."""
    answer = request_aware(server, topic)
    if answer.code == 0:
        return java_leaders(answer.body)
    assert answer.code in {2, 17}
    return (answer.remark or "") if answer.code == 2 else None
