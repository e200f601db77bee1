"""Places in queues, and where groups go on."""

import pytest
from tests.support.cluster.scripted import ScriptedAccess
from tests.support.cluster.scripted_topics import ScriptedTopics

from holdfast.admin.cluster_access import NotAllowed, NotFound
from holdfast.admin.offsets import Offsets, OffsetTarget
from holdfast.model.mapping import FORCED_GAP, new_logical_queue
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command


def a_cluster(*, language: str = "PYTHON", version: int = 479) -> ScriptedAccess:
    """One queue that holds [10, 20); the group stands at 12; the time search says 99."""
    reach = ScriptedAccess(topics={"t": {"broker-a": 1}})
    end = Command(code=0, fields={"offset": "20"}, language=language, version=version)
    reach.on(RequestCode.GET_MIN_OFFSET, lambda _: {"offset": "10"})
    reach.on(RequestCode.GET_MAX_OFFSET, lambda _: end)
    reach.on(RequestCode.QUERY_CONSUMER_OFFSET, lambda _: {"offset": "12"})
    reach.on(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, lambda _: {"offset": "99"})
    reach.on(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, lambda _: {})
    return reach


@pytest.mark.parametrize(
    ("target", "offset"),
    [
        (OffsetTarget("earliest"), 10),
        (OffsetTarget("latest"), 20),
        (OffsetTarget("offset", 15), 15),
        (OffsetTarget("offset", 3), 10),
        (OffsetTarget("offset", 300), 20),
        (OffsetTarget("time", 1), 20),
    ],
)
async def test_a_target_is_found_within_what_the_queue_holds(target: OffsetTarget, offset: int):
    """An offset that is gone means the first one that is there; one in the future means the end."""
    (change,) = await Offsets(a_cluster()).plan_reset("g", "t", target)

    assert (change.before, change.after, change.end) == (12, offset, 20)


async def test_a_group_that_never_committed_has_no_place_before():
    """None, not 0: it would begin where its consumers say."""
    reach = a_cluster().on(RequestCode.QUERY_CONSUMER_OFFSET, lambda _: ResponseCode.QUERY_NOT_FOUND)

    (change,) = await Offsets(reach).plan_reset("g", "t", OffsetTarget("earliest"))

    assert change.before is None


async def test_a_plan_changes_nothing_and_applying_it_names_queue_and_offset():
    """What was shown is what is done, though messages arrived meanwhile."""
    reach = a_cluster()
    offsets = Offsets(reach)
    changes = await offsets.plan_reset("g", "t", OffsetTarget("latest"))
    assert reach.requests_of(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET) == []

    await offsets.apply_reset("g", OffsetTarget("latest"), changes)

    (asked,) = reach.requests_of(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)
    assert (asked.fields["queueId"], asked.fields["offset"], asked.fields["timestamp"]) == ("0", "20", "-1")


@pytest.mark.parametrize("target", [OffsetTarget("offset", 15), OffsetTarget("earliest")])
async def test_a_broker_that_only_knows_times_is_not_asked_for_an_offset(target: OffsetTarget):
    """It would ignore the offset and reset to a time instead."""
    offsets = Offsets(a_cluster(language="JAVA", version=407))

    if target.kind == "offset":
        with pytest.raises(NotAllowed, match="can only reset to a time"):
            await offsets.plan_reset("g", "t", target)
    else:
        assert await offsets.plan_reset("g", "t", target)


async def test_a_queue_that_is_not_there_is_told():
    """Not an empty plan that looks like success."""
    with pytest.raises(NotFound, match="no such queue"):
        await Offsets(a_cluster()).find_readable("t", queue=7)


async def test_offsets_that_hold_nothing_are_not_counted_as_lag():
    """Behind a forced move there is a gap of 2^40: nobody has to consume that."""
    cluster = ScriptedTopics()
    cluster.put_queues("t", [new_logical_queue(0, "a", 0).force("b", 0).fix_end(5, generation=0)])
    cluster.ends["t", 0] = FORCED_GAP + 3
    cluster.on(RequestCode.GET_MIN_OFFSET, lambda _: {"offset": "0"})

    (change,) = await Offsets(cluster).plan_reset("g", "t", OffsetTarget("offset", 2))

    assert (change.after, change.lag) == (2, 6)


async def test_a_reset_leaves_no_queue_out_in_silence():
    """One whose leader is down is named; without it the others can be reset one by one."""
    cluster = ScriptedTopics(forgotten={"b"})
    cluster.put_topic("t", {0: "b", 1: "a"})
    cluster.on(RequestCode.GET_MIN_OFFSET, lambda _: {"offset": "0"})

    with pytest.raises(NotAllowed, match="logical queue 0 of t is led by b, which is down"):
        await Offsets(cluster).plan_reset("g", "t", OffsetTarget("latest"))

    (change,) = await Offsets(cluster).plan_reset("g", "t", OffsetTarget("latest"), queue=1)
    assert change.queue == 1


async def test_queues_without_a_leader_are_named_and_the_others_are_read():
    """Name servers list the last leader of a queue that was unset; that broker refuses the question."""
    cluster = ScriptedTopics()
    cluster.put_topic("t", {0: "a", 1: "a"})
    refused = Command(code=ResponseCode.NOT_LEADER_FOR_QUEUE, remark="logical queue 0 of t has no leader")
    cluster.on(RequestCode.GET_MIN_OFFSET, lambda asked: refused if asked.fields["queueId"] == "0" else {"offset": "0"})
    offsets = Offsets(cluster)

    readable = await offsets.find_readable("t")

    assert ([held.queue.queue_id for held in readable.ranges], readable.refused) == (
        [1],
        ["logical queue 0 of t has no leader"],
    )
    with pytest.raises(NotAllowed, match="queue 0 of t has no leader, or name other queues"):
        await offsets.plan_reset("g", "t", OffsetTarget("latest"))
    (change,) = await offsets.plan_reset("g", "t", OffsetTarget("latest"), queue=1)
    assert change.queue == 1


async def test_logical_queues_are_asked_for_at_their_leaders():
    """By their logical numbers, under the name that stands for no broker."""
    cluster = ScriptedTopics()
    cluster.put_topic("t", {0: "b", 1: "a"})
    cluster.ends["t", 1] = 7
    cluster.on(RequestCode.GET_MIN_OFFSET, lambda _: {"offset": "0"})

    readable = await Offsets(cluster).find_readable("t")

    assert [(held.queue.broker_name, held.queue.queue_id, held.address, held.end) for held in readable.ranges] == [
        ("__syslo__global__", 0, "b:1", 0),
        ("__syslo__global__", 1, "a:1", 7),
    ]
