"""What a broker may record of a static topic, and what all records say together."""

from collections.abc import Callable

import msgspec
import pytest
from tests.support.static_topics import prepare_again

from holdfast.model.errors import MappingRefused
from holdfast.model.mapping import (
    FORCED_GAP,
    QUEUES_MAX,
    LogicalQueue,
    MergedTopic,
    Segment,
    TopicMapping,
    accept_update,
    check,
    check_queue,
    mapping_rows,
    merge,
    new_logical_queue,
    next_epoch,
)


def a_record(broker: str, *queues: LogicalQueue, epoch: int = 1, total: int = 3) -> TopicMapping:
    return TopicMapping(
        topic="t", broker=broker, epoch=epoch, total=total, queues={queue.queue: queue for queue in queues}
    )


def move(queue: LogicalQueue, broker: str, queue_id: int, end: int = 10) -> LogicalQueue:
    return queue.prepare(broker, queue_id).seal(end).open_next()


def merged(*records: TopicMapping) -> MergedTopic:
    return merge({record.broker: record for record in records})


WITH_A_HOLE = LogicalQueue(  # As upstream's tools move a queue.
    0,
    (
        Segment(generation=0, broker="a", queue_id=0, first=0),
        Segment(generation=1, broker="b", queue_id=1, first=10_000),
    ),
)
ZERO, ONE, TWO = new_logical_queue(0, "a", 0), new_logical_queue(1, "a", 1), new_logical_queue(2, "b", 0)


# One record.


def test_a_record_knows_what_its_broker_leads():
    """Not what it only prepares, nor what it has given away."""
    given, taken = move(ZERO, "b", 1), move(TWO, "a", 2)

    assert a_record("a", given, ONE, taken).led_queues == {1: 1, 2: 2}
    assert a_record("a", ZERO.prepare("b", 1), ONE.prepare("b", 2).seal(4)).led_queues == {0: 0, 1: 1}
    assert a_record("b", ZERO.prepare("b", 1)).led_queues == {}


def test_a_record_changes_by_whole_queues():
    """The old record stays what it was."""
    record = a_record("a", ZERO)

    changed = record.with_queues(ONE, epoch=9)

    assert (sorted(changed.queues), changed.epoch) == ([0, 1], 9)
    assert (sorted(record.queues), record.epoch) == ([0], 1)
    assert sorted(changed.without_queues(0).queues) == [1]
    assert changed.used_queue_ids("a") == {0, 1}


def test_epochs_rise_also_when_clocks_go_back():
    """By a second at least, as upstream reckons."""
    assert next_epoch(5000, 90_000) == 90_000
    assert next_epoch(5000, 100) == 6000


def test_rows_are_sorted_by_physical_queue():
    """As the proposal prints them."""
    rows = mapping_rows([move(ZERO, "b", 1), ONE, TWO])

    assert [(row.broker, row.queue_id, row.queue) for row in rows] == [
        ("a", 0, 0),
        ("a", 1, 1),
        ("b", 0, 2),
        ("b", 1, 0),
    ]


def test_records_of_every_stage_are_fine():
    """Prepared, sealed, open, empty, forced, resolved, expired, coming back, pruned; and what Java brokers leave."""
    moved = move(move(ZERO, "b", 1), "c", 0)
    forced = moved.force("d", 0)
    stages = [
        ZERO,
        ZERO.prepare("b", 1),
        ZERO.prepare("b", 1).seal(0),
        move(ZERO, "b", 1, end=0),
        moved.expire(1, 1),
        prepare_again(moved.expire(0, 0), "a"),
        move(moved.expire(1, 1), "b", 1),
        moved.expire(0, 0).prune({"a"}),
        forced,
        forced.fix_end(3),
        forced.abandon().expire(2, 0).prune({"c"}),
    ]
    java = [
        WITH_A_HOLE,
        WITH_A_HOLE.fix_end(70, generation=0),
        LogicalQueue(0, (Segment(generation=None, broker="a", queue_id=0),)),
    ]

    for queue in stages:
        check(a_record("a", queue), owner="a", exact=True)
    for queue in java:
        check(a_record("a", queue))


def test_two_open_homes_are_refused_where_ends_must_be_known():
    """Java brokers leave it so; ours never."""
    with pytest.raises(MappingRefused) as refused:
        check_queue(WITH_A_HOLE, exact=True)

    assert refused.value.rule == "only the newest open"


def homes(*segments: Segment) -> TopicMapping:
    return a_record("a", LogicalQueue(0, segments))


def a_home(generation: int, first: int | None, *, end: int | None = None, broker: str = "a", **more: int) -> Segment:
    queue_id = more.pop("queue_id", generation)
    return Segment(generation=generation, broker=broker, queue_id=queue_id, first=first, end=end, **more)


