"""Route queries and answers, and what else a name server is asked."""

import json

import msgspec
import pytest
from tests.support.static_topics import a_record, a_static_route

from holdfast.model.errors import RemoteProtocolError
from holdfast.model.leadership import Leader
from holdfast.model.queue import MessageQueue
from holdfast.model.route import BrokerData, QueueData, Route
from holdfast.wire.cluster.route import (
    ClusterInfo,
    TopicList,
    bare_keys,
    decode_route,
    decode_route_query,
    encode_broker,
    encode_route,
    join_cluster_info,
    join_route,
    render_answer,
)
from holdfast.wire.frames import java_json
from holdfast.wire.frames.command import decode_command
from holdfast.wire.frames.frame import split_frames

BROKER = BrokerData(cluster="c", broker_name="b", broker_addrs={1: "h:2", 0: "h:1"})
QUEUE = QueueData(broker_name="b", read_queues=4, write_queues=3, permission=6)
ROUTE = Route(broker_datas=[BROKER], queue_datas=[QUEUE])


def test_a_route_query_is_read_straight_from_the_buffer():
    """Numbers may come as texts, fields of others are ignored."""
    header = (
        b'{"code":105,"extFields":{"topic":"t","acceptStandardJsonOnly":"true","ReqT":"0"},"opaque":"7","version":401}'
    )

    query = decode_route_query(memoryview(header))

    assert (query.code, query.opaque, query.flag, query.version) == (105, 7, 0, 401)
    assert (query.fields.topic, query.fields.accept_standard_json_only) == ("t", True)


@pytest.mark.parametrize(
    "header",
    [
        b'{"code":105,"opaque":1}',
        b'{"code":105,"opaque":1,"extFields":{}}',
        b'{"code":105,"extFields":{"topic":"t"}}',
        b'{"code":105,"opaque":2147483648,"extFields":{"topic":"t"}}',
    ],
)
def test_what_is_no_route_query_is_left_to_the_general_reader(header: bytes):
    """The fast reader refuses it with an error that is cheap to catch."""
    with pytest.raises(msgspec.ValidationError):
        decode_route_query(header)


@pytest.mark.parametrize("opaque", [0, 9, 10, 12345, 2**31 - 1, -1, -(2**31)])
def test_a_rendered_answer_is_a_frame_for_every_number(opaque: int):
    """The sizes in front fit the count of digits."""
    answer = render_answer(b"body")
    digits = b"%d" % opaque

    (frame,), taken = split_frames(memoryview(answer.heads[len(digits)] + digits + answer.tail))

    command = decode_command(frame)
    assert (command.code, command.flag, command.opaque, command.body) == (0, 1, opaque, b"body")
    assert taken == len(answer.heads[0]) + len(digits) + len(answer.tail)
    assert answer.body == b"body"


def test_a_route_is_encoded_as_java_clients_expect_it():
    """Addresses by id, quoted; what is absent is left out; the filter table is always there."""
    assert json.loads(encode_route(ROUTE)) == {
        "brokerDatas": [
            {"brokerAddrs": {"0": "h:1", "1": "h:2"}, "brokerName": "b", "cluster": "c", "enableActingMaster": False}
        ],
        "filterServerTable": {},
        "queueDatas": [{"brokerName": "b", "readQueueNums": 4, "writeQueueNums": 3, "perm": 6, "topicSysFlag": 0}],
    }
    assert list(json.loads(encode_route(ROUTE))["brokerDatas"][0]["brokerAddrs"]) == ["0", "1"]


@pytest.mark.parametrize(
    "route",
    [
        ROUTE,
        Route(),
        Route(broker_datas=[BROKER], queue_datas=[QUEUE], order_topic_conf="b:3", filter_server_table={"h:1": ["h:9"]}),
        Route(
            broker_datas=[
                BrokerData(cluster="ü", broker_name='"', broker_addrs={}, zone_name="z", enable_acting_master=True)
            ]
        ),
    ],
)
def test_a_route_survives_encoding(route: Route):
    """Also with bare keys, as old clients are told it."""
    assert decode_route(encode_route(route)) == route
    assert decode_route(bare_keys(encode_route(route))) == route


def test_bare_keys_touch_nothing_but_keys():
    """A text that looks like a key stays as it is."""
    body = b'{"a":{"0":"x","12":"{\\"3\\":4}"},"b":"\\"5\\":","6":[{"7":8}],"9a":0}'

    assert bare_keys(body) == b'{"a":{0:"x",12:"{\\"3\\":4}"},"b":"\\"5\\":",6:[{7:8}],"9a":0}'


def test_a_route_is_joined_from_encoded_parts():
    """The parts of static topics come last, under the names of their brokers."""
    body = join_route(
        [encode_broker(BROKER)],
        [java_json.encode(QUEUE)],
        filter_servers={},
        order_topic_conf="b:3",
        mappings={'b"': b'{"epoch":1}'},
    )

    assert json.loads(body) == {
        **json.loads(encode_route(ROUTE)),
        "orderTopicConf": "b:3",
        "topicQueueMappingByBroker": {'b"': {"epoch": 1}},
    }


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"brokerDatas":[{}]}', b'{"brokerDatas":[{"brokerAddrs":{"x":"h"}}]}']
)
def test_what_is_no_route_is_refused(body: bytes):
    """Clients are told by a typed error."""
    with pytest.raises(RemoteProtocolError):
        decode_route(body)


