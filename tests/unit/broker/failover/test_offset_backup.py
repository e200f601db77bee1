"""Should a leader die, another broker knows how far its groups were; and what nobody knows is not guessed."""

from itertools import pairwise

import msgspec
import pytest
from tests.support.cluster.simulated import TOPIC, MovingCluster
from tests.unit.broker.failover.test_forced_open import force_queue

from holdfast.broker.failover import offset_backup
from holdfast.broker.failover.offset_backup import NAME, ROUND_MS, choose_backups
from holdfast.machine.effects import WriteFile
from holdfast.model.mapping import new_logical_queue
from holdfast.store.base.config_files import load_config
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.requests.admin import ResetOffsetFields
from holdfast.wire.requests.moves import OffsetBackupAnswer, OffsetBackupList, QueueOffsetBackup, decode_body

SOON_MS = ROUND_MS + 200
SAVED_MS = 7_000


def a_cluster(*names: str, queues: int = 2) -> MovingCluster:
    """Everything is led by a; ten messages are in queue 0, and the group is known."""
    cluster = MovingCluster(*(names or ("a", "b", "c")))
    cluster.make_topic(dict.fromkeys(range(queues), "a"))
    cluster.run(5_000, cluster.produce(0, 10, "a"))
    cluster.pull("a", 0, 0)
    cluster.run(SOON_MS)
    return cluster


def kept(cluster: MovingCluster, name: str, queue: int = 0) -> dict[str, int] | None:
    """Return what a broker keeps for another."""
    copy = cluster.components[name].offset_backup.find(TOPIC, queue)
    return None if copy is None else copy.offsets


def saved_copies(cluster: MovingCluster, name: str) -> list[QueueOffsetBackup] | None:
    """Return the copies that a broker has on disk; None when there is no file."""
    disk = cluster.brokers[name].disk
    assert disk is not None
    found = load_config(disk.read_file, NAME)
    return None if found is None else msgspec.convert(found, OffsetBackupList, strict=False).backups


def numbers(cluster: MovingCluster) -> list[int]:
    """Return by which of a's messages b heard of each queue last."""
    copies = [cluster.components["b"].offset_backup.find(TOPIC, queue) for queue in (0, 1)]
    return [copy.number for copy in copies if copy is not None]


def committed(answer: Command) -> int:
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return int(answer.fields["offset"])


def test_what_is_committed_is_known_to_one_other_broker_within_a_second() -> None:
    """To the next by name, and to nobody else."""
    cluster = a_cluster()

    cluster.commit("a", 0, 7)
    cluster.commit("a", 0, 3, group="TOOLS_CONSUMER")
    cluster.run(SOON_MS)

    assert kept(cluster, "b") == {"consumers": 7, "TOOLS_CONSUMER": 3}
    assert kept(cluster, "c") is None


@pytest.mark.parametrize("target", ["b", "c"])
def test_a_forced_move_finds_the_copy_wherever_it_is(target: str) -> None:
    """At the new leader itself, or by asking: the group goes on where it was."""
    cluster = a_cluster()
    cluster.commit("a", 0, 7)
    cluster.run(SOON_MS)
    cluster.kill("a")

    force_queue(cluster, target)

    assert committed(cluster.committed(target, 0)) == 7


def test_what_a_copy_said_outlives_the_new_leader() -> None:
    """It is in the record of the forced move until it is in the file of offsets."""
    cluster = a_cluster()
    cluster.commit("a", 0, 7)
    cluster.run(SOON_MS)
    cluster.kill("a")
    force_queue(cluster, "c")

    cluster.kill("c")
    cluster.restart("c")
    cluster.run(5_000)

    assert committed(cluster.committed("c", 0)) == 7


def test_without_a_copy_a_group_begins_at_the_earliest_message() -> None:
    """Never "none", which sends old clients to the end; never what the new leader knew when it led before."""
    cluster = a_cluster()
    cluster.commit("a", 0, 4)
    for source, target in (("a", "c"), ("c", "a")):
        cluster.move(source, target, 0)
        assert cluster.run(5_000, cluster.are_moves_finished)
    cluster.commit("a", 0, 2)  # An operator may have sent the group back since.
    cluster.kill("b")
    cluster.kill("a")
    assert cluster.components["c"].offsets.find("consumers", TOPIC, 0) == 4

    force_queue(cluster, "c")

    assert committed(cluster.committed("c", 0)) == 0


def test_a_copy_of_an_earlier_generation_counts_for_nothing() -> None:
    """Somebody led the queue since, and the group may have been sent anywhere."""
    queue = new_logical_queue(0, "a", 0)
    copy = QueueOffsetBackup(topic=TOPIC, queue=0, generation=-1, boot_ms=1, number=1, offsets={"g": 5})
    newest = QueueOffsetBackup(topic=TOPIC, queue=0, generation=queue.generation, boot_ms=1, number=1, offsets={"g": 6})

    assert choose_backups([queue], {0: copy}) == []
    assert choose_backups([queue], {0: newest}) == [newest]


