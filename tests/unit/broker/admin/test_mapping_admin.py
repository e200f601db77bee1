"""An operator sees everything a broker records, and takes away only what nobody needs."""

import msgspec
from tests.support.cluster.broker_machine import BrokerHarness
from tests.support.cluster.simulated import TOPIC, MovingCluster

from holdfast.model.mapping import TopicMapping, new_logical_queue
from holdfast.wire.cluster.mapping import from_detail
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.requests.moves import DiscardRequest, ForgetBrokerRequest, MappingsAnswer, decode_body


def a_cluster() -> MovingCluster:
    """Queue 0 with five messages has moved from a to b; queue 1 stays on a."""
    cluster = MovingCluster("a", "b")
    cluster.make_topic({0: "a", 1: "a"})
    cluster.run(5_000, cluster.produce(0, 5, "a"))
    cluster.move("a", "b", 0)
    cluster.run(5_000, cluster.are_moves_finished)
    return cluster


def record(cluster: MovingCluster, name: str) -> TopicMapping:
    mapping = cluster.components[name].mappings.find(TOPIC)
    assert mapping is not None
    return mapping


def test_all_topics_are_shown_in_full_and_the_moves_that_were_driven() -> None:
    """Homes, ends, the topic's configuration; a move is listed by who drove it."""
    cluster = a_cluster()

    told = {
        name: decode_body(cluster.request(name, RequestCode.GET_MAPPINGS).body, MappingsAnswer) for name in ("a", "b")
    }

    for name, every in told.items():
        (topic,) = every.topics
        assert topic.name == TOPIC
        assert topic.mapping is not None
        assert from_detail(topic.mapping) == record(cluster, name)
    assert [move.state for move in told["a"].moves] == ["done"]
    assert told["b"].moves == []


def test_a_closed_home_is_expired_by_hand() -> None:
    """At the leader and at its broker; the leader's own home is not."""
    cluster = a_cluster()
    order = DiscardRequest(topic=TOPIC, queue=0, generation=0)

    answers = [cluster.request(name, RequestCode.DISCARD_SEGMENTS, order) for name in ("b", "a", "a")]
    refused = cluster.request("b", RequestCode.DISCARD_SEGMENTS, msgspec.structs.replace(order, generation=1))

    assert [answer.code for answer in answers] == [ResponseCode.SUCCESS] * 3
    assert refused.code == ResponseCode.ILLEGAL_OPERATION
    for name in ("a", "b"):
        assert [segment.expired for segment in record(cluster, name).queues[0].segments] == [True, False]
    erased = cluster.stores["a"].find_queue(TOPIC, 0)
    assert erased is not None
    assert erased.offset_max == 0


def test_a_removed_broker_is_listed_no_longer() -> None:
    """Only when nothing of it can be read any more."""
    cluster = a_cluster()
    order = ForgetBrokerRequest(broker="a")
    assert cluster.request("b", RequestCode.FORGET_BROKER, order).code == ResponseCode.ILLEGAL_OPERATION

    cluster.request("b", RequestCode.DISCARD_SEGMENTS, DiscardRequest(topic=TOPIC, queue=0, generation=0))
    answer = cluster.request("b", RequestCode.FORGET_BROKER, order)

    assert answer.code == ResponseCode.SUCCESS
    assert [segment.broker for segment in record(cluster, "b").queues[0].segments] == ["b"]
    assert cluster.components["b"].view.brokers() == [], "it is told of no more changes"


def test_a_queue_is_forgotten_as_the_operator_names_it() -> None:
    """The others stay."""
    cluster = a_cluster()

    cluster.request("a", RequestCode.DELETE_MAPPING, None, topic=TOPIC, queue="0")

    assert set(record(cluster, "a").queues) == {1}


def test_a_topic_is_forgotten_with_its_record_where_nothing_of_it_is_held() -> None:
    """Never is a normal topic left behind that takes what stale clients send; what is not there is fine."""
    cluster = a_cluster()
    held = cluster.request("a", RequestCode.DELETE_MAPPING, None, topic=TOPIC)
    assert (held.code, record(cluster, "a").led_queues) == (ResponseCode.ILLEGAL_OPERATION, {1: 1})

    cluster.move("a", "b", 1)
    cluster.run(5_000, cluster.are_moves_finished)
    for name in ("b", "a"):
        cluster.request(name, RequestCode.DISCARD_SEGMENTS, DiscardRequest(topic=TOPIC, queue=0, generation=0))
    answers = [cluster.request("a", RequestCode.DELETE_MAPPING, None, topic=TOPIC) for _ in range(2)]

    assert [answer.code for answer in answers] == [ResponseCode.SUCCESS] * 2
    assert cluster.components["a"].mappings.find(TOPIC) is None
    assert cluster.components["a"].topics.find(TOPIC) is None
    assert cluster.run(5_000, cluster.produce(1, 1, "b"))
    assert not cluster.refused


def test_what_is_on_its_way_is_not_forgotten() -> None:
    """The move would end nowhere."""
    cluster = a_cluster()
    cluster.kill("b")
    cluster.move("a", "b", 1)

    answer = cluster.request("a", RequestCode.DELETE_MAPPING, None, topic=TOPIC)

    assert answer.code == ResponseCode.ILLEGAL_OPERATION
    assert "being moved" in (answer.remark or "")


def test_nobody_hears_of_what_is_not_on_disk() -> None:
    """Another broker would give up what it leads, durably, for a leader that a power cut can take back."""
    desk = BrokerHarness(name="a")
    desk.make_topic(TOPIC, 1)
    mapping = TopicMapping(topic=TOPIC, broker="a", epoch=1, total=1, queues={0: new_logical_queue(0, "a", 0)})
    desk.components.mappings.change(mapping)

    desk.call(Command(code=RequestCode.GET_MAPPINGS))

    assert desk.answers[1] == []
    desk.sync()
    (answer,) = desk.answers[1]
    (topic,) = decode_body(answer.body, MappingsAnswer).topics
    assert topic.mapping is not None
    assert from_detail(topic.mapping) == mapping