BROKEN: list[tuple[str, TopicMapping]] = [
    ("number of queues", a_record("a", total=QUEUES_MAX + 1)),
    ("number of queues", a_record("a", total=-1)),
    ("ids below total", a_record("a", new_logical_queue(3, "a", 0))),
    ("ids below total", a_record("a", new_logical_queue(10_000, "a", 0))),
    ("ids below total", TopicMapping(topic="t", broker="a", total=3, queues={1: ZERO})),
    ("one queue, one segment", a_record("a", ZERO, new_logical_queue(1, "a", 0))),
    ("one queue, one segment", a_record("a", move(ZERO, "b", 0), TWO)),
    ("one queue, one segment", homes(a_home(0, 0, end=5), a_home(1, 5, queue_id=0))),
    ("one queue, one segment", homes(a_home(0, 0, end=5, expired=True), a_home(1, 5, queue_id=0))),
    ("at least one segment", homes()),
    ("no negative numbers", homes(a_home(-2, 0))),
    ("no negative numbers", homes(a_home(-1, 0), a_home(1, 5))),
    ("no negative numbers", homes(a_home(0, 0, queue_id=-1))),
    ("no negative numbers", homes(a_home(0, 0, start=-1))),
    ("segments have brokers", homes(a_home(0, 0, broker=""))),
    ("ends fit", homes(a_home(0, 0, start=5, end=4))),
    ("ends fit", homes(a_home(0, 0, end=-5))),
    ("decided before closed", homes(a_home(0, None, end=4))),
    ("rising generations", homes(a_home(1, 0, end=5), a_home(1, 5, queue_id=2))),
    ("rising generations", homes(a_home(2, 0, end=5), a_home(1, 5))),
    ("only the newest undecided", homes(a_home(0, None), a_home(1, 5))),
    ("leaders stay", homes(a_home(0, 0, end=5, expired=True))),
    ("leaders stay", homes(a_home(0, 0, end=5), a_home(1, 5, end=6, expired=True), a_home(2, None))),
    ("offsets rise", homes(a_home(0, 5), a_home(1, 5))),
    ("offsets rise", homes(a_home(0, 0, end=6), a_home(1, 5))),
    ("contiguous offsets", homes(a_home(0, 0, end=5), a_home(1, 6))),
    ("contiguous offsets", homes(a_home(0, 0, end=5, expired=True), a_home(1, 6))),
]


@pytest.mark.parametrize(("rule", "record"), BROKEN)
def test_a_record_that_breaks_a_rule_is_refused_by_its_name(rule: str, record: TopicMapping):
    """Before anybody believes it."""
    with pytest.raises(MappingRefused) as refused:
        check(record)

    assert refused.value.rule == rule


def test_a_record_of_another_broker_is_refused():
    """Somebody copied a file."""
    with pytest.raises(MappingRefused, match="b has a mapping of t that belongs to a") as refused:
        check(a_record("a", ZERO), owner="b")

    assert refused.value.rule == "own record"


# A tool updates a record.


def test_a_tool_prepares_the_next_home():
    """The first two steps of upstream's remap; what the tool does not know stays."""
    old = a_record("a", move(ZERO, "b", 5).expire(0, 0), ONE)
    told = LogicalQueue(0, (a_home(1, 10, broker="b", queue_id=5), a_home(2, None, broker="c", queue_id=0)))

    new = accept_update(old, a_record("a", told, epoch=2))

    assert new.epoch == 2
    assert new.queues == {0: old.queues[0].prepare("c", 0), 1: ONE}


def test_a_decided_offset_stays():
    """Upstream's last step tells a rounded one, which comes too late; it counts where nothing was decided."""
    told = WITH_A_HOLE
    ours, theirs = move(ZERO, "b", 1, end=57), ZERO.prepare("b", 1)

    assert accept_update(a_record("a", ours), a_record("a", told)).queues[0] == ours
    assert accept_update(a_record("a", theirs), a_record("a", told)).queues[0] == told


def test_the_same_update_twice_changes_nothing():
    """A tool may send it again."""
    record = a_record("a", move(ZERO, "b", 1), ONE)

    assert accept_update(record, record) == record


def test_a_home_that_was_cleaned_here_does_not_come_back():
    """The tool looked before."""
    pruned = move(ZERO, "b", 1).expire(0, 0).prune({"a"})
    record = a_record("b", pruned)

    assert accept_update(record, a_record("b", move(ZERO, "b", 1), epoch=2)).queues[0] == pruned


