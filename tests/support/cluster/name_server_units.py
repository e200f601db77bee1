"""Name server machines with brokers in two units, and route requests as clients of a unit send them."""

from typing import Any

from tests.support.cluster.machine import MachineHarness
from tests.support.cluster.name_server_machine import a_name_server, a_registration, register
from tests.support.static_reports import a_leader_report, address_of, register_static

from holdfast.wire.cluster.route import decode_route
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command, encode_command

OLD = {"language": "JAVA", "version": 401}


def request_unit_route(
    server: MachineHarness, topic: str, unit: str = "", *, client: dict[str, Any] | None = None, **extra_fields: str
) -> Command:
    """Ask for a route, as a client of a unit does, if one is named."""
    fields = {"topic": topic, **({"scope": unit} if unit else {}), **extra_fields}
    channel = server.connect()
    server.receive(
        channel, encode_command(server.new_request(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields, **(client or {})))
    )
    (answer,) = server.pop_answers(channel)
    return answer


def request_aware_route(server: MachineHarness, topic: str, unit: str = "", group: str = "") -> Command:
    """Do the same as our own clients do."""
    extra_fields = {"hf.mapping": "1", **({"hf.group": group} if group else {})}
    return request_unit_route(server, topic, unit, **extra_fields)


def hosts(answer: Command) -> list[str]:
    """Return who has queues in a route."""
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return sorted({data.broker_name for data in decode_route(answer.body).queue_datas})


def two_units(*topics: str, **options: Any) -> MachineHarness:
    """Return a name server with broker a in east and broker b in west, both with *topics*."""
    server = a_name_server(**options)
    for name, cluster in (("a", "east"), ("b", "west")):
        body = a_registration(*topics)
        register(server, name, address_of(name), body=body, channel=server.connect(), clusterName=cluster)
    return server


def two_static_units() -> MachineHarness:
    """Return one with a static topic in each: two queues in east, three in west."""
    server = a_name_server()
    register_static(server, "a", a_leader_report("a", 0, 1, epoch=7, scope="east"), cluster="east")
    register_static(server, "b", a_leader_report("b", 0, 1, 2, total=3, scope="west"), cluster="west")
    return server
