"""A target prepares without taking writes, opens exactly where it is told, and decides nothing by itself."""

import pytest
from tests.support.cluster.simulated import TOPIC, MovingCluster, force_queue

from holdfast.broker.failover.forced_open import CHECK_MS
from holdfast.broker.move.move_target import QUERY_AFTER_MS
from holdfast.model.mapping import LogicalQueue, TopicMapping
from holdfast.wire.cluster.mapping import to_wire_segment
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.requests.moves import (
    Move,
    MoveQuery,
    OpenQueues,
    PreparedQueues,
    PrepareQueues,
    QueueSegments,
    QueueTotal,
    decode_body,
    encode_body,
)


def a_cluster() -> MovingCluster:
    """Five messages are in queue 0; a leads it and queue 1."""
    cluster = MovingCluster("a", "b")
    cluster.make_topic({0: "a", 1: "a"})
    cluster.run(5_000, cluster.produce(0, 5, "a"))
    return cluster


def record(cluster: MovingCluster, name: str) -> TopicMapping:
    mapping = cluster.components[name].mappings.find(TOPIC)
    assert mapping is not None
    return mapping


def homes(queue: LogicalQueue) -> QueueSegments:
    return QueueSegments(queue=queue.queue, segments=[to_wire_segment(segment) for segment in queue.segments])


def prepare(cluster: MovingCluster, *queues: int, move: str = "m") -> Command:
    mapping, config = record(cluster, "a"), cluster.components["a"].topics.find(TOPIC)
    assert config is not None
    order = PrepareQueues(
        move=move,
        source="a",
        topic=config,
        scope=mapping.scope,
        epoch=mapping.epoch,
        total=mapping.total,
        queues=[homes(mapping.queues[queue]) for queue in queues],
    )
    return cluster.request("b", RequestCode.PREPARE_QUEUES, order)


def open_queue(cluster: MovingCluster, physical: int, end: int = 5, move: str = "m") -> Command:
    return cluster.request("b", RequestCode.OPEN_QUEUES, an_opening(cluster, physical, end, move))


def an_opening(cluster: MovingCluster, physical: int, end: int = 5, move: str = "m") -> OpenQueues:
    mapping = record(cluster, "a")
    queue = mapping.queues[0].prepare("b", physical).seal(end).open_next()
    return OpenQueues(
        move=move,
        source="a",
        topic=TOPIC,
        scope=mapping.scope,
        epoch=mapping.epoch + 1,
        total=mapping.total,
        queues=[homes(queue)],
        offsets={"g": {0: 3, 1: 9}},
    )


def state(cluster: MovingCluster, queue: int = 0) -> str:
    return cluster.components["b"].mappings.placement(TOPIC, queue).state


def test_what_is_prepared_takes_no_writes_and_passes_them_on() -> None:
    """The old leader still leads."""
    cluster = a_cluster()

    answer = prepare(cluster, 0, 1)
    cluster.acked.clear()
    cluster.run(5_000, cluster.produce(1, 2, "b"))

    assert decode_body(answer.body, PreparedQueues).physical == {0: 0, 1: 1}
    assert state(cluster) == "prepared"
    assert cluster.stores["a"].queue(TOPIC, 1).next_offset == 2


def test_preparing_again_is_preparing_once() -> None:
    """The same physical queues: an old leader that got no answer asks again."""
    cluster = a_cluster()
    prepare(cluster, 0)

    answer = prepare(cluster, 0, 1)

    assert decode_body(answer.body, PreparedQueues).physical == {0: 0, 1: 1}


def test_it_opens_exactly_where_the_old_leader_ended_and_knows_its_groups() -> None:
    """Offsets go on; of what came along only what belongs to the opened queues is taken."""
    cluster = a_cluster()
    cluster.world.checks.clear()  # The old leader is only played here: it goes on.
    prepare(cluster, 0)

    answer = open_queue(cluster, 0)

    assert answer.code == ResponseCode.SUCCESS
    place = cluster.components["b"].mappings.placement(TOPIC, 0)
    assert (place.state, place.delta) == ("open", 5)
    offsets = cluster.components["b"].offsets
    assert (offsets.find("g", TOPIC, 0), offsets.find("g", TOPIC, 1)) == (3, None)


