"""Route queries of clients that name a unit: normal, static, retry topics, and what they are told of the others."""

from typing import Any

import pytest
from tests.support.cluster.name_server_machine import a_name_server, a_registration, register
from tests.support.cluster.name_server_units import (
    OLD,
    hosts,
    request_aware_route,
    request_unit_route,
    two_static_units,
    two_units,
)
from tests.support.cluster.raw_requests import JAVA_5
from tests.support.cluster.route_views import java_publish, java_subscribe
from tests.support.static_reports import NO_LEADER, a_leader_report, address_of, register_static

from holdfast.model.queue import MessageQueue
from holdfast.wire.cluster.route import decode_route
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import BINARY, JSON


@pytest.mark.parametrize("serializer", [JSON, BINARY])
@pytest.mark.parametrize("topic", ["orders", "%RETRY%billing", "%DLQ%billing", "shop%orders", "TBW102"])
def test_a_client_with_a_unit_sees_the_brokers_of_its_own(topic: str, serializer: int):
    """Normal topics, what is retried, dead letters, names within a namespace; asked twice, also when rendered."""
    server = two_units(topic)

    for _ in range(2):
        assert hosts(request_unit_route(server, topic, "east", client={"serializer": serializer})) == ["a"]
        assert hosts(request_unit_route(server, topic, "west", client={"serializer": serializer})) == ["b"]
        assert hosts(request_unit_route(server, topic, client={"serializer": serializer})) == ["a", "b"]
    assert request_unit_route(server, topic, "north").code == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("how", [{"language": "PYTHON"}, JAVA_5, OLD])
def test_what_was_rendered_for_a_unit_is_told_again_without_asking_anew(static: bool, how: dict[str, Any]):  # noqa: FBT001
    """Thousands of clients ask the same; whoever watches is told of changes of what it sees."""
    server = two_static_units() if static else two_units("orders")
    counters = server.machine.counters  # type: ignore[attr-defined]
    first = request_unit_route(server, "orders", "west", client=how, watch="true")
    known = counters.requests, counters.routes_rendered

    again = request_unit_route(server, "orders", "west", client=how, watch="true")

    assert (counters.requests, counters.routes_rendered) == known
    assert (again.body, again.fields) == (first.body, first.fields)
    assert again.fields == {"watching": "true"}
    assert request_unit_route(server, "orders", "east", client=how).body != first.body


def test_a_normal_topic_beside_a_static_one_of_another_unit_is_told_again_too():
    """It is what its unit has."""
    server = a_name_server()
    register_static(server, "a", a_leader_report("a", 0, 1, scope="east"), cluster="east")
    register(server, "b", address_of("b"), body=a_registration("orders"), channel=server.connect(), clusterName="west")
    first = request_aware_route(server, "orders", "west")
    known = server.machine.counters.requests  # type: ignore[attr-defined]

    assert request_aware_route(server, "orders", "west").body == first.body
    assert server.machine.counters.requests == known  # type: ignore[attr-defined]


def test_a_route_follows_its_unit():
    """What was rendered before is dropped when a broker of the unit leaves."""
    server = two_units("orders")
    channel = server.connect()
    register(server, "c", address_of("c"), body=a_registration("orders"), channel=channel, clusterName="east")
    assert hosts(request_unit_route(server, "orders", "east")) == ["a", "c"]

    server.disconnect(channel)

    assert hosts(request_unit_route(server, "orders", "east")) == ["a"]


def test_a_name_that_is_no_cluster_leaves_nothing_behind():
    """There is no end to what anybody may call a unit, or how long a name may be."""
    server = two_units("orders")

    assert request_unit_route(server, "orders", "n" * 256).code == ResponseCode.SYSTEM_ERROR
    for number in range(100):
        assert request_unit_route(server, "orders", f"unit-{number}").code == ResponseCode.TOPIC_NOT_EXIST
    assert not server.machine._answer_cache._special  # type: ignore[attr-defined]


