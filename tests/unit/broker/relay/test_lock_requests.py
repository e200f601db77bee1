"""A client locks queues of several leaders with one request, at any broker."""

import pytest
from tests.support.cluster.simulated import TOPIC, MovingCluster

from holdfast.wire.frames.codes import RequestCode

# How clients name the broker of a logical queue: on the wire, as people see it, or by a real broker's name.
NAMES = ("__syslo__global__", "__logic__global", "a", "b")


def a_cluster() -> MovingCluster:
    """A leads 0 and 1, b leads 2, c leads 3."""
    cluster = MovingCluster("a", "b", "c")
    cluster.make_topic({0: "a", 1: "a", 2: "b", 3: "c"})
    return cluster


def test_every_leader_gives_what_is_its_own() -> None:
    """Whoever is asked, all of it is locked, and locked against others everywhere."""
    cluster = a_cluster()

    assert cluster.lock("a", "one", 0, 1, 2, 3) == [0, 1, 2, 3]
    assert cluster.lock("b", "two", 0, 1, 2, 3) == []
    assert cluster.lock("c", "one", 3, 2) == [2, 3]


def test_every_leader_takes_back_what_is_its_own() -> None:
    """Of the client that held it."""
    cluster = a_cluster()
    cluster.lock("a", "one", 0, 2)
    cluster.lock("b", "two", 3)

    cluster.lock("c", "one", 0, 2, 3, code=RequestCode.UNLOCK_BATCH_MQ)

    assert cluster.lock("b", "three", 0, 1, 2, 3) == [0, 1, 2]


def test_what_a_dead_leader_holds_is_not_locked_and_the_rest_is() -> None:
    """The client tries again with its next round."""
    cluster = a_cluster()
    cluster.kill("b")

    assert cluster.lock("a", "one", 0, 2, 3) == [0, 3]


def test_a_lock_asked_for_during_a_move_is_decided_by_the_new_leader() -> None:
    """It waits for it, and finds there who held it before."""
    cluster = a_cluster()
    cluster.lock("a", "one", 0)
    cluster.move("a", "b", 0, 1)
    assert cluster.run(5_000, lambda: cluster.components["a"].mappings.placement(TOPIC, 0).state == "sealed")

    assert cluster.lock("a", "two", 0, 1) == [1]
    assert cluster.leader(0) == "b"


def test_queues_of_normal_topics_are_locked_here_as_ever() -> None:
    """Also in a cluster without any static topic."""
    cluster = MovingCluster("a")

    assert cluster.lock("a", "one", 0, 1) == [0, 1]
    assert cluster.lock("a", "two", 1) == []
    cluster.lock("a", "one", 1, code=RequestCode.UNLOCK_BATCH_MQ)
    assert cluster.lock("a", "two", 1) == [1]


@pytest.mark.parametrize("first", NAMES)
@pytest.mark.parametrize("second", NAMES)
def test_a_queue_has_one_lock_whatever_broker_name_clients_use(first: str, second: str) -> None:
    """Refused to another client at the leader and at another broker; released under any of its names."""
    cluster = a_cluster()

    assert cluster.lock("a", "one", 0, 2, broker_name=first) == [0, 2]
    assert cluster.lock("a", "two", 0, 2, broker_name=second) == []
    assert cluster.lock("b", "two", 0, 2, broker_name=second) == []
    assert cluster.lock("c", "one", 0, 2, broker_name=second) == [0, 2]
    cluster.lock("b", "one", 0, 2, broker_name=second, code=RequestCode.UNLOCK_BATCH_MQ)
    assert cluster.lock("a", "two", 0, 2, broker_name=first) == [0, 2]


@pytest.mark.parametrize("first", NAMES)
@pytest.mark.parametrize("second", NAMES)
def test_a_lock_that_moved_with_its_queue_holds_whatever_broker_name_clients_use(first: str, second: str) -> None:
    """At the new leader; and the old one keeps none, should the queue come back."""
    cluster = a_cluster()
    assert cluster.lock("a", "one", 0, broker_name=first) == [0]
    cluster.move("a", "b", 0)
    assert cluster.run(5_000, lambda: cluster.open_brokers(0) == ["b"])

    assert cluster.lock("b", "two", 0, broker_name=second) == []
    cluster.lock("b", "one", 0, broker_name=second, code=RequestCode.UNLOCK_BATCH_MQ)
    cluster.move("b", "a", 0)
    assert cluster.run(5_000, lambda: cluster.open_brokers(0) == ["a"])

    assert cluster.lock("a", "two", 0, broker_name=first) == [0]
