"""Plans of changes of static topics, as pure values."""

import msgspec
import pytest
from tests.support.cluster.scripted_topics import ScriptedTopics, plan_repair

from holdfast.admin.cluster_access import NotAllowed, NotFound
from holdfast.admin.static_changes import StaticChanges
from holdfast.admin.static_topics import ClusterMappings, StaticTopics
from holdfast.admin.topic_plans import (
    NEW_QUEUE_START,
    KnownStart,
    assign_plan,
    convert_plan,
    create_plan,
    grow_plan,
    members_of,
    stable_key_share,
)
from holdfast.model.errors import MappingRefused
from holdfast.model.floor import Floor
from holdfast.model.mapping import FORCED_GAP, LogicalQueue, TopicMapping, merge, new_logical_queue
from holdfast.model.topic import TopicConfig

THREE = {"a": "a:1", "b": "b:1", "c": "c:1"}
CONFIG = TopicConfig(name="t")


async def a_view(cluster: ScriptedTopics) -> ClusterMappings:
    return await StaticTopics(cluster).read()


def grown(cluster: ScriptedTopics, broker: str, *queues: LogicalQueue, total: int, epoch: int) -> TopicMapping:
    record = cluster.records[broker]["t"].with_queues(*queues)
    return msgspec.structs.replace(record, total=total, epoch=epoch)


async def test_a_new_topic_is_recorded_by_every_broker():
    """Who leads nothing gets the stamp: epoch and number of queues, no physical queue."""
    plan = create_plan(await a_view(ScriptedTopics(brokers_by_name=THREE)), CONFIG, 4, targets=["a", "b"], now_ms=9000)

    assert [(c.broker, c.queues, c.record.led_queues) for c in plan.changes] == [
        ("a", 2, {0: 0, 2: 1}),
        ("b", 2, {1: 0, 3: 1}),
        ("c", 0, {}),
    ]
    assert {(c.record.epoch, c.record.total) for c in plan.changes} == {(9000, 4)}
    assert merge({c.broker: c.record for c in plan.changes}).is_complete


async def test_queues_go_to_whoever_leads_the_fewest():
    """The load of other topics decides what is left over."""
    cluster = ScriptedTopics(brokers_by_name=THREE)
    cluster.put_topic("busy", {0: "a", 1: "b"})

    plan = create_plan(await a_view(cluster), CONFIG, 1, now_ms=1)

    assert [queue.leader.broker for queue in plan.after] == ["c"]


async def test_a_broker_that_is_away_is_left_out_and_named():
    """It gets its stamp from a repair; as a target it is refused."""
    cluster = ScriptedTopics(brokers_by_name=THREE, dead={"c"})

    plan = create_plan(await a_view(cluster), CONFIG, 2, now_ms=1)

    assert [change.broker for change in plan.changes] == ["a", "b"]
    assert "cannot connect" in plan.skipped["c"]
    with pytest.raises(NotAllowed, match="c does not answer"):
        create_plan(await a_view(cluster), CONFIG, 2, targets=["c"], now_ms=1)


async def test_growing_leaves_what_is_there():
    """New queues get new physical queues, and a higher epoch, also when the clock went back."""
    cluster = ScriptedTopics(brokers_by_name=THREE)
    cluster.put_topic("t", {0: "a", 1: "a", 2: "b"}, epoch=50_000)
    view = await a_view(cluster)

    plan = grow_plan(view, view.topics["t"], 5, now_ms=10)

    assert plan.epoch == 51_000
    assert [(q.queue, q.leader.broker, q.leader.queue_id) for q in plan.after] == [
        (0, "a", 0),
        (1, "a", 1),
        (2, "b", 0),
        (3, "c", 0),
        (4, "b", 1),
    ]
    assert {change.broker: change.queues for change in plan.changes} == {"a": 2, "b": 2, "c": 1}


async def test_a_growth_tells_nobody_of_homes_that_were_only_prepared():
    """The move may have been taken back since the records were read: the home would stay for ever."""
    cluster = ScriptedTopics()
    cluster.put_queues("t", [new_logical_queue(0, "a", 0).prepare("b", 0)])
    view = await a_view(cluster)

    plan = grow_plan(view, view.topics["t"], 2, targets=["b"], now_ms=1)

    told = {change.broker: change.record.queues for change in plan.changes}
    assert [queue.segments[-1].broker for queue in told["a"].values()] == ["a"]
    assert [(number, queue.leader.physical_queue) for number, queue in told["b"].items()] == [
        (0, ("a", 0)),
        (1, ("b", 1)),
    ]