@pytest.mark.parametrize(
    ("rule", "new"),
    [
        ("rising epochs", a_record("a", ZERO, ONE, epoch=0)),
        ("rising epochs", a_record("a", ZERO, epoch=1)),
        ("rising epochs", a_record("a", ZERO.prepare("c", 0), ONE, epoch=1)),
        ("own record", a_record("b", ZERO, ONE, epoch=2)),
        ("own record", msgspec.structs.replace(a_record("a", ZERO, ONE, epoch=2), scope="west")),
        ("queues never shrink", a_record("a", ZERO, ONE, epoch=2, total=2)),
        ("segments stay", a_record("a", new_logical_queue(0, "a", 7), ONE, epoch=2)),
        ("one queue, one segment", a_record("a", new_logical_queue(2, "a", 0), epoch=2)),
    ],
)
def test_an_update_that_rewrites_what_happened_is_refused(rule: str, new: TopicMapping):
    """By name; nothing is changed."""
    with pytest.raises(MappingRefused) as refused:
        accept_update(a_record("a", ZERO, ONE), new)

    assert refused.value.rule == rule


# All records.


def test_each_queue_comes_from_the_record_of_its_leader():
    """With all its homes, whoever else knows less of them."""
    moved = move(ZERO, "b", 1)

    topic = merged(a_record("a", moved.prepare("c", 0).rollback(), ONE), a_record("b", moved, TWO))

    assert topic.is_complete
    assert topic.queues == {0: moved, 1: ONE, 2: TWO}
    assert topic.leaders == {0: "b", 1: "a", 2: "b"}
    assert (topic.epoch, topic.total, topic.missing, topic.superseded) == (1, 3, [], [])


def test_a_stale_broker_is_outvoted_by_generation():
    """It came back with what it knew before the move; whatever its epoch, the newer home counts."""
    moved = move(ZERO, "b", 1)

    topic = merged(a_record("a", ZERO, ONE, epoch=9), a_record("b", moved, TWO, epoch=2))

    assert topic.is_complete
    assert topic.leaders[0] == "b"
    assert topic.superseded == ["a still claims logical queue 0, which b leads now"]


def test_a_stale_broker_does_not_lead_when_nobody_newer_claims_either():
    """Somebody who led in between knows that the queue has moved on: better no leader than an old one."""
    moved = move(move(ZERO, "b", 1), "c", 1)

    topic = merged(a_record("a", ZERO, ONE, epoch=9), a_record("b", moved, TWO, epoch=3))

    assert topic.unled == [0]
    assert topic.contradictions == []
    assert topic.superseded == ["a still claims logical queue 0, which has moved on since"]


def test_two_leaders_of_one_generation_contradict():
    """Neither can be served."""
    topic = merged(a_record("a", ONE), a_record("b", move(ZERO, "b", 1), TWO), a_record("c", move(ZERO, "c", 1)))

    assert not topic.is_complete
    assert topic.contradictions == ["logical queue 0 is led by c and by b, both newest"]


def test_a_queue_without_a_leader_leaves_the_topic_incomplete():
    """Some brokers are enabled, some not yet; that contradicts nothing."""
    topic = merged(a_record("a", ZERO))

    assert (topic.is_complete, topic.unled, topic.contradictions) == (False, [1, 2], [])


def test_a_broker_that_is_away_is_named():
    """The leader's record says who else has records; the topic is served without it."""
    topic = merged(a_record("a", ONE), a_record("b", move(move(ZERO, "c", 0), "b", 1), TWO))

    assert topic.missing == ["c"]
    assert topic.is_complete


def test_an_expired_home_needs_nobody():
    """Its broker may be gone."""
    topic = merged(a_record("a", ONE), a_record("b", move(move(ZERO, "c", 0), "b", 1).expire(1, 0), TWO))

    assert topic.missing == []


def test_a_copied_record_is_refused_and_named():
    """And nothing of it counts, not even its epoch."""
    topic = merge({"a": a_record("a", ZERO, ONE), "b": a_record("a", ZERO, ONE, epoch=99)})

    assert topic.epoch == 1
    assert len(topic.contradictions) == 1
    assert "b has a mapping of t that belongs to a" in topic.contradictions[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"scope": "west"}, "has scope"),
        ({"topic": "u"}, "under the name of"),
    ],
)
def test_records_of_one_epoch_agree_on_the_stamp(change: dict[str, object], words: str):
    """Or one of them is wrong."""
    other = msgspec.structs.replace(a_record("b", TWO), **change)

    topic = merged(a_record("a", ZERO, ONE), other)

    assert any(words in text for text in topic.contradictions)


def test_what_was_only_prepared_can_be_left_out_of_a_record():
    """A home that is open or sealed stays; a queue with nothing else goes."""
    prepared = new_logical_queue(0, "a", 0).prepare("b", 1)
    record = a_record("b", prepared, LogicalQueue(1, (prepared.segments[-1],)), TWO)

    assert record.without_prepared() == a_record("b", new_logical_queue(0, "a", 0), TWO)


