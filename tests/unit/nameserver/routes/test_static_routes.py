"""The two forms in which clients are told of a static topic, and who gets which."""

import json
from typing import Any

import pytest
from tests.support.cluster.machine import MachineHarness
from tests.support.cluster.name_server_machine import (
    a_name_server,
    a_registration,
    register,
    request_route,
    route_frame,
)
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

from holdfast.model.mapping import merge
from holdfast.nameserver.routes.static_routes import choose_proxy, host_of
from holdfast.wire.cluster.mapping import convert_info, from_info
from holdfast.wire.cluster.route import decode_route
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import BINARY, JSON, Command

MOCK = "__syslo__global__"


def infos(body: bytes) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(body)["topicQueueMappingByBroker"]
    return found


def brokers(body: bytes) -> dict[str, dict[int, str]]:
    return {broker.broker_name: broker.broker_addrs for broker in decode_route(body).broker_datas}


def queues(body: bytes) -> list[tuple[str, int]]:
    return [(queue.broker_name, queue.write_queues) for queue in decode_route(body).queue_datas]


def moved(broker: str, *, epoch: int = 2) -> dict[str, Any]:
    """Return the report of *broker* after everything went from a to b."""
    homes = {
        number: [a_segment("a", number, end=10), a_segment("b", number, generation=1, first=10)] for number in (0, 1)
    }
    return a_report(broker, homes, total=2, epoch=epoch)


def test_an_aware_client_is_told_who_leads_what_with_all_homes():
    """Its own merge of the parts gives what the name server merged, homes included."""
    server = a_name_server()
    register_static(server, "a", moved("a"))
    register_static(server, "b", moved("b"))

    body = request_aware(server).body

    merged = merge({name: from_info(convert_info(info)) for name, info in infos(body).items()})
    assert merged.is_complete
    assert merged.leaders == {0: "b", 1: "b"}
    assert [segment.logical_end for segment in merged.queues[0].segments] == [10, None]


def test_parts_wear_one_epoch_and_claim_no_queue_twice():
    """However old a broker's own report is: by Java's merge no stale part can win."""
    server = a_name_server()
    register_static(server, "a", a_report("a", {0: [a_segment("a")], 1: [a_segment("a", 1)]}, total=2, epoch=9))
    homes = [a_segment("a", end=3), a_segment("b", 4, generation=1, first=3)]
    register_static(server, "b", a_report("b", {0: homes}, total=2, epoch=2))

    body = request_aware(server).body

    assert {part["epoch"] for part in infos(body).values()} == {9}
    assert {name: part["currIdMap"] for name, part in infos(body).items()} == {"a": {"1": 1}, "b": {"0": 4}}
    assert java_leaders(body) == {0: "b", 1: "a"}


def test_a_drained_broker_leaves_the_queues_and_keeps_its_address():
    """Its old records are still read there, and it may answer for others."""
    server = a_name_server()
    register_static(server, "a", moved("a"))
    register_static(server, "b", moved("b"), queues=2)

    body = request_aware(server).body

    assert queues(body) == [("b", 2)]
    assert brokers(body) == {"a": {0: address_of("a")}, "b": {0: address_of("b")}}
    assert infos(body)["a"]["currIdMap"] == {}


def test_the_broker_of_an_old_segment_is_listed_though_it_reports_nothing():
    """Whoever reads there needs its address."""
    server = a_name_server()
    register(server, "a", address_of("a"), body=a_registration("bills"), channel=server.connect())
    register_static(server, "b", moved("b"))

    assert brokers(request_aware(server).body).keys() == {"a", "b"}


def test_parts_of_java_brokers_are_passed_on_without_homes():
    """What is not known is not made up."""
    server = a_name_server()
    register_static(server, "a", a_java_report("a", {0: 3}, total=2))
    register_static(server, "b", a_leader_report("b", 1))

    parts = infos(request_aware(server).body)

    assert parts["a"] == a_java_report("a", {0: 3}, total=2)
    assert "holdfast" in parts["b"]
    record = from_info(convert_info(parts["a"]))
    assert record.queues[0].generation is None


