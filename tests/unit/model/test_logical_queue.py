"""Moving a logical queue from home to home, and reading across its homes."""

from collections.abc import Callable

import pytest
from tests.support.static_topics import prepare_again

from holdfast.model.errors import MappingRefused
from holdfast.model.logical_queue import FORCED_GAP, LogicalQueue, new_logical_queue
from holdfast.model.mapping import check_queue
from holdfast.model.segment import Segment, Status


def moved(*ends: int) -> LogicalQueue:
    """Return a queue that lived on a, b, c and so on, each for as many records as *ends* say; the last is open."""
    queue = new_logical_queue(0, "a", 0)
    for broker, end in zip("bcdef", ends, strict=False):
        queue = queue.prepare(broker, 0).seal(end).open_next()
    return queue


def upstream(*homes: tuple[str, int | None]) -> LogicalQueue:
    """Return a queue as upstream's tools leave it: (broker, first offset), no ends."""
    return LogicalQueue(
        0,
        tuple(
            Segment(generation=number, broker=broker, queue_id=number, first=first)
            for number, (broker, first) in enumerate(homes)
        ),
    )


def spans(queue: LogicalQueue) -> list[tuple[str, int, int | None]]:
    return [(segment.broker, segment.first, segment.logical_end) for segment in queue.segments]


# A move.


def test_a_move_leaves_no_hole():
    """The next home begins exactly where the last one was sealed."""
    queue = new_logical_queue(0, "a", 3).prepare("b", 1)
    assert (queue.leader.broker, queue.leader.is_open) == ("a", True)

    queue = queue.seal(50, last_ms=7)
    assert (queue.leader.broker, queue.leader.is_open, queue.leader.last_ms) == ("a", False, 7)

    queue = queue.open_next(first_ms=9)
    assert spans(queue) == [("a", 0, 50), ("b", 50, None)]
    assert (queue.leader.physical_queue, queue.leader.start, queue.leader.first_ms, queue.generation) == (
        ("b", 1),
        0,
        9,
        1,
    )
    assert queue.prepared is None


def test_an_existing_physical_queue_becomes_a_logical_one_with_its_offsets():
    """What consumers committed stays true."""
    assert new_logical_queue(4, "a", 2, start=17).leader.to_logical(20) == 20


def test_an_empty_home_is_replaced():
    """Upstream refuses two homes with one first offset; its physical queue is free to be used again."""
    queue = moved(10).prepare("c", 0).seal(0).open_next()

    assert [(segment.broker, segment.first) for segment in queue.readable] == [("a", 0), ("c", 10)]
    assert queue.reusable_queue_id("b") == 0
    assert queue.logical_min() == 0


def test_steps_can_be_repeated():
    """Whoever restarts may do again what was done."""
    prepared = new_logical_queue(0, "a", 0).prepare("b", 0)
    sealed = prepared.seal(5)

    assert prepared.prepare("b", 0) == prepared
    assert sealed.seal(5) == sealed


@pytest.mark.parametrize("steps", [1, 2])
def test_a_move_can_be_rolled_back(steps: int):
    """Before the next home opens; the leader goes on taking writes."""
    before = moved(10)
    queue = before.prepare("c", 0)

    assert (queue if steps == 1 else queue.seal(4, 5)).rollback() == before


def test_rolling_back_keeps_an_expired_queue_for_the_next_time():
    """It was going to be used again, and was not."""
    before = moved(10).expire(0, 0)

    assert prepare_again(before, "a").seal(4).rollback() == before


def test_a_burnt_generation_is_passed_over():
    """So that a home which was prepared and forgotten can never be mistaken for another."""
    assert new_logical_queue(0, "a", 0).prepare("b", 0, generation=5).seal(1).open_next().generation == 5