async def test_a_topic_never_shrinks():
    """With the reason; and growing by nothing is said."""
    cluster = ScriptedTopics()
    cluster.put_topic("t", {0: "a", 1: "a"})
    view = await a_view(cluster)

    with pytest.raises(MappingRefused, match="cannot have 1"):
        grow_plan(view, view.topics["t"], 1, now_ms=1)
    with pytest.raises(NotAllowed, match="nothing to change"):
        grow_plan(view, view.topics["t"], 2, now_ms=1)


async def test_a_topic_that_is_not_whole_is_repaired_before_it_grows():
    """Otherwise a queue could get two homes."""
    cluster = ScriptedTopics()
    cluster.put_topic("t", {0: "a"}, total=2)
    view = await a_view(cluster)

    with pytest.raises(NotAllowed, match="holdfast queue repair t"):
        grow_plan(view, view.topics["t"], 3, now_ms=1)


async def test_a_normal_topics_queues_become_logical_ones_as_they_are():
    """Offsets stay what they are: first and start are 0. More queues may come, fewer not."""
    cluster = ScriptedTopics()
    cluster.put_normal("t", {"a": 2, "b": 1})

    plan = convert_plan(await a_view(cluster), CONFIG, {"b": 1, "a": 2}, total=4, now_ms=1)

    homes = [(q.queue, q.leader.broker, q.leader.queue_id, q.leader.first, q.leader.start) for q in plan.after]
    assert homes == [(0, "a", 0, 0, 0), (1, "a", 1, 0, 0), (2, "b", 0, 0, 0), (3, "b", 1, 0, 0)]
    with pytest.raises(NotAllowed, match="Ask for 3 or more"):
        convert_plan(await a_view(cluster), CONFIG, {"a": 2, "b": 1}, total=2, now_ms=1)


async def test_a_scope_is_global_or_a_cluster():
    """Of another name there is no broker."""
    view = await a_view(ScriptedTopics())

    assert set(members_of(view, "c")) == {"a", "b"}
    with pytest.raises(NotAllowed, match=r"global or the name of a cluster \(c\)"):
        members_of(view, "west")


async def test_an_unknown_target_is_told_with_the_nearest():
    """Before anybody is asked to change anything."""
    view = await a_view(ScriptedTopics(brokers_by_name={"broker-a": "a:1"}))

    with pytest.raises(NotFound, match="did you mean 'broker-a'"):
        create_plan(view, CONFIG, 2, targets=["broker-b"], now_ms=1)


async def test_only_a_queue_without_a_leader_is_set_by_hand():
    """One that has a leader is moved: two homes would both take writes."""
    cluster = ScriptedTopics()
    cluster.put_topic("t", {0: "a"}, total=2)
    view = await a_view(cluster)

    plan = assign_plan(view, view.topics["t"], 1, "b", start=NEW_QUEUE_START, queue_id=7, first=100, now_ms=1)

    assert [(q.queue, q.leader.physical_queue, q.leader.first) for q in plan.after] == [
        (0, ("a", 0), 0),
        (1, ("b", 7), 100),
    ]
    with pytest.raises(NotAllowed, match="holdfast queue migrate t 0 --to b"):
        assign_plan(view, view.topics["t"], 0, "b", start=NEW_QUEUE_START, now_ms=1)
    with pytest.raises(NotAllowed, match="0 to 1, no 2"):
        assign_plan(view, view.topics["t"], 2, "b", start=NEW_QUEUE_START, now_ms=1)
    with pytest.raises(MappingRefused, match="logical queues 0 and 1"):
        assign_plan(view, view.topics["t"], 1, "a", start=NEW_QUEUE_START, queue_id=0, now_ms=1)


async def test_a_queue_that_was_led_before_begins_where_its_offsets_are_new():
    """In a later generation; lower than that, or while a broker that may know more is silent, only by force."""
    cluster = ScriptedTopics()
    cluster.put_topic("t", {0: "a"}, total=2)
    view = await a_view(cluster)
    floor = Floor(offset=10, generation=3, brokers=("a",))
    known, unsure = KnownStart(floor=floor), KnownStart(floor=floor, silent=["c"])

    def begin(start: KnownStart, *, first: int | None = None, force: bool = False) -> tuple[int, int]:
        plan = assign_plan(view, view.topics["t"], 1, "b", start=start, first=first, force=force, now_ms=1)
        home = plan.after[1].leader
        return home.first, home.generation

    assert begin(known) == begin(known, first=10) == begin(known, force=True) == (10, 4)
    assert begin(known, first=12) == (12, 4)
    assert begin(unsure, force=True) == (10 + FORCED_GAP, 5)
    with pytest.raises(NotAllowed, match="cannot begin at 9: offsets below 10 were used"):
        begin(known, first=9)
    with pytest.raises(NotAllowed, match="c does not answer, and may have held logical queue 1 of t: start it"):
        begin(unsure)
    with pytest.raises(NotAllowed, match=f"offsets below {10 + FORCED_GAP} were used"):
        begin(unsure, first=10, force=True)