def reset(cluster: MovingCluster, offset: int) -> None:
    """Send the group elsewhere in queue 0; it has yet to hear of it."""
    fields = ResetOffsetFields(group="consumers", topic=TOPIC, queue_id=0, offset=offset, is_force=True)
    answer = cluster.request("a", RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, None, **to_fields(fields))
    assert answer.code == ResponseCode.SUCCESS, answer.remark


def pull(cluster: MovingCluster, name: str, offset: int) -> tuple[int, str]:
    """Return how a pull is answered, and where it is sent."""
    answer = cluster.pull(name, 0, offset)
    return answer.code, answer.fields["nextBeginOffset"]


def test_a_reset_that_waits_is_told_by_whoever_leads_next_by_force() -> None:
    """And no commit of before undoes it meanwhile."""
    cluster = a_cluster()
    cluster.commit("a", 0, 7)
    cluster.run(SOON_MS)
    reset(cluster, 2)
    cluster.run(SOON_MS)
    cluster.kill("a")

    force_queue(cluster, "c")
    cluster.commit("c", 0, 7)

    assert pull(cluster, "c", 7) == (ResponseCode.PULL_OFFSET_MOVED, "2")
    cluster.commit("c", 0, 3)
    assert committed(cluster.committed("c", 0)) == 3


def test_a_reset_that_was_told_waits_nowhere_any_more() -> None:
    """Though the offset is the same as before: the copy says that its group has heard."""
    cluster = a_cluster()
    reset(cluster, 2)
    cluster.run(SOON_MS)
    assert pull(cluster, "a", 7) == (ResponseCode.PULL_OFFSET_MOVED, "2")
    cluster.run(SOON_MS)
    cluster.kill("a")

    force_queue(cluster, "b")
    cluster.commit("b", 0, 7)

    assert committed(cluster.committed("b", 0)) == 7


def test_only_what_changed_is_told() -> None:
    """And nothing when nothing did."""
    cluster = a_cluster()
    cluster.commit("a", 0, 7)
    cluster.commit("a", 1, 1)
    cluster.run(SOON_MS)

    first = numbers(cluster)
    cluster.run(5 * ROUND_MS)
    idle = numbers(cluster)
    cluster.commit("a", 1, 2)
    cluster.run(SOON_MS)
    last = numbers(cluster)

    assert idle == first
    assert last[0] == first[0]
    assert last[1] > first[1]