def refusals() -> list[tuple[str, Callable[[], LogicalQueue]]]:
    open_queue, prepared = moved(10), moved(10).prepare("c", 0)
    forced = moved(10).force("c", 0)
    return [
        ("one move at a time", lambda: prepared.prepare("d", 0)),
        ("one move at a time", lambda: prepared.prepare("c", 0, generation=9)),
        ("rising generations", lambda: open_queue.prepare("c", 0, generation=1)),
        ("one queue, one segment", lambda: open_queue.prepare("a", 0)),
        ("move elsewhere", lambda: open_queue.prepare("b", 5)),
        ("open leader", lambda: open_queue.seal(3).prepare("c", 0)),
        ("seal once", lambda: prepared.seal(3).seal(4)),
        (
            "ends fit",
            lambda: LogicalQueue(0, (Segment(generation=0, broker="a", queue_id=0, first=9, start=9),)).seal(8),
        ),
        ("prepare first", lambda: open_queue.seal(3).open_next()),
        ("prepare first", open_queue.open_next),
        ("seal first", prepared.open_next),
        ("nothing to roll back", open_queue.rollback),
        ("nothing to roll back to", upstream(("a", None)).rollback),
        ("move elsewhere", lambda: open_queue.force("b", 7)),
        ("one queue, one segment", lambda: open_queue.force("a", 0)),
        ("known ends", lambda: open_queue.fix_end(3)),
        ("known ends", lambda: open_queue.fix_end(3, generation=1)),
        ("ends stay", lambda: forced.fix_end(3).fix_end(4, generation=1)),
        ("ends fit", lambda: forced.fix_end(FORCED_GAP + 1)),
        ("ends fit", lambda: forced.fix_end(-2)),
        ("ends fit", lambda: open_queue.shorten(3, generation=0)),
        ("ends fit", lambda: open_queue.shorten(3, generation=1)),
        ("ends fit", lambda: open_queue.shorten(3, generation=7)),
        ("ends fit", lambda: prepared.seal(3).shorten(3, generation=1)),
        ("ends fit", lambda: prepared.seal(3).shorten(-1, generation=1)),
        ("known ends", open_queue.abandon),
        ("known ends", lambda: forced.abandon().abandon()),
        ("expire existing segments", lambda: open_queue.expire(0, 1)),
        ("expire existing segments", lambda: open_queue.expire(7, 0)),
        ("leaders stay", lambda: open_queue.expire(1, 0)),
        ("leaders stay", lambda: prepared.seal(3).expire(1, 0)),
        ("known ends", lambda: forced.expire(1, 0)),
        ("records first", lambda: open_queue.prune({"a"})),
    ]


@pytest.mark.parametrize(("rule", "ask"), refusals())
def test_what_would_break_a_rule_is_refused_by_its_name(rule: str, ask: Callable[[], LogicalQueue]):
    """And the sentence names the queue."""
    with pytest.raises(MappingRefused, match="logical queue 0 ") as refused:
        ask()

    assert refused.value.rule == rule


# Upstream's own moves.


def test_a_java_leader_is_left_behind_with_a_hole():
    """It cannot tell its end; the offset is upstream's, rounded up."""
    queue = upstream(("a", 0), ("b", 10_000))

    assert spans(queue) == [("a", 0, None), ("b", 10_000, None)]
    assert [queue.status_of(segment) for segment in queue.segments] == [Status.READ_ONLY, Status.NORMAL]


def test_reading_finds_the_home_as_upstream_does():
    """The worked example: two homes with a hole, of which the first is cleaned later."""
    queue = upstream(("b1", 0), ("b2", 10_000))

    def where(offset: int) -> tuple[str, int]:
        segment = queue.locate(offset)
        assert segment is not None
        return segment.broker, segment.to_physical(offset)

    assert where(95) == ("b1", 95)
    assert where(100) == ("b1", 100)
    assert where(5000) == ("b1", 5000)
    assert where(10_000) == ("b2", 0)
    assert where(10_010) == ("b2", 10)
    assert queue.segment_after(queue.segments[0]) == queue.segments[1]
    assert queue.segments[1].delta == 10_000

    queue = queue.expire(0, 0)
    assert where(50) == ("b2", -9950), "the oldest answers with true bounds"
    assert queue.minimum == 10_000


def test_undecided_homes_are_not_read():
    """Their records have no place yet; an offset older than all lands on the oldest decided one."""
    queue = upstream(("a", 0), ("b", None))

    assert queue.locate(10**9) == queue.segments[0]
    assert queue.segment_after(queue.segments[0]) is None
    assert queue.segment_after(queue.segments[0], must_be_decided=False) == queue.segments[1]
    assert (queue.leader.broker, queue.prepared) == ("a", queue.segments[1])


