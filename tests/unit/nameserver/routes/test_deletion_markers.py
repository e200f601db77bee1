"""Deletion markers at a name server: who makes them, who lifts them, how they get to a name server that was away."""

import pytest
from tests.support.cluster.machine import MachineHarness
from tests.support.cluster.name_server_machine import a_name_server, a_registration, find_route, register, request_route
from tests.support.cluster.name_server_units import request_aware_route, two_units
from tests.support.static_reports import a_leader_report, address_of, leaders, register_static, request_aware

from holdfast.machine.effects import WriteFile
from holdfast.machine.events import FileWritten
from holdfast.model.deletion import DeletionMarker
from holdfast.nameserver.config.kv_config import DELETIONS, FILE
from holdfast.wire.cluster.deletions import DELETED_FIELD, DELETIONS_FIELD, decode_markers, encode_markers
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command, encode_command


def delete(server: MachineHarness, topic: str = "orders", **fields: str) -> None:
    assert server.request(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": topic, **fields}).code == 0


def is_deleted(answer: Command) -> bool:
    return answer.code == ResponseCode.TOPIC_NOT_EXIST and answer.fields.get(DELETED_FIELD) == "true"


def register_ours(server: MachineHarness, name: str, text: str = "[]", *topics: str) -> Command:
    """Let a broker register that knows of markers."""
    return register(server, name, address_of(name), body=a_registration(*topics), **{DELETIONS_FIELD: text})


def file_of(server: MachineHarness) -> bytes:
    return [effect.data for effect in server.effects if isinstance(effect, WriteFile) and effect.path == FILE][-1]


@pytest.mark.parametrize("is_static", [False, True])
def test_a_deleted_topic_is_said_to_be_deleted(*, is_static: bool):
    """Whatever kind it was; one that never was is just missing."""
    server = a_name_server()
    if is_static:
        register_static(server, "a", a_leader_report("a", 0, 1))
    else:
        register(server)

    delete(server)

    assert is_deleted(request_aware(server))
    assert request_aware(server, "bills").fields == {}
    java = request_route(server, "orders")
    assert (java.code, java.fields) == (ResponseCode.TOPIC_NOT_EXIST, {})
    assert "orders\nIt was deleted" in (java.remark or "")


def test_a_deletion_is_answered_when_it_is_on_disk():
    """And outlives the name server."""
    server = a_name_server(data="somewhere")
    register(server)
    channel = server.connect()

    request = server.new_request(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "orders"})
    server.receive(channel, encode_command(request))
    assert server.pop_answers(channel) == []
    server.feed(FileWritten(FILE, server.now_ms))

    assert [answer.code for answer in server.pop_answers(channel)] == [0]
    assert is_deleted(request_aware(a_name_server(kv_content=file_of(server), data="somewhere")))


def test_a_topic_that_was_never_here_leaves_no_marker():
    """Nor does one that brokers make for themselves."""
    server = a_name_server()
    register(server, body=a_registration("%RETRY%g"))

    delete(server, "typo")
    delete(server, "%RETRY%g")

    assert request_aware(server, "typo").fields == {}
    assert request_aware(server, "%RETRY%g").fields == {}


def test_a_deletion_in_one_unit_concerns_its_clients():
    """The others see theirs."""
    server = two_units("orders")

    delete(server, clusterName="east")

    assert is_deleted(request_aware_route(server, "orders", "east"))
    assert request_aware_route(server, "orders", "west").code == 0


def test_a_name_server_that_was_away_learns_from_the_first_broker():
    """Before it serves a route of that broker; and a broker that was away learns from it."""
    server, away = a_name_server(), a_name_server()
    register(server)
    delete(server)
    text = register_ours(server, "a").fields[DELETIONS_FIELD]

    answer = register_ours(away, "a", text)

    assert DELETIONS_FIELD not in answer.fields
    assert is_deleted(request_aware(away))
    assert register_ours(away, "b").fields[DELETIONS_FIELD] == text
    assert DELETIONS_FIELD not in register_ours(away, "b", text).fields


def test_a_broker_that_was_asked_to_create_the_topic_lifts_the_marker():
    """Its registration says so, and the topic is served."""
    server = a_name_server()
    register(server)
    delete(server)
    (marker,) = decode_markers(register_ours(server, "a").fields[DELETIONS_FIELD])

    register_ours(server, "a", encode_markers([DeletionMarker("orders", marker.version + 1, is_lifted=True)]), "orders")

    assert find_route(server, "orders") is not None
    assert decode_markers(register_ours(server, "b").fields[DELETIONS_FIELD])[0].is_lifted


def test_an_operator_who_registers_the_topic_by_hand_lifts_the_marker():
    """217 is an explicit create."""
    server = a_name_server()
    register(server, body=a_registration("orders", "bills"))
    delete(server)
    body = b'{"brokerDatas":[],"queueDatas":[{"brokerName":"a","perm":6,"readQueueNums":3,"writeQueueNums":2}]}'

    assert server.request(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "orders"}, body=body).code == 0

    assert decode_markers(register_ours(server, "b").fields[DELETIONS_FIELD])[0].is_lifted


def test_a_static_topic_that_a_sleeping_broker_still_has_is_refused():
    """Also by a name server that has heard of the deletion from another broker only."""
    server, away = a_name_server(), a_name_server()
    register_static(server, "a", a_leader_report("a", 0, 1))
    delete(server)
    register_ours(away, "b", register_ours(server, "b").fields[DELETIONS_FIELD])
    report = a_leader_report("a", 0, 1)
    body = a_registration("orders", mappings={"orders": report})

    answer = register(away, "a", address_of("a"), body=body, **{DELETIONS_FIELD: "[]"})

    assert "orders was deleted, but a still has it" in (answer.remark or "")
    assert leaders(away) is None


def test_a_static_topic_of_a_java_broker_lifts_the_marker():
    """It cannot say so itself, but nothing creates a static topic on the way."""
    server = a_name_server()
    register_static(server, "a", a_leader_report("a", 0, epoch=1, total=1))
    delete(server)

    register_static(server, "a", a_leader_report("a", 0, epoch=2, total=1))

    assert leaders(server) == {0: "a"}
    assert any(marker.is_lifted for marker in decode_markers(register_ours(server, "b").fields[DELETIONS_FIELD]))


def test_brokers_that_ask_are_given_the_markers():
    """Whether there is a route or not."""
    server = a_name_server()
    register(server, body=a_registration("bills", "orders"))
    delete(server)

    def asked(topic: str) -> Command:
        fields = {"topic": topic, "hf.reports": "1", "scope": "C1"}
        return server.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)

    assert [marker.topic for marker in decode_markers(asked("orders").fields[DELETIONS_FIELD])] == ["orders"]
    assert asked("bills").fields[DELETIONS_FIELD] == "[]"


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_markers_that_cannot_be_read_do_no_harm(text: str):
    """A broker's are told and left out; saved ones are told at the start."""
    server = a_name_server()
    register(server)
    delete(server)

    register_ours(server, "b", text)

    assert "deletion markers of a broker cannot be read" in server.logged()
    assert is_deleted(request_aware(server))


def test_the_markers_cannot_be_changed_as_a_setting():
    """They have versions."""
    fields = {"namespace": DELETIONS, "key": "markers", "value": "[]"}

    for code in (RequestCode.PUT_KV_CONFIG, RequestCode.DELETE_KV_CONFIG):
        answer = a_name_server().request(code, fields)
        assert answer.code == ResponseCode.ILLEGAL_OPERATION
        assert "holdfast topic delete" in (answer.remark or "")
