"""A move leaves no hole, loses nothing, fails nothing, and is over after a handful of round trips."""

import pytest
from tests.support.cluster.broker_machine import a_pull
from tests.support.cluster.simulated import TOPIC, MovingCluster

from holdfast.model.errors import HoldfastError
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.requests.moves import MoveId, MoveQuery, MoveQueryAnswer, MoveRequest, decode_body, encode_body


def a_cluster(*names: str, queues: int = 2, flush: str = "sync") -> MovingCluster:
    cluster = MovingCluster(*(names or ("a", "b")), flush=flush)
    cluster.make_topic(dict.fromkeys(range(queues), "a"))
    return cluster


def order(cluster: MovingCluster, target: str, *queues: int, topic: str = TOPIC) -> Command:
    return cluster.request("a", RequestCode.MOVE_QUEUES, MoveRequest(topic=topic, queues=list(queues), target=target))


@pytest.mark.parametrize("by_way_of", [("a",), ("b",), ("a", "b")])
def test_a_queue_moves_under_load_and_no_sender_notices(by_way_of: tuple[str, ...]) -> None:
    """Whichever broker a client asks: every send is answered with success, at the offset that follows the last."""
    cluster = a_cluster()
    done = cluster.produce(0, 80, *by_way_of)
    cluster.run(60)

    move = cluster.move("a", "b", 0)

    assert cluster.run(20_000, done)
    assert cluster.moves("a")[move.id].state == "done"
    assert cluster.leader(0) == "b"
    assert (cluster.refused, cluster.unknown_outcomes, len(cluster.acked)) == ([], [], 80)
    cluster.check_ledger(0)
    sealed, opened = cluster.logical_queue(0).segments
    assert (sealed.broker, opened.broker, opened.first) == ("a", "b", sealed.logical_end)
    assert 0 < sealed.end < 80


def test_there_and_back_again_keeps_every_offset() -> None:
    """A queue that returns while its old records are there gets a new physical queue."""
    cluster = a_cluster()
    done = cluster.produce(0, 120, "a", "b")
    for source, target in (("a", "b"), ("b", "a"), ("a", "b")):
        cluster.run(100)
        cluster.move(source, target, 0)
        cluster.run(5_000, cluster.are_moves_finished)

    assert cluster.run(20_000, done)
    assert (cluster.refused, cluster.unknown_outcomes) == ([], [])
    cluster.check_ledger(0)
    assert [segment.physical_queue for segment in cluster.logical_queue(0).segments] == [
        ("a", 0),
        ("b", 0),
        ("a", 2),
        ("b", 1),
    ]
    assert cluster.consume("a", 0) == cluster.consume("b", 0) == cluster.read(0)


def test_an_empty_queue_moves_too() -> None:
    """Nothing was ever sent to it: it begins at 0 at its new leader."""
    cluster = a_cluster()

    cluster.move("a", "b", 1)
    cluster.run(5_000, cluster.are_moves_finished)
    done = cluster.produce(1, 3, "a")
    cluster.run(5_000, done)

    assert cluster.leader(1) == "b"
    assert cluster.acked[b"1-0"] == (1, 0)


def test_a_thousand_queues_move_in_a_handful_of_round_trips() -> None:
    """A group takes as many steps as a single queue."""
    cluster = a_cluster(queues=1_000)
    cluster.world.checks.clear()
    before = dict(cluster.steps)

    cluster.move("a", "b", *range(1_000))
    cluster.run(20_000, cluster.are_moves_finished)

    assert {cluster.leader(queue) for queue in range(1_000)} == {"b"}
    assert cluster.steps["a"] - before["a"] < 20
    assert cluster.steps["b"] - before["b"] < 20


def test_the_second_of_two_operators_is_told_who_came_first() -> None:
    """One wins; the other hears where the queue goes, and by which move."""
    cluster = a_cluster("a", "b", "c")
    cluster.network.cut_link("10.0.1.1", "10.0.1.2")
    first = cluster.move("a", "b", 0)

    answer = order(cluster, "c", 0, 1)

    assert answer.code == ResponseCode.ILLEGAL_OPERATION
    assert answer.remark is not None
    assert first.id in answer.remark
    assert "to b already" in answer.remark
    cluster.network.mend()
    cluster.run(30_000, cluster.are_moves_finished)
    assert cluster.leader(0) == "b"
    assert cluster.leader(1) == "a"


