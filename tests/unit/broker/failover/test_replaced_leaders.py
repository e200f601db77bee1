"""A leader that was replaced by force stays closed, whoever is left to tell it, and gives nothing away."""

from tests.support.cluster.simulated import TOPIC, force_queue, segments_of
from tests.unit.broker.failover.test_forced_open import a_cluster, state, ways

from holdfast.broker.failover.forced_open import CHECK_MS
from holdfast.model.leadership import Leader
from holdfast.model.queue import MessageQueue
from holdfast.model.scope import GLOBAL, mock_broker
from holdfast.nameserver.routes.static_topic_store import FILE as STATIC_FILE
from holdfast.wire.frames.codes import ResponseCode


def test_a_replaced_leader_stays_closed_though_everything_was_restarted_and_its_successor_is_dead() -> None:
    """The name server remembers who replaced it."""
    cluster = a_cluster()
    cluster.kill("a")
    force_queue(cluster, "b")
    cluster.run(5_000)
    for node in (cluster.name_server, cluster.brokers["b"]):
        node.kill()

    cluster.name_server.start()
    cluster.restart("a")
    cluster.run(60_000)

    assert cluster.open_brokers(0) == []
    cluster.restart("b")
    cluster.run(30_000)
    assert cluster.open_brokers(0) == ["b"]


def test_a_replaced_leader_that_asks_before_anybody_is_registered_stays_closed() -> None:
    """Nobody who has the topic is alive: clients are told nothing, but a broker is told who replaced it."""
    cluster = a_cluster()
    cluster.kill("a")
    force_queue(cluster, "b")
    cluster.run(5_000)
    cluster.kill("b")

    cluster.restart("a")
    assert cluster.run(1_000, lambda: bool(ways(cluster)))
    cluster.network.delay(ways(cluster)[0], 5_000)  # the first: on it the broker registers
    cluster.run(10_000)

    assert cluster.components["a"].view.has_answer(TOPIC)
    assert cluster.open_brokers(0) == []
    cluster.restart("b")
    cluster.run(30_000)
    assert cluster.open_brokers(0) == ["b"]


def test_a_replaced_leader_stays_closed_though_only_others_know_of_the_newest() -> None:
    """By force from a to b, and on to c, who died before it registered: b knows who leads."""
    cluster = a_cluster("a", "b", "c")
    cluster.kill("a")
    force_queue(cluster, "b")
    move = cluster.move("b", "c", 0)
    assert cluster.run(5_000, lambda: state(cluster, "c") == "open")
    assert cluster.run(5_000, lambda: cluster.moves("b")[move.id].state == "done")
    cluster.kill("c")
    cluster.name_server.kill()
    assert cluster.name_server.disk is not None
    cluster.name_server.disk.remove(STATIC_FILE)

    cluster.name_server.start()
    cluster.restart("a")
    cluster.run(30_000)

    assert cluster.open_brokers(0) == []
    cluster.restart("c")
    cluster.run(30_000)
    assert cluster.open_brokers(0) == ["c"]


def test_a_fenced_leader_keeps_no_plans_of_the_new_one() -> None:
    """Where the queue goes next is for others to say; nobody would tell it how that ended."""
    cluster = a_cluster("a", "b", "c")
    cluster.kill("a")
    force_queue(cluster, "b")
    cluster.move("b", "c", 0)
    assert cluster.run(5_000, lambda: state(cluster, "b") == "sealed")
    cluster.kill("c")

    cluster.restart("a")
    assert cluster.run(CHECK_MS, lambda: state(cluster, "a") == "elsewhere")

    mapping = cluster.components["a"].mappings.find(TOPIC)
    assert mapping is not None
    assert [segment.broker for segment in mapping.queues[0].segments] == ["a", "b"]


def test_a_replaced_leader_hands_nothing_over() -> None:
    """It knows that it was replaced, and waits for its successor to say what it may keep; its target knows nothing."""
    cluster = a_cluster("a", "b", "c")
    cluster.components["a"].view.record_leader(MessageQueue(TOPIC, mock_broker(GLOBAL), 0), Leader("b", 5, 9))

    move = cluster.move("a", "c", 0)
    cluster.run(10_000)

    found = cluster.moves("a")[move.id]
    assert (found.state, state(cluster, "c")) == ("failed", "elsewhere")
    assert found.reason.startswith("b leads logical queue 0 of T in a newer generation than 0")


def test_an_order_that_goes_by_less_than_is_known_is_refused() -> None:
    """Two leaders of one generation could not be told apart."""
    cluster = a_cluster("a", "b", "c")
    cluster.kill("a")
    force_queue(cluster, "b")
    cluster.run(5_000)
    cluster.kill("b")
    cluster.run(100)

    answer = force_queue(cluster, "c")

    assert answer.code == ResponseCode.ILLEGAL_OPERATION
    assert "b leads logical queue 0 of T in a newer generation than 0" in (answer.remark or "")
    assert force_queue(cluster, "c", segments=segments_of(cluster, 0, "b")).code == ResponseCode.SUCCESS
    assert cluster.logical_queue(0).generation == 4
