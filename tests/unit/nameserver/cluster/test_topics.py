"""Lists, and what an operator orders about topics."""

import json
from typing import Any

import pytest
from tests.support.cluster.machine import MachineHarness
from tests.support.cluster.name_server_machine import (
    a_name_server,
    a_registration,
    a_topic,
    find_route,
    register,
    request_route,
)
from tests.support.static_reports import a_leader_report, leaders, register_static, request_aware

from holdfast.machine.audit import CHANGED
from holdfast.wire.cluster.route import decode_route
from holdfast.wire.frames.codes import RequestCode, ResponseCode

A, B = "10.0.0.1:10911", "10.0.0.2:10911"


def listed(server: MachineHarness, code: RequestCode, fields: dict[str, str] | None = None) -> Any:
    answer = server.request(code, fields)
    assert answer.code == 0
    return json.loads(answer.body)


def permissions(server: MachineHarness, topic: str) -> dict[str, int]:
    route = find_route(server, topic)
    assert route is not None
    return {queue.broker_name: queue.permission for queue in route.queue_datas}


def test_the_cluster_is_told_with_bare_integer_keys():
    """As upstream tells it to callers of every version."""
    server = a_name_server()
    register(server, "1", A)

    answer = server.request(RequestCode.GET_BROKER_CLUSTER_INFO)

    assert answer.body == (
        b'{"brokerAddrTable":{"1":{"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"1","cluster":"C1",'
        b'"enableActingMaster":false}},"clusterAddrTable":{"C1":["1"]}}'
    )


def test_all_topics_are_listed():
    """206 names every topic once, however many brokers have it."""
    server = a_name_server()
    register(server, "a", A, body=a_registration("orders", "bills"))
    register(server, "b", B, body=a_registration("orders"))

    assert sorted(listed(server, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)["topicList"]) == ["bills", "orders"]


def test_topics_are_listed_by_cluster():
    """224 names what some broker of that cluster has."""
    server = a_name_server()
    register(server, "a", A, body=a_registration("orders", "bills"))
    register(server, "b", B, body=a_registration("orders", "mails"), clusterName="C2")

    topics = {
        cluster: sorted(listed(server, RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": cluster})["topicList"])
        for cluster in ("C1", "C2", "C3")
    }

    assert topics == {"C1": ["bills", "orders"], "C2": ["mails", "orders"], "C3": []}


def test_system_topics_are_those_of_clusters_and_brokers():
    """304 also names a broker to ask for more, if there is one."""
    server = a_name_server()
    empty = listed(server, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    register(server, "a", A)
    register(server, "b", B)

    full = listed(server, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)

    assert empty == {"topicList": []}
    assert full["topicList"] == ["C1", "a", "b"]
    assert full["brokerAddr"] in {A, B}


@pytest.mark.parametrize(
    ("code", "topics"),
    [
        (RequestCode.GET_UNIT_TOPIC_LIST, ["both", "unit"]),
        (RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, ["both", "subscribed"]),
        (RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, ["subscribed"]),
    ],
)
def test_unit_topics_are_told_by_their_flags(code: RequestCode, topics: list[str]):
    """Bit 0: a unit's topic; bit 1: subscribed to by a unit."""
    server = a_name_server()
    flags = {"none": 0, "unit": 1, "subscribed": 2, "both": 3}
    register(server, body=a_registration(*(a_topic(name, sys_flag=flag) for name, flag in flags.items())))

    assert sorted(listed(server, code)["topicList"]) == topics


def test_writing_is_withdrawn_from_one_broker_and_given_back():
    """Every topic of that broker, and the answer says how many; other bits and other brokers stay."""
    server = a_name_server()
    register(server, "a", A, body=a_registration("orders", a_topic("template", permission=7)))
    register(server, "b", B, body=a_registration("orders"))
    permissions(server, "orders")

    wiped = server.request(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "a"})
    assert wiped.fields == {"wipeTopicCount": "2"}
    assert permissions(server, "orders") == {"a": 4, "b": 6}
    assert permissions(server, "template") == {"a": 5}

    added = server.request(RequestCode.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "a"})
    assert added.fields == {"addTopicCount": "2"}
    assert permissions(server, "orders") == {"a": 6, "b": 6}
    assert permissions(server, "template") == {"a": 7}


def test_withdrawn_writing_outlasts_registrations_but_not_the_broker():
    """An operator who empties a broker is not overruled by the next topic that it creates."""
    server = a_name_server()
    channel = server.connect()
    register(server, channel=channel)
    server.request(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "a"})

    register(server, body=a_registration("orders", "bills", counter=2), channel=channel)
    assert permissions(server, "bills") == {"a": 4}

    server.disconnect(channel)
    register(server)
    assert permissions(server, "orders") == {"a": 6}