def test_a_message_is_bounded_and_the_rest_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second later: a leader of very many queues does not stop the world for them."""
    monkeypatch.setattr(offset_backup, "QUEUES_MAX", 2)
    cluster = a_cluster(queues=5)
    cluster.run(3 * ROUND_MS)
    for queue in range(5):
        cluster.commit("a", queue, queue)

    counts = []
    for _ in range(4):
        cluster.run(ROUND_MS)
        counts.append(sum(kept(cluster, "b", queue) == {"consumers": queue} for queue in range(5)))

    assert counts[-1] == 5
    assert {after - before for before, after in zip([0, *counts], counts, strict=False)} <= {0, 1, 2}


def test_another_broker_takes_over_when_the_one_that_keeps_copies_dies() -> None:
    """It is told everything, not only what changes from then on."""
    cluster = a_cluster()
    cluster.commit("a", 0, 7)
    cluster.run(SOON_MS)

    cluster.kill("b")
    cluster.commit("a", 1, 1)
    cluster.run(6 * ROUND_MS)

    assert (kept(cluster, "c", 0), kept(cluster, "c", 1)) == ({"consumers": 7}, {"consumers": 1})


def test_a_broker_that_was_restarted_is_told_everything_again() -> None:
    """What it heard last it had not saved; its word every ten seconds tells that it is another process."""
    cluster = a_cluster("a", "b")
    cluster.commit("a", 0, 7)
    cluster.run(SOON_MS)
    cluster.kill("b")
    cluster.restart("b")

    cluster.run(15 * ROUND_MS)

    assert kept(cluster, "b", 0) == {"consumers": 7}


def test_a_copy_outlives_the_power_cut_in_which_its_leader_died() -> None:
    """Whoever keeps it comes back, the leader does not: groups go on where they were."""
    cluster = a_cluster("a", "b")
    cluster.commit("a", 0, 7)
    cluster.run(SAVED_MS)
    for broker in cluster.brokers.values():
        broker.power_off()
    cluster.restart("b")
    cluster.run(SOON_MS)

    force_queue(cluster, "b")

    assert committed(cluster.committed("b", 0)) == 7


def test_a_broker_that_stops_saves_the_copies_that_it_keeps() -> None:
    """What it heard a moment ago is in them."""
    cluster = a_cluster("a", "b")
    cluster.commit("a", 0, 7)
    assert cluster.run(SOON_MS, lambda: kept(cluster, "b") == {"consumers": 7})
    cluster.kill("a")

    cluster.stop("b")
    cluster.run(1_000)
    cluster.restart("b")

    assert kept(cluster, "b") == {"consumers": 7}


def test_copies_are_saved_when_they_change_and_go_with_their_topic() -> None:
    """Who keeps none has no file of them."""
    cluster = a_cluster()
    cluster.run(SAVED_MS)
    cluster.components["b"].kept_files.on_timer()
    assert not any(isinstance(effect, WriteFile) for effect in cluster.components["b"].turn.effects)
    assert [copy.queue for copy in saved_copies(cluster, "b") or []] == [0, 1]
    assert saved_copies(cluster, "c") is None

    cluster.request("b", RequestCode.DELETE_MAPPING, None, topic=TOPIC)
    cluster.kill("a")
    cluster.run(SAVED_MS)

    assert saved_copies(cluster, "b") == []


def test_backups_of_a_topic_that_is_gone_are_dropped_from_the_file() -> None:
    """Also if this broker was not asked to delete it: a later topic of that name starts without them."""
    cluster = a_cluster()
    cluster.run(SAVED_MS)
    assert saved_copies(cluster, "b")
    cluster.kill("a")

    cluster.components["b"].mappings.delete(TOPIC)
    cluster.run(SAVED_MS)

    assert saved_copies(cluster, "b") == []


@pytest.mark.parametrize("way", ["ab", "aba"])
def test_a_queue_that_moved_is_told_by_its_new_leader(way: str) -> None:
    """Although nobody commits, and it may have led the queue before: the copy must be of its generation."""
    cluster = a_cluster()
    cluster.commit("a", 0, 7)
    cluster.run(SOON_MS)

    for source, target in pairwise(way):
        cluster.move(source, target, 0)
        assert cluster.run(5_000, cluster.are_moves_finished)
    cluster.run(SOON_MS)
    cluster.brokers[way[-1]].kill()
    force_queue(cluster, "c", source=way[-1])

    assert committed(cluster.committed("c", 0)) == 7


def test_a_group_that_was_deleted_does_not_come_back() -> None:
    """Its offsets go from the copy, too."""
    cluster = a_cluster()
    cluster.commit("a", 0, 7)
    cluster.run(SOON_MS)

    cluster.components["a"].offsets.forget_group("consumers")
    cluster.run(SOON_MS)

    assert kept(cluster, "b") == {}


def test_copies_of_a_topic_that_is_not_known_are_asked_for_again() -> None:
    """The stamp may come a moment later than the first copy; of a deleted topic nothing is kept."""
    cluster = a_cluster()
    copy = QueueOffsetBackup(topic="strange", queue=0, generation=0, boot_ms=1, number=1, offsets={"g": 5})

    answer = cluster.request("b", RequestCode.BACKUP_OFFSETS, OffsetBackupList(backups=[copy]))

    assert decode_body(answer.body, OffsetBackupAnswer).unknown == ["strange"]
    assert cluster.components["b"].offset_backup.find("strange", 0) is None


def test_an_older_copy_does_not_replace_a_newer_one() -> None:
    """Messages may overtake each other."""
    cluster = a_cluster()
    for generation, number in ((3, 8), (3, 7), (2, 9)):
        copy = QueueOffsetBackup(
            topic=TOPIC, queue=1, generation=generation, boot_ms=1, number=number, offsets={"g": number}
        )
        cluster.request("c", RequestCode.BACKUP_OFFSETS, OffsetBackupList(backups=[copy]))

    assert kept(cluster, "c", 1) == {"g": 8}


def test_copies_stay_in_the_cluster_of_their_topic() -> None:
    """Another cluster may have a topic of the same name, with offsets of its own."""
    cluster = MovingCluster("a", "b", "c", clusters={"a": "east", "b": "west", "c": "west"})
    cluster.make_topic({0: "a"}, scope="east")
    cluster.make_topic({0: "b"}, scope="west")
    for leader in ("a", "b"):
        cluster.run(5_000, cluster.produce(0, 10, leader))
        cluster.pull(leader, 0, 0)
    cluster.commit("a", 0, 7)
    cluster.commit("b", 0, 3)
    cluster.run(15_000)

    assert kept(cluster, "c") == {"consumers": 3}, "the only one of its cluster"
    assert kept(cluster, "b") is None, "a has nobody in its cluster"
