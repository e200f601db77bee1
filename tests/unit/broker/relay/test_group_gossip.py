"""Asked at any broker, a group of static topics has the same members, and hears of every change."""

from tests.support.broker_clients import a_heartbeat, a_subscription
from tests.support.cluster.simulated import TOPIC, MovingCluster
from tests.support.cluster.simulated_world import ManualClient

from holdfast.broker.flow.awaitables import CALLS
from holdfast.broker.relay.group_gossip import LIFE_MS, ROUND_MS
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.requests.moves import GroupMemberList

T = a_subscription(TOPIC)
GROUP = "g"


def a_cluster(*, static: bool = True) -> MovingCluster:
    cluster = MovingCluster("a", "b")
    if static:
        cluster.make_topic({0: "a", 1: "b"})
    cluster.run(ROUND_MS)
    return cluster


def join(cluster: MovingCluster, name: str, broker: str) -> ManualClient:
    hand = cluster.add_client(name)
    cluster.call(broker, a_heartbeat(name, consumer_group=GROUP, topics=(T,)), by=hand)
    return hand


def members(cluster: MovingCluster, broker: str) -> list[str]:
    answer = cluster.request(broker, RequestCode.GET_CONSUMER_LIST_BY_GROUP, None, consumerGroup=GROUP)
    return sorted(java_json.loads(answer.body)["consumerIdList"]) if answer.code == ResponseCode.SUCCESS else []


def test_every_broker_answers_the_members_of_all() -> None:
    """One is here, one is there; one that is at both counts once."""
    cluster = a_cluster()
    join(cluster, "one", "a")
    join(cluster, "two", "b")
    both = join(cluster, "three", "a")
    cluster.call("b", a_heartbeat("three", consumer_group=GROUP, topics=(T,)), by=both)
    cluster.run(100)

    assert members(cluster, "a") == members(cluster, "b") == ["one", "three", "two"]


def test_members_elsewhere_are_told_when_one_comes_and_when_one_goes() -> None:
    """At once: nobody waits for the next round."""
    cluster = a_cluster()
    one = join(cluster, "one", "a")
    cluster.run(100)
    one.received.clear()

    two = join(cluster, "two", "b")
    cluster.run(100)

    assert [command.code for _, command in one.received] == [RequestCode.NOTIFY_CONSUMER_IDS_CHANGED]
    one.received.clear()
    assert two.node is not None
    two.node.kill()
    cluster.run(200)
    assert [command.code for _, command in one.received] == [RequestCode.NOTIFY_CONSUMER_IDS_CHANGED]
    assert members(cluster, "a") == ["one"]


def test_nobody_is_told_when_the_same_is_said_again() -> None:
    """Rounds repeat the whole list; only a change is news."""
    cluster = a_cluster()
    one = join(cluster, "one", "a")
    join(cluster, "two", "b")
    cluster.run(500)
    one.received.clear()

    cluster.run(3 * ROUND_MS)

    assert one.received == []
    assert members(cluster, "a") == ["one", "two"]


def test_a_broker_that_stops_takes_its_members_along_at_once() -> None:
    """It says good-bye: its members go to others, and those must not share queues with ghosts."""
    cluster = a_cluster()
    one = join(cluster, "one", "a")
    join(cluster, "two", "b")
    cluster.run(500)
    one.received.clear()

    cluster.stop("b")
    cluster.run(500)

    assert members(cluster, "a") == ["one"]
    assert one.received


def test_the_members_of_a_broker_that_died_are_dropped_after_a_while() -> None:
    """Not at once: it may be a connection that broke."""
    cluster = a_cluster()
    join(cluster, "one", "a")
    join(cluster, "two", "b")
    cluster.run(500)

    cluster.kill("b")
    cluster.run(1_000)
    assert members(cluster, "a") == ["one", "two"]
    cluster.run(LIFE_MS + ROUND_MS)

    assert members(cluster, "a") == ["one"]


def test_a_list_of_before_a_restart_changes_nothing() -> None:
    """It may have been on its way for long."""
    cluster = a_cluster()
    join(cluster, "one", "b")
    cluster.run(500)
    old = GroupMemberList(broker="b", boot_ms=1, version=9_999, groups={GROUP: ["ghost"]})

    assert cluster.request("a", RequestCode.SHARE_MEMBERS, old).code == ResponseCode.SUCCESS

    assert members(cluster, "a") == ["one"]


def test_a_pull_that_is_passed_on_goes_by_the_subscription_told_elsewhere() -> None:
    """A client that knows one broker only has told only that one what it wants."""
    cluster = a_cluster()
    cluster.run(5_000, cluster.produce(1, 3, "b"))
    one = join(cluster, "one", "a")
    pull = Command(
        code=RequestCode.PULL_MESSAGE,
        fields={
            "consumerGroup": GROUP,
            "topic": TOPIC,
            "queueId": "1",
            "queueOffset": "0",
            "maxMsgNums": "32",
            "sysFlag": "0",
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subVersion": "0",
        },
    )

    answer = cluster.call("a", pull, by=one)

    assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert answer.fields["nextBeginOffset"] == "3"


def test_without_static_topics_nothing_is_said() -> None:
    """Groups of normal topics are each broker's own business, as ever."""
    cluster = a_cluster(static=False)
    join(cluster, "one", "a")
    cluster.run(3 * ROUND_MS)

    assert members(cluster, "b") == []
    assert not [address for address, purpose in cluster.components["a"].rpc._connections if purpose == CALLS]


def test_members_of_another_cluster_count_only_where_a_topic_is_fixed_in_both() -> None:
    """Two clusters with a static topic of one name: each shares out its own queues among its own members."""
    cluster = MovingCluster("a", "b", "c", clusters={"a": "east", "b": "east", "c": "west"})
    cluster.make_topic({0: "a", 1: "b"}, scope="east")
    cluster.make_topic({0: "c"}, scope="west")
    cluster.run(ROUND_MS)
    for name, broker in (("one", "a"), ("two", "b"), ("three", "c")):
        join(cluster, name, broker)
    cluster.run(2 * ROUND_MS)

    assert members(cluster, "a") == members(cluster, "b") == ["one", "two"]
    assert members(cluster, "c") == ["three"]