def test_a_queue_of_which_nothing_is_decided_can_be_held():
    """A Java broker tells where a queue is, not since when."""
    queue = upstream(("a", None))

    assert queue.leader.broker == "a"
    assert (queue.locate(0), queue.minimum, queue.logical_min()) == (None, None, None)
    assert queue.force("b", 0).leader.first == FORCED_GAP


# A dead leader.


def test_a_forced_move_opens_behind_a_gap():
    """Wide enough that the old leader can go on without using an offset twice; its end is unknown."""
    queue = moved(10).force("c", 2, known_end=25)

    assert spans(queue) == [("a", 0, 10), ("b", 10, None), ("c", 25 + FORCED_GAP, None)]
    assert queue.unresolved == queue.segments[1]
    assert [queue.status_of(segment) for segment in queue.segments] == [
        Status.READ_ONLY,
        Status.READ_ONLY,
        Status.NORMAL,
    ]


def test_what_is_known_of_the_end_counts():
    """The mapping, or what was seen, whichever is higher."""
    assert moved(10).force("c", 0).leader.first == 10 + FORCED_GAP
    assert moved(10).force("c", 0, known_end=3).leader.first == 10 + FORCED_GAP
    assert moved(10).seal(5).force("c", 0).leader.first == 15 + FORCED_GAP


def test_a_home_that_may_have_been_opened_keeps_its_place():
    """The old leader sealed, perhaps granted, and nobody knows what the new one did since."""
    queue = moved(10).prepare("c", 0).seal(5).force("d", 0)

    assert spans(queue) == [("a", 0, 10), ("b", 10, 15), ("c", 15, None), ("d", 15 + FORCED_GAP, None)]
    assert queue.unresolved == queue.segments[2]
    assert queue.generation == 4


def test_a_prepared_home_that_takes_the_forced_move_was_not_opened():
    """It is there to say so; its generation is burnt all the same."""
    queue = moved(10).prepare("c", 0).seal(5).force("c", 0)

    assert spans(queue) == [("a", 0, 10), ("b", 10, 15), ("c", 15 + FORCED_GAP, None)]
    assert queue.generation == 4


def test_a_move_that_nobody_had_heard_of_has_a_generation_of_its_own():
    """Whoever forced went by an older record. What was opened meanwhile has its place in the gap."""
    old = moved(10)
    unheard = old.prepare("c", 0).seal(5).open_next()

    forced = old.force("d", 0)

    assert forced.generation > unheard.generation
    assert spans(forced.reconcile(unheard)) == [
        ("a", 0, 10),
        ("b", 10, 15),
        ("c", 15, None),
        ("d", 10 + FORCED_GAP, None),
    ]


def test_a_returned_leader_tells_its_end():
    """What it had acknowledged is read in its place."""
    queue = moved(10).force("c", 0).fix_end(7, last_ms=3)

    assert spans(queue)[1] == ("b", 10, 17)
    assert queue.unresolved is None
    assert queue.fix_end(7, generation=1) == queue
    assert queue.logical_min() == 0, "a gap without records loses nothing"


@pytest.mark.parametrize("end", [2, 0])
def test_an_end_that_nobody_heard_of_can_be_taken_back(end: int):
    """The next home begins there, or far above it; when nothing is left, nothing was stored last."""
    sealed = moved(10).prepare("c", 0).seal(3, last_ms=7).shorten(end, generation=1)
    forced = moved(10).force("c", 0).fix_end(3, last_ms=7).shorten(end, generation=1)

    assert (sealed.leader.logical_end, sealed.leader.last_ms) == (10 + end, 7 if end else None)
    assert sealed.open_next().leader.first == 10 + end
    assert (spans(forced)[1], forced.leader.first) == (("b", 10, 10 + end), 10 + FORCED_GAP)


def test_an_abandoned_segment_ends_where_it_is_known_to():
    """Readers wait no longer; without knowledge all of it is given up."""
    forced = moved(10).force("c", 0)

    assert spans(forced.abandon(known_end=14))[1] == ("b", 10, 14)
    assert spans(forced.abandon())[1] == ("b", 10, 10)
    assert spans(forced.abandon(known_end=4))[1] == ("b", 10, 10)