def test_what_cannot_be_moved_is_refused_with_the_reason() -> None:
    """Nothing is begun that is known not to end well."""
    cluster = a_cluster()

    answers = [order(cluster, "a", 0), order(cluster, "b"), order(cluster, "b", 7), order(cluster, "b", 0, topic="N")]

    assert [answer.code for answer in answers] == [
        ResponseCode.INVALID_PARAMETER,
        ResponseCode.INVALID_PARAMETER,
        ResponseCode.NOT_LEADER_FOR_QUEUE,
        ResponseCode.TOPIC_NOT_EXIST,
    ]
    assert cluster.moves("a") == {}


def test_a_move_is_cancelled_before_the_grant_and_leaves_nothing_behind() -> None:
    """The queue never stopped; what the target prepared is forgotten."""
    cluster = a_cluster()
    cluster.kill("b")
    move = cluster.move("a", "b", 0)
    cluster.run(500)

    answer = cluster.request("a", RequestCode.CANCEL_MOVE, MoveId(id=move.id))
    cluster.restart("b")
    done = cluster.produce(0, 5, "a")

    assert answer.code == ResponseCode.SUCCESS
    assert cluster.run(5_000, done)
    cluster.run(20_000)
    assert cluster.moves("a")[move.id].state == "cancelled"
    assert cluster.leader(0) == "a"
    mapping = cluster.components["b"].mappings.find(TOPIC)
    assert mapping is not None
    assert 0 not in mapping.queues


def test_a_move_that_was_granted_cannot_be_cancelled() -> None:
    """From then on only the new leader may write: it has to open first."""
    cluster = a_cluster()
    move = cluster.move("a", "b", 0)
    assert cluster.run(5_000, lambda: cluster.components["a"].mappings.placement(TOPIC, 0).state == "sealed")
    cluster.kill("b")
    cluster.run(500)

    answer = cluster.request("a", RequestCode.CANCEL_MOVE, MoveId(id=move.id))

    assert answer.code == ResponseCode.ILLEGAL_OPERATION
    cluster.restart("b")
    cluster.run(20_000, cluster.are_moves_finished)
    assert cluster.leader(0) == "b"


def test_a_target_that_stays_away_lets_the_move_fail_and_the_queue_stay() -> None:
    """Nothing was sealed: sends went on all the time. The move can be taken up again."""
    cluster = a_cluster()
    cluster.kill("b")
    done = cluster.produce(0, 20, "a", pause_ms=500)

    move = cluster.move("a", "b", 0)
    cluster.run(30_000, cluster.are_moves_finished)

    failed = cluster.moves("a")[move.id]
    assert failed.state == "failed"
    assert "10.0.1.2" in failed.reason or "b is not known" in failed.reason
    assert cluster.run(20_000, done)
    assert (len(cluster.acked), cluster.unknown_outcomes) == (20, [])
    cluster.restart("b")
    cluster.run(3_000)
    cluster.request("a", RequestCode.RESUME_MOVE, MoveId(id=move.id))
    cluster.run(10_000, cluster.are_moves_finished)
    assert cluster.leader(0) == "b"
    cluster.check_ledger(0)


def test_a_target_that_does_not_host_the_topic_as_static_refuses() -> None:
    """A normal topic of that name is in its way; the operator reads why."""
    cluster = MovingCluster("a", "b")
    cluster.make_topic({0: "a"})
    cluster.components["b"].mappings.delete(TOPIC)
    cluster.request("b", RequestCode.UPDATE_AND_CREATE_TOPIC, None, topic=TOPIC, readQueueNums="4", writeQueueNums="4")

    move = cluster.move("a", "b", 0)
    cluster.run(5_000, cluster.are_moves_finished)

    assert cluster.moves("a")[move.id].state == "failed"
    assert "normal topic" in cluster.moves("a")[move.id].reason
    assert cluster.leader(0) == "a"


