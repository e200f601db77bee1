"""Zone mode: brokers register with a zone, and clients that ask for it see those of their zone, as upstream does it."""

from typing import Any

import pytest
from tests.support.cluster.machine import MachineHarness
from tests.support.cluster.name_server_machine import a_name_server, a_registration, register
from tests.support.cluster.name_server_units import hosts, request_unit_route
from tests.support.cluster.raw_requests import JAVA_5
from tests.support.static_reports import a_leader_report, address_of, register_static
from tests.support.watching import pop_notices, tick

from holdfast.wire.cluster.route import decode_route
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import BINARY, JSON

IN_Z1 = {"__ZONE_NAME": "z1", "__ZONE_MODE": "true"}


def two_zones(*topics: str, **options: Any) -> MachineHarness:
    """Return a name server with broker a in zone Z1 and b in z2, both of one cluster, and c without a zone."""
    server = a_name_server(**options)
    for name, zone in (("a", {"__ZONE_NAME": "Z1"}), ("b", {"__ZONE_NAME": "z2"}), ("c", {})):
        body = a_registration(*topics)
        register(server, name, address_of(name), body=body, channel=server.connect(), **zone)
    return server


@pytest.mark.parametrize("serializer", [JSON, BINARY])
@pytest.mark.parametrize("topic", ["orders", "%RETRY%billing", "TBW102"])
def test_a_client_in_zone_mode_sees_the_brokers_of_its_zone(topic: str, serializer: int):
    """The zone is the one that the broker registered, in whatever case, and not its cluster; asked twice."""
    server = two_zones(topic)
    how = {**JAVA_5, "serializer": serializer}

    for _ in range(2):
        assert hosts(request_unit_route(server, topic, client=how, **IN_Z1)) == ["a"]
        assert hosts(request_unit_route(server, topic, client=how, __ZONE_NAME="Z2", __ZONE_MODE="TRUE")) == ["b"]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"__ZONE_NAME": "z1"},
        {"__ZONE_NAME": "z1", "__ZONE_MODE": "false"},
        {"__ZONE_NAME": "z1", "__ZONE_MODE": "yes"},
        {"__ZONE_NAME": " ", "__ZONE_MODE": "true"},
        {"__ZONE_MODE": "true"},
    ],
)
def test_without_zone_mode_or_zone_a_client_sees_every_broker(fields: dict[str, str]):
    """Both have to be there: upstream's clients send the name without the mode, too."""
    assert hosts(request_unit_route(two_zones("orders"), "orders", client=JAVA_5, **fields)) == ["a", "b", "c"]


def test_a_topic_that_only_other_zones_have_is_known_and_has_no_queues():
    """Upstream empties the answer and lets it succeed; a topic that no broker has stays missing."""
    server = two_zones("orders")

    answer = request_unit_route(server, "orders", client=JAVA_5, __ZONE_NAME="z3", __ZONE_MODE="true")

    assert answer.code == ResponseCode.SUCCESS
    route = decode_route(answer.body)
    assert (list(route.broker_datas), list(route.queue_datas)) == ([], [])
    assert request_unit_route(server, "others", client=JAVA_5, **IN_Z1).code == ResponseCode.TOPIC_NOT_EXIST


def test_a_broker_whose_master_is_down_is_seen_in_every_zone():
    """Its replica may be anywhere: a message that is there is worth more than a short way."""
    server = two_zones("orders")
    master, replica = server.connect(), server.connect()
    register(server, "d", address_of("d"), body=a_registration("orders"), channel=master, __ZONE_NAME="z2")
    body = a_registration("orders")
    register(server, "d", "10.0.9.9:1", body=body, channel=replica, brokerId="1", __ZONE_NAME="z1")
    assert hosts(request_unit_route(server, "orders", client=JAVA_5, **IN_Z1)) == ["a"]

    server.disconnect(master)

    assert hosts(request_unit_route(server, "orders", client=JAVA_5, **IN_Z1)) == ["a", "d"]


def test_a_zone_that_changes_is_a_change_of_routes():
    """A broker that registers with another zone is seen there at once, by watching clients, too."""
    server = two_zones("orders")
    watcher = server.connect()
    fields = {"topic": "orders", "watch": "true", **IN_Z1}
    server.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields, channel=watcher)

    register(server, "b", address_of("b"), body=a_registration("orders"), channel=server.connect(), __ZONE_NAME="z1")
    tick(server)

    assert hosts(request_unit_route(server, "orders", client=JAVA_5, **IN_Z1)) == ["a", "b"]
    assert pop_notices(server, watcher) == [["orders"]]


def test_unit_and_zone_both_count():
    """The unit is our own field: a client that names both sees the brokers that are in both."""
    server = a_name_server()
    for name, cluster, zone in (("a", "east", "z1"), ("b", "west", "z1"), ("c", "east", "z2")):
        body = a_registration("orders")
        address = address_of(name)
        register(server, name, address, body=body, channel=server.connect(), clusterName=cluster, __ZONE_NAME=zone)

    assert hosts(request_unit_route(server, "orders", "east", client=JAVA_5, **IN_Z1)) == ["a"]
    assert hosts(request_unit_route(server, "orders", client=JAVA_5, **IN_Z1)) == ["a", "b"]
    assert hosts(request_unit_route(server, "orders", "east", client=JAVA_5)) == ["a", "c"]


def test_zones_hide_no_queue_of_a_static_topic():
    """The number of its queues is fixed: a client that did not find their leaders would wait for them."""
    server = a_name_server()
    register_static(server, "a", a_leader_report("a", 0))
    register_static(server, "b", a_leader_report("b", 1))

    for _ in range(2):
        route = decode_route(request_unit_route(server, "orders", client=JAVA_5, **IN_Z1).body)
        assert {data.broker_name for data in route.broker_datas} >= {"a", "b"}
        assert set(route.mappings) == {"a", "b"}


def test_a_zone_that_no_broker_has_leaves_nothing_behind():
    """There is no end to the names that clients may send, or to their length."""
    server = two_zones("orders")

    for number in range(100):
        request_unit_route(server, "orders", client=JAVA_5, __ZONE_NAME=f"zone-{number}", __ZONE_MODE="true")
    assert not server.machine._answer_cache._special  # type: ignore[attr-defined]
    long = request_unit_route(server, "orders", client=JAVA_5, __ZONE_NAME="z" * 256, __ZONE_MODE="true")
    assert long.code == ResponseCode.SYSTEM_ERROR


def test_a_rendered_answer_for_a_zone_is_sent_again():
    """Thousands of clients of a zone ask the same."""
    server = two_zones("orders")
    counters = server.machine.counters  # type: ignore[attr-defined]
    first = request_unit_route(server, "orders", client=JAVA_5, **IN_Z1)
    known = counters.requests, counters.routes_rendered

    assert request_unit_route(server, "orders", client=JAVA_5, **IN_Z1).body == first.body
    assert (counters.requests, counters.routes_rendered) == known