def test_a_java_end_found_later_leaves_its_hole_a_hole():
    """Its records stay within reach."""
    queue = upstream(("a", 0), ("b", 10_000)).fix_end(60, generation=0)

    assert spans(queue)[0] == ("a", 0, 60)
    assert queue.logical_min() == 0


def test_what_a_returned_broker_knows_fills_the_gap():
    """Ends, and homes that were opened while nobody here knew."""
    known = moved(10).prepare("c", 0)
    forced = known.force("d", 0)
    witness = known.seal(5).open_next().seal(3)

    queue = forced.reconcile(witness)

    assert spans(queue) == [("a", 0, 10), ("b", 10, 15), ("c", 15, 18), ("d", 10 + FORCED_GAP, None)]
    assert queue.unresolved is None
    assert queue.reconcile(witness) == queue


def test_a_home_that_is_expired_where_it_was_still_has_an_end():
    """It held nothing, or is read no more; others wait for its end all the same. It is not put into a gap."""
    known = moved(10).prepare("c", 0)
    witness = known.seal(0).open_next().expire(1, 0)

    queue = known.force("d", 0).reconcile(witness)

    assert spans(queue)[1] == ("b", 10, 10)
    assert queue.unresolved is None
    assert len(known.force("d", 0).reconcile(witness.prepare("e", 0).seal(0).open_next().expire(2, 0)).segments) == 3


def test_a_witness_cannot_change_what_is_known():
    """Nor put a home where there is no gap, or above the leader."""
    queue, forced = moved(10, 5), moved(10).force("c", 0)
    burnt = new_logical_queue(0, "a", 0).prepare("b", 0, generation=2).seal(10).open_next()
    other = new_logical_queue(0, "x", 9).prepare("y", 9).seal(3).open_next().seal(4)
    inside = LogicalQueue(0, (Segment(generation=1, broker="x", queue_id=9, first=5, end=3),))

    assert queue.reconcile(other) == queue
    assert queue.reconcile(moved(10, 5, 2)) == queue
    assert forced.reconcile(other) == forced
    assert burnt.reconcile(inside) == burnt


# What is left.


def test_expired_homes_leave_what_clients_read():
    """They stay listed, until they are used again."""
    queue = moved(10, 5).expire(0, 0)

    assert [segment.broker for segment in queue.readable] == ["b", "c"]
    assert queue.status_of(queue.segments[0]) is Status.EXPIRED
    assert queue.expire(0, 0) == queue
    assert queue.reusable_queue_id("a") == 0
    assert queue.minimum == 10


def test_an_expired_queue_is_used_again_from_zero():
    """Its old entry goes when the new home opens, not before."""
    queue = prepare_again(moved(10, 5).expire(0, 0), "a")
    assert [segment.broker for segment in queue.segments] == ["a", "b", "c", "a"]

    queue = queue.seal(3).open_next()
    assert spans(queue) == [("b", 10, 15), ("c", 15, 18), ("a", 18, None)]
    assert queue.leader.physical_queue == ("a", 0)
    assert queue.leader.to_physical(18) == 0


def test_the_minimum_is_where_the_last_loss_ends():
    """What is older than a loss cannot be reached from there, though it is still on its disk."""
    queue = moved(10, 5, 4)

    assert queue.logical_min() == 0
    assert queue.logical_min({0: 3}) == 3
    assert queue.logical_min({0: 10}) == 10
    assert queue.logical_min({1: 2}) == 12
    assert queue.logical_min({3: 6}) == 25
    assert queue.expire(0, 0).logical_min() == 10
    assert queue.expire(1, 0).logical_min() == 15


def test_a_loss_before_an_empty_expired_segment_is_remembered_after_it():
    """An empty expired segment does not show where its neighbours met, so its own mark is not enough."""
    queue = moved(5, 5, 0).expire(1, 0).expire(2, 0)

    queue = prepare_again(queue, "b").seal(2).open_next()

    check_queue(queue, exact=True)
    assert queue.logical_min() == 10


