"""Where a queue without a leader may begin, by all who can be asked."""

from tests.support.cluster.scripted_topics import ScriptedTopics

from holdfast.admin.floors import find_starts
from holdfast.admin.static_changes import StaticChanges
from holdfast.admin.static_topics import StaticTopics
from holdfast.admin.topic_plans import KnownStart
from holdfast.model.floor import NO_FLOOR, Floor
from holdfast.model.mapping import FORCED_GAP
from holdfast.wire.frames.codes import RequestCode

THREE = {"a": "a:1", "b": "b:1", "c": "c:1"}


async def a_cluster() -> ScriptedTopics:
    """Queue 1, which b led up to offset 20, is forgotten; queue 2 never had a home."""
    cluster = ScriptedTopics(brokers_by_name=THREE)
    cluster.put_topic("t", {0: "a", 1: "b"}, total=3)
    cluster.ends["t", 1] = 20
    view = await StaticTopics(cluster).read()
    await StaticChanges(cluster).unset(view, view.topics["t"], 1)
    return cluster


async def starts(cluster: ScriptedTopics) -> dict[int, KnownStart]:
    view = await StaticTopics(cluster).read()
    return await find_starts(cluster, view, view.topics["t"], [1, 2])


async def test_a_forgotten_queue_begins_at_its_floor_and_a_new_one_at_0():
    """A Java broker knows of no floors: that it does not is an answer."""
    cluster = await a_cluster()
    cluster.java.add("c")

    assert await starts(cluster) == {
        1: KnownStart(floor=Floor(offset=20, generation=0, brokers=("b",))),
        2: KnownStart(floor=NO_FLOOR),
    }


async def test_a_broker_that_does_not_answer_is_named_and_costs_a_gap():
    """Though the name server lists it no longer, and tells what it reported."""
    cluster = await a_cluster()
    cluster.forget("b")

    found = await starts(cluster)

    assert (found[1].silent, found[1].first, found[1].generation) == (["b"], 20 + FORCED_GAP, 2)


async def test_nothing_is_asked_where_no_queue_is_without_a_leader():
    """A repair of stamps alone needs no floors."""
    cluster = await a_cluster()
    view = await StaticTopics(cluster).read()

    assert await find_starts(cluster, view, view.topics["t"], []) == {}
    assert cluster.requests_of(RequestCode.FIND_FLOORS) == []