def test_queue_counts_of_ordered_topics_are_those_of_the_unit():
    """Producers go by them: they must not lead out of it."""
    server = two_units("orders", order_message_enable=True)
    server.request(RequestCode.PUT_KV_CONFIG, {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders", "value": "a:4;b:8"})

    assert decode_route(request_unit_route(server, "orders", "west").body).order_topic_conf == "b:8"
    assert decode_route(request_unit_route(server, "orders").body).order_topic_conf == "a:4;b:8"


def test_of_two_static_topics_of_a_name_a_client_sees_that_of_its_unit():
    """Each with its own number of queues and its own mock broker; ours, Java 5 and older clients."""
    server = two_static_units()

    for unit, total in (("east", 2), ("west", 3)):
        expected = [(f"__syslo__{unit}", number) for number in range(total)]
        java = request_unit_route(server, "orders", unit, client=JAVA_5).body
        ours = decode_route(request_aware_route(server, "orders", unit).body)
        (mock,) = decode_route(request_unit_route(server, "orders", unit, client=OLD).body).queue_datas
        assert java_publish(java) == java_subscribe(java) == expected
        assert ours.publishable("orders") == [MessageQueue("orders", *each) for each in expected]
        assert (mock.broker_name, mock.read_queues, mock.write_queues) == (f"__syslo__{unit}", total, total)


def test_without_a_unit_both_are_seen():
    """A client that knows nothing of units sees all that there is, as it does of normal topics."""
    server = two_static_units()
    every = [("__syslo__east", 0), ("__syslo__east", 1), *(("__syslo__west", number) for number in range(3))]

    java = request_unit_route(server, "orders", client=JAVA_5).body
    mocks = decode_route(request_unit_route(server, "orders", client=OLD).body)

    assert java_publish(java) == java_subscribe(java) == every
    assert [(data.broker_name, data.write_queues) for data in mocks.queue_datas] == [
        ("__syslo__east", 2),
        ("__syslo__west", 3),
    ]
    assert {data.broker_name: data.broker_addrs[0] for data in mocks.broker_datas} == {
        "__syslo__east": address_of("a"),
        "__syslo__west": address_of("b"),
    }


def test_a_global_topic_belongs_to_every_unit_as_a_whole():
    """The number of its queues is one for all."""
    server = a_name_server()
    register_static(server, "a", a_leader_report("a", 0), cluster="east")
    register_static(server, "b", a_leader_report("b", 1), cluster="west")

    for unit in ("east", "west", "", "north"):
        route = decode_route(request_aware_route(server, "orders", unit).body)
        assert [leader.broker for leader in route.leaders("orders").values()] == ["a", "b"]


def test_a_normal_topic_and_a_static_one_of_its_name_in_another_unit_do_not_mix():
    """Each unit sees its own. Without a unit the static one is seen, as ever."""
    server = a_name_server()
    register_static(server, "a", a_leader_report("a", 0, 1, scope="east"), cluster="east")
    body = a_registration("orders")
    register(server, "b", address_of("b"), body=body, channel=server.connect(), clusterName="west")

    assert decode_route(request_aware_route(server, "orders", "east").body).mappings
    west = decode_route(request_aware_route(server, "orders", "west").body)
    assert not west.mappings
    assert [queue.broker_name for queue in west.publishable("orders")] == ["b"] * 4
    assert decode_route(request_aware_route(server, "orders").body).mappings.keys() == {"a"}


def test_a_topic_of_the_unit_that_cannot_be_told_is_busy_whatever_others_have():
    """Told that it does not exist, a client would create a normal one."""
    server = a_name_server()
    register_static(server, "a", a_leader_report("a", 0, scope="east"), cluster="east")
    register_static(server, "b", a_leader_report("b", 0, 1, scope="west"), cluster="west")

    assert request_aware_route(server, "orders", "east").code == ResponseCode.SYSTEM_BUSY
    assert request_aware_route(server, "orders", "west").code == ResponseCode.SUCCESS
    assert request_aware_route(server, "orders", "north").code == ResponseCode.TOPIC_NOT_EXIST
    # Without a unit: what can be told is told.
    assert decode_route(request_aware_route(server, "orders").body).mappings.keys() == {"b"}


def test_a_broker_hears_of_its_own_cluster_only():
    """Who leads a queue of another cluster's topic is nothing to it."""
    server = two_static_units()

    east = request_unit_route(server, "orders", "east", **{"hf.mapping": "1", "hf.reports": "1"})
    every = request_unit_route(server, "orders", **{"hf.mapping": "1", "hf.reports": "1"})

    assert decode_route(east.body).mappings.keys() == {"a"}
    assert decode_route(every.body).mappings.keys() == {"a", "b"}
    assert NO_LEADER not in str(decode_route(east.body).leaders("orders"))


def test_deleting_a_static_topic_in_one_cluster_leaves_that_of_the_other():
    """Also what a dead broker of the other said."""
    server = a_name_server()
    register_static(server, "a", a_leader_report("a", 0, 1, scope="east"), cluster="east")
    channel = server.connect()
    register_static(server, "b", a_leader_report("b", 0, 1, scope="west"), cluster="west", channel=channel)
    server.disconnect(channel)

    server.request(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "orders", "clusterName": "east"})

    assert request_aware_route(server, "orders", "east").code == ResponseCode.TOPIC_NOT_EXIST
    assert request_aware_route(server, "orders", "west").code == ResponseCode.SYSTEM_BUSY


def test_a_mapping_that_was_refused_in_one_unit_makes_nobody_wait_in_another():
    """There the topic simply does not exist."""
    server = a_name_server()
    register_static(server, "a", a_leader_report("x", 0, 1, scope="east"), cluster="east")

    assert request_aware_route(server, "orders", "east").code == ResponseCode.SYSTEM_BUSY
    assert request_aware_route(server, "orders", "west").code == ResponseCode.TOPIC_NOT_EXIST
