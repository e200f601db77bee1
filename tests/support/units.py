"""Two units under one name server, and how clients of each kind understand what they are told."""

import json
from typing import Any

from tests.support.conversation import Conversation
from tests.support.name_servers import a_name_server, a_registration, register
from tests.support.static_reports import address_of, leads, register_static

from holdfast.wire.cluster.route import decode_route
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command, encode_command

JAVA_5 = {"language": "JAVA", "version": 513}
OLD = {"language": "JAVA", "version": 401}


def ask(server: Conversation, topic: str, unit: str = "", *, how: dict[str, Any] | None = None, **more: str) -> Command:
    """Ask for a route, as a client of a unit does, if one is named."""
    fields = {"topic": topic, **({"scope": unit} if unit else {}), **more}
    channel = server.open()
    server.receive(channel, encode_command(server.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields, **(how or {}))))
    (answer,) = server.answers(channel)
    return answer


def ask_ours(server: Conversation, topic: str, unit: str = "", group: str = "") -> Command:
    """Do the same as our own clients do."""
    more = {"hf.mapping": "1", **({"hf.group": group} if group else {})}
    return ask(server, topic, unit, **more)


def hosts(answer: Command) -> list[str]:
    """Return who has queues in a route."""
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return sorted({data.broker_name for data in decode_route(answer.body).queue_datas})


def two_units(*topics: str, **options: Any) -> Conversation:
    """Return a name server with broker a in east and broker b in west, both with *topics*."""
    server = a_name_server(**options)
    for name, cluster in (("a", "east"), ("b", "west")):
        body = a_registration(*topics)
        register(server, name, address_of(name), body=body, channel=server.open(), clusterName=cluster)
    return server


def two_static_units() -> Conversation:
    """Return one with a static topic in each: two queues in east, three in west."""
    server = a_name_server()
    register_static(server, "a", leads("a", 0, 1, epoch=7, scope="east"), cluster="east")
    register_static(server, "b", leads("b", 0, 1, 2, total=3, scope="west"), cluster="west")
    return server


def java_publish(body: bytes) -> list[tuple[str, int]]:
    """Return the queues that a Java 5 producer takes for its own, as its client works them out."""
    told = json.loads(body)
    if order := told.get("orderTopicConf"):
        pairs = [item.split(":") for item in order.split(";")]
        return [(name, number) for name, count in pairs for number in range(int(count))]
    if told.get("topicQueueMappingByBroker"):
        return java_subscribe(body)
    return [
        (data["brokerName"], number)
        for data in told["queueDatas"]
        if data["perm"] & 2
        for number in range(data["writeQueueNums"])
    ]


def java_subscribe(body: bytes) -> list[tuple[str, int]]:
    """Return the queues that a Java 5 consumer shares out."""
    told = json.loads(body)
    parts = (told.get("topicQueueMappingByBroker") or {}).values()
    if parts:
        totals = {part["scope"]: part["totalQueues"] for part in parts}
        return sorted((mock_name(scope), number) for scope, total in totals.items() for number in range(total))
    return [
        (data["brokerName"], number)
        for data in told["queueDatas"]
        if data["perm"] & 4
        for number in range(data["readQueueNums"])
    ]


def mock_name(scope: str) -> str:
    """Return the name that a Java 5 client makes up for the broker of all logical queues of a scope."""
    return "__syslo__" + scope.removeprefix("__" if scope == "__global__" else "")
