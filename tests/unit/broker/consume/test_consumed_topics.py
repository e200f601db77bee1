"""Which groups consume what at other brokers."""

from tests.support.cluster.broker_machine import BrokerHarness
from tests.support.cluster.simulated import TOPIC, MovingCluster

from holdfast.broker.consume.consumed_topics import BROKERS_MAX, LIFE_MS, REPEAT_MS, ROUND_MS
from holdfast.model.topic import TopicConfig
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.requests.moves import ConsumedTopicList, encode_body

GROUP = "consumers"


def a_cluster(**clusters: str) -> MovingCluster:
    """Two brokers that host a normal topic, which a group consumes at a; and more, each of another cluster."""
    cluster = MovingCluster("a", "b", *clusters, clusters=clusters)
    for rooms in cluster.components.values():
        rooms.topics.put(TopicConfig(name=TOPIC, read_queues=1, write_queues=1))
    cluster.components["a"].offsets.commit(GROUP, TOPIC, 0, 0)
    cluster.run(ROUND_MS + 2_000)
    return cluster


def heard(cluster: MovingCluster, name: str) -> list[tuple[str, str]]:
    return list(cluster.components[name].consumed_topics.pairs())


def a_report(broker: str, *topics: str) -> Command:
    return Command(
        code=RequestCode.SHARE_CONSUMED_TOPICS,
        body=encode_body(ConsumedTopicList(broker=broker, groups={GROUP: [*topics]})),
    )


def test_brokers_of_the_cluster_hear_of_every_change():
    """Those of another cluster do not: its clients may be of another unit."""
    cluster = a_cluster(elsewhere="other")
    assert [heard(cluster, name) for name in ("a", "b", "elsewhere")] == [[], [(TOPIC, GROUP)], []]

    cluster.components["a"].offsets.forget_group(GROUP)
    cluster.run(ROUND_MS + 2_000)

    assert heard(cluster, "b") == []


def test_a_broker_that_restarted_hears_it_with_the_next_repetition():
    """Nothing of it is on disk, and its group is not made there."""
    cluster = a_cluster()
    cluster.kill("b")
    cluster.restart("b")
    cluster.run(ROUND_MS)
    assert heard(cluster, "b") == []

    cluster.run(REPEAT_MS + ROUND_MS)

    assert heard(cluster, "b") == [(TOPIC, GROUP)]
    assert cluster.components["b"].groups.find(GROUP) is None


def test_a_broker_that_stays_silent_is_forgotten():
    """It may be gone for good."""
    cluster = a_cluster()
    cluster.kill("a")

    cluster.run(LIFE_MS + ROUND_MS)

    assert heard(cluster, "b") == []


def test_topics_that_are_not_hosted_and_too_many_brokers_are_ignored():
    """What comes from the network costs a bounded amount of memory."""
    desk = BrokerHarness()
    desk.make_topic("T")

    answers = desk.call(*(a_report(f"b{number}", "T", "missing") for number in range(BROKERS_MAX + 5)))
    desk.call(a_report(desk.options.name, "T"))

    assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
    assert list(desk.components.consumed_topics.pairs()) == [("T", GROUP)] * BROKERS_MAX
