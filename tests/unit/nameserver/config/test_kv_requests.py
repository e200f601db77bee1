"""Requests about the KV store, and what waits for the disk."""

import json

from tests.support.cluster.machine import MachineHarness
from tests.support.cluster.name_server_machine import a_name_server, register, request_route

from holdfast.machine.effects import WriteFile
from holdfast.machine.events import DiskFault, FileWritten, TimerFired
from holdfast.nameserver.config.kv_config import FILE, TIMER
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import encode_command

ORDER = {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders", "value": "a:4;b:2"}


def writes(server: MachineHarness) -> list[WriteFile]:
    return [effect for effect in server.effects if isinstance(effect, WriteFile)]


def test_a_value_can_be_put_read_listed_and_deleted():
    """Without a data folder it is remembered until the end, and acknowledged at once."""
    server = a_name_server()
    item = {"namespace": "ns", "key": "k"}

    assert server.request(RequestCode.PUT_KV_CONFIG, {**item, "value": "v"}).code == 0
    assert server.request(RequestCode.GET_KV_CONFIG, item).fields == {"value": "v"}
    assert json.loads(server.request(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "ns"}).body) == {
        "table": {"k": "v"}
    }
    assert server.request(RequestCode.DELETE_KV_CONFIG, item).code == 0
    assert server.request(RequestCode.GET_KV_CONFIG, item).code == ResponseCode.QUERY_NOT_FOUND
    assert writes(server) == []


def test_what_is_not_there_is_answered_with_22_and_upstream_words():
    """Tools show the remark."""
    server = a_name_server()

    value = server.request(RequestCode.GET_KV_CONFIG, {"namespace": "ns2", "key": "k"})
    table = server.request(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "ns2"})

    assert (value.code, value.remark) == (22, "No config item, Namespace: ns2 Key: k")
    assert (table.code, table.remark) == (22, "No config item, Namespace: ns2")


def test_a_put_without_a_value_is_refused():
    """It names the field that is missing."""
    answer = a_name_server().request(RequestCode.PUT_KV_CONFIG, {"namespace": "ns", "key": "k"})

    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "field 'value' is missing")


def test_a_change_is_acknowledged_when_it_is_on_disk():
    """Not before: whoever heard yes finds the value after a restart."""
    server = a_name_server(data="somewhere")
    channel = server.connect()

    server.receive(channel, encode_command(server.new_request(RequestCode.PUT_KV_CONFIG, ORDER)))
    assert server.pop_answers(channel) == []
    (write,) = writes(server)
    server.feed(FileWritten(FILE, server.now_ms))

    assert [answer.code for answer in server.pop_answers(channel)] == [0]
    restarted = a_name_server(kv_content=write.data)
    assert restarted.request(RequestCode.GET_KV_CONFIG, ORDER).fields == {"value": "a:4;b:2"}


def test_the_file_is_the_one_that_java_name_servers_read():
    """Name and shape are upstream's."""
    server = a_name_server(data="somewhere")

    server.receive(server.connect(), encode_command(server.new_request(RequestCode.PUT_KV_CONFIG, ORDER)))

    assert writes(server) == [
        WriteFile("kvConfig.json", b'{"configTable":{"ORDER_TOPIC_CONFIG":{"orders":"a:4;b:2"}}}')
    ]


def test_changes_during_a_write_share_the_next_one():
    """One write at a time; the second holds everything that came meanwhile."""
    server = a_name_server(data="somewhere")
    channel = server.connect()
    for number in range(3):
        item = {"namespace": "ns", "key": f"k{number}", "value": "v"}
        server.receive(channel, encode_command(server.new_request(RequestCode.PUT_KV_CONFIG, item)))
    assert len(writes(server)) == 1

    server.feed(FileWritten(FILE, server.now_ms))
    assert len(server.pop_answers(channel)) == 1
    assert len(writes(server)) == 2

    server.feed(FileWritten(FILE, server.now_ms))
    assert len(server.pop_answers(channel)) == 2
    assert json.loads(writes(server)[-1].data)["configTable"]["ns"].keys() == {"k0", "k1", "k2"}
    assert len(writes(server)) == 2


def test_whoever_waits_for_a_disk_that_fails_is_told():
    """And the next change is written at once, with what the disk refused."""
    server = a_name_server(data="somewhere")
    channel = server.connect()
    server.receive(channel, encode_command(server.new_request(RequestCode.PUT_KV_CONFIG, ORDER)))

    server.feed(DiskFault("no space left", server.now_ms, path=FILE))

    (answer,) = server.pop_answers(channel)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == (
        "changed, but not saved yet, and lost if this name server restarts before it is: no space left"
    )
    server.receive(channel, encode_command(server.new_request(RequestCode.PUT_KV_CONFIG, ORDER)))
    assert len(writes(server)) == 2


def test_what_the_disk_refused_is_written_when_it_has_space_again():
    """Deletion markers and opened units must outlive a restart, whether or not anything else changes."""
    server = a_name_server(data="somewhere")
    channel = server.connect()
    server.receive(channel, encode_command(server.new_request(RequestCode.PUT_KV_CONFIG, ORDER)))
    for attempt in (1, 2):
        server.feed(DiskFault("no space left", server.now_ms, path=FILE))
        assert len(writes(server)) == attempt, "not at once"
        server.feed(TimerFired(TIMER, server.now_ms))
        assert len(writes(server)) == attempt + 1

    server.feed(FileWritten(FILE, server.now_ms))
    server.feed(TimerFired(TIMER, server.now_ms))

    assert len(writes(server)) == 3
    assert writes(server)[-1].data == writes(server)[0].data
    assert [answer.code for answer in server.pop_answers(channel)] == [ResponseCode.SYSTEM_ERROR]


def test_a_disk_that_stays_full_is_reported_once():
    """Until a write succeeds: the next failure is a new one. Each is counted."""
    server = a_name_server(data="somewhere")
    server.send_one_way(RequestCode.PUT_KV_CONFIG, ORDER)
    for result in (False, False, True, False):
        server.feed(
            FileWritten(FILE, server.now_ms) if result else DiskFault("no space left", server.now_ms, path=FILE)
        )
        server.send_one_way(RequestCode.PUT_KV_CONFIG, ORDER)

    assert server.logged().count("disk failed") == 2
    assert server.machine.counters.disk_faults == 3


def test_a_one_way_change_is_written_and_not_answered():
    """Nobody waits for it."""
    server = a_name_server(data="somewhere")
    channel = server.connect()

    assert server.send_one_way(RequestCode.PUT_KV_CONFIG, ORDER, channel=channel) == []
    server.feed(FileWritten(FILE, server.now_ms))

    assert len(writes(server)) == 1
    assert server.pop_answers(channel) == []


def test_routes_carry_the_order_configuration_where_it_is_enabled():
    """The next query after a change shows it; without the option it is not there at all."""
    server, plain = a_name_server(order_message_enable=True), a_name_server()
    for each in (server, plain):
        register(each)
        request_route(each, "orders")
        each.request(RequestCode.PUT_KV_CONFIG, ORDER)

    assert json.loads(request_route(server, "orders").body)["orderTopicConf"] == "a:4;b:2"
    assert b"orderTopicConf" not in request_route(plain, "orders").body

    server.request(RequestCode.DELETE_KV_CONFIG, ORDER)
    assert b"orderTopicConf" not in request_route(server, "orders").body
