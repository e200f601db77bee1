"""Static topics at the name server: as Java's tools made them, and through everything that leaves them half done."""

from typing import Any

import pytest
from tests.conformance.test_name_server_replay import meaning, replay
from tests.support import recordings
from tests.support.cluster.machine import MachineHarness
from tests.support.cluster.name_server_machine import a_name_server, a_registration, find_route, register, request_route
from tests.support.static_reports import (
    a_java_report,
    a_leader_report,
    a_report,
    a_segment,
    address_of,
    java_leaders,
    leaders,
    register_static,
    request_as,
    request_aware,
)

from holdfast.machine.events import TimerFired
from holdfast.model.scope import is_mock_broker
from holdfast.nameserver.scan import TIMER as SCAN_TIMER
from holdfast.wire.cluster.mapping import convert_info
from holdfast.wire.cluster.registration import decode_registration
from holdfast.wire.cluster.route import decode_route
from holdfast.wire.frames.codes import RequestCode, ResponseCode

TOPIC = "TopicStatic"
STEPS = ["register-query-version", "static-create", "static-grow", "static-remap", "static-delete"]


def without_idle(route: dict[str, Any]) -> dict[str, Any]:
    """Return a route without the queues of brokers that lead none, which a Java name server goes on listing."""
    led = {name for name, part in route["topicQueueMappingByBroker"].items() if part["currIdMap"]}
    return route | {"queueDatas": [queue for queue in route["queueDatas"] if queue["brokerName"] in led]}


@pytest.mark.parametrize("style", ["5.5.0-json", "5.5.0-binary"])
def test_javas_tools_create_grow_remap_and_delete_as_with_a_java_name_server(style: str):
    """Every route that Java clients got of the topic they get from us, but for the queues of a drained broker."""
    server = a_name_server()
    compared = []

    for step in STEPS:
        for recorded, ours in replay(server, f"{style}-{step}"):
            theirs = recorded.command
            if recorded.code == RequestCode.REGISTER_BROKER:
                assert (ours.code, ours.remark) == (0, None), recorded
            if recorded.code != RequestCode.GET_ROUTEINFO_BY_TOPIC or TOPIC.encode() not in theirs.body + ours.body:
                continue
            assert ours.code == theirs.code, recorded
            assert without_idle(meaning(ours.body)) == without_idle(meaning(theirs.body)), recorded
            compared.append(step)

    assert set(compared) >= {"static-create", "static-grow", "static-remap"}
    assert leaders(server, TOPIC) is None


def test_every_recorded_mapping_is_read():
    """As it was registered: which queues, of how many, since which change."""
    seen = set()

    for name in recordings.file_names("*-static-*"):
        for recorded in recordings.read(name):
            if recorded.code != RequestCode.REGISTER_BROKER or recorded.is_response:
                continue
            command = recorded.command
            topics = decode_registration(command.body, version=command.version).topic_config_serialize_wrapper
            for topic, plain in topics.topic_queue_mapping_info_map.items():
                info = convert_info(plain)
                assert (info.topic, info.broker) == (topic, command.fields["brokerName"])
                assert info.epoch > 1_700_000_000_000
                seen.add((info.total, len(info.led_queues)))

    assert {(2, 1), (4, 2), (4, 4), (4, 0)} <= seen


# Half done.


def test_a_topic_enabled_on_some_brokers_only_is_busy_and_never_missing():
    """Until the last of its queues is led; old clients and new."""
    server = a_name_server()
    register_static(server, "a", a_leader_report("a", 0, total=3))
    register_static(server, "b", a_leader_report("b", 1, total=3))

    for answer in (request_aware(server), request_route(server, "orders"), request_as(server, "JAVA", 513)):
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert answer.remark == (
            "the route of static topic orders cannot be served: no broker leads logical queues 2 of 3"
        )

    register_static(server, "b", a_leader_report("b", 1, 2, total=3))
    assert leaders(server) == {0: "a", 1: "b", 2: "b"}
    assert request_route(server, "orders").code == 0


