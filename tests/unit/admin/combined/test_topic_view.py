"""The live map of a topic."""

import msgspec
import pytest
from tests.support.cluster.scripted import Reply, ScriptedRequest
from tests.support.cluster.scripted_admin import scripted_admin
from tests.support.cluster.scripted_topics import ScriptedTopics

from holdfast.admin.combined.topic_view import describe_segment, read_topic, read_topic_map
from holdfast.model.errors import RouteNotFound
from holdfast.model.mapping import LogicalQueue, new_logical_queue
from holdfast.model.queue import LogicalOffset, PhysicalOffset, PhysicalQueueId
from holdfast.wire.frames.codes import RequestCode


def moved_queue(end: int = 10) -> LogicalQueue:
    """Return queue 0: sealed on a at *end*, led by b."""
    queue = new_logical_queue(0, "a", 0).prepare("b", PhysicalQueueId(0))
    return queue.seal(PhysicalOffset(end)).open_next()


def a_cluster(*queues: LogicalQueue, lags: dict[str, tuple[int, int]] | None = None) -> ScriptedTopics:
    """Return two brokers with the topic `orders`; *lags* has committed offset and end of queue 0 by group."""
    cluster = ScriptedTopics()
    cluster.put_queues("orders", list(queues))

    def consume_stats(request: ScriptedRequest) -> Reply:
        committed, end = (lags or {})[request.fields["consumerGroup"]]
        key = '{"brokerName":"__syslo__global__","queueId":0,"topic":"orders"}'
        pair = {"brokerOffset": end, "consumerOffset": committed}
        return msgspec.json.encode({"consumeTps": 0.0, "offsetTable": {key: pair}})

    cluster.on(RequestCode.GET_CONSUME_STATS, consume_stats)
    cluster.on(RequestCode.GET_CONSUMER_CONNECTION_LIST, lambda _: 206)
    for group in lags or {}:
        cluster.offsets["a", group, "orders", 0] = 0
    return cluster


async def test_segments_show_where_they_begin_and_end():
    """A sealed one at its recorded end, the leader's at the current one, and both continue each other."""
    cluster = a_cluster(moved_queue())
    cluster.stats = {("a", "orders"): [(0, 0, 10)], ("b", "orders"): [(0, 0, 5)]}

    found = await read_topic_map(scripted_admin(cluster), "orders")

    (row,) = found.queues
    assert (found.kind, found.scope, found.total) == ("static", "global", 1)
    assert (row.leader, row.first, row.end) == ("b", 0, 15)
    assert [(each.broker, each.first, each.end, str(each.status), each.is_leader) for each in row.segments] == [
        ("a", 0, 10, "ReadOnly", False),
        ("b", 10, 15, "Normal", True),
    ]


async def test_the_oldest_readable_offset_is_where_retention_has_come_to():
    """Not where the oldest segment began."""
    cluster = a_cluster(moved_queue())
    cluster.stats = {("a", "orders"): [(0, 7, 10)], ("b", "orders"): [(0, 0, 5)]}

    (row,) = (await read_topic_map(scripted_admin(cluster), "orders")).queues

    assert (row.first, row.end) == (7, 15)


async def test_the_end_is_unknown_while_the_leader_does_not_answer():
    """Its recorded segments stay; the problem is said with its remedy."""
    cluster = a_cluster(moved_queue())
    cluster.stats = {("a", "orders"): [(0, 0, 10)]}
    cluster.kill("b")

    found = await read_topic_map(scripted_admin(cluster), "orders")

    assert (found.queues[0].leader, found.queues[0].end) == ("b", None)
    assert any("b leads queues and does not answer" in line for line in found.problems)


async def test_the_gap_of_a_forced_move_is_marked():
    """After the segment of the dead leader, whose end may be unknown."""
    forced = new_logical_queue(0, "a", 0).force("b", PhysicalQueueId(0), known_end=LogicalOffset(10))
    cluster = a_cluster(forced)

    (row,) = (await read_topic_map(scripted_admin(cluster), "orders")).queues

    assert [each.gap_after for each in row.segments] == [True, False]
    assert "end unknown" in str(row.segments[0].note)


async def test_a_prepared_segment_has_no_offsets_yet():
    """It belongs to a move in progress."""
    cluster = a_cluster(new_logical_queue(0, "a", 0).prepare("b", PhysicalQueueId(0)))

    (row,) = (await read_topic_map(scripted_admin(cluster), "orders")).queues

    prepared = row.segments[1]
    assert (prepared.first, prepared.is_leader, prepared.note) == (None, False, "prepared, accepts no writes")
    assert row.leader == "a"


async def test_groups_have_positions_in_rows_and_a_total():
    """One group whose lag is unknown does not hide the others; groups beyond the limit are counted."""
    cluster = a_cluster(new_logical_queue(0, "a", 0), lags={"billing": (4, 9), "audit": (9, 9)})

    found = await read_topic_map(scripted_admin(cluster), "orders")
    limited = await read_topic_map(scripted_admin(cluster), "orders", groups_max=1)
    cluster.on(
        RequestCode.GET_CONSUME_STATS, lambda request: 1 if request.fields["consumerGroup"] == "audit" else b'{"a":0}'
    )
    faulty = await read_topic_map(scripted_admin(cluster), "orders")

    assert [(each.group, each.committed, each.lag) for each in found.queues[0].positions] == [
        ("audit", 9, 0),
        ("billing", 4, 5),
    ]
    assert [(each.group, each.lag) for each in found.groups] == [("audit", 0), ("billing", 5)]
    assert ([each.group for each in limited.groups], limited.groups_left_out) == (["audit"], 1)
    assert [(each.lag, each.fault is None) for each in faulty.groups] == [(None, False), (0, True)]


async def test_a_normal_topic_has_a_row_for_each_queue():
    """With one segment; its scope and epoch are none."""
    cluster = ScriptedTopics()
    cluster.put_normal("plain", {"a": 1, "b": 1})
    cluster.stats = {("a", "plain"): [(0, 2, 8)], ("b", "plain"): [(0, 0, 3)]}

    found = await read_topic_map(scripted_admin(cluster), "plain")

    assert (found.kind, found.scope, found.epoch) == ("normal", None, None)
    assert [(row.leader, row.queue, row.first, row.end, len(row.segments)) for row in found.queues] == [
        ("a", 0, 2, 8, 1),
        ("b", 0, 0, 3, 1),
    ]


async def test_a_static_topic_is_described_with_its_mappings():
    """And a normal one without."""
    cluster = a_cluster(moved_queue())
    cluster.put_normal("plain", {"a": 1})

    described, view = await read_topic(scripted_admin(cluster), "orders")
    _, no_view = await read_topic(scripted_admin(cluster), "plain")

    assert ([host.broker for host in described.hosts], no_view) == (["a", "b"], None)
    assert view is not None
    assert view.get_topic("orders").merged.total == 1
    with pytest.raises(RouteNotFound, match="does not exist"):
        await read_topic(scripted_admin(cluster), "nope")


def test_a_segment_whose_predecessors_are_gone_says_so():
    """Nothing is special about the others."""
    queue = moved_queue()
    detached = msgspec.structs.replace(queue.segments[1], is_detached=True)

    assert describe_segment(LogicalQueue(queue.queue, (queue.segments[0], detached)), detached) is not None
    assert describe_segment(queue, queue.segments[0]) is None