async def test_a_repair_continues_where_a_forgotten_queue_ended():
    """Not while a broker that held it is away, though the name server lists it no longer."""
    cluster = ScriptedTopics(brokers_by_name=THREE)
    cluster.put_topic("t", {0: "a", 1: "b"})
    cluster.ends["t", 1] = 20
    view = await a_view(cluster)
    await StaticChanges(cluster).unset(view, view.topics["t"], 1)

    plan = await plan_repair(cluster, await a_view(cluster))
    cluster.forget("b")
    away = await plan_repair(cluster, await a_view(cluster))
    forced = await plan_repair(cluster, await a_view(cluster), force=True)

    assert plan.new_segments is not None
    assert [(q.generation, q.leader.first) for q in plan.new_segments.after if q.queue == 1] == [(1, 20)]
    assert away.new_segments is None
    assert "start b first" in away.faults[0]
    assert forced.new_segments is not None
    assert [(q.generation, q.leader.first) for q in forced.new_segments.after if q.queue == 1] == [(2, 20 + FORCED_GAP)]


async def test_a_repair_brings_late_stamps():
    """A broker that missed a change gets the newest epoch and number."""
    cluster = ScriptedTopics(brokers_by_name=THREE)
    cluster.put_topic("t", {0: "a", 1: "b"}, epoch=5)
    cluster.records["b"]["t"] = cluster.records["b"]["t"].with_queues(epoch=9)
    del cluster.records["c"]["t"]
    view = await a_view(cluster)

    plan = await plan_repair(cluster, view)

    assert {name: stamp.epoch for name, stamp in plan.stamps.items()} == {"a": 9, "c": 9}
    assert (plan.new_segments, plan.faults) == (None, [])


async def test_a_repair_gives_homes_to_queues_that_nobody_ever_led():
    """What a half-done growth left behind; not while a broker that may hold them is away."""
    cluster = ScriptedTopics(brokers_by_name=THREE)
    cluster.put_topic("t", {0: "a"}, total=2)
    view = await a_view(cluster)

    plan = await plan_repair(cluster, view)
    cluster.kill("c")
    view = await a_view(cluster)
    away = await plan_repair(cluster, view)

    assert plan.new_segments is not None
    assert [queue.queue for queue in plan.new_segments.after] == [0, 1]
    assert away.new_segments is None
    assert "start c first" in away.faults[0]


@pytest.mark.parametrize("epoch", [9, 5, 12_000])
async def test_a_repair_spreads_a_growth_that_only_some_heard_of(epoch: int):
    """Whatever epoch a change elsewhere took since: a topic never shrinks, so the most queues count."""
    cluster = ScriptedTopics(brokers_by_name=THREE)
    cluster.put_topic("t", {0: "a", 1: "b"}, epoch=5)
    cluster.records["a"]["t"] = grown(cluster, "a", new_logical_queue(2, "a", 1), total=4, epoch=9)
    cluster.records["b"]["t"] = cluster.records["b"]["t"].with_queues(epoch=epoch)
    view = await a_view(cluster)

    plan = await plan_repair(cluster, view)

    assert plan.new_segments is not None
    assert (plan.opened_queues, plan.new_segments.total, plan.faults) == ([3], 4, [])
    after = merge({change.broker: change.record for change in plan.new_segments.changes})
    assert after.is_complete
    assert {(change.record.epoch, change.record.total) for change in plan.new_segments.changes} == {(after.epoch, 4)}
    assert after.epoch > max(epoch, 9)


