"""A logical queue that was forgotten begins again above every offset that it used, whatever a tool tells a broker."""

import msgspec
import pytest
from tests.support.cluster.simulated import TOPIC, MovingCluster

from holdfast.model.errors import HoldfastError
from holdfast.model.leadership import NO_LEADER
from holdfast.model.mapping import FORCED_GAP, LogicalQueue, TopicMapping, new_logical_queue
from holdfast.wire.cluster import mapping as wire
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.requests.moves import ForceRequest, QueueSegments

QUEUE = 1


def a_cluster(*names: str) -> MovingCluster:
    """Broker a leads a queue with 10 messages, of which a group has consumed 7."""
    cluster = MovingCluster(*(names or ("a", "b")))
    cluster.make_topic({0: "a", QUEUE: "a"})
    assert cluster.run(5_000, cluster.produce(QUEUE, 10, "a"))
    for rooms in cluster.components.values():
        rooms.groups.ensure("consumers")
    assert cluster.commit("a", QUEUE, 7).code == ResponseCode.SUCCESS
    return cluster


def record(cluster: MovingCluster, name: str) -> TopicMapping:
    mapping = cluster.components[name].mappings.find(TOPIC)
    assert mapping is not None
    return mapping


def forget(cluster: MovingCluster, *names: str) -> None:
    """Let brokers forget the queue, and the name server hear of it."""
    for name in names:
        assert cluster.request(name, RequestCode.DELETE_MAPPING, None, topic=TOPIC, queue=str(QUEUE)).code == 0
    cluster.run(1_000)


def an_order(
    cluster: MovingCluster, broker: str, *, first: int = 0, generation: int = 0, physical: int | None = None
) -> Command:
    """Return a 513 that lets a broker lead the queue, on a new physical queue unless one is named."""
    known = record(cluster, broker)
    free = 1 + max(known.used_queue_ids(broker) | {1}) if physical is None else physical
    home = msgspec.structs.replace(new_logical_queue(QUEUE, broker, free).leader, first=first, generation=generation)
    told = msgspec.structs.replace(known.with_queues(LogicalQueue(QUEUE, (home,))), epoch=known.epoch + 2_000)
    fields = {"topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": "2", "writeQueueNums": "2", "perm": "6"}
    fields |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
    body = wire.encode(wire.to_detail(told, with_extras=False))
    return Command(code=RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, fields=fields, body=body)


def send_more(cluster: MovingCluster, broker: str, count: int = 5) -> list[int]:
    """Send to the queue by way of a broker; return the offsets."""
    cluster.acked.clear()
    assert cluster.run(10_000, cluster.produce(QUEUE, count, broker)), cluster.refused
    return sorted(offset for _, offset in cluster.acked.values())


@pytest.mark.parametrize("target", ["a", "b"])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_queue_that_a_tool_sets_again_continues(target: str, *, is_restarted: bool) -> None:
    """Java's tools let every new queue begin at 0. The group stays where it was."""
    cluster = a_cluster()
    forget(cluster, "a")
    if is_restarted:
        cluster.run(10_000)  # Offsets are saved now and then.
        for name in ("a", "b"):
            cluster.kill(name)
            cluster.restart(name)
        cluster.run(5_000)

    answer = cluster.call(target, an_order(cluster, target))

    assert answer.code == ResponseCode.SUCCESS, answer.remark
    home = cluster.logical_queue(QUEUE).leader
    assert (home.broker, home.first, home.generation) == (target, 10, 1)
    assert send_more(cluster, "b") == [10, 11, 12, 13, 14]
    assert cluster.committed(target, QUEUE).fields["offset"] == "7"


def test_an_offset_that_was_used_is_refused_by_name() -> None:
    """The answer has the lowest that is free."""
    cluster = a_cluster()
    forget(cluster, "a")

    refused = cluster.call("b", an_order(cluster, "b", first=9))
    accepted = cluster.call("b", an_order(cluster, "b", first=10))

    assert refused.code == ResponseCode.INVALID_PARAMETER
    assert "cannot begin at 9: let it begin at 10 or above" in (refused.remark or "")
    assert accepted.code == ResponseCode.SUCCESS


def test_an_old_mapping_that_is_replayed_uses_no_offset_again() -> None:
    """Its physical queue holds the messages of before: they keep their offsets, and new ones come after them."""
    cluster = a_cluster()
    forget(cluster, "a")

    answer = cluster.call("a", an_order(cluster, "a", physical=1))

    assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert cluster.logical_queue(QUEUE).leader.start == 10
    assert send_more(cluster, "b", 2) == [10, 11]
    assert cluster.consume("b", QUEUE) == [*(b"1-%d" % number for number in range(10)), b"1-0", b"1-1"]