def test_no_order_configuration_hides_the_mapping():
    """Java producers look at the mapping only where there is none."""
    server = a_name_server(order_message_enable=True)
    server.request(RequestCode.PUT_KV_CONFIG, {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders", "value": "a:4"})
    register_static(server, "a", a_leader_report("a", 0, 1))

    assert b"orderTopicConf" not in request_aware(server).body
    assert b"orderTopicConf" not in request_route(server, "orders").body


@pytest.mark.parametrize("serializer", [JSON, BINARY])
@pytest.mark.parametrize(
    ("language", "version", "is_aware"),
    [("JAVA", 413, True), ("JAVA", 513, True), ("JAVA", 412, False), ("CPP", 513, False), ("PYTHON", 513, False)],
)
def test_java_5_reads_mappings_and_others_when_they_say_so(
    language: str, version: int, serializer: int, *, is_aware: bool
):
    """A high version in another language proves nothing. Asked twice: rendered, and from what was rendered."""
    server = a_name_server()
    register_static(server, "a", a_leader_report("a", 0, 1))

    for _ in range(2):
        answer = request_as(server, language, version, serializer=serializer)
        assert answer.code == 0
        assert (b"topicQueueMappingByBroker" in answer.body) is is_aware
    assert java_leaders(request_aware(server).body) == {0: "a", 1: "a"}


@pytest.mark.parametrize("version", [399, 479])
def test_other_clients_see_all_queues_on_one_mock_broker(version: int):
    """With the address of a live one, in the style of JSON that their age can read."""
    server = a_name_server()
    register_static(server, "a", a_leader_report("a", 0), queues=9)
    register_static(server, "b", a_leader_report("b", 1), queues=9)

    answer = request_route(server, "orders", version=version)

    assert queues(answer.body) == [(MOCK, 2)]
    found = brokers(answer.body)
    assert found.keys() == {MOCK}
    assert found[MOCK] in [{0: address_of("a")}, {0: address_of("b")}]
    assert (b'{0:"' in answer.body) is (version < 401)
    assert [queue.permission for queue in decode_route(answer.body).queue_datas] == [6]


def test_clients_of_one_host_have_one_stand_in_and_hosts_are_spread():
    """It is chosen by the host alone, not by the connection, the topic or a moment."""
    names = ("a", "b", "c")
    chosen = {f"192.0.2.{number}": choose_proxy(f"192.0.2.{number}", names) for number in range(200)}

    shares = [sum(name == other for other in chosen.values()) for name in names]
    assert min(shares) > 40
    without = {host: choose_proxy(host, ("a", "c")) for host in chosen}
    assert all(without[host] == name for host, name in chosen.items() if name != "b")
    assert host_of("192.0.2.1:1234") == "192.0.2.1"
    assert host_of("[::1]:1234") == "[::1]"


def test_when_the_stand_in_dies_another_takes_its_place():
    """At once, also for answers that were rendered; and no Java broker while one of ours is there."""
    server = a_name_server()
    channels = {name: server.connect() for name in "ab"}
    register_static(server, "c", a_java_report("c", {0: 0}, total=3))
    for number, name in enumerate("ab", start=1):
        register_static(server, name, a_leader_report(name, number, total=3), channel=channels[name])
    seen = []

    for _ in range(3):
        for _ in range(2):  # Rendered, and from what was rendered.
            (proxy,) = brokers(request_route(server, "orders").body)[MOCK].values()
        seen.append(proxy)
        for name, channel in channels.items():
            if address_of(name) == proxy:
                server.disconnect(channel)

    assert sorted(seen[:2]) == [address_of("a"), address_of("b")]
    assert seen[2] == address_of("c")


def test_a_topic_without_any_live_broker_is_busy():
    """It exists: a client that is told otherwise makes a normal topic of its name."""
    server = a_name_server()
    channel = server.connect()
    register_static(server, "a", a_leader_report("a", 0, 1), channel=channel)
    assert request_aware(server).code == request_route(server, "orders").code == 0

    server.disconnect(channel)

    for answer in (request_aware(server), request_route(server, "orders")):
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert "no broker that has it is alive" in (answer.remark or "")


def test_a_broker_is_told_what_was_registered_though_clients_are_not():
    """It asks whether it was replaced: by somebody who is dead by now, of a topic that nobody could ever use."""
    server = a_name_server()
    channel = server.connect()
    register_static(server, "c", a_leader_report("c", 2, total=4, epoch=3), channel=channel)
    register_static(server, "b", moved("b"), channel=channel)
    assert leaders(server) == "the route of static topic orders cannot be served: no broker leads logical queues 3 of 4"
    first = ask_reports(server)

    server.disconnect(channel)

    for answer, alive in ((first, {"b", "c"}), (ask_reports(server), set()), (ask_reports(server), set())):
        route = decode_route(answer.body)
        assert {name: record.led_queues for name, record in route.mappings.items()} == {"b": {0: 0, 1: 1}, "c": {2: 2}}
        assert route.mappings["b"].queues[0].generation == 1
        assert brokers(answer.body).keys() == alive
    register_static(server, "b", moved("b", epoch=4))
    assert infos(ask_reports(server).body)["b"]["epoch"] == 4, "news are told at once"


def test_what_brokers_are_told_and_what_clients_are_told_stay_apart():
    """A leader that was replaced has its report still; clients hear only of the one who leads."""
    server = a_name_server()
    register_static(server, "a", a_leader_report("a", 0, 1))
    register_static(server, "b", moved("b"))

    for _ in range(2):
        told, served = ask_reports(server).body, request_aware(server).body
        assert {name: len(info["currIdMap"]) for name, info in infos(told).items()} == {"a": 2, "b": 2}
        assert {name: len(info["currIdMap"]) for name, info in infos(served).items()} == {"a": 0, "b": 2}


def test_a_broker_that_asks_of_an_unknown_topic_is_told_so():
    """Nobody takes that for a confirmation."""
    server = a_name_server()

    assert ask_reports(server).code == ResponseCode.TOPIC_NOT_EXIST


def ask_reports(server: MachineHarness) -> Command:
    """Ask as brokers do."""
    fields = {"topic": "orders", "hf.mapping": "1", "hf.reports": "1"}
    return server.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)


def test_a_topic_of_no_queues_has_none_in_either_form():
    """A mapping that is there but empty: nothing to publish to, nothing to subscribe to."""
    server = a_name_server()
    register_static(server, "a", a_java_report("a", {}, total=0))

    assert java_leaders(request_aware(server).body) == {}
    assert queues(request_route(server, "orders").body) == [(MOCK, 0)]


def test_one_queue_is_one_endpoint():
    """And a route without a mapping has none."""
    server = a_name_server()
    register_static(server, "a", a_java_report("a", {0: 0}, total=1))
    register(server, "b", address_of("b"), body=a_registration("bills"), channel=server.connect())

    assert leaders(server) == {0: "a"}
    assert leaders(server, "bills") == {}


def test_all_forms_of_one_read_come_from_what_was_rendered():
    """Old, new and other clients on one channel: each its own form, in order, whichever was asked for first."""
    server = a_name_server()
    register_static(server, "a", a_leader_report("a", 0, 1))
    channel = server.connect()
    askers = [(513, "JAVA"), (399, "JAVA"), (513, "GO"), (412, "JAVA"), (513, "JAVA")]
    rendered = []

    for _ in range(2):
        for number, (version, language) in enumerate(askers):
            server.receive(channel, route_frame("orders", number, version=version, language=language))
        rendered.append(server.machine.counters.routes_rendered)  # type: ignore[attr-defined]
        answers = server.pop_answers(channel)
        assert [b"topicQueueMappingByBroker" in answer.body for answer in answers] == [True, False, False, False, True]
        assert [b'{0:"' in answer.body for answer in answers] == [False, True, False, False, False]

    assert rendered == [3, 3]
