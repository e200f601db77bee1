"""Deletion markers at brokers: what a send does not create, what an explicit create lifts, how markers travel."""

import pytest
from tests.support.cluster.broker_machine import a_send
from tests.support.cluster.simulated import TOPIC, MovingCluster
from tests.unit.broker.relay.test_auto_create_guard import a_create

from holdfast.broker.flow.component import NEWS_TIMER
from holdfast.broker.options import BrokerOptions
from holdfast.broker.tables.deletion_markers import BLOCK_MS, DeletionMarkers
from holdfast.machine.effects import WriteFile
from holdfast.machine.turn import Turn
from holdfast.model.deletion import DeletionMarker
from holdfast.model.mapping import TopicMapping, new_logical_queue
from holdfast.model.scope import GLOBAL
from holdfast.sim.world.disk import SimDisk
from holdfast.wire.cluster.deletions import encode_markers
from holdfast.wire.cluster.mapping import encode, to_detail
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command


@pytest.fixture
def cluster() -> MovingCluster:
    """A leads both queues; b came later and hosts nothing of the topic. There are two name servers."""
    cluster = MovingCluster("a", name_servers=2)
    cluster.make_topic({0: "a", 1: "a"})
    cluster.steps["b"] = 0
    cluster.brokers["b"] = cluster.create_broker("b", "10.0.1.2:10911")
    cluster.restart("b")
    cluster.run(2_000)
    return cluster


def a_static_create(cluster: MovingCluster) -> Command:
    """Return an operator's request for a static topic with one queue, which a leads."""
    record = TopicMapping(
        topic=TOPIC,
        broker="a",
        scope=GLOBAL,
        epoch=cluster.world.now_ms,
        total=1,
        queues={0: new_logical_queue(0, "a", 0)},
    )
    fields = a_create(TOPIC).fields | {"force": "false"}
    return Command(code=RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, fields=fields, body=encode(to_detail(record)))


def is_refused(cluster: MovingCluster, name: str, topic: str = TOPIC) -> bool:
    answer = cluster.call(name, a_send(topic, queue=0))
    assert answer.code in {ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST}
    return answer.code == ResponseCode.TOPIC_NOT_EXIST and "was deleted" in (answer.remark or "")


def hosts(cluster: MovingCluster, topic: str = TOPIC) -> list[str]:
    return [name for name, rooms in cluster.components.items() if rooms.topics.find(topic) is not None]


def markers(turn: Turn | None = None) -> DeletionMarkers:
    options = BrokerOptions(name="a", cluster="C", namesrv=("n:1",))
    return DeletionMarkers(SimDisk(), options, Turn() if turn is None else turn)


# In a cluster.


@pytest.mark.parametrize("is_static", [True, False])
def test_a_deleted_topic_is_not_created_for_a_send(cluster: MovingCluster, *, is_static: bool) -> None:
    """Whatever kind it was, at every broker."""
    topic = TOPIC if is_static else "N"
    if not is_static:
        assert cluster.call("a", a_send(topic)).code == 0
        cluster.run(4_000)
    cluster.delete_topic(topic, *hosts(cluster, topic))

    assert is_refused(cluster, "a", topic)
    assert is_refused(cluster, "b", topic)
    cluster.run(60_000)
    assert is_refused(cluster, "b", topic)
    assert hosts(cluster, topic) == []


def test_what_is_sent_between_the_two_halves_of_a_deletion_creates_nothing(cluster: MovingCluster) -> None:
    """Tools delete at brokers first; name servers say for a moment that the topic is there."""
    assert cluster.call("a", a_send("N")).code == 0
    cluster.run(4_000)
    for name in hosts(cluster, "N"):
        assert cluster.request(name, RequestCode.DELETE_TOPIC_IN_BROKER, topic="N").code == 0

    assert is_refused(cluster, "a", "N")
    cluster.delete_topic("N")
    assert hosts(cluster, "N") == []


def test_a_topic_that_was_taken_from_one_broker_only_may_come_back_there(cluster: MovingCluster) -> None:
    """No name server was asked to forget it."""
    assert cluster.call("a", a_send("N")).code == 0
    assert cluster.request("a", RequestCode.DELETE_TOPIC_IN_BROKER, topic="N").code == 0
    cluster.run(BLOCK_MS)

    assert not is_refused(cluster, "a", "N")


@pytest.mark.parametrize("is_static", [True, False])
def test_an_explicit_create_of_either_kind_lifts_the_marker(cluster: MovingCluster, *, is_static: bool) -> None:
    """For every broker; it does not matter which one was asked."""
    cluster.delete_topic(TOPIC, "a")
    assert is_refused(cluster, "b")

    assert cluster.call("a", a_static_create(cluster) if is_static else a_create(TOPIC)).code == 0
    cluster.run(4_000)

    assert not is_refused(cluster, "a")
    assert not is_refused(cluster, "b")
    assert hosts(cluster) == (["a"] if is_static else ["a", "b"])


def test_a_name_server_that_was_down_learns_of_a_deletion(cluster: MovingCluster) -> None:
    """From the brokers; it then tells a broker that was down, too."""
    cluster.name_servers[1].kill()
    cluster.kill("b")
    cluster.delete_topic(TOPIC, "a")
    cluster.run(4_000)

    cluster.name_servers[1].start()
    cluster.run(4_000)
    cluster.name_servers[0].kill()
    cluster.kill("a")
    cluster.restart("b")
    cluster.run(4_000)

    assert is_refused(cluster, "b")


def test_a_restarted_broker_remembers_while_no_name_server_answers(cluster: MovingCluster) -> None:
    """It heard of the deletion before."""
    cluster.delete_topic(TOPIC, "a")
    cluster.run(4_000)
    for node in cluster.name_servers:
        node.kill()
    cluster.kill("b")
    cluster.restart("b")
    cluster.run(2_000)

    assert is_refused(cluster, "b")


# One broker's table.


def test_markers_are_kept_and_carried() -> None:
    """News is written, and sent to every name server."""
    turn = Turn()
    table = markers(turn)

    table.merge(encode_markers([DeletionMarker("T", 5)]))
    fired = turn.drain_fired()
    table.merge(encode_markers([DeletionMarker("T", 4)]))

    assert table.is_deleted("T")
    assert table.encoded == encode_markers([DeletionMarker("T", 5)])
    assert [type(effect) for effect in turn.effects] == [WriteFile]
    assert (fired, turn.drain_fired()) == ([NEWS_TIMER], [])


@pytest.mark.parametrize("text", [None, "", "{", "[1]"])
def test_what_is_not_markers_changes_nothing(text: str | None) -> None:
    """It may be a Java name server, or damaged."""
    turn = Turn()
    table = markers(turn)

    table.merge(text)

    assert (table.encoded, turn.effects) == ("[]", [])


def test_a_deletion_in_another_cluster_does_not_concern_this_broker() -> None:
    """The marker is carried all the same."""
    table = markers()

    table.merge(encode_markers([DeletionMarker("T", 5, "other")]))

    assert not table.is_deleted("T")
    assert "other" in table.encoded


def test_a_broker_without_name_servers_creates_what_it_is_sent() -> None:
    """There is no 216 that could follow."""
    table = DeletionMarkers(SimDisk(), BrokerOptions(name="a", namesrv=()), Turn())

    table.block_creation("T")

    assert not table.is_deleted("T")