def test_a_queue_that_has_a_leader_gets_no_second_one() -> None:
    """Both would take sends at the same offsets until a name server noticed."""
    cluster = a_cluster()

    refused = cluster.call("b", an_order(cluster, "b", first=10, generation=7))

    assert refused.code == ResponseCode.INVALID_PARAMETER
    assert f"logical queue {QUEUE} of {TOPIC} is led by a" in (refused.remark or "")
    assert cluster.open_brokers(QUEUE) == ["a"]


def test_of_two_brokers_that_open_it_at_once_at_most_one_does() -> None:
    """Each asks the other before it opens anything."""
    cluster = a_cluster("a", "b", "c")
    forget(cluster, "a")

    begun: list[list[Command | HoldfastError]] = [
        cluster.call_later(name, an_order(cluster, name)) for name in ("b", "c")
    ]
    cluster.run(10_000, lambda: all(begun))

    assert len(cluster.open_brokers(QUEUE)) <= 1
    assert all(answers for answers in begun)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_while_a_broker_that_held_it_is_silent_it_opens_behind_a_gap_only(*, is_restarted: bool) -> None:
    """The name server remembers what that broker reported, over a restart too; it may have used more."""
    cluster = a_cluster()
    forget(cluster, "a")
    cluster.kill("a")
    if is_restarted:
        cluster.name_server.kill()
        cluster.name_server.start()
    cluster.run(35_000)

    refused = [cluster.call("b", an_order(cluster, "b", first=first)) for first in (0, 10, 9 + FORCED_GAP)]
    accepted = cluster.call("b", an_order(cluster, "b", first=10 + FORCED_GAP))

    assert {answer.code for answer in refused} == {ResponseCode.INVALID_PARAMETER}
    assert "a did not answer" in (refused[0].remark or "")
    assert f"let the queue begin at {FORCED_GAP + 10} or above (2^40 further) with --force" in (refused[0].remark or "")
    assert f"begin at {10 + FORCED_GAP} or above" in (refused[0].remark or "")
    assert accepted.code == ResponseCode.SUCCESS, accepted.remark
    home = cluster.logical_queue(QUEUE).leader
    assert (home.first, home.generation) == (10 + FORCED_GAP, 2)


def test_without_a_name_server_nothing_begins_again() -> None:
    """It may know of a leader that died."""
    cluster = a_cluster()
    forget(cluster, "a")
    cluster.name_server.kill()

    refused = cluster.call("b", an_order(cluster, "b"))

    assert refused.code == ResponseCode.INVALID_PARAMETER
    assert "the name servers did not answer" in (refused.remark or "")


def test_a_commit_beyond_the_end_raises_the_floor() -> None:
    """The group would skip messages below it."""
    cluster = a_cluster()
    cluster.commit("a", QUEUE, 50)
    forget(cluster, "a")

    cluster.call("b", an_order(cluster, "b"))

    assert send_more(cluster, "b", 2) == [50, 51]


def test_a_copy_of_offsets_raises_the_floor() -> None:
    """It is all that is left of the leader's table after a crash that lost the newest commits."""
    cluster = a_cluster()
    cluster.commit("a", QUEUE, 60)

    def is_copied() -> bool:
        copy = cluster.components["b"].offset_backup.find(TOPIC, QUEUE)
        return copy is not None and copy.offsets == {"consumers": 60}

    assert cluster.run(5_000, is_copied)
    forget(cluster, "a")
    cluster.components["a"].offsets.forget_topic(TOPIC)

    cluster.call("a", an_order(cluster, "a"))

    assert send_more(cluster, "a", 1) == [60]
    assert cluster.committed("a", QUEUE).fields["offset"] == "60"


def test_a_queue_of_several_homes_continues_after_the_newest() -> None:
    """Whichever of its brokers forgets it first. What groups committed with the earlier leader is old."""
    cluster = a_cluster()
    cluster.move("a", "b", QUEUE)
    assert cluster.run(5_000, cluster.are_moves_finished)
    assert send_more(cluster, "b") == [10, 11, 12, 13, 14]
    cluster.commit("b", QUEUE, 12)
    forget(cluster, "a", "b")

    cluster.call("a", an_order(cluster, "a"))

    home = cluster.logical_queue(QUEUE).leader
    assert (home.broker, home.first, home.generation) == ("a", 15, 2)
    assert cluster.committed("a", QUEUE).fields["offset"] == "12"