def test_committed_offsets_and_locks_move_with_their_queue() -> None:
    """They live at the leader; asked by way of either broker, the answer is the same before and after."""
    cluster = a_cluster()
    cluster.run(5_000, cluster.produce(0, 10, "a"))
    cluster.pull("a", 0, 0)
    cluster.commit("a", 0, 7)
    assert cluster.lock("a", "one", 0, 1) == [0, 1]

    cluster.move("a", "b", 0)
    cluster.run(5_000, cluster.are_moves_finished)

    assert [cluster.committed(name, 0).fields["offset"] for name in ("a", "b")] == ["7", "7"]
    assert cluster.lock("a", "two", 0, 1) == []
    assert cluster.lock("b", "one", 0, 1) == [0, 1]
    cluster.lock("a", "one", 0, 1, code=RequestCode.UNLOCK_BATCH_MQ)
    assert cluster.lock("b", "two", 0, 1) == [0, 1]
    cluster.commit("a", 0, 9)
    assert [cluster.committed(name, 0).fields["offset"] for name in ("a", "b")] == ["9", "9"]


def reset(cluster: MovingCluster, name: str, queue: int, offset: int) -> Command:
    fields = {"topic": TOPIC, "group": "consumers", "queueId": str(queue), "offset": str(offset)}
    return cluster.request(name, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, timestamp="-1", isForce="true", **fields)


def test_a_reset_that_no_consumer_has_heard_of_moves_with_its_queue() -> None:
    """Until it is told, what it commits is of the time before; it is told once, wherever it pulls, and then goes on."""
    cluster = a_cluster()
    cluster.run(5_000, cluster.produce(0, 10, "a"))
    cluster.pull("a", 0, 0)
    cluster.commit("a", 0, 7)
    assert reset(cluster, "a", 0, 2).code == ResponseCode.SUCCESS
    cluster.move("a", "b", 0)
    cluster.run(5_000, cluster.are_moves_finished)

    cluster.commit("b", 0, 8)
    assert cluster.committed("b", 0).fields["offset"] == "2"
    moved = cluster.pull("a", 0, 8)
    assert (moved.code, moved.fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "2")
    assert cluster.pull("b", 0, 2).code == ResponseCode.SUCCESS
    cluster.commit("b", 0, 5)

    cluster.request("b", RequestCode.MOVE_QUEUES, MoveRequest(topic=TOPIC, queues=[0], target="a"))
    cluster.run(5_000, cluster.are_moves_finished)
    assert cluster.pull("a", 0, 5).code == ResponseCode.SUCCESS
    cluster.commit("a", 0, 6)
    assert cluster.committed("a", 0).fields["offset"] == "6"


def test_a_queue_that_is_being_handed_over_sends_nobody_elsewhere() -> None:
    """Its next leader may have heard how far groups are: it alone says so, and a new reset has to wait."""
    cluster = a_cluster()
    cluster.run(5_000, cluster.produce(0, 10, "a"))
    cluster.pull("a", 0, 0)
    reset(cluster, "a", 0, 2)
    cluster.move("a", "b", 0)
    assert cluster.run(5_000, lambda: cluster.components["a"].mappings.placement(TOPIC, 0).state == "sealed")
    cluster.kill("b")
    cluster.run(1_000)

    assert cluster.pull("a", 0, 5).code == ResponseCode.SUCCESS
    refused = reset(cluster, "a", 0, 1)
    assert (refused.code, "try again" in (refused.remark or "")) == (ResponseCode.SYSTEM_BUSY, True)
    cluster.restart("b")
    cluster.run(20_000, cluster.are_moves_finished)

    assert cluster.leader(0) == "b"
    moved = cluster.pull("b", 0, 5)
    assert (moved.code, moved.fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "2")


def test_offsets_that_came_with_a_queue_survive_a_crash_of_the_new_leader() -> None:
    """The file of offsets is saved now and then; until it is, the record of the move has them, and who was reset."""
    cluster = a_cluster()
    cluster.run(5_000, cluster.produce(0, 10, "a"))
    cluster.pull("a", 0, 0)
    cluster.commit("a", 0, 7)
    cluster.run(5_000, cluster.produce(1, 10, "a"))
    reset(cluster, "a", 1, 0)
    cluster.move("a", "b", 0, 1)
    assert cluster.run(5_000, lambda: cluster.open_brokers(0) == ["b"])
    cluster.run(20)

    cluster.power_off("b")
    cluster.run(1_000)
    cluster.restart("b")
    cluster.run(20_000, cluster.are_moves_finished)

    assert cluster.committed("b", 0).fields["offset"] == "7"
    assert cluster.pull("b", 0, 9).code == ResponseCode.SUCCESS
    assert cluster.pull("b", 1, 9).code == ResponseCode.PULL_OFFSET_MOVED