def test_opening_again_changes_nothing() -> None:
    """Least of all what was committed since."""
    cluster = a_cluster()
    cluster.world.checks.clear()
    prepare(cluster, 0)
    open_queue(cluster, 0)
    before = record(cluster, "b")
    cluster.commit("b", 0, 4, group="g")

    answer = open_queue(cluster, 0)

    assert answer.code == ResponseCode.SUCCESS
    assert record(cluster, "b") == before
    assert cluster.components["b"].offsets.find("g", TOPIC, 0) == 4


def test_a_queue_that_was_not_prepared_opens_only_if_it_is_empty() -> None:
    """Records of something else would become records of the queue."""
    cluster = a_cluster()
    cluster.world.checks.clear()
    cluster.stores["b"].queue(TOPIC, 7).next_offset = 3

    assert open_queue(cluster, 7).code == ResponseCode.ILLEGAL_OPERATION
    assert open_queue(cluster, 6).code == ResponseCode.SUCCESS


def test_what_is_older_than_what_is_recorded_is_refused() -> None:
    """A broker that leads a queue does not prepare for it."""
    cluster = a_cluster()
    old = record(cluster, "a").queues[0]
    cluster.move("a", "b", 0)
    cluster.run(5_000, cluster.are_moves_finished)
    mapping, config = record(cluster, "a"), cluster.components["a"].topics.find(TOPIC)
    assert config is not None
    order = PrepareQueues(
        move="late", source="a", topic=config, scope=mapping.scope, epoch=1, total=2, queues=[homes(old)]
    )

    answer = cluster.request("b", RequestCode.PREPARE_QUEUES, order)

    assert answer.code == ResponseCode.ILLEGAL_OPERATION
    assert cluster.leader(0) == "b"


def test_what_is_older_than_what_others_lead_is_refused() -> None:
    """By a broker that was just started, too: it asks before it prepares."""
    cluster = MovingCluster("a", "b", "c")
    cluster.make_topic({0: "a", 1: "a"})
    cluster.kill("a")
    force_queue(cluster, "c")
    cluster.kill("b")
    cluster.run(100)
    cluster.restart("b")

    answer = prepare(cluster, 0)

    assert answer.code == ResponseCode.ILLEGAL_OPERATION
    assert "c leads logical queue 0 of T in a newer generation than 0" in (answer.remark or "")
    assert 0 not in record(cluster, "b").queues


def test_what_was_prepared_is_forgotten_when_the_old_leader_takes_it_back() -> None:
    """Also when it is told twice, or of a move that never was."""
    cluster = a_cluster()
    prepare(cluster, 0)
    question = MoveQuery(move="m", topic=TOPIC, queues=[0])

    answers = [cluster.request("b", RequestCode.ABORT_MOVE, question) for _ in range(2)]

    assert [answer.code for answer in answers] == [ResponseCode.SUCCESS] * 2
    assert 0 not in record(cluster, "b").queues


def test_what_is_open_is_not_taken_back() -> None:
    """The old leader granted it: it has no say any more."""
    cluster = a_cluster()
    cluster.world.checks.clear()
    prepare(cluster, 0)
    open_queue(cluster, 0)

    cluster.request("b", RequestCode.ABORT_MOVE, MoveQuery(move="m", topic=TOPIC, queues=[0]))

    assert state(cluster) == "open"


def test_the_old_leader_is_asked_when_no_opening_comes() -> None:
    """It knows of no such move: what was prepared is forgotten, at once after a restart, otherwise after a while."""
    cluster = a_cluster()
    prepare(cluster, 0)
    cluster.run(QUERY_AFTER_MS - 1_000)
    assert state(cluster) == "prepared"

    cluster.run(5_000)

    assert 0 not in record(cluster, "b").queues


def test_nothing_is_decided_while_the_old_leader_cannot_be_asked() -> None:
    """It may have granted the queue: neither opening nor forgetting would be right."""
    cluster = a_cluster()
    prepare(cluster, 0)
    cluster.kill("a")
    cluster.kill("b")
    cluster.restart("b")

    cluster.run(5 * QUERY_AFTER_MS)
    assert state(cluster) == "prepared"
    cluster.restart("a")
    cluster.run(5_000)

    assert 0 not in record(cluster, "b").queues


