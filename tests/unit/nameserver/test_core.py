"""The name server as its peers meet it: frames in, frames out."""

import json

import pytest
from tests.support.cluster.machine import START_MS
from tests.support.cluster.name_server_machine import (
    a_name_server,
    a_registration,
    register,
    request_route,
    route_frame,
)

from holdfast.machine.effects import CloseChannel, SendBytes, SetTimer
from holdfast.machine.events import FramesReceived, Started, Stopping, TimerFired
from holdfast.nameserver.scan import TIMER as SCAN_TIMER
from holdfast.wire.cluster.route import decode_route
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import BINARY, JSON, ONE_WAY, RESPONSE, encode_command
from holdfast.wire.frames.frame import frame_prefix, split_frames


def raw_frame(header: bytes, body: bytes = b"") -> bytes:
    return frame_prefix(JSON, len(header), len(body)) + header + body


def test_a_route_names_the_broker_and_its_queues():
    """What a broker registered is what clients are told."""
    server = a_name_server()
    register(server, "a", "10.0.0.1:10911")

    answer = request_route(server, "orders")

    assert json.loads(answer.body) == {
        "brokerDatas": [
            {
                "brokerAddrs": {"0": "10.0.0.1:10911"},
                "brokerName": "a",
                "cluster": "C1",
                "enableActingMaster": False,
            }
        ],
        "filterServerTable": {},
        "queueDatas": [{"brokerName": "a", "perm": 6, "readQueueNums": 4, "topicSysFlag": 0, "writeQueueNums": 4}],
    }


def test_a_second_query_gets_the_same_answer_with_its_own_number():
    """A rendered answer is used again, byte for byte but for the number of the request."""
    server = a_name_server()
    register(server)
    channel = server.connect()

    for opaque in (0, 7, 42, 2**31 - 1, -1, -(2**31)):
        server.receive(channel, route_frame("orders", opaque))
    answers = server.pop_answers(channel)

    assert [answer.opaque for answer in answers] == [0, 7, 42, 2**31 - 1, -1, -(2**31)]
    assert len({answer.body for answer in answers}) == 1
    assert {(answer.code, answer.flag) for answer in answers} == {(0, RESPONSE)}


def test_all_answers_of_one_read_are_one_write_in_order():
    """Many queries of one read, known and unknown, are answered with a single effect."""
    server = a_name_server()
    register(server, body=a_registration("orders", "bills"))
    topics = ["orders", "bills", "nothing", "orders", "bills"]
    data = b"".join(route_frame(topic, number) for number, topic in enumerate(topics))
    frames, _ = split_frames(memoryview(data))

    effects = server.machine.handle(FramesReceived(server.connect(), frames, START_MS))

    assert [type(effect) for effect in effects] == [SendBytes]
    (effect,) = effects
    assert isinstance(effect, SendBytes)
    answered, _ = split_frames(memoryview(b"".join(effect.pieces)))
    headers = [json.loads(bytes(frame.header)) for frame in answered]
    assert [(header["opaque"], header["code"]) for header in headers] == [(0, 0), (1, 0), (2, 17), (3, 0), (4, 0)]


def test_an_unknown_topic_is_answered_with_17_and_upstream_words():
    """Clients log the remark; it says which topic it was."""
    answer = request_route(a_name_server(), "nothing")

    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert answer.remark == (
        "No topic route info in name server for the topic: nothing\n"
        "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
    )


@pytest.mark.parametrize("serializer", [JSON, BINARY])
@pytest.mark.parametrize("is_known", [True, False])
def test_an_answer_comes_in_the_encoding_of_its_request(serializer: int, *, is_known: bool):
    """Binary clients get binary answers, JSON clients JSON, from the same route."""
    server = a_name_server()
    register(server)

    answer = request_route(server, "orders" if is_known else "nothing", serializer=serializer)

    assert answer.serializer == serializer
    assert answer.code == (0 if is_known else 17)
    assert not is_known or decode_route(answer.body).queue_datas[0].broker_name == "a"


@pytest.mark.parametrize("serializer", [JSON, BINARY])
@pytest.mark.parametrize(
    ("version", "accept", "is_bare"),
    [(399, None, True), (400, "false", True), (400, "true", False), (401, None, False), (513, None, False)],
)
def test_clients_before_4_9_4_get_bare_integer_keys(
    serializer: int, version: int, accept: str | None, *, is_bare: bool
):
    """Old clients read no quoted keys, new ones nothing else; whoever says so gets standard JSON at any age."""
    server = a_name_server()
    register(server)
    fields = {"topic": "orders"} | ({"acceptStandardJsonOnly": accept} if accept else {})

    for _ in range(2):
        answer = server.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields, serializer=serializer, version=version)

        assert (b'{0:"10.0.0.1:10911"}' in answer.body) is is_bare
        assert (b'{"0":"10.0.0.1:10911"}' in answer.body) is not is_bare


def test_old_and_new_clients_do_not_get_each_others_answers():
    """Both styles of one route are at hand, and each client is told in its own."""
    server = a_name_server()
    register(server)
    channel = server.connect()

    for version in (400, 401, 400, 401):
        server.receive(channel, route_frame("orders", version, version=version))

    keys = [(answer.opaque, b'{"0":' in answer.body) for answer in server.pop_answers(channel)]
    assert keys == [(400, False), (401, True), (400, False), (401, True)]


