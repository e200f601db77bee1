"""Brokers register, renew and conflict."""

import json
import struct
import zlib

import pytest
from tests.support.cluster.name_server_machine import (
    a_name_server,
    a_registration,
    a_topic,
    addresses,
    find_route,
    heartbeat_fields,
    register,
    registration_fields,
    request_route,
)
from tests.support.static_reports import a_java_report, a_leader_report, leaders, register_static, request_aware

from holdfast.wire.frames.codes import RequestCode, ResponseCode

A, B = "10.0.0.1:10911", "10.0.0.2:10911"


def packed(*topics: str, version: int) -> bytes:
    """Return a compressed registration as brokers of that version write it."""

    def text(data: bytes) -> bytes:
        return struct.pack(">i", len(data)) + data

    body = text(b'{"counter":3,"timestamp":5}') + struct.pack(">i", len(topics))
    body += b"".join(text(topic.encode()) for topic in topics) + text(b"[]")
    return zlib.compress(body + (struct.pack(">i", 0) if version >= 413 else b""), 9)


# Taking registrations.


def test_brokers_with_a_topic_in_common_share_its_route():
    """Every broker that registered the topic is in the route, by name."""
    server = a_name_server()
    register(server, "b", B)
    register(server, "a", A)

    route = find_route(server, "orders")

    assert route is not None
    assert [broker.broker_name for broker in route.broker_datas] == ["a", "b"]
    assert [queue.broker_name for queue in route.queue_datas] == ["a", "b"]


@pytest.mark.parametrize("header_says_so", ["true", "false"])
@pytest.mark.parametrize(
    ("version", "topic"), [(407, "orders 4 4 6 SINGLE_TAG"), (513, 'orders 4 4 6 SINGLE_TAG {"a":"b c"}')]
)
def test_a_compressed_registration_is_recognised_by_its_first_byte(version: int, topic: str, header_says_so: str):
    """4.x says in the header that it compresses, 5.x compresses and denies it."""
    server = a_name_server()

    answer = register(server, body=packed(topic, version=version), version=version, compressed=header_says_so)

    assert answer.code == 0
    route = find_route(server, "orders")
    assert route is not None
    assert route.queue_datas[0].write_queues == 4


def test_a_damaged_registration_is_refused():
    """The checksum in the header is checked when there is one."""
    server = a_name_server()

    answer = register(server, bodyCrc32="12345")

    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "crc32 not match")
    assert find_route(server, "orders") is None


def test_a_registration_without_checksum_is_taken():
    """Zero means unchecked."""
    server = a_name_server()

    assert register(server, bodyCrc32="0").code == 0
    assert find_route(server, "orders") is not None


@pytest.mark.parametrize("body", [b"{", b"\x78\x9c rubbish", b"[1]", b'{"topicConfigSerializeWrapper":7}'])
def test_a_registration_that_cannot_be_read_is_refused_and_changes_nothing(body: bytes):
    """The broker is told; its channel stays, because the frame itself was sound."""
    server = a_name_server()

    answer = register(server, body=body)

    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark
    assert server.request(RequestCode.GET_BROKER_CLUSTER_INFO).body == b'{"brokerAddrTable":{},"clusterAddrTable":{}}'
    assert server.closed() == set()


@pytest.mark.parametrize("queues", [-1, 65_537, 2**31 - 1])
def test_a_topic_with_more_queues_than_any_client_can_hold_is_refused(queues: int):
    """Every client that hears of it makes an object for each of them."""
    server = a_name_server()

    answer = register(server, body=a_registration("good", a_topic("orders", queues)))

    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "orders" in (answer.remark or "")
    assert find_route(server, "good") is None


def test_a_one_way_registration_counts_and_is_not_answered():
    """4.9 brokers send it so after they created a topic by themselves."""
    server = a_name_server()
    body = a_registration("orders")

    answers = server.send_one_way(RequestCode.REGISTER_BROKER, registration_fields("a", A, body), body=body)

    assert answers == []
    assert addresses(server) == {"a": {0: A}}


def test_a_registration_of_one_topic_adds_to_what_the_broker_had():
    """After a change brokers send just the topic that changed."""
    server = a_name_server()
    channel = server.connect()
    register(server, body=a_registration("orders", "bills", counter=1), channel=channel)

    register(server, body=a_registration(a_topic("bills", 9), counter=2), channel=channel)

    bills = find_route(server, "bills")
    assert find_route(server, "orders") is not None
    assert bills is not None
    assert bills.queue_datas[0].write_queues == 9


