"""Which records of a copied log can be indexed."""

from tests.support.cluster.broker_machine import BrokerHarness

from holdfast.broker.replication.replica_topics import ReplicaTopics


def known_topics() -> tuple[BrokerHarness, ReplicaTopics]:
    desk = BrokerHarness(replica_of="broker-a", ha_master="10.0.0.9:10912", advertise="127.0.0.1:10921")
    return desk, ReplicaTopics(desk.components.topics, desk.store)


def test_without_a_master_nothing_waits():
    """There is no table that could be copied."""
    _, topics = known_topics()

    assert topics.is_known("orders") is True


def test_a_topic_waits_until_it_is_copied():
    """Except for those that every broker has."""
    desk, topics = known_topics()
    topics.has_master = True
    assert topics.is_known("orders") is False
    assert topics.is_known("SCHEDULE_TOPIC_XXXX") is True

    desk.make_topic("orders")

    assert topics.is_known("orders") is True


def test_a_topic_that_the_master_lacks_is_deleted_up_to_a_position():
    """It may be created again after that."""
    _, topics = known_topics()
    topics.has_master = True

    topics.add_orphan("orders", 1)
    assert topics.is_known("orders") is None

    topics.add_orphan("orders", 0)
    assert topics.is_known("orders") is False