@pytest.mark.parametrize(
    ("code", "field"),
    [
        (RequestCode.WIPE_WRITE_PERM_OF_BROKER, "wipeTopicCount"),
        (RequestCode.ADD_WRITE_PERM_OF_BROKER, "addTopicCount"),
    ],
)
def test_permission_of_an_unknown_broker_counts_nothing(code: RequestCode, field: str):
    """It is answered all the same."""
    answer = a_name_server().request(code, {"brokerName": "x"})

    assert (answer.code, answer.fields) == (0, {field: "0"})


def test_a_deleted_topic_is_gone_until_a_broker_registers_it_again():
    """The name server forgets; a broker that still has the topic is right to bring it back."""
    server = a_name_server()
    channel = server.connect()
    register(server, channel=channel)
    find_route(server, "orders")

    assert server.request(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "orders"}).code == 0
    assert find_route(server, "orders") is None

    register(server, channel=channel)
    assert find_route(server, "orders") is not None


def test_a_topic_is_deleted_in_one_cluster_only():
    """With a cluster name the others keep it."""
    server = a_name_server()
    register(server, "a", A)
    register(server, "b", B, clusterName="C2")

    server.request(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "orders", "clusterName": "C2"})

    assert permissions(server, "orders") == {"a": 6}


def test_deleting_what_is_not_there_is_fine():
    """As upstream has it."""
    server = a_name_server()

    assert server.request(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "x"}).code == 0
    assert server.request(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "x", "clusterName": "C9"}).code == 0
    assert server.logged() == [CHANGED, CHANGED]


def test_a_deleted_static_topic_leaves_no_mapping_behind():
    """A normal topic of the same name must not inherit it."""
    server = a_name_server()
    channel = server.connect()
    part = {"bname": "a", "currIdMap": {"0": 0}, "epoch": 7, "topic": "orders", "totalQueues": 1}
    register(server, body=a_registration("orders", mappings={"orders": part}), channel=channel)

    server.request(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "orders", "clusterName": "C1"})
    register(server, body=a_registration("orders", counter=2), channel=channel)

    for answer in (request_aware(server), request_route(server, "orders")):
        assert answer.code == 0
        assert b"topicQueueMappingByBroker" not in answer.body
        assert decode_route(answer.body).queue_datas[0].broker_name == "a"


def test_a_static_topic_cannot_be_registered_as_a_normal_one():
    """217: refused with the reason, and nothing changes."""
    server = a_name_server()
    register_static(server, "a", a_leader_report("a", 0, 1))
    body = b'{"brokerDatas":[],"queueDatas":[{"brokerName":"a","perm":6,"readQueueNums":3,"writeQueueNums":2}]}'

    answer = server.request(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "orders"}, body=body)

    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "a static topic of this name is served" in (answer.remark or "")
    assert leaders(server) == {0: "a", 1: "a"}


def test_wiping_write_permission_shows_in_both_forms_of_a_static_topic():
    """A broker that leads is closed for writing; the mock broker only when all that lead are."""
    server = a_name_server()
    register_static(server, "a", a_leader_report("a", 0))
    register_static(server, "b", a_leader_report("b", 1))

    def permissions() -> list[int]:
        bodies = (request_aware(server).body, request_route(server, "orders").body)
        return [queue.permission for body in bodies for queue in decode_route(body).queue_datas]

    for name, code, expected in (
        ("a", RequestCode.WIPE_WRITE_PERM_OF_BROKER, [4, 6, 6]),
        ("b", RequestCode.WIPE_WRITE_PERM_OF_BROKER, [4, 4, 4]),
        ("a", RequestCode.ADD_WRITE_PERM_OF_BROKER, [6, 4, 6]),
    ):
        assert server.request(code, {"brokerName": name}).code == 0
        assert permissions() == expected


def test_a_single_topic_is_registered_with_its_queues():
    """217: what 5.x brokers send instead of a whole registration when they are told to."""
    server = a_name_server()
    register(server, "a", A)
    body = b'{"brokerDatas":[],"queueDatas":[{"brokerName":"a","perm":6,"readQueueNums":3,"writeQueueNums":2}]}'

    answer = server.request(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "mails"}, body=body)

    route = find_route(server, "mails")
    assert answer.code == 0
    assert route is not None
    assert (route.queue_datas[0].read_queues, route.queue_datas[0].write_queues) == (3, 2)


def test_a_single_topic_of_an_unknown_broker_is_refused():
    """Nothing of it is taken: a route must not name a broker without an address."""
    server = a_name_server()
    register(server, "a", A)
    queues = ",".join(f'{{"brokerName":"{name}","perm":6,"readQueueNums":3,"writeQueueNums":2}}' for name in ("a", "x"))

    answer = server.request(
        RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "mails"}, body=f'{{"queueDatas":[{queues}]}}'.encode()
    )

    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "broker x of topic mails is not registered"
    assert find_route(server, "mails") is None