def test_a_broker_whose_first_registration_has_one_topic_is_taken():
    """Upstream refuses it; a broker with one topic is still a broker."""
    server = a_name_server()

    answer = register(server, body=a_registration("orders"))

    assert answer.code == 0
    assert addresses(server) == {"a": {0: A}}


def test_a_full_registration_after_a_partial_one_of_the_same_version_is_read():
    """After a restart of ours the change may arrive first, then everything under the same data version."""
    server = a_name_server()
    channel = server.connect()
    register(server, body=a_registration("orders", counter=5), channel=channel)

    register(server, body=a_registration("orders", "bills", counter=5), channel=channel)

    assert find_route(server, "bills") is not None


def test_an_equal_registration_only_renews():
    """Nothing is rendered anew and nobody is told, whatever time the broker stamps on it."""
    server = a_name_server()
    channel = server.connect()
    stamped = '"mappingDataVersion":{{"counter":0,"stateVersion":0,"timestamp":{}}}'
    body = a_registration("orders").decode()
    plain = '"mappingDataVersion":{"stateVersion":0,"timestamp":0,"counter":0}'
    assert plain in body
    register(server, body=body.replace(plain, stamped.format(1)).encode(), channel=channel)
    find_route(server, "orders")
    logged = len(server.logged())

    register(server, body=body.replace(plain, stamped.format(99)).encode(), channel=channel)
    find_route(server, "orders")

    assert server.machine.counters.routes_rendered == 1
    assert len(server.logged()) == logged


def test_a_changed_registration_changes_the_route():
    """Clients see the new number of queues with their next query."""
    server = a_name_server()
    channel = server.connect()
    register(server, body=a_registration(a_topic("orders", 4), counter=1), channel=channel)
    find_route(server, "orders")

    register(server, body=a_registration(a_topic("orders", 8), counter=2), channel=channel)

    route = find_route(server, "orders")
    assert route is not None
    assert (route.queue_datas[0].read_queues, route.queue_datas[0].write_queues) == (8, 8)


