"""A dead leader does not stop its queues; when it returns it is read-only, and what it acknowledged has its place."""

import msgspec
from tests.support.moving_cluster import NAMESRV, TOPIC, MovingCluster

from holdfast.broker.forcing import CHECK_MS
from holdfast.model.group import GroupConfig
from holdfast.model.mapping import FORCED_GAP
from holdfast.wire.codes import RequestCode, ResponseCode
from holdfast.wire.command import Command
from holdfast.wire.mapping import to_home
from holdfast.wire.moves import AbandonOrder, ForceOrder, QueueHomes


def a_cluster(*names: str) -> MovingCluster:
    """Ten messages are in queue 0, which a leads."""
    cluster = MovingCluster(*(names or ("a", "b")))
    cluster.make_topic({0: "a", 1: "b"})
    cluster.run(5_000, cluster.produce(0, 10, "a"))
    return cluster


def force(cluster: MovingCluster, target: str, queue: int = 0, source: str = "a") -> Command:
    """Let *target* lead a queue by force, going by what its old leader recorded."""
    rooms = cluster.rooms[source]
    mapping, config = rooms.mappings.find(TOPIC), rooms.topics.find(TOPIC)
    assert mapping is not None
    assert config is not None
    homes = [to_home(segment) for segment in mapping.queues[queue].segments]
    order = ForceOrder(
        topic=config,
        scope=mapping.scope,
        epoch=mapping.epoch + 1_000,
        total=mapping.total,
        queues=[QueueHomes(queue=queue, homes=homes)],
    )
    return cluster.ask(target, RequestCode.FORCE_QUEUES, order)


def state(cluster: MovingCluster, name: str, queue: int = 0) -> str:
    return cluster.rooms[name].mappings.place(TOPIC, queue).state


def test_a_forced_queue_opens_far_above_everything_that_may_exist() -> None:
    """The new leader cannot know the end: no offset may ever be used twice."""
    cluster = a_cluster()
    cluster.brokers["a"].kill()

    answer = force(cluster, "b")
    cluster.run(5_000, cluster.produce(0, 3, "b"))

    assert answer.code == ResponseCode.SUCCESS
    assert cluster.leader(0) == "b"
    assert cluster.acked[b"0-0"] == (0, FORCED_GAP)
    assert force(cluster, "b").code == ResponseCode.SUCCESS, "asked twice is asked once"
    assert len(cluster.logical_queue(0).segments) == 2


def test_readers_wait_at_the_unknown_end_with_an_error_that_names_the_broker() -> None:
    """What it took may still come: nobody skips it silently."""
    cluster = a_cluster()
    cluster.brokers["a"].kill()
    force(cluster, "b")

    answer = cluster.pull("b", 0, 10)

    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "a" in (answer.remark or "").replace(",", " ").split()


def test_a_leader_that_returns_is_fenced_and_tells_its_end() -> None:
    """Its records are readable in their place; what is sent to it goes to the new leader."""
    cluster = a_cluster()
    cluster.brokers["a"].kill()
    force(cluster, "b")

    cluster.brokers["a"].start()
    cluster.run(10_000)

    assert state(cluster, "a") == "elsewhere"
    sealed, opened = cluster.logical_queue(0).segments
    assert (sealed.end, opened.first) == (10, FORCED_GAP)
    cluster.acked.clear()
    cluster.run(5_000, cluster.produce(0, 3, "a"))
    assert [offset for _, offset in cluster.acked.values()] == [FORCED_GAP, FORCED_GAP + 1, FORCED_GAP + 2]
    assert len(cluster.consume("a", 0)) == len(cluster.consume("b", 0)) == 13


def test_a_fence_holds_over_restarts_of_everything() -> None:
    """It is in the log of the fenced."""
    cluster = a_cluster()
    cluster.brokers["a"].kill()
    force(cluster, "b")
    cluster.brokers["a"].start()
    cluster.run(10_000)

    for node in (cluster.name_server, *cluster.brokers.values()):
        node.kill()
    cluster.run(1_000)
    cluster.brokers["a"].start()
    cluster.run(10_000)

    assert state(cluster, "a") == "elsewhere"
    assert cluster.open_on(0) == []


def test_a_leader_that_was_only_out_of_sight_is_fenced_when_it_is_back() -> None:
    """It never stopped. What it took meanwhile lies inside the gap, and is kept."""
    cluster = a_cluster("a", "b")
    cluster.world.checks.clear()  # Two are open for a while: that is what the gap is for.
    others = ("10.0.0.1", "10.0.1.2")
    for host in others:
        cluster.network.cut("10.0.1.1", host)
        cluster.network.cut(host, "10.0.1.1")
    force(cluster, "b")
    cluster.sent.clear()
    done = cluster.produce(0, 15, "a")  # Bodies 0-0 to 0-9 are there already.
    assert cluster.run(10_000, done)
    assert len(cluster.acked) == 15

    cluster.network.mend()
    cluster.run(3 * CHECK_MS)

    assert state(cluster, "a") == "elsewhere"
    sealed, _ = cluster.logical_queue(0).segments
    assert sealed.end == 25
    assert len(cluster.consume("b", 0)) == 25


