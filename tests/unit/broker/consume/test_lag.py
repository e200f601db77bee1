"""How far groups are behind: the figure of tools and of the metric, wherever queues are and were."""

import pytest
from tests.support.broker_clients import a_heartbeat, a_request, a_subscription, connect_client
from tests.support.cluster.broker_machine import BrokerHarness, a_send
from tests.support.cluster.replica_machines import ReplicaPair
from tests.support.cluster.simulated import TOPIC, MovingCluster, force_queue

from holdfast.broker.assembly import Components
from holdfast.broker.consume.consumed_topics import ROUND_MS
from holdfast.broker.metrics import broker_samples
from holdfast.model.mapping import TopicMapping, new_logical_queue
from holdfast.model.topic import TopicConfig
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode

GROUP = "consumers"


def reported(rooms: Components) -> dict[tuple[str, str], float]:
    """Return the lag that a broker reports as a metric, by topic and group."""
    samples = [
        sample
        for sample in broker_samples(rooms.options, rooms.store, rooms)
        if sample.name == "broker_group_lag" and not sample.labels["topic"].startswith("%RETRY%")
    ]
    return {(sample.labels["topic"], sample.labels["group"]): sample.value for sample in samples}


def all_reported(cluster: MovingCluster) -> dict[str, float]:
    """Return the lag of the group that each broker which is up reports; brokers that report none are left out."""
    found = {name: reported(rooms) for name, rooms in cluster.components.items() if cluster.is_up(name)}
    return {name: lags[TOPIC, GROUP] for name, lags in found.items() if (TOPIC, GROUP) in lags}


def told(cluster: MovingCluster, name: str) -> int:
    """Return the lag that a broker tells a tool which knows of gaps."""
    fields = {"consumerGroup": GROUP, "topic": TOPIC, "lo": "true"}
    answer = cluster.request(name, RequestCode.GET_CONSUME_STATS, None, **fields)
    rows = java_json.loads(answer.body)["offsetTable"].values()
    return sum(row["brokerOffset"] - max(0, row["consumerOffset"]) - row.get("gap", 0) for row in rows)


def a_cluster(*names: str) -> MovingCluster:
    """Twenty messages are in queue 0, which a leads, and the group has consumed five."""
    cluster = MovingCluster(*(names or ("a", "b")))
    cluster.make_topic({0: "a"})
    cluster.run(5_000, cluster.produce(0, 20, "a"))
    cluster.components["a"].groups.ensure(GROUP)
    cluster.commit("a", 0, 5)
    return cluster


def test_the_lag_of_a_queue_that_moved_is_reported_by_its_leader_alone() -> None:
    """Logical offsets mean nothing to the physical queue of the new leader, and the old leader has no say."""
    cluster = a_cluster()
    assert all_reported(cluster) == {"a": 15}

    cluster.move("a", "b", 0)
    assert cluster.run(5_000, lambda: cluster.open_brokers(0) == ["b"])
    cluster.run(5_000, cluster.produce(0, 10, "b"))

    assert all_reported(cluster) == {"b": 25}
    assert told(cluster, "b") == 25

    cluster.kill("a")
    cluster.restart("a")
    cluster.run(5_000)
    assert all_reported(cluster) == {"b": 25}

    cluster.move("b", "a", 0)
    assert cluster.run(5_000, lambda: cluster.open_brokers(0) == ["a"])
    assert all_reported(cluster) == {"a": 25}


def test_no_two_brokers_report_a_queue_at_any_time_of_a_move() -> None:
    """Nor over a restart of the source, which may not have heard yet that the target opened it."""
    cluster = a_cluster()
    cluster.world.checks.append(lambda: _assert_one_reports(cluster))

    cluster.move("a", "b", 0)
    assert cluster.run(5_000, lambda: cluster.components["b"].mappings.placement(TOPIC, 0).state == "open")
    cluster.kill("a")
    cluster.restart("a")
    assert cluster.run(10_000, cluster.are_moves_finished)
    cluster.run(5_000)

    assert all_reported(cluster) == {"b": 15}


def _assert_one_reports(cluster: MovingCluster) -> None:
    found = all_reported(cluster)
    assert len(found) <= 1, found


def test_after_a_forced_move_gaps_are_no_lag_and_a_leader_that_returns_reports_nothing() -> None:
    """From its first moment on, though it has yet to learn that it was replaced."""
    cluster = a_cluster()
    cluster.run(3_000)
    cluster.kill("a")
    force_queue(cluster, "b")
    cluster.run(5_000, cluster.produce(0, 10, "b"))
    lag_past_gap = all_reported(cluster)["b"]
    cluster.world.checks.append(lambda: _assert_one_reports(cluster))

    cluster.restart("a")
    cluster.run(20_000)

    assert lag_past_gap == 10, "the number of the old leader's messages is unknown"
    assert all_reported(cluster) == {"b": 25}
    assert told(cluster, "b") == 25


