import pytest

from holdfast.model.queue import MessageQueue
from holdfast.sim.checkers.offset_identity import LISTED_RANGE_MAX, LogPosition, OffsetIdentityChecker, QueueOffset
from holdfast.sim.world.world import Violation

QUEUE = MessageQueue("t", "broker-a", 0)
PLACE = QueueOffset("broker-a", "t", 0, 5)
LOGICAL = MessageQueue("t", "logic", 0)


def at(position: int) -> LogPosition:
    """Return a place in the log of the broker."""
    return LogPosition("a:1", position)


def test_the_same_message_may_be_seen_at_its_place_again():
    """Whoever reads it."""
    places = OffsetIdentityChecker()

    places.record(PLACE, "one", at(100))
    places.record(PLACE, "one", at(100))

    with pytest.raises(Violation, match="was one at"):
        places.record(PLACE, "two", at(100))


@pytest.mark.parametrize("other", [("two", at(100)), ("one", at(200)), ("one", LogPosition("b:1", 100))])
def test_a_place_never_holds_another_message(other: tuple[str, LogPosition]):
    """Nor the same one from elsewhere in the log: that is a second copy under a used offset."""
    places = OffsetIdentityChecker()
    places.record(PLACE, "one", at(100))

    with pytest.raises(Violation, match="never used twice"):
        places.record(PLACE, *other)


def test_what_is_forgiven_may_change():
    """But only behind the position up to which the log was synced."""
    places = OffsetIdentityChecker()
    places.record(PLACE, "one", at(100))
    places.record(QueueOffset("broker-a", "t", 0, 6), "two", at(200))

    places.allow_loss("a:1", 150, 1_000)

    places.record(QueueOffset("broker-a", "t", 0, 6), "three", at(200))
    with pytest.raises(Violation):
        places.record(PLACE, "four", at(100))


@pytest.mark.parametrize("asked_ms", [0, 1_000])
def test_what_was_said_before_a_power_cut_may_be_heard_after_it(asked_ms: int):
    """Another broker passes the answer on. It says nothing of what is there now, and contradicts nothing."""
    places = OffsetIdentityChecker()
    places.allow_loss("a:1", 150, 1_000)

    places.record(PLACE, "one", at(200), requested_ms=asked_ms)
    places.record_answer(QUEUE, 5, [(5, "one", at(200))], 6, requested_ms=asked_ms)
    places.record(PLACE, "two", at(180), requested_ms=1_001)
    places.record(PLACE, "one", at(200), requested_ms=asked_ms)

    with pytest.raises(Violation):
        places.record(PLACE, "one", at(200), requested_ms=1_001)


@pytest.mark.parametrize("spot", [at(149), LogPosition("b:1", 200)])
def test_what_the_power_cut_could_not_take_is_heard_whenever_it_was_asked_for(spot: LogPosition):
    """Before the last sync, or in another log."""
    places = OffsetIdentityChecker()
    places.allow_loss("a:1", 150, 1_000)

    places.record(PLACE, "one", spot, requested_ms=0)

    with pytest.raises(Violation):
        places.record(PLACE, "two", at(200))


def test_a_row_without_holes_has_no_empty_offsets():
    """From the offset that was asked for to the one that follows."""
    places = OffsetIdentityChecker()

    assert places.record_answer(QUEUE, 3, [(3, "a", at(0)), (4, "b", at(9))], 5) == []


@pytest.mark.parametrize(
    ("row", "end"), [([(4, "b", at(9))], 5), ([(3, "a", at(0))], 5), ([(3, "a", at(0)), (3, "a", at(0))], 4)]
)
def test_a_hole_or_a_repetition_in_a_row_is_a_violation(row: list[tuple[int, str, LogPosition]], end: int):
    """In a log that never lost power."""
    with pytest.raises(Violation, match="contiguous"):
        OffsetIdentityChecker().record_answer(QUEUE, 3, row, end)


def test_a_broker_that_lost_power_may_have_holes_that_stay_holes():
    """What was promised to nobody may be gone, but its offset is never given to another."""
    places = OffsetIdentityChecker()
    places.power_lost.add("broker-a")

    assert places.record_answer(QUEUE, 3, [(5, "c", at(20))], 6) == [range(3, 5)]

    with pytest.raises(Violation, match="never used twice"):
        places.record_answer(QUEUE, 3, [(3, "a", at(30)), (4, "b", at(40)), (5, "c", at(20))], 6)


@pytest.mark.parametrize("queue", [QUEUE, LOGICAL])
def test_what_is_empty_stays_empty_whatever_is_forgiven(queue: MessageQueue):
    """A start that finds a hole has synced what is behind it."""
    places = OffsetIdentityChecker()
    places.logical, places.may_have_hole = frozenset({"logic"}), lambda _queue, _start, _end: True
    places.power_lost.add("broker-a")
    places.record_answer(queue, 3, [(4, "b", at(20))], 5)

    places.allow_loss("a:1", 0, 1_000)

    with pytest.raises(Violation, match="never used twice"):
        places.record_answer(queue, 3, [(3, "a", at(30))], 4)


def test_the_offsets_of_a_logical_queue_are_judged_by_who_knows_its_segments():
    """Which broker lost power says nothing: the queue may have been elsewhere."""
    places = OffsetIdentityChecker()
    places.logical = frozenset({"logic"})
    places.power_lost.add("logic")

    with pytest.raises(Violation, match="contiguous"):
        places.record_answer(LOGICAL, 3, (), 5)

    places.may_have_hole = lambda queue, start, end: (queue, start, end) == (LOGICAL, 3, 5)
    assert places.record_answer(LOGICAL, 3, (), 5) == [range(3, 5)]


def test_the_gap_of_a_forced_move_is_not_counted_offset_by_offset():
    """There are more than anybody could."""
    places = OffsetIdentityChecker()
    places.logical = frozenset({"logic"})
    places.may_have_hole = lambda _queue, _start, _end: True

    assert places.record_answer(LOGICAL, 3, (), 1 << 40) == [range(3, 1 << 40)]
    assert LISTED_RANGE_MAX < 1 << 40
