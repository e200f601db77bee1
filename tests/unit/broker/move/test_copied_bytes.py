"""A move counts the bytes of messages that it brought to the new leader: none, unless a test plants a copy."""

from collections.abc import Callable, Iterable

import pytest
from tests.support.cluster.simulated import TOPIC, MovingCluster

from holdfast.broker.mapping.mapping_table import Mappings
from holdfast.broker.move.move_target import MoveTarget
from holdfast.model.mapping import LogicalQueue, TopicMapping
from holdfast.store.message_store import MessageStore
from holdfast.wire.cluster.mapping import to_wire_segment
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.requests.moves import ForceRequest, OpenQueues, QueueSegments, read_copied_bytes

BODY = b"0-0"


def a_cluster(flush: str = "sync") -> MovingCluster:
    """Queue 0 with five messages is on a."""
    cluster = MovingCluster("a", "b", flush=flush)
    cluster.make_topic({0: "a"})
    assert cluster.run(5_000, cluster.produce(0, 5, "a"))
    return cluster


def append_copy(store: MessageStore, queue_id: int, now_ms: int) -> None:
    """Store a record of the queue once more, as a move would that copies messages."""
    store.stage_run([(store.queue(TOPIC, queue_id), BODY, b"", 0, 0, now_ms, bytes(8), 0, 0, 0)], now_ms)
    store.write()


def size_of_copy(cluster: MovingCluster, queue_id: int) -> int:
    queue = cluster.stores["b"].find_queue(TOPIC, queue_id)
    assert queue is not None
    return queue.get_entry(0)[1]


def move(cluster: MovingCluster) -> int | None:
    """Move the queue to b under load; return how many bytes of messages that copied."""
    name = cluster.move("a", "b", 0).id
    done = cluster.produce(0, 20, "a", "b")
    assert cluster.run(20_000, lambda: cluster.are_moves_finished() and done())
    assert cluster.leader(0) == "b"
    return cluster.moves("a")[name].copied


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_move_copies_nothing(flush: str) -> None:
    """Messages that are sent meanwhile do not count."""
    assert move(a_cluster(flush)) == 0


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_copy_that_is_made_while_the_target_prepares_is_counted(flush: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its size is that of the record."""
    cluster = a_cluster(flush)
    allocate = Mappings.allocate

    def copy(self: Mappings, mapping: TopicMapping, queues: Iterable[int]) -> dict[int, int]:
        found = allocate(self, mapping, queues)
        append_copy(cluster.stores["b"], found[0], cluster.world.now_ms)
        return found

    monkeypatch.setattr(Mappings, "allocate", copy)

    copied = move(cluster)

    assert copied == size_of_copy(cluster, cluster.logical_queue(0).leader.queue_id) > 0


@pytest.mark.parametrize("is_late", [False, True])
def test_a_copy_that_is_made_with_the_opening_is_counted(*, is_late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before or after the opening is recorded: no send can come between."""
    cluster = a_cluster()
    apply: Callable[[MoveTarget, OpenQueues], int] = MoveTarget._apply

    def copy(self: MoveTarget, opening: OpenQueues) -> int:
        physical = opening.queues[0].segments[-1].queue_id
        if not is_late:
            append_copy(cluster.stores["b"], physical, cluster.world.now_ms)
        position = apply(self, opening)
        if is_late:
            append_copy(cluster.stores["b"], physical, cluster.world.now_ms)
            position = cluster.stores["b"].written
        return position

    monkeypatch.setattr(MoveTarget, "_apply", copy)

    copied = move(cluster)

    assert copied == size_of_copy(cluster, cluster.logical_queue(0).leader.queue_id) > 0


@pytest.mark.parametrize("is_planted", [False, True])
def test_a_forced_move_counts_too(*, is_planted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target answers how many bytes there were."""
    cluster = a_cluster()
    known = cluster.logical_queue(0)
    cluster.kill("a")
    allocate = Mappings.allocate

    def copy(self: Mappings, mapping: TopicMapping, queues: Iterable[int]) -> dict[int, int]:
        found = allocate(self, mapping, queues)
        append_copy(cluster.stores["b"], found[0], cluster.world.now_ms)
        return found

    if is_planted:
        monkeypatch.setattr(Mappings, "allocate", copy)

    copied = read_copied_bytes(cluster.request("b", RequestCode.FORCE_QUEUES, force_order(cluster, known)))

    assert copied is not None
    assert (copied > 0) == is_planted


def force_order(cluster: MovingCluster, queue: LogicalQueue) -> ForceRequest:
    record, config = cluster.components["b"].mappings.find(TOPIC), cluster.components["b"].topics.find(TOPIC)
    assert record is not None
    assert config is not None
    homes = QueueSegments(queue=0, segments=[to_wire_segment(segment) for segment in queue.segments])
    return ForceRequest(topic=config, scope=record.scope, epoch=record.epoch + 1, total=record.total, queues=[homes])