def test_a_topic_grown_on_some_brokers_only_is_served_as_it_was():
    """Nobody sees a queue without a leader, and nobody sees a third of the new queues."""
    server = a_name_server()
    register_static(server, "a", a_leader_report("a", 0))
    register_static(server, "b", a_leader_report("b", 1))

    register_static(server, "a", a_leader_report("a", 0, 2, total=4, epoch=2))
    assert leaders(server) == {0: "a", 1: "b"}
    assert [data.read_queues for data in decode_route(request_route(server, "orders").body).queue_datas] == [2]

    register_static(server, "b", a_leader_report("b", 1, 3, total=4, epoch=2))
    assert leaders(server) == {0: "a", 1: "b", 2: "a", 3: "b"}


def test_a_normal_topic_that_is_being_converted_stays_normal_until_it_is_converted():
    """With all its queues; then it is static for everybody at once."""
    server = a_name_server()
    for name in "ab":
        register(server, name, address_of(name), channel=server.connect())

    register_static(server, "a", a_leader_report("a", 0, 1, 2, 3, total=8))
    for body in (request_aware(server).body, request_route(server, "orders").body):
        assert java_leaders(body) == {}
        assert {(queue.broker_name, queue.write_queues) for queue in decode_route(body).queue_datas} == {
            ("a", 4),
            ("b", 4),
        }

    register_static(server, "b", a_leader_report("b", 4, 5, 6, 7, total=8))
    assert leaders(server) == {number: "a" if number < 4 else "b" for number in range(8)}
    assert all(
        is_mock_broker(data.broker_name) for data in decode_route(request_route(server, "orders").body).queue_datas
    )


# Moves.


def homes(end: int = 10) -> dict[int, list[Any]]:
    """Return queue 0 after its move from a to b."""
    return {0: [a_segment("a", end=end), a_segment("b", generation=1, first=end)]}


def a_moved_topic() -> MachineHarness:
    server = a_name_server()
    register_static(server, "a", a_leader_report("a", 0, total=1))
    register_static(server, "b", a_leader_report("b", total=1))
    register_static(server, "b", a_report("b", homes(), total=1, epoch=2))
    register_static(server, "a", a_report("a", homes(), total=1, epoch=2))
    return server


def test_a_stale_broker_that_comes_back_leads_nothing():
    """With the disk it had before the move: its epoch is refused, and it is told."""
    server = a_moved_topic()

    answer = register_static(server, "a", a_leader_report("a", 0, total=1))

    assert answer.code == 0
    assert "its mapping is an old copy" in (answer.remark or "")
    assert leaders(server) == {0: "b"}


def test_a_broker_with_a_copy_of_anothers_mapping_leads_nothing():
    """Neither beside the true owner nor in its absence."""
    server = a_moved_topic()

    answer = register_static(server, "c", a_report("b", homes(), total=1, epoch=2))

    assert "c has a mapping of orders that belongs to b: remove the copied file" in (answer.remark or "")
    assert leaders(server) == {0: "b"}
    assert b'"c"' not in request_aware(server).body


@pytest.mark.parametrize("how", ["good-bye", "channel", "silence"])
def test_a_leader_that_is_away_keeps_its_queue(how: str):
    """No other broker is named for it; its address is gone, and back when it is."""
    server = a_name_server()
    channel = server.connect()
    register_static(server, "a", a_leader_report("a", 0), channel=channel)
    keeper = server.connect()
    register_static(server, "b", a_leader_report("b", 1), channel=keeper)

    if how == "good-bye":
        fields = {"brokerName": "a", "brokerAddr": address_of("a"), "clusterName": "C1", "brokerId": "0"}
        server.request(RequestCode.UNREGISTER_BROKER, fields)
    elif how == "channel":
        server.disconnect(channel)
    else:
        server.now_ms += 119_000
        register_static(server, "b", a_leader_report("b", 1), channel=keeper)
        server.now_ms += 2_000
        server.feed(TimerFired(SCAN_TIMER, server.now_ms))

    route = decode_route(request_aware(server).body)
    assert leaders(server) == {0: "a", 1: "b"}
    assert [broker.broker_name for broker in route.broker_datas] == ["b"]

    register_static(server, "a", a_leader_report("a", 0))
    assert {broker.broker_name for broker in decode_route(request_aware(server).body).broker_datas} == {"a", "b"}