def test_a_waiting_pull_is_told_at_once_to_ask_again() -> None:
    """It would have waited in vain for its whole time: what comes now comes elsewhere."""
    cluster = a_cluster()
    waiting = cluster.call_later("a", a_pull(TOPIC, queue=0, offset=0, sysFlag="6", suspendTimeoutMillis="20000"))
    cluster.run(200)
    assert waiting == []

    cluster.move("a", "b", 0)
    cluster.run(1_000, lambda: bool(waiting))

    (answer,) = waiting
    assert not isinstance(answer, HoldfastError)
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert answer.remark == "QUEUE_MOVED"
    assert answer.fields["nextBeginOffset"] == "0"


def test_reads_of_old_records_go_on_while_nobody_knows_how_the_move_ends() -> None:
    """The target died between grant and opening: its sends wait, but what is there can be read."""
    cluster = a_cluster()
    cluster.run(5_000, cluster.produce(0, 10, "a"))
    cluster.move("a", "b", 0)
    assert cluster.run(5_000, lambda: cluster.components["a"].mappings.placement(TOPIC, 0).state == "sealed")
    cluster.kill("b")
    cluster.run(1_000)

    assert cluster.consume("a", 0) == [f"0-{at}".encode() for at in range(10)]


def test_the_epoch_reaches_brokers_that_have_nothing_to_do_with_the_queue() -> None:
    """The last step of a move: everybody knows that the topic has changed."""
    cluster = a_cluster("a", "b", "c")

    cluster.move("a", "b", 0)
    cluster.run(5_000, cluster.are_moves_finished)
    cluster.run(3_000)

    epochs = {found.epoch for rooms in cluster.components.values() if (found := rooms.mappings.find(TOPIC))}
    assert len(epochs) == 1
    assert epochs != {1}


def test_the_target_is_asked_to_open_only_when_the_grant_is_on_disk() -> None:
    """Power may fail: an old leader that forgot its grant would go on, beside the new one."""
    cluster = a_cluster()
    cluster.brokers["a"].environment.disk_latency.sync_ms = (500, 500)
    cluster.call_later("a", _to_command(0))
    assert cluster.run(5_000, lambda: cluster.components["a"].mappings.placement(TOPIC, 0).state == "sealed")

    cluster.run(400)
    assert cluster.open_brokers(0) == []
    cluster.power_off("a")
    cluster.run(500)
    cluster.restart("a")
    cluster.run(30_000, cluster.are_moves_finished)

    assert len(cluster.open_brokers(0)) == 1


def test_who_asks_late_is_told_though_the_queue_is_about_to_come_back() -> None:
    """What is prepared behind the open home is of a later move, and is not opened by the word of this one."""
    cluster = a_cluster()
    cluster.run(5_000, cluster.produce(0, 3, "a"))
    move = cluster.move("a", "b", 0)
    cluster.run(5_000, cluster.are_moves_finished)
    mappings = cluster.components["a"].mappings
    record = mappings.find(TOPIC)
    assert record is not None
    mappings.change(record.with_queues(record.queues[0].prepare("a", 7)))

    answer = cluster.request("a", RequestCode.QUERY_MOVE, MoveQuery(move=move.id, topic=TOPIC, queues=[0]))

    opening = decode_body(answer.body, MoveQueryAnswer).opening
    assert opening is not None
    assert [(home.broker, home.first) for home in opening.queues[0].segments] == [("a", 0), ("b", 3), ("a", -1)]


def test_the_old_leader_hears_of_the_opening_only_when_that_is_on_disk() -> None:
    """Also where messages are acknowledged before: a leader that forgets that it leads is none."""
    cluster = a_cluster(flush="async")
    cluster.brokers["b"].environment.disk_latency.sync_ms = (500, 500)
    move = cluster.move("a", "b", 0)
    assert cluster.run(5_000, lambda: cluster.open_brokers(0) == ["b"])

    cluster.run(400)
    assert cluster.moves("a")[move.id].state == "granted"
    cluster.run(5_000, cluster.are_moves_finished)

    assert cluster.moves("a")[move.id].state == "done"


def _to_command(queue: int) -> Command:
    order = MoveRequest(topic=TOPIC, queues=[queue], target="b")
    return Command(code=RequestCode.MOVE_QUEUES, body=encode_body(order))