def test_of_two_changes_that_took_one_epoch_the_growth_counts():
    """A topic never shrinks, so who has fewer queues just has not heard of it. In an older epoch nobody can say."""
    old, grown = a_record("a", ZERO, ONE, total=3), a_record("b", TWO, new_logical_queue(3, "b", 7), total=4)

    topic = merged(old, grown)
    assert (topic.total, topic.contradictions, topic.is_complete) == (4, [], True)

    topic = merged(msgspec.structs.replace(old, epoch=2), grown)
    assert topic.contradictions == ["b has 4 logical queues of t, but the newest epoch has 3"]


def test_a_growing_topic_is_incomplete_until_every_queue_is_led():
    """The number of the newest epoch counts; a broker that has not heard of it contradicts nothing."""
    old, new = a_record("a", ZERO, ONE, total=3), a_record("b", TWO, epoch=2, total=4)

    topic = merged(old, new)
    assert (topic.total, topic.unled, topic.contradictions) == (4, [3], [])

    assert merged(old, new.with_queues(new_logical_queue(3, "b", 7))).is_complete


def test_a_physical_queue_of_two_logical_queues_contradicts():
    """Each record alone is fine."""
    topic = merged(a_record("a", move(TWO, "a", 0), ONE), a_record("b", move(new_logical_queue(0, "a", 0), "b", 0)))

    assert any("queue 0 of a is in logical queues 0 and 2" in text for text in topic.contradictions)


@pytest.mark.parametrize("end", [10, 11])
def test_the_holder_of_a_segment_must_agree_about_it(end: int):
    """What only one of them knows is no contradiction; two ends are."""
    theirs = move(ZERO, "b", 1, end=10)
    own = move(ZERO, "b", 1, end=end)

    topic = merged(a_record("a", own, ONE), a_record("b", theirs, TWO))

    assert topic.is_complete == (end == 10)
    assert merged(a_record("a", ZERO.prepare("b", 1), ONE), a_record("b", theirs, TWO)).queues[0] == theirs


def java_record(broker: str, led: dict[int, int], *, epoch: int) -> TopicMapping:
    """Return what a Java broker tells: where a queue is, not since when."""
    queues = {
        number: LogicalQueue(number, (Segment(generation=None, broker=broker, queue_id=queue_id),))
        for number, queue_id in led.items()
    }
    return TopicMapping(topic="t", broker=broker, epoch=epoch, total=3, queues=queues)


def test_java_brokers_are_merged_by_epoch():
    """As Java clients do: during a remap two claim the queue, and the later epoch leads."""
    topic = merged(java_record("a", {0: 0, 1: 1}, epoch=1), java_record("b", {0: 2, 2: 0}, epoch=2))

    assert topic.is_complete
    assert topic.leaders == {0: "b", 1: "a", 2: "b"}
    assert topic.superseded == ["a still claims logical queue 0, which b leads now"]
    assert merged(java_record("a", {0: 0}, epoch=1), java_record("b", {0: 0}, epoch=1)).contradictions


def test_a_java_broker_leads_against_ours_only_with_a_later_epoch():
    """It tells no generation."""
    ours = a_record("a", ZERO, ONE, epoch=5)

    assert merged(ours, java_record("b", {0: 2}, epoch=6)).leaders[0] == "b"
    assert merged(ours, java_record("b", {0: 2}, epoch=4)).leaders[0] == "a"
    assert merged(ours, java_record("b", {0: 2}, epoch=5)).contradictions


def test_a_forced_gap_is_merged_like_any_home():
    """The dead leader comes back, claims its queue, and is outvoted."""
    forced = ZERO.force("b", 1)

    topic = merged(a_record("a", ZERO, ONE), a_record("b", forced, TWO))

    assert topic.is_complete
    assert topic.queues[0].leader.first == FORCED_GAP


def test_records_that_nobody_believes_merge_to_nothing():
    """And the reasons are told."""
    topic = merge({"a": a_record("x", ZERO)})

    assert (topic.queues, topic.unled, topic.is_complete) == ({}, [0, 1, 2], False)
    assert len(topic.contradictions) == 1


def test_a_hostile_total_costs_nothing():
    """It is refused before anybody counts to it."""
    topic = merge({"a": a_record("a", total=2**31 - 1)})

    assert len(topic.unled) <= QUEUES_MAX
    assert topic.contradictions


CHANGES: list[Callable[[LogicalQueue], LogicalQueue]] = [
    lambda queue: queue.prepare("c", 5),
    lambda queue: queue.prepare("c", 5).seal(10),
    lambda queue: move(queue, "c", 5),
]


@pytest.mark.parametrize("change", CHANGES)
def test_every_step_of_a_move_leaves_the_topic_whole(change: Callable[[LogicalQueue], LogicalQueue]):
    """Whichever of the two brokers wrote its record first."""
    topic = merged(a_record("a", change(ZERO), ONE), a_record("b", TWO), a_record("c", change(ZERO)))

    assert topic.is_complete, topic