def pass_over(cluster: MovingCluster, *, is_restarted: bool) -> None:
    """Make c the leader in place of b, which was about to be it; b may have been away meanwhile."""
    if is_restarted:
        cluster.kill("b")
    force_queue(cluster, "c")
    cluster.run(12_000)
    if is_restarted:
        cluster.restart("b")


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_grant_that_was_passed_over_by_force_opens_nothing(is_restarted: bool) -> None:  # noqa: FBT001
    """The old leader died with it, the third broker was made leader; then the old one comes back and hands over."""
    cluster, move = a_lost_grant()
    pass_over(cluster, is_restarted=is_restarted)

    cluster.restart("a")
    cluster.run(2 * CHECK_MS)

    assert cluster.leader(0) == "c"
    assert cluster.moves("a")[move.id].state == "failed"
    assert cluster.components["b"].mappings.moves()[move.id].move.state == "cancelled"
    assert 0 not in record(cluster, "b").queues
    assert len(cluster.consume("c", 0)) == 5, "nobody waits for the end of what was never opened"


@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_was_passed_over_is_forgotten_though_its_old_leader_is_gone_for_good(is_restarted: bool) -> None:  # noqa: FBT001
    """Nobody will ever decide it, and readers wait for its end."""
    cluster, _ = a_lost_grant()

    pass_over(cluster, is_restarted=is_restarted)
    cluster.run(3 * CHECK_MS)

    assert 0 not in record(cluster, "b").queues
    assert cluster.logical_queue(0).unresolved is None


