"""Reading the static topics of a cluster."""

import pytest
from tests.support.cluster.scripted import ScriptedRequest
from tests.support.cluster.scripted_topics import JAVA_4, ScriptedTopics
from tests.support.scripted_server import ScriptedServer

from holdfast.admin.cluster_access import ClusterAccess, NotAllowed, NotFound
from holdfast.admin.static_topics import ClusterMappings, StaticTopics
from holdfast.model.mapping import TopicMapping, new_logical_queue
from holdfast.wire.cluster.mapping import MappedTopic, to_detail, to_plain
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command
from holdfast.wire.requests.moves import MappingsAnswer

THREE = {"a": "a:1", "b": "b:1", "c": "c:1"}


async def read(cluster: ScriptedTopics, topic: str | None = None) -> ClusterMappings:
    return await StaticTopics(cluster).read(topic=topic)


async def test_records_of_all_brokers_are_one_mapping():
    """Each queue as its leader records it; a broker without queues is no contradiction."""
    cluster = ScriptedTopics(brokers_by_name=THREE)
    cluster.put_topic("t", {0: "a", 1: "b", 2: "a"})

    topic = (await read(cluster)).get_topic("t")

    assert topic.merged.leaders == {0: "a", 1: "b", 2: "a"}
    assert topic.merged.is_complete
    assert set(topic.records) == {"a", "b", "c"}


async def test_a_java_broker_is_asked_topic_by_topic():
    """It does not know our question; its part of the mapping counts all the same, but it moves nothing."""
    cluster = ScriptedTopics(brokers_by_name=THREE, java={"b"})
    cluster.put_topic("t", {0: "a", 1: "b"})
    cluster.put_normal("plain", {"b": 2})

    view = await read(cluster)

    assert view.leaders == {"t": {0: "a", 1: "b"}}
    assert view.ready_brokers == ["a", "c"]
    with pytest.raises(NotAllowed, match="mqadmin remappingStaticTopic"):
        view.require_ready(["b"])


async def test_a_dead_brokers_last_word_comes_from_the_name_server():
    """Who would take its queues over must know where they were."""
    cluster = ScriptedTopics(brokers_by_name=THREE, dead={"b"})
    cluster.put_topic("t", {0: "a", 1: "b"})

    view = await read(cluster, "t")

    assert view.get_topic("t").merged.leaders == {0: "a", 1: "b"}
    assert view.brokers["b"].fault is not None
    with pytest.raises(NotAllowed, match="does not answer"):
        view.require_ready(["b"])


async def test_the_name_server_is_not_believed_where_the_broker_answers():
    """Its rows are older than what the broker says now."""
    cluster = ScriptedTopics(brokers_by_name={"a": "a:1", "b": "b:1"})
    cluster.put_topic("t", {0: "a", 1: "b"}, total=2)
    remembered = cluster.scripts[RequestCode.GET_ROUTEINFO_BY_TOPIC](
        ScriptedRequest("namesrv:9876", RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "t", "hf.mapping": "1"})
    )
    cluster.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, lambda _: remembered)
    del cluster.records["b"]["t"]

    assert (await read(cluster, "t")).get_topic("t").merged.unled == [1]


async def test_an_old_name_server_is_refused_with_the_reason():
    """It would drop every mapping without a word."""
    cluster = ScriptedTopics(name_server_version=JAVA_4)

    with pytest.raises(NotAllowed, match=r"older than RocketMQ 5.0 \(protocol version 407\)"):
        await StaticTopics(cluster).require_support()

    cluster.name_server_version = 413
    await StaticTopics(cluster).require_support()


async def test_unknown_names_are_told_with_the_nearest():
    """A misspelled broker is not searched for in a table of topics."""
    cluster = ScriptedTopics(brokers_by_name={"broker-a": "a:1"})
    view = await read(cluster)

    with pytest.raises(NotFound, match="did you mean 'broker-a'"):
        view.get_broker("broker-aa")
    with pytest.raises(NotFound, match="holdfast topic list"):
        view.get_topic("t")
    cluster.put_topic("orders", {0: "broker-a"})
    with pytest.raises(NotFound, match="did you mean 'orders'"):
        (await read(cluster)).get_topic("order")