def test_a_broker_recalls_a_loss_before_its_empty_expired_segment():
    """The same holds when a broker keeps only its own segments and the leader."""
    queue = moved(5).prepare("a", 1).seal(5).open_next().prepare("c", 0).seal(0).open_next().expire(2, 1)

    recalled = queue.reduce_to("a")

    assert [segment.broker for segment in recalled.segments] == ["a", "a", "c"]
    check_queue(recalled, exact=True)


@pytest.mark.parametrize("dropped_by", ["reuse", "prune"])
def test_a_loss_is_remembered_when_its_home_is_no_longer_listed(dropped_by: str):
    """By the home that follows."""
    queue = moved(10, 5, 4).expire(1, 0)

    queue = prepare_again(queue, "b").seal(2).open_next() if dropped_by == "reuse" else queue.prune({"b"})

    assert [segment.broker for segment in queue.segments][:2] == ["a", "c"]
    assert queue.logical_min() == 15


def test_rows_say_what_cannot_be_said_in_numbers():
    """A prepared home, an unknown end, an empty one."""
    queue = moved(10).force("c", 0).prepare("d", 1)
    labels = [row.label for row in queue.rows()]

    assert labels == ["0(0-9)", "0(10-?)", f"0({10 + FORCED_GAP}-)", "0(prepared)"]
    assert [row.label for row in moved(3).seal(0).rows()] == ["0(0-2)", "0(empty)"]
    assert [row.label for row in upstream(("a", 0), ("b", 10_000)).rows()] == ["0(0-?)", "0(10000-)"]


# Gaps.


@pytest.mark.parametrize(
    ("is_known", "skips", "ranges"),
    [
        (True, False, [(10, 60), (50 + FORCED_GAP, 70 + FORCED_GAP)]),
        (False, False, []),
        (False, True, [(50 + FORCED_GAP, 70 + FORCED_GAP)]),
    ],
)
def test_reading_stops_before_an_unknown_end(*, is_known: bool, skips: bool, ranges: list[tuple[int, int]]):
    """The dead broker may return with more records; a reader that does not want to wait says so."""
    forced = new_logical_queue(0, "a", 0).force("b", 0, known_end=50)
    queue = forced.fix_end(60) if is_known else forced
    opened, end = 50 + FORCED_GAP, 70 + FORCED_GAP

    assert queue.readable_ranges(10, end, skips_unknown=skips) == ranges
    assert queue.find_unknown_end(10, end) == (None if is_known else queue.segments[0])
    assert queue.readable_ranges(opened + 5, end, skips_unknown=skips) == [(opened + 5, end)]
    assert queue.find_unknown_end(opened + 5, end) is None


def test_removed_offsets_are_left_to_the_reader():
    """Retention removed the oldest segment: the reader decides whether its records are lost."""
    queue = moved(10, 20).expire(0, 0)

    assert queue.readable_ranges(4, 35) == [(4, 10), (10, 30), (30, 35)]
    assert queue.readable_ranges(2, 8) == [(2, 8)]
    assert queue.readable_ranges(40, 40) == []


# Lag, and what old homes remember.


def test_only_offsets_that_can_hold_a_record_count_as_lag():
    """Neither a gap that a forced move left, nor what expired; of an unknown end nobody knows."""
    queue = moved(10).force("c", 0)
    opened = queue.leader.first

    assert queue.count_usable_offsets(4, opened + 3) == 6 + 3
    known = queue.fix_end(7)
    assert known.count_usable_offsets(4, opened + 3) == 6 + 7 + 3
    assert known.count_usable_offsets(12, opened + 3) == 5 + 3
    assert known.expire(0, 0).count_usable_offsets(4, opened + 3) == 7 + 3
    assert known.count_usable_offsets(opened + 3, opened + 3) == 0


def test_a_hole_of_upstreams_tools_is_read_up_to_the_next_home():
    """Nobody recorded the end: everything before the next home may be there."""
    assert upstream(("a", 0), ("b", 1_000)).count_usable_offsets(10, 1_005) == 995


def test_an_old_home_recalls_its_own_places_and_the_leader():
    """What is between is cut off, and the rules hold all the same."""
    queue = moved(10, 5, 3, 2).expire(1, 0)

    recalled = queue.reduce_to("b")

    assert [(home.broker, home.is_detached) for home in recalled.segments] == [("b", False), ("e", True)]
    check_queue(recalled, exact=True)
