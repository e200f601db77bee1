import pytest

from holdfast.model.queue import MessageQueue
from holdfast.sim.checkers.offset_identity import NARROW, Place, Places, Spot
from holdfast.sim.world.world import Violation

QUEUE = MessageQueue("t", "broker-a", 0)
PLACE = Place("broker-a", "t", 0, 5)
LOGICAL = MessageQueue("t", "logic", 0)


def at(position: int) -> Spot:
    """Return a place in the log of the broker."""
    return Spot("a:1", position)


def test_the_same_message_may_be_seen_at_its_place_again():
    """Whoever reads it."""
    places = Places()

    places.see(PLACE, "one", at(100))
    places.see(PLACE, "one", at(100))

    with pytest.raises(Violation, match="was one at"):
        places.see(PLACE, "two", at(100))


@pytest.mark.parametrize("other", [("two", at(100)), ("one", at(200)), ("one", Spot("b:1", 100))])
def test_a_place_never_holds_another_message(other: tuple[str, Spot]):
    """Nor the same one from elsewhere in the log: that is a second copy under a used offset."""
    places = Places()
    places.see(PLACE, "one", at(100))

    with pytest.raises(Violation, match="never used twice"):
        places.see(PLACE, *other)


def test_what_is_forgiven_may_change():
    """But only behind the position up to which the log was synced."""
    places = Places()
    places.see(PLACE, "one", at(100))
    places.see(Place("broker-a", "t", 0, 6), "two", at(200))

    places.forgive("a:1", 150, 1_000)

    places.see(Place("broker-a", "t", 0, 6), "three", at(200))
    with pytest.raises(Violation):
        places.see(PLACE, "four", at(100))


@pytest.mark.parametrize("asked_ms", [0, 1_000])
def test_what_was_said_before_a_power_cut_may_be_heard_after_it(asked_ms: int):
    """Another broker passes the answer on. It says nothing of what is there now, and contradicts nothing."""
    places = Places()
    places.forgive("a:1", 150, 1_000)

    places.see(PLACE, "one", at(200), asked_ms=asked_ms)
    places.see_row(QUEUE, 5, [(5, "one", at(200))], 6, asked_ms=asked_ms)
    places.see(PLACE, "two", at(180), asked_ms=1_001)
    places.see(PLACE, "one", at(200), asked_ms=asked_ms)

    with pytest.raises(Violation):
        places.see(PLACE, "one", at(200), asked_ms=1_001)


@pytest.mark.parametrize("spot", [at(149), Spot("b:1", 200)])
def test_what_the_power_cut_could_not_take_is_heard_whenever_it_was_asked_for(spot: Spot):
    """Before the last sync, or in another log."""
    places = Places()
    places.forgive("a:1", 150, 1_000)

    places.see(PLACE, "one", spot, asked_ms=0)

    with pytest.raises(Violation):
        places.see(PLACE, "two", at(200))


def test_a_row_without_holes_has_no_empty_offsets():
    """From the offset that was asked for to the one that follows."""
    places = Places()

    assert places.see_row(QUEUE, 3, [(3, "a", at(0)), (4, "b", at(9))], 5) == []


@pytest.mark.parametrize(
    ("row", "end"), [([(4, "b", at(9))], 5), ([(3, "a", at(0))], 5), ([(3, "a", at(0)), (3, "a", at(0))], 4)]
)
def test_a_hole_or_a_repetition_in_a_row_is_a_violation(row: list[tuple[int, str, Spot]], end: int):
    """In a log that never lost power."""
    with pytest.raises(Violation, match="contiguous"):
        Places().see_row(QUEUE, 3, row, end)


def test_a_broker_that_lost_power_may_have_holes_that_stay_holes():
    """What was promised to nobody may be gone, but its offset is never given to another."""
    places = Places()
    places.holed.add("broker-a")

    assert places.see_row(QUEUE, 3, [(5, "c", at(20))], 6) == [range(3, 5)]

    with pytest.raises(Violation, match="never used twice"):
        places.see_row(QUEUE, 3, [(3, "a", at(30)), (4, "b", at(40)), (5, "c", at(20))], 6)


@pytest.mark.parametrize("queue", [QUEUE, LOGICAL])
def test_what_is_empty_stays_empty_whatever_is_forgiven(queue: MessageQueue):
    """A start that finds a hole has synced what is behind it."""
    places = Places()
    places.logical, places.find_holes = frozenset({"logic"}), lambda _queue, _start, _end: True
    places.holed.add("broker-a")
    places.see_row(queue, 3, [(4, "b", at(20))], 5)

    places.forgive("a:1", 0, 1_000)

    with pytest.raises(Violation, match="never used twice"):
        places.see_row(queue, 3, [(3, "a", at(30))], 4)


def test_the_offsets_of_a_logical_queue_are_judged_by_who_knows_its_segments():
    """Which broker lost power says nothing: the queue may have been elsewhere."""
    places = Places()
    places.logical = frozenset({"logic"})
    places.holed.add("logic")

    with pytest.raises(Violation, match="contiguous"):
        places.see_row(LOGICAL, 3, (), 5)

    places.find_holes = lambda queue, start, end: (queue, start, end) == (LOGICAL, 3, 5)
    assert places.see_row(LOGICAL, 3, (), 5) == [range(3, 5)]


def test_the_gap_of_a_forced_move_is_not_counted_offset_by_offset():
    """There are more than anybody could."""
    places = Places()
    places.logical = frozenset({"logic"})
    places.find_holes = lambda _queue, _start, _end: True

    assert places.see_row(LOGICAL, 3, (), 1 << 40) == [range(3, 1 << 40)]
    assert NARROW < 1 << 40