def test_a_cluster_is_told_with_bare_ids_and_quoted_names():
    """A broker may be called by a number."""
    broker = BrokerData(cluster="c", broker_name="7", broker_addrs={0: "h:1"})

    body = join_cluster_info({"7": encode_broker(broker)}, {"c": ["7"]})

    assert body.startswith(b'{"brokerAddrTable":{"7":{"brokerAddrs":{0:"h:1"},')
    assert java_json.decode(body, ClusterInfo) == ClusterInfo(
        broker_addr_table={"7": broker}, cluster_addr_table={"c": ["7"]}
    )


def test_a_topic_list_names_a_broker_only_if_there_is_one():
    """The key is absent otherwise."""
    assert java_json.encode(TopicList(topic_list=["t"])) == b'{"topicList":["t"]}'
    assert java_json.encode(TopicList(topic_list=[], broker_addr="h:1")) == b'{"topicList":[],"brokerAddr":"h:1"}'


@pytest.mark.parametrize("count", [-1, 65_537, 2**31 - 1])
def test_a_route_that_claims_impossibly_many_queues_is_refused(count: int) -> None:
    """A client would make a list of all of them."""
    body = b'{"queueDatas":[{"brokerName":"b","readQueueNums":4,"writeQueueNums":%d,"perm":6}]}' % count

    with pytest.raises(RemoteProtocolError, match="claims"):
        decode_route(body)


@pytest.mark.parametrize("conf", [b"b:999999999", b"b:65536;" * 16])
def test_an_order_of_impossibly_many_queues_is_refused(conf: bytes) -> None:
    """It is a text that anybody can put there: one broker may be made to claim them, or many together."""
    with pytest.raises(RemoteProtocolError, match="claims"):
        decode_route(b'{"orderTopicConf":"%s"}' % conf)


def test_many_brokers_cannot_claim_together_what_nobody_can_have() -> None:
    """Each of them stays within the limit of one."""
    queues = b'{"brokerName":"b","readQueueNums":65536,"writeQueueNums":4,"perm":6}'

    with pytest.raises(RemoteProtocolError, match="claims"):
        decode_route(b'{"queueDatas":[%s]}' % b",".join([queues] * 16))


def test_an_order_with_a_count_that_no_number_has_is_an_order_of_nothing() -> None:
    """Thousands of digits are no count."""
    route = decode_route(b'{"orderTopicConf":"a:2;b:%s"}' % (b"9" * 5000))

    assert [queue.broker_name for queue in route.publishable("t")] == ["a", "a"]


# As a Java 5.5.0 name server serves it after a remap of two queues from A to B.
REMAPPED = b"""{"brokerDatas":[{"brokerAddrs":{"0":"127.0.0.1:42911"},"brokerName":"brokerB","cluster":"C1",
"enableActingMaster":false},{"brokerAddrs":{"0":"127.0.0.1:40911"},"brokerName":"brokerA","cluster":"C1",
"enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":"brokerB","perm":6,"readQueueNums":4,
"topicSysFlag":0,"writeQueueNums":4},{"brokerName":"brokerA","perm":6,"readQueueNums":2,"topicSysFlag":0,
"writeQueueNums":2}],"topicQueueMappingByBroker":{"brokerA":{"bname":"brokerA","currIdMap":{},"dirty":false,
"epoch":1794745417879,"scope":"__global__","topic":"TopicStatic","totalQueues":4},"brokerB":{"bname":"brokerB",
"currIdMap":{%b},"dirty":false,"epoch":1794745417879,"scope":"__global__","topic":"TopicStatic","totalQueues":4}}}"""


@pytest.mark.parametrize("led", [b'"0":2,"1":0,"2":3,"3":1', b"0:2,1:0,2:3,3:1"], ids=["quoted", "bare"])
def test_a_static_topic_is_read_from_a_java_name_server(led: bytes):
    """Which tells no generations."""
    leaders = decode_route(REMAPPED % led).leaders("TopicStatic")

    assert leaders == {
        MessageQueue("TopicStatic", "__syslo__global__", number): Leader("brokerB", None, 1794745417879)
        for number in range(4)
    }


def test_a_static_route_survives_encoding_with_its_generations():
    """Which a Java client does not see."""
    route = a_static_route(a_record("a", {0: 3, 2: 0}, epoch=7), a_record("b", {1: None}, epoch=8))

    assert decode_route(encode_route(route)) == route
    info = json.loads(encode_route(route))["topicQueueMappingByBroker"]["a"]
    assert (info["bname"], info["currIdMap"], info["totalQueues"]) == ("a", {"0": 0, "2": 2}, 4)


@pytest.mark.parametrize(
    "row",
    [
        {"bname": "brokerB", "dirty": True, "totalQueues": 4, "currIdMap": {"0": 0}},
        {"bname": "other", "totalQueues": 4, "currIdMap": {"0": 0}},
        {"bname": "brokerB", "totalQueues": 1_000_000_000, "currIdMap": {"0": 0}},
    ],
    ids=["dirty", "another broker's", "impossible"],
)
def test_a_record_that_cannot_be_one_claims_nothing(row: dict[str, object]):
    """The topic is static all the same."""
    body = json.dumps({"topicQueueMappingByBroker": {"brokerB": row}}).encode()

    route = decode_route(body)

    assert list(route.mappings) == ["brokerB"]
    assert route.publishable("t") == []


def test_a_mapping_that_is_null_is_none():
    """As for every normal topic."""
    assert decode_route(b'{"topicQueueMappingByBroker":null}') == Route()