def test_a_change_between_two_queries_of_one_read_is_seen_by_the_second():
    """Requests of one read take effect in order."""
    server = a_name_server()
    register(server)
    request_route(server, "orders")
    delete = server.new_request(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "orders"})
    channel = server.connect()

    server.receive(channel, route_frame("orders", 1) + encode_command(delete) + route_frame("orders", 2))

    assert [answer.code for answer in server.pop_answers(channel)] == [0, 0, 17]


def test_an_unknown_code_gets_code_3():
    """The remark begins with a blank, as upstream's does."""
    answer = a_name_server().request(9999)

    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert answer.remark == " request type 9999 not supported"


@pytest.mark.parametrize("code", [RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO, 9999])
def test_a_one_way_request_is_never_answered(code: int):
    """Nobody waits for it."""
    server = a_name_server()
    register(server)
    request_route(server, "orders")

    assert server.send_one_way(code, {"topic": "orders"}) == []


def test_a_response_is_ignored():
    """A name server asks nothing, so nothing can be an answer to it."""
    server = a_name_server()
    channel = server.connect()

    server.receive(channel, encode_command(server.new_request(0, flag=RESPONSE)))
    server.receive(channel, encode_command(server.new_request(105, {"topic": "orders"}, flag=RESPONSE | ONE_WAY)))

    assert server.pop_answers(channel) == []
    assert server.closed() == set()


def test_a_missing_field_is_answered_with_its_name():
    """The frame was sound, so the channel stays; the peer is told what is missing."""
    server = a_name_server()

    answer = server.request(RequestCode.GET_ROUTEINFO_BY_TOPIC)

    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "field 'topic' is missing")
    assert server.closed() == set()


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"[]",
        b'{"code":105,"opaque":99999999999,"extFields":{"topic":"orders"}}',
        b'{"code":105,"opaque":1,"extFields":{"topic":"\xff"}}',
        b"[" * 100_000,
    ],
)
def test_a_header_that_cannot_be_read_closes_that_channel_after_what_came_before(header: bytes):
    """Requests before it are answered, those behind it are not, and other channels do not notice."""
    server = a_name_server()
    register(server)
    channel, other = server.connect(), server.connect()

    server.receive(channel, route_frame("orders", 1) + raw_frame(header) + route_frame("orders", 2))
    server.receive(other, route_frame("orders", 3))

    assert [answer.opaque for answer in server.pop_answers(channel)] == [1]
    assert server.closed() == {channel}
    others = [effect for effect in server.effects if not isinstance(effect, SendBytes)]
    assert isinstance(others[-1], CloseChannel)
    assert [answer.opaque for answer in server.pop_answers(other)] == [3]


@pytest.mark.parametrize(
    "header",
    [
        b'{"extFields":{"topic":"orders"},"version":"479","opaque":"5","code":"105"}',
        b' {"code" : 105 , "opaque" : 5 , "extFields" : {"topic" : "orders", "ReqT" : 0}}',
        b'{"code":105,"opaque":5,"extFields":{"topic":"orders","acceptStandardJsonOnly":"TRUE"},"version":1}',
        b'{"code":105,"flag":0,"language":"CPP","opaque":5,"version":513,"extFields":{"topic":"orders","x":null}}',
    ],
)
def test_liberties_of_other_clients_are_understood(header: bytes):
    """Any order of keys, blanks, numbers in quotes, unknown fields."""
    server = a_name_server()
    register(server)
    channel = server.connect()

    for _ in range(2):
        server.receive(channel, raw_frame(header))
        (answer,) = server.pop_answers(channel)

        assert (answer.code, answer.opaque) == (0, 5)


def test_the_scan_for_silent_brokers_is_set_at_the_start_and_after_every_scan():
    """A timer fires once, so the machine sets it again."""
    server = a_name_server(scan_interval_ms=5_000)

    assert server.effects == [SetTimer(SCAN_TIMER, START_MS + 5_000)]
    assert server.machine.handle(Started(1)) == [SetTimer(SCAN_TIMER, 5_001)]


def test_a_timer_that_a_component_fires_runs_before_the_event_ends():
    """So a component reacts to a change at once, in one that knows nothing of it."""
    server = a_name_server(scan_interval_ms=5_000)
    server.machine._turn.fire(SCAN_TIMER)  # type: ignore[attr-defined]

    assert SetTimer(SCAN_TIMER, START_MS + 5_001) in server.machine.handle(TimerFired("nothing", START_MS + 1))
    assert not server.machine._turn.fired  # type: ignore[attr-defined]


def test_stopping_needs_nothing():
    """There is nothing to hand over: brokers register with every name server."""
    assert a_name_server().feed(Stopping(START_MS)) == []


def test_what_happened_is_counted():
    """The shell exports these; a query counts the same on the hot path and off it."""
    server = a_name_server()
    register(server)
    for topic in ("orders", "orders", "orders", "nothing"):
        request_route(server, topic)
    server.request(9999)

    counters = server.machine.counters
    assert (counters.route_queries, counters.route_misses, counters.routes_rendered) == (4, 1, 1)
    assert counters.refusals == 2