def test_an_operator_gives_up_what_a_dead_leader_may_hold() -> None:
    """Readers go on behind the end that was named. It is too late for the broker to name another."""
    cluster = a_cluster()
    cluster.brokers["a"].kill()
    force(cluster, "b")
    cluster.run(5_000, cluster.produce(0, 2, "b"))
    order = AbandonOrder(topic=TOPIC, queue=0, generation=0, end=5)

    answer = cluster.ask("b", RequestCode.ABANDON_QUEUE, order)
    cluster.brokers["a"].start()
    cluster.run(10_000)

    assert answer.code == ResponseCode.SUCCESS
    assert cluster.logical_queue(0).segments[0].end == 5
    assert len(cluster.consume("b", 0)) == 7
    assert cluster.ask("b", RequestCode.ABANDON_QUEUE, order).code == ResponseCode.SUCCESS
    other = AbandonOrder(topic=TOPIC, queue=0, generation=0, end=7)
    assert cluster.ask("b", RequestCode.ABANDON_QUEUE, other).code == ResponseCode.ILLEGAL_OPERATION


def test_only_a_leader_fixes_ends() -> None:
    """Anybody else would decide about what is not its own."""
    cluster = a_cluster()

    answer = cluster.ask("b", RequestCode.ABANDON_QUEUE, AbandonOrder(topic=TOPIC, queue=0, generation=0, end=5))

    assert answer.code == ResponseCode.ILLEGAL_OPERATION


def test_a_move_whose_target_died_is_ended_by_force() -> None:
    """It was granted, and nobody can say whether it was opened: the third broker goes on, behind a gap."""
    cluster = a_cluster("a", "b", "c")
    move = cluster.move("a", "b", 0)
    assert cluster.run(5_000, lambda: state(cluster, "a") == "sealed")
    cluster.brokers["b"].kill()
    cluster.run(500)

    force(cluster, "c")
    cluster.run(3 * CHECK_MS)

    assert cluster.leader(0) == "c"
    assert state(cluster, "a") == "elsewhere"
    assert cluster.moves("a")[move.id].state == "failed"
    assert [segment.broker for segment in cluster.logical_queue(0).readable] == ["a", "b", "c"]
    cluster.acked.clear()
    cluster.run(5_000, cluster.produce(0, 2, "a"))
    assert len(cluster.acked) == 2


def test_after_a_restart_sends_wait_until_name_servers_were_asked() -> None:
    """Somebody may have been made leader meanwhile. They are held, not refused."""
    cluster = a_cluster()
    cluster.brokers["a"].kill()
    cluster.run(100)

    cluster.brokers["a"].start()
    done = cluster.produce(0, 12, "a")

    assert (TOPIC, 0) in cluster.rooms["a"].relaying.moving
    assert cluster.run(5_000, done)
    assert (cluster.refused, cluster.unsure) == ([], [])
    assert (TOPIC, 0) not in cluster.rooms["a"].relaying.moving


def test_without_any_name_server_a_restarted_leader_opens_after_a_while() -> None:
    """Nothing says otherwise: a cluster whose name servers are gone goes on."""
    cluster = a_cluster()
    cluster.name_server.kill()
    cluster.brokers["a"].kill()
    cluster.run(100)

    cluster.brokers["a"].start()
    done = cluster.produce(0, 12, "a")

    assert cluster.run(20_000, done)
    assert len(cluster.acked) == 12
    assert cluster.hand._name_servers.current == NAMESRV


def test_a_gap_is_no_lag() -> None:
    """How far a group is behind is a number of messages; the gap is told beside it. Java's tool subtracts by itself."""
    cluster = a_cluster()
    cluster.brokers["a"].kill()
    force(cluster, "b")
    cluster.run(5_000, cluster.produce(0, 3, "b"))
    cluster.rooms["b"].groups.put_all([GroupConfig(group_name="consumers")], cluster.world.now_ms)
    cluster.commit("b", 0, 4)

    logical = consume_stats(cluster, lo="true")
    physical = consume_stats(cluster)

    end = FORCED_GAP + 3
    assert (logical["brokerOffset"], logical["consumerOffset"], logical["gap"]) == (end, 4, end - 4 - 3)
    assert physical["brokerOffset"] + FORCED_GAP - physical["consumerOffset"] == 3
    assert "gap" not in physical
    answer = cluster.ask("b", RequestCode.GET_BROKER_CONSUME_STATS, None, isOrder="false")
    assert b'"totalDiff":3,' in bytes(answer.body)


def consume_stats(cluster: MovingCluster, **fields: str) -> dict[str, int]:
    """Return what b tells of queue 0."""
    answer = cluster.ask("b", RequestCode.GET_CONSUME_STATS, None, consumerGroup="consumers", topic=TOPIC, **fields)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    place = b'"queueId":0' if fields else b'"queueId":1'
    head, _, rest = bytes(answer.body).partition(place)
    assert head
    row: dict[str, int] = msgspec.json.decode(rest[rest.index(b":{") + 1 : rest.index(b"}", rest.index(b":{")) + 1])
    return row