@pytest.mark.parametrize("leader", ["b", "c"])
def test_what_was_passed_over_is_not_said_to_be_open_though_the_queue_came_here_since(leader: str) -> None:
    """The old leader would believe in a home that never was, and tell others of it; they would wait for its end."""
    cluster, move = a_lost_grant(total=1)
    pass_over(cluster, is_restarted=False)
    for source, target in (("c", "b"), ("b", leader)):
        if source != target:
            moved = cluster.move(source, target, 0)
            assert cluster.run(5_000, lambda: cluster.moves(source)[moved.id].state == "done")  # noqa: B023

    cluster.restart("a")
    cluster.run(CHECK_MS // 2)

    assert cluster.moves("a")[move.id].state == "failed"
    assert record(cluster, "a").queues[0].generation == record(cluster, leader).queues[0].generation
    assert cluster.leader(0) == leader
    assert len(cluster.consume(leader, 0)) == 5


def test_a_late_opening_waits_until_somebody_can_tell_who_leads() -> None:
    """Neither the one that grants nor the one that opens knows what happened since."""
    cluster = a_cluster()
    (physical,) = decode_body(prepare(cluster, 0).body, PreparedQueues).physical.values()
    for node in (cluster.name_server, cluster.brokers["a"], cluster.brokers["b"]):
        node.kill()
    cluster.run(100)
    cluster.restart("b")

    answer = open_queue(cluster, physical)

    assert answer.code == ResponseCode.ILLEGAL_OPERATION
    assert "no name server has reported the leader of T to b" in (answer.remark or "")
    cluster.name_server.start()
    cluster.run(5_000)
    assert open_queue(cluster, physical).code == ResponseCode.SUCCESS
    assert state(cluster) == "open"


def test_what_is_taken_back_while_others_are_asked_is_not_opened() -> None:
    """The old leader heard of the newer one first."""
    cluster = a_cluster()
    (physical,) = decode_body(prepare(cluster, 0).body, PreparedQueues).physical.values()
    cluster.power_off("a")  # Whoever asks it waits for its answer in vain.
    cluster.kill("b")
    cluster.run(100)
    cluster.restart("b")

    opening = Command(code=RequestCode.OPEN_QUEUES, body=encode_body(an_opening(cluster, physical)))
    opened = cluster.call_later("b", opening)
    cluster.request("b", RequestCode.ABORT_MOVE, MoveQuery(move="m", topic=TOPIC, queues=[0]))

    assert cluster.run(10_000, lambda: bool(opened))
    assert isinstance(opened[0], Command)
    assert opened[0].code == ResponseCode.ILLEGAL_OPERATION
    assert 0 not in record(cluster, "b").queues


def test_what_is_left_of_a_move_opens_without_the_queue_that_was_passed_over() -> None:
    """Its place is free again."""
    cluster, move = a_lost_grant(0, 1)
    cluster.kill("b")
    force_queue(cluster, "c")
    cluster.run(12_000)

    cluster.restart("a")
    cluster.run(20_000)
    cluster.restart("b")
    cluster.run(2 * CHECK_MS)

    assert (cluster.leader(0), cluster.leader(1)) == ("c", "b")
    assert cluster.moves("a")[move.id].state == "done"
    assert 0 not in record(cluster, "b").queues


def test_what_one_move_takes_back_another_keeps() -> None:
    """The queue was prepared anew, by whoever leads it since."""
    cluster = a_cluster()
    prepare(cluster, 0, move="m")
    prepare(cluster, 0, move="n")

    cluster.request("b", RequestCode.ABORT_MOVE, MoveQuery(move="m", topic=TOPIC, queues=[0]))

    assert state(cluster) == "prepared"


def a_lost_grant(*queues: int, total: int = 2) -> tuple[MovingCluster, Move]:
    """Return a cluster of three in which a granted queues to b, and died before b had heard of it."""
    cluster = MovingCluster("a", "b", "c")
    cluster.make_topic(dict.fromkeys(range(total), "a"))
    cluster.run(5_000, cluster.produce(0, 5, "a"))
    move = cluster.move("a", "b", *(queues or (0,)))
    assert cluster.run(5_000, lambda: cluster.components["a"].mappings.placement(TOPIC, 0).state == "sealed")
    cluster.kill("a")
    cluster.run(100)
    assert state(cluster) == "prepared"
    return cluster, move


def test_a_stamp_makes_a_broker_know_of_a_topic() -> None:
    """Its epoch and its number of queues; an older one is refused."""
    cluster = a_cluster()
    config = cluster.components["a"].topics.find(TOPIC)
    assert config is not None

    def stamp(epoch: int, total: int) -> int:
        return cluster.request(
            "b", RequestCode.PUT_QUEUE_TOTAL, QueueTotal(topic=config, scope="__global__", epoch=epoch, total=total)
        ).code

    assert stamp(5, 3) == ResponseCode.SUCCESS
    assert (record(cluster, "b").epoch, record(cluster, "b").total) == (5, 3)
    assert stamp(4, 3) == ResponseCode.ILLEGAL_OPERATION
    assert stamp(5, 3) == ResponseCode.SUCCESS


def test_nonsense_is_answered() -> None:
    """And nothing comes of it."""
    cluster = a_cluster()

    answers = [
        cluster.call("b", Command(code=code, body=b'{"move":'))
        for code in (
            RequestCode.PREPARE_QUEUES,
            RequestCode.OPEN_QUEUES,
            RequestCode.ABORT_MOVE,
            RequestCode.PUT_QUEUE_TOTAL,
        )
    ]

    assert {answer.code for answer in answers} == {ResponseCode.INVALID_PARAMETER}


def test_a_queue_moves_inside_its_scope_only() -> None:
    """A broker of another cluster refuses it by name, also where it has a topic of that name itself."""
    cluster = MovingCluster("a", "b", "c", clusters={"a": "east", "b": "east", "c": "west"})
    cluster.make_topic({0: "a", 1: "a"}, scope="east")
    cluster.make_topic({0: "c"}, scope="west")

    inside, outside = cluster.move("a", "b", 0), cluster.move("a", "c", 1)
    cluster.run(30_000)

    moves = cluster.moves("a")
    assert moves[inside.id].state == "done"
    assert moves[outside.id].state == "failed"
    assert "T is fixed in east, and c belongs to cluster west" in (moves[outside.id].reason or "")
    for name, expected in (("a", {1: 1}), ("b", {0: 0}), ("c", {0: 0})):
        record = cluster.components[name].mappings.find(TOPIC)
        assert record is not None
        assert record.led_queues == expected
        assert record.scope == ("west" if name == "c" else "east")


def test_a_later_stamp_makes_a_leader_look_whether_it_was_replaced() -> None:
    """It slept through a change of the topic: it need not wait for its next regular check."""
    cluster = a_cluster()
    cluster.world.checks.clear()  # Two are open for a while: that is what the gap is for.
    config = cluster.components["a"].topics.find(TOPIC)
    assert config is not None
    for others in ("10.0.0.1", "10.0.1.2"):
        cluster.network.cut_link("10.0.1.1", others)
        cluster.network.cut_link(others, "10.0.1.1")
    assert force_queue(cluster, "b").code == ResponseCode.SUCCESS
    cluster.network.mend()
    assert cluster.components["a"].mappings.placement(TOPIC, 0).state == "open"

    stamp = QueueTotal(topic=config, scope="__global__", epoch=record(cluster, "b").epoch + 1, total=2)
    assert cluster.request("a", RequestCode.PUT_QUEUE_TOTAL, stamp).code == ResponseCode.SUCCESS

    assert cluster.run(1_000, lambda: cluster.components["a"].mappings.placement(TOPIC, 0).state == "elsewhere")