async def test_a_repair_tells_the_number_of_queues_where_only_that_was_missed():
    """Also in an epoch that the broker knows: two changes took the same."""
    cluster = ScriptedTopics(brokers_by_name=THREE)
    cluster.put_topic("t", {0: "a", 1: "b"}, epoch=5)
    cluster.records["a"]["t"] = grown(cluster, "a", new_logical_queue(2, "a", 1), total=3, epoch=5)
    view = await a_view(cluster)

    plan = await plan_repair(cluster, view)

    assert {name: (stamp.epoch, stamp.total) for name, stamp in plan.stamps.items()} == {"b": (5, 3), "c": (5, 3)}
    assert (plan.new_segments, plan.faults) == (None, [])


async def test_what_a_dead_broker_should_have_led_is_given_to_others_by_force():
    """In a later generation and behind a gap: should it return and have taken something, no offset is used twice."""
    cluster = ScriptedTopics(brokers_by_name=THREE)
    cluster.put_topic("t", {0: "a", 1: "b"}, total=3)
    cluster.kill("b")
    view = await a_view(cluster)

    refused = await plan_repair(cluster, view)
    plan = await plan_repair(cluster, view, force=True)

    assert any("holdfast queue repair t --force" in fault for fault in refused.faults)
    assert refused.new_segments is None
    assert plan.new_segments is not None
    assert [
        (q.queue, q.generation, q.leader.first) for q in plan.new_segments.after if q.queue in plan.opened_queues
    ] == [(2, 1, FORCED_GAP)]
    assert plan.faults == ["b leads queues and does not answer: start it, or `holdfast broker evacuate b --force`"]


async def test_a_queue_that_had_a_leader_gets_no_second_one():
    """Its messages are there. Not even by force: somebody knows to whom it went."""
    cluster = ScriptedTopics()
    moved = new_logical_queue(0, "a", 0).prepare("b", 0).seal(5).open_next()
    cluster.put_queues("t", [moved])
    cluster.records["b"]["t"] = cluster.records["b"]["t"].without_queues(0)
    view = await a_view(cluster)

    plan = await plan_repair(cluster, view, force=True)

    assert (plan.new_segments, plan.faults) == (None, ["no broker leads queue 0, which went to b: start b"])


async def test_a_contradiction_is_left_to_the_operator():
    """Nobody guesses which of two leaders is right."""
    cluster = ScriptedTopics()
    cluster.put_topic("t", {0: "a"}, total=2)
    cluster.records["b"]["t"] = cluster.records["b"]["t"].with_queues(new_logical_queue(0, "b", 0))
    view = await a_view(cluster)

    plan = await plan_repair(cluster, view)

    assert plan.new_segments is None
    assert "both newest" in plan.faults[0]


@pytest.mark.parametrize(("before", "after"), [(4, 6), (8, 16), (3, 7), (1, 5), (5, 5)])
def test_the_share_of_keys_that_stay_is_counted(before: int, after: int):
    """As many as a walk over all remainders finds."""
    every = range(before * after)

    share = stable_key_share(before, after)

    assert share == pytest.approx(sum(key % before == key % after for key in every) / len(every))


TWO_UNITS = {"a": "east", "b": "west"}


async def test_a_topic_of_a_cluster_is_recorded_there_only():
    """Another cluster may have one of that name."""
    cluster = ScriptedTopics(clusters=TWO_UNITS)
    cluster.put_topic("t", {0: "a"}, scope="east")

    plan = create_plan(await a_view(cluster), CONFIG, 4, scope="west", now_ms=9000)

    assert [(change.broker, change.record.scope) for change in plan.changes] == [("b", "west")]


@pytest.mark.parametrize(("known", "wanted"), [("east", "__global__"), ("__global__", "east")])
async def test_a_global_topic_is_the_only_one_of_its_name(known: str, wanted: str):
    """Refused in either order."""
    cluster = ScriptedTopics(clusters=TWO_UNITS)
    cluster.put_topic("t", {0: "a"}, scope=known)

    with pytest.raises(NotAllowed, match=r"t is a static topic of .* already"):
        create_plan(await a_view(cluster), CONFIG, 4, scope=wanted, now_ms=9000)


async def test_a_topic_grows_inside_its_scope():
    """By itself, and not at all elsewhere."""
    cluster = ScriptedTopics(clusters=TWO_UNITS)
    cluster.put_topic("t", {0: "a"}, scope="east")
    view = await a_view(cluster)

    plan = grow_plan(view, view.get_topic("t"), 3, now_ms=9000)

    assert {queue.leader.broker for queue in plan.after} == {"a"}
    with pytest.raises(NotAllowed, match="broker b is in cluster west, outside the topic's scope: choose from a"):
        grow_plan(view, view.get_topic("t"), 3, targets=["b"], now_ms=9000)