def test_a_group_lags_in_a_queue_that_came_along_before_it_committed_there() -> None:
    """The new leader has never heard of the group: it is packed with the queue."""
    cluster = MovingCluster("a", "b")
    cluster.make_topic({0: "a", 1: "a"})
    cluster.run(5_000, cluster.produce(0, 4, "a"))
    cluster.run(5_000, cluster.produce(1, 7, "a"))
    cluster.components["a"].groups.ensure(GROUP)
    cluster.commit("a", 0, 1)

    cluster.move("a", "b", 1)
    assert cluster.run(5_000, lambda: cluster.open_brokers(1) == ["b"])

    assert all_reported(cluster) == {"a": 3, "b": 7}


def test_a_group_lags_at_brokers_that_it_never_met() -> None:
    """They hear from the broker where it commits; and that it is gone, when it was deleted there."""
    cluster = MovingCluster("a", "b", "elsewhere", clusters={"elsewhere": "other"})
    for rooms in cluster.components.values():
        rooms.topics.put(TopicConfig(name=TOPIC, read_queues=1, write_queues=1))
    for name in ("b", "b", "elsewhere"):
        cluster.call(name, a_send(TOPIC))

    cluster.components["a"].offsets.commit(GROUP, TOPIC, 0, 0)
    cluster.run(ROUND_MS + 2_000)

    assert all_reported(cluster) == {"a": 0, "b": 2}
    assert cluster.components["b"].groups.find(GROUP) is None
    assert told(cluster, "b") == 2

    cluster.components["a"].offsets.forget_group(GROUP)
    cluster.run(ROUND_MS + 2_000)

    assert all_reported(cluster) == {}


def test_a_replica_reports_no_lag() -> None:
    """Its master does."""
    pair = ReplicaPair()
    pair.master.make_topic("T")
    pair.send(10)
    pair.master.components.offsets.commit(GROUP, "T", 0, 4)
    pair.sync_tables()
    pair.connect_and_catch_up()
    pair.sync_tables()

    assert reported(pair.master.components) == {("T", GROUP): 6}
    assert pair.replica.components.offsets.find(GROUP, "T", 0) == 4
    assert reported(pair.replica.components) == {}


# Groups that committed nothing.


def test_a_group_that_only_subscribed_lags_also_after_a_restart() -> None:
    """In every queue; once it is gone, too."""
    desk = BrokerHarness()
    desk.make_topic("T", queues=2)
    desk.call(a_send(), a_send(e="1"), a_send(e="1"))
    connect_client(
        desk, 2, a_heartbeat("c", consumer_group=GROUP, topics=(a_subscription("T"), a_subscription("missing")))
    )
    assert reported(desk.components) == {("T", GROUP): 3}

    desk.disconnect(2)
    desk.pass_time(10_000, "kept files")
    again = BrokerHarness(disk=desk.disk)

    assert reported(again.components) == {("T", GROUP): 3}


def test_a_broadcast_group_does_not_lag() -> None:
    """Its members keep their offsets themselves."""
    desk = BrokerHarness()
    desk.make_topic("T")
    desk.call(a_send())

    connect_client(desk, 2, a_heartbeat("c", consumer_group=GROUP, topics=(a_subscription("T"),), model="BROADCASTING"))

    assert reported(desk.components) == {}


@pytest.mark.parametrize(
    ("prefers", "lag"),
    [
        ("CONSUME_FROM_LAST_OFFSET", 0),
        ("CONSUME_FROM_MAX_OFFSET", 0),
        ("CONSUME_FROM_FIRST_OFFSET", 3),
        ("CONSUME_FROM_TIMESTAMP", 3),
        (None, 3),
    ],
)
@pytest.mark.parametrize("is_static", [True, False])
def test_a_group_that_committed_nothing_starts_as_its_consumer_would(
    prefers: str | None, lag: int, monkeypatch: pytest.MonkeyPatch, *, is_static: bool
) -> None:
    """Preferences count when the first message left the memory; before, code 14 answers 0. None: not connected."""
    desk = BrokerHarness()
    desk.make_topic("T", queues=1)
    if is_static:
        mapping = TopicMapping(
            topic="T", broker=desk.options.name, total=1, queues={0: new_logical_queue(0, desk.options.name, 0)}
        )
        desk.components.mappings.change(mapping)
    desk.call(a_send(), a_send(), a_send())
    if prefers is None:
        desk.components.offsets.record_consumer(GROUP, "T")
    else:
        connect_client(
            desk, 2, a_heartbeat("c", consumer_group=GROUP, topics=(a_subscription("T"),), consume_from=prefers)
        )
    assert reported(desk.components) == {("T", GROUP): 3}

    monkeypatch.setattr(desk.store, "is_hot", lambda _position: False)

    assert reported(desk.components) == {("T", GROUP): lag}


def test_a_tool_sees_that_a_group_committed_nothing() -> None:
    """Ours by a negative offset, others by the offset at which it starts; both see the same lag."""
    desk = BrokerHarness()
    desk.make_topic("T", queues=1)
    desk.call(a_send(), a_send())
    fields = {"consumerGroup": GROUP, "topic": "T"}

    ours, java = desk.call(
        a_request(RequestCode.GET_CONSUME_STATS, **fields, lo="true"),
        a_request(RequestCode.GET_CONSUME_STATS, **fields),
    )

    assert '"consumerOffset":-1' in bytes(ours.body).decode()
    assert '"consumerOffset":0' in bytes(java.body).decode()