def test_sends_that_run_meanwhile_get_no_offset_twice() -> None:
    """Each that was acknowledged has its own, before and after."""
    cluster = a_cluster()
    cluster.acked.clear()
    done = cluster.produce(QUEUE, 60, "a", "b")
    cluster.run(60)
    forget(cluster, "a")
    assert cluster.call("b", an_order(cluster, "b")).code == ResponseCode.SUCCESS

    assert cluster.run(30_000, done)

    offsets = sorted(offset for _, offset in cluster.acked.values())
    assert len(offsets) == len(set(offsets)) > 5
    assert min(offsets) >= 10


def test_a_broker_that_alone_knows_the_floor_is_not_made_to_forget_it() -> None:
    """Until the queue has a leader again, or the topic is deleted."""
    cluster = MovingCluster("a", "b")
    cluster.make_topic({0: "b", QUEUE: "a"})
    assert cluster.run(5_000, cluster.produce(QUEUE, 10, "a"))
    forget(cluster, "a")

    refused = cluster.request("a", RequestCode.DELETE_MAPPING, None, topic=TOPIC)
    cluster.call("b", an_order(cluster, "b"))
    cluster.run(20_000)
    forgotten = cluster.request("a", RequestCode.DELETE_MAPPING, None, topic=TOPIC)

    assert refused.code == ResponseCode.ILLEGAL_OPERATION
    assert f"holdfast queue set {TOPIC} {QUEUE}" in (refused.remark or "")
    assert forgotten.code == ResponseCode.SUCCESS, forgotten.remark


def test_a_deleted_topic_leaves_no_offset_anywhere() -> None:
    """Not with the leader, not in the copy of a peer, not in a move that brought it, and not in their files."""
    cluster = a_cluster()
    cluster.move("a", "b", QUEUE)
    assert cluster.run(5_000, cluster.are_moves_finished)
    cluster.commit("b", QUEUE, 9)
    assert cluster.run(10_000, lambda: cluster.components["a"].offset_backup.find(TOPIC, QUEUE) is not None)
    cluster.run(20_000)  # Everything is saved by now, and who leads the queue is known.
    assert cluster.components["b"].view.find_leader(TOPIC, QUEUE) != NO_LEADER

    for name in ("a", "b"):
        assert cluster.request(name, RequestCode.DELETE_TOPIC_IN_BROKER, None, topic=TOPIC).code == ResponseCode.SUCCESS
        assert cluster.components[name].view.find_leader(TOPIC, QUEUE) == NO_LEADER
        cluster.kill(name)
        cluster.restart(name)
    cluster.run(2_000)

    for name, rooms in cluster.components.items():
        assert [topic for (topic, _), _ in rooms.offsets.rows()] == [], name
        assert rooms.offset_backup.find(TOPIC, QUEUE) is None
        assert rooms.mappings.moves() == {}


def test_a_commit_that_leaves_no_offsets_is_refused_by_name() -> None:
    """A client may commit any number; the queue would begin where no offset fits."""
    cluster = a_cluster()
    cluster.commit("a", QUEUE, 2**63 - 1)
    forget(cluster, "a")

    refused = cluster.call("b", an_order(cluster, "b"))

    assert refused.code == ResponseCode.INVALID_PARAMETER
    assert "a group has committed a wrong offset" in (refused.remark or "")


def test_a_forced_move_of_a_mapping_that_was_forgotten_is_refused() -> None:
    """An operator read it before it was forgotten. By then the queue may have used the offsets above the gap, too."""
    cluster = a_cluster()
    known, config = cluster.logical_queue(QUEUE), cluster.components["a"].topics.find(TOPIC)
    assert config is not None
    forget(cluster, "a")
    homes = QueueSegments(queue=QUEUE, segments=[wire.to_wire_segment(segment) for segment in known.segments])
    order = ForceRequest(topic=config, scope="__global__", epoch=10**13, total=2, queues=[homes])

    refused = cluster.request("b", RequestCode.FORCE_QUEUES, order)

    assert refused.code == ResponseCode.ILLEGAL_OPERATION
    assert f"a was made to forget logical queue {QUEUE} of {TOPIC}" in (refused.remark or "")
    assert cluster.open_brokers(QUEUE) == []