def test_a_drained_broker_that_is_removed_is_forgotten():
    """When its last records expired, and not before."""
    server = a_name_server()
    channel = server.connect()
    register_static(server, "a", a_report("a", homes(), total=1, epoch=2), channel=channel)
    register_static(server, "b", a_report("b", homes(), total=1, epoch=2))
    server.disconnect(channel)
    assert b'"bname":"a"' in request_aware(server).body

    register_static(server, "b", a_report("b", {0: homes()[0][1:]}, total=1, epoch=3))

    assert b'"bname":"a"' not in request_aware(server).body
    assert leaders(server) == {0: "b"}


def test_a_broker_whose_records_expired_is_forgotten_when_it_leaves():
    """While it is there it is listed."""
    server = a_name_server()
    channel = server.connect()
    register_static(server, "a", a_report("a", homes(), total=1, epoch=2), channel=channel)
    register_static(server, "b", a_report("b", {0: homes()[0][1:]}, total=1, epoch=3))
    assert b'"bname":"a"' in request_aware(server).body

    server.disconnect(channel)

    assert b'"bname":"a"' not in request_aware(server).body
    assert leaders(server) == {0: "b"}


# Deletion.


def test_a_deleted_static_topic_can_come_back_as_a_normal_one():
    """Nothing of the old one is left, neither for clients that read mappings nor for others."""
    server = a_moved_topic()
    server.request(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "orders", "clusterName": "C1"})
    assert leaders(server) is None
    assert request_route(server, "orders").code == ResponseCode.TOPIC_NOT_EXIST

    register(server, "a", address_of("a"), body=a_registration("orders", counter=9), channel=server.connect())

    route = find_route(server, "orders")
    assert route is not None
    assert [queue.broker_name for queue in route.queue_datas] == ["a"]
    assert b"topicQueueMappingByBroker" not in request_aware(server).body


def test_a_broker_that_slept_through_the_deletion_does_not_revive_the_topic():
    """Beside a normal topic of the name it would take that one away from its clients."""
    server = a_moved_topic()
    server.request(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "orders", "clusterName": "C1"})
    register(server, "c", address_of("c"), body=a_registration("orders", counter=9), channel=server.connect())

    answer = register_static(server, "b", a_report("b", homes(), total=1, epoch=2))

    assert "orders was deleted, but b still has it" in (answer.remark or "")
    route = find_route(server, "orders")
    assert route is not None
    assert [queue.broker_name for queue in route.queue_datas] == ["c"]


def test_a_deleted_static_topic_can_be_created_again():
    """Under a new epoch, with fewer queues and other brokers."""
    server = a_name_server()
    register_static(server, "a", a_leader_report("a", 0, 1, total=2, epoch=5))
    server.request(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "orders"})

    register_static(server, "b", a_leader_report("b", 0, total=1, epoch=6))

    assert leaders(server) == {0: "b"}


# Java brokers and ours.


def test_java_brokers_and_ours_share_a_topic():
    """Those that tell no homes are merged by epoch, as Java's clients would do it."""
    server = a_name_server()
    register_static(server, "a", a_java_report("a", {0: 0, 1: 1}, total=3, epoch=10))
    register_static(server, "b", a_leader_report("b", 2, total=3, epoch=10))
    assert leaders(server) == {0: "a", 1: "a", 2: "b"}

    register_static(server, "b", a_report("b", {1: [a_segment("b", 5)], 2: [a_segment("b", 2)]}, total=3, epoch=11))
    assert leaders(server) == {0: "a", 1: "b", 2: "b"}

    register_static(server, "a", a_java_report("a", {0: 0}, total=3, epoch=11))
    assert leaders(server) == {0: "a", 1: "b", 2: "b"}


def test_other_topics_are_not_touched_by_a_static_one():
    """Creating one beside them, in registrations that carry nothing else."""
    server = a_name_server()
    channel = server.connect()
    register(server, "a", address_of("a"), body=a_registration("bills", "mails"), channel=channel)

    register_static(server, "a", a_leader_report("a", 0, 1), channel=channel)

    assert find_route(server, "bills") is not None
    assert find_route(server, "mails") is not None
    assert leaders(server) == {0: "a", 1: "a"}