async def test_a_broker_that_is_down_is_no_misspelled_one():
    """The name server has forgotten it, but a queue has not."""
    cluster = ScriptedTopics(forgotten={"a"})
    cluster.put_topic("t", {0: "a", 1: "b"})
    view = await read(cluster)

    assert view.lost_brokers == ["a"]
    with pytest.raises(NotFound, match="broker a is down"):
        view.get_broker("a")


async def test_a_fresh_physical_queue_is_one_that_nobody_used():
    """Neither one of a record, expired or not, nor one that the broker hosts beside the mapping."""
    cluster = ScriptedTopics()
    cluster.put_topic("t", {0: "a", 1: "a"})
    cluster.configs["b"]["t"] = cluster.configs["a"]["t"]

    topic = (await read(cluster)).get_topic("t")

    assert topic.next_physical_queue("a") == 2
    assert topic.next_physical_queue("b") == 2


async def test_mappings_are_read_over_real_sockets():
    """The bytes of a broker, and a name server of before 5.0 that tells its version in the header of its answers."""
    async with ScriptedServer() as server:
        cluster = {"a": {"cluster": "c", "brokerName": "a", "brokerAddrs": {"0": server.address}}}
        server.on(
            RequestCode.GET_BROKER_CLUSTER_INFO,
            body=java_json.encode({"brokerAddrTable": cluster, "clusterAddrTable": {"c": ["a"]}}),
        )
        record = TopicMapping(topic="t", broker="a", epoch=5, total=1, queues={0: new_logical_queue(0, "a", 0)})
        told = MappingsAnswer(topics=[MappedTopic(name="t", mapping=to_detail(record))])
        server.on(RequestCode.GET_MAPPINGS, body=java_json.encode(to_plain(told)))
        async with ClusterAccess(server.namesrv, timeout_s=5) as reach:
            view = await StaticTopics(reach).read()
            answer = server.answers[RequestCode.GET_BROKER_CLUSTER_INFO]
            server.answers[RequestCode.GET_BROKER_CLUSTER_INFO] = lambda command: _aged(answer(command))
            with pytest.raises(NotAllowed) as refused:
                await StaticTopics(reach).require_support()
        refusal = str(refused.value)

    assert view.leaders == {"t": {0: "a"}}
    assert "protocol version 407" in refusal


def _aged(answer: Command | None) -> Command:
    assert answer is not None
    answer.version = JAVA_4
    return answer


async def test_two_topics_of_one_name_are_read_apart():
    """Each with the records of its cluster. Which is meant has to be said, or follows from a broker."""
    cluster = ScriptedTopics(brokers_by_name=THREE, clusters={"a": "east", "b": "west", "c": "west"})
    cluster.put_topic("t", {0: "a"}, scope="east")
    cluster.put_topic("t", {0: "b", 1: "c"}, scope="west")
    cluster.put_topic("u", {0: "a"})

    view = await read(cluster)

    assert view.topics.keys() == {"u"}
    assert [sorted(topic.records) for topic in view.find("t")] == [["a"], ["b", "c"]]
    assert view.leaders["t of west"] == {0: "b", 1: "c"}
    with pytest.raises(NotAllowed, match="choose one with --unit"):
        view.get_topic("t")
    for narrowed in (view.for_unit("west"), view.for_broker("b")):
        assert narrowed.get_topic("t").merged.total == 2
        assert narrowed.topics.keys() == {"t", "u"}
    cluster.forget("a")
    assert (await read(cluster)).for_broker("a").topics.keys() >= {"u"}


async def test_a_way_to_one_unit_leaves_the_others_out():
    """Also of routes that tell of them, while they are open."""
    cluster = ScriptedTopics(brokers_by_name=THREE, clusters={"a": "east", "b": "west", "c": "west"})
    cluster.put_topic("t", {0: "a"}, scope="east")
    cluster.put_topic("t", {0: "b"}, scope="west")

    route, rows = await cluster.for_unit("west").get_route_and_reports("t")

    assert rows.keys() == {"b", "c"}
    assert {data.broker_name for data in route.broker_datas} <= {"b", "c"}
    assert [broker.name for broker in await cluster.for_unit("west").brokers()] == ["b", "c"]
    with pytest.raises(NotFound, match="unit 'north' has no broker; there is east, west"):
        await cluster.for_unit("north").masters()