def test_brokers_are_told_the_order_configuration():
    """The answer carries what the KV store has on ordered topics, and nothing when it has nothing."""
    server = a_name_server()
    assert register(server).body == b""
    server.request(RequestCode.PUT_KV_CONFIG, {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders", "value": "a:4"})

    assert json.loads(register(server).body) == {"table": {"orders": "a:4"}}


def test_the_order_configuration_can_be_kept_from_brokers():
    """It is an option."""
    server = a_name_server(return_order_topic_config=False)
    server.request(RequestCode.PUT_KV_CONFIG, {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders", "value": "a:4"})

    assert register(server).body == b""


def test_a_static_topic_is_served_as_its_brokers_registered_it():
    """Each broker's part of the mapping is passed on, keys quoted for clients that read standard JSON."""
    server = a_name_server()
    part = a_java_report("a", {0: 0, 2: 1}, total=3, epoch=7)
    register_static(server, "b", a_java_report("b", {1: 0}, total=3, epoch=7))
    body = a_registration("orders", mappings={"orders": part})
    bare = body.replace(b'"0":0,"2":1', b"0:0,2:1")
    assert bare != body

    register(server, body=bare)

    answer = request_aware(server)
    assert json.loads(answer.body)["topicQueueMappingByBroker"]["a"] == part


def test_a_broker_with_a_copied_mapping_is_registered_and_told():
    """Its other topics are served; the copied one is refused by name, each time it registers, and logged once."""
    server = a_name_server()
    register_static(server, "a", a_leader_report("a", 0, 1))
    copied = a_leader_report("a", 0, 1)
    body = a_registration("orders", "bills", mappings={"orders": copied})

    answers = [register(server, "b", "10.0.0.2:10911", body=body, channel=server.connect()) for _ in range(3)]

    assert {answer.code for answer in answers} == {0}
    assert all("b has a mapping of orders that belongs to a" in (answer.remark or "") for answer in answers)
    assert server.logged().count("mapping refused") == 1
    assert leaders(server) == {0: "a", 1: "a"}
    assert addresses(server, "bills") == {"b": {0: "10.0.0.2:10911"}}


def test_a_topic_of_which_only_a_copied_mapping_is_known_is_busy():
    """It exists, and nobody can say how: a client must not make a normal one of it."""
    server = a_name_server()

    register_static(server, "b", a_leader_report("a", 0, 1))

    answer = request_route(server, "orders")
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert "belongs to a" in (answer.remark or "")


def test_a_normal_topic_of_a_static_topics_name_is_not_mixed_in():
    """Whoever comes first; its broker is told, and when the static topic is deleted it is an ordinary topic again."""
    for is_first in (True, False):
        server = a_name_server()
        if is_first:
            register(server, "c", "10.0.0.3:10911", channel=server.connect())
        register_static(server, "a", a_leader_report("a", 0, 1))
        answer = register(
            server, "c", "10.0.0.3:10911", body=a_registration("orders", counter=2), channel=server.connect()
        )

        assert answer.code == 0
        assert (answer.remark or "").startswith("orders on c: a static topic of this name is served")
        assert server.logged().count("normal topic not served") == 1
        assert leaders(server) == {0: "a", 1: "a"}
        assert b"10.0.0.3" not in request_aware(server).body + request_route(server, "orders").body


def test_compressed_registrations_carry_mappings_too():
    """As 5.x brokers pack them."""
    server = a_name_server()
    config = b"orders 2 2 6 SINGLE_TAG"
    mapping = json.dumps(a_java_report("a", {0: 0, 1: 1}, total=2)).encode()
    pieces = [b'{"counter":1,"stateVersion":0,"timestamp":1}', 1, config, b"[]", 1, mapping]
    body = b"".join(
        struct.pack(">i", piece) if isinstance(piece, int) else struct.pack(">i", len(piece)) + piece
        for piece in pieces
    )

    assert register(server, body=zlib.compress(body), version=513, compressed="true").code == 0

    assert leaders(server) == {0: "a", 1: "a"}


# Masters and slaves.


def test_a_slave_is_in_the_route_and_is_told_its_master():
    """It learns where to replicate from; the master is told nothing."""
    server = a_name_server()

    master = register(server, "a", A)
    slave = register(server, "a", B, brokerId="1")

    assert master.fields == {}
    assert slave.fields == {"masterAddr": A, "haServerAddr": f"{A}0"}
    assert addresses(server) == {"a": {0: A, 1: B}}


def test_a_slave_does_not_change_its_masters_topics():
    """The master decides."""
    server = a_name_server()
    register(server, "a", A, body=a_registration("orders"), enableActingMaster="false")

    register(server, "a", B, body=a_registration("old", counter=9), brokerId="1", enableActingMaster="false")

    assert find_route(server, "old") is None


@pytest.mark.parametrize(("acting", "is_known"), [({"enableActingMaster": "false"}, True), ({}, False)])
def test_a_slave_alone_speaks_for_its_name_if_it_is_of_5_x(acting: dict[str, str], *, is_known: bool):
    """4.x brokers do not say anything about acting masters, and their slaves decide nothing."""
    server = a_name_server()

    register(server, "a", B, brokerId="1", **acting)

    assert (find_route(server, "orders") is not None) is is_known


def test_a_slave_that_outlives_its_master_keeps_the_topics_readable():
    """Only the master's address leaves the route."""
    server = a_name_server()
    master = server.connect()
    register(server, "a", A, channel=master)
    register(server, "a", B, brokerId="1")

    server.disconnect(master)

    assert addresses(server) == {"a": {1: B}}


def test_a_slave_that_outlives_its_master_is_heard_in_full():
    """What it registered before counts now, though it says nothing new."""
    server = a_name_server()
    master, slave = server.connect(), server.connect()
    body = a_registration("orders", "late", counter=2)
    register(server, "a", A, channel=master, enableActingMaster="false")
    register(server, "a", B, body=body, channel=slave, brokerId="1", enableActingMaster="false")
    server.disconnect(master)

    register(server, "a", B, body=body, channel=slave, brokerId="1", enableActingMaster="false")

    assert find_route(server, "late") is not None


@pytest.mark.parametrize(("acting", "permission"), [("true", 4), ("false", 6)])
def test_without_a_master_an_acting_master_takes_no_writes(acting: str, permission: int):
    """Where acting masters are allowed, the route says that nothing can be written meanwhile."""
    server = a_name_server()
    master = server.connect()
    register(server, "a", A, channel=master, enableActingMaster=acting)
    register(server, "a", B, brokerId="1", enableActingMaster=acting)

    server.disconnect(master)

    route = find_route(server, "orders")
    assert route is not None
    assert route.queue_datas[0].permission == permission


def test_a_slave_that_becomes_master_moves_to_its_new_id():
    """One address has one id."""
    server = a_name_server()
    register(server, "a", A, brokerId="1", enableActingMaster="false")

    register(server, "a", A, brokerId="0", enableActingMaster="false")

    assert addresses(server) == {"a": {0: A}}


# Conflicts.


def test_a_broker_that_moved_replaces_its_old_address():
    """The same id registers from elsewhere, with a state that is not older."""
    server = a_name_server()
    old = server.connect()
    register(server, "a", A, channel=old)

    register(server, "a", B, body=a_registration("orders", counter=2))

    assert addresses(server) == {"a": {0: B}}
    assert [sample.value for sample in server.machine.metrics() if sample.name == "namesrv_brokers"] == [1]
    server.disconnect(old)
    assert addresses(server) == {"a": {0: B}}, "the end of the old channel must not take the new broker along"


def test_a_broker_with_an_older_state_cannot_take_an_id_that_is_held():
    """After a switch of masters the former one must not come back as if nothing had happened."""
    server = a_name_server()
    register(server, "a", A, body=a_registration("orders", state_version=2))

    answer = register(server, "a", B, body=a_registration("orders", state_version=1))

    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark is not None
    assert A in answer.remark
    assert addresses(server) == {"a": {0: A}}


def test_another_broker_at_the_same_address_replaces_the_first():
    """A process renamed and restarted is not two brokers."""
    server = a_name_server()
    register(server, "a", A)

    register(server, "renamed", A)

    assert addresses(server) == {"renamed": {0: A}}


# Asking about versions and members.


def test_a_version_query_tells_whether_the_broker_should_register():
    """Unknown brokers and changed ones should; the known version is in the body."""
    server = a_name_server()
    ours = b'{"counter":1,"stateVersion":0,"timestamp":1}'

    unknown = server.request(RequestCode.QUERY_DATA_VERSION, heartbeat_fields(), body=ours)
    register(server, body=a_registration("SELF_TEST_TOPIC", "orders"))
    same = server.request(RequestCode.QUERY_DATA_VERSION, heartbeat_fields(), body=ours)
    other = server.request(RequestCode.QUERY_DATA_VERSION, heartbeat_fields(), body=ours.replace(b"1,", b"2,", 1))

    assert (unknown.fields, unknown.body) == ({"changed": "true"}, b"")
    assert same.fields == {"changed": "false"}
    assert json.loads(same.body) == {"counter": 1, "stateVersion": 0, "timestamp": 1}
    assert other.fields == {"changed": "true"}


def test_a_first_registration_that_may_be_partial_is_asked_for_again():
    """Without the topic that every broker has it may be just a change; one more registration settles it."""
    server = a_name_server()
    channel = server.connect()
    ours = b'{"counter":1,"stateVersion":0,"timestamp":1}'
    register(server, channel=channel)

    first = server.request(RequestCode.QUERY_DATA_VERSION, heartbeat_fields(), body=ours)
    register(server, channel=channel)
    second = server.request(RequestCode.QUERY_DATA_VERSION, heartbeat_fields(), body=ours)

    assert (first.fields, second.fields) == ({"changed": "true"}, {"changed": "false"})


def test_the_members_of_a_broker_name_are_told():
    """901 lists the addresses by id; a name that nobody has is empty."""
    server = a_name_server()
    register(server, "a", A)
    register(server, "a", B, brokerId="1")

    known = server.request(RequestCode.GET_BROKER_MEMBER_GROUP, {"clusterName": "C1", "brokerName": "a"})
    unknown = server.request(RequestCode.GET_BROKER_MEMBER_GROUP, {"clusterName": "C1", "brokerName": "x"})

    group = (
        b'{"brokerMemberGroup":{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},"brokerName":"a","cluster":"C1"}}'
    )
    assert known.body == group
    assert unknown.body == b'{"brokerMemberGroup":{"brokerAddrs":{},"brokerName":"x","cluster":"C1"}}'
