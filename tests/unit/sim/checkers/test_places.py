import pytest

from holdfast.model.queue import MessageQueue
from holdfast.sim.checkers.places import Place, Places
from holdfast.sim.world import Violation

QUEUE = MessageQueue("t", "broker-a", 0)
PLACE = Place("broker-a", "t", 0, 5)


def test_the_same_message_may_be_seen_at_its_place_again():
    """Whoever reads it."""
    places = Places()

    places.see(PLACE, "one", 100)
    places.see(PLACE, "one", 100)


@pytest.mark.parametrize("other", [("two", 100), ("one", 200)])
def test_a_place_never_holds_another_message(other: tuple[str, int]):
    """Nor the same one from elsewhere in the log: that is a second copy under a used offset."""
    places = Places()
    places.see(PLACE, "one", 100)

    with pytest.raises(Violation, match="never used twice"):
        places.see(PLACE, *other)


def test_what_is_forgiven_may_change():
    """But only behind the position up to which the log was synced."""
    places = Places()
    places.see(PLACE, "one", 100)
    places.see(Place("broker-a", "t", 0, 6), "two", 200)

    places.forgive("broker-a", 150)

    places.see(Place("broker-a", "t", 0, 6), "three", 200)
    with pytest.raises(Violation):
        places.see(PLACE, "four", 100)


def test_a_row_without_holes_has_no_empty_offsets():
    """From the offset that was asked for to the one that follows."""
    places = Places()

    assert places.see_row(QUEUE, 3, [(3, "a", 0), (4, "b", 9)], 5) == []


@pytest.mark.parametrize(("row", "end"), [([(4, "b", 9)], 5), ([(3, "a", 0)], 5), ([(3, "a", 0), (3, "a", 0)], 4)])
def test_a_hole_or_a_repetition_in_a_row_is_a_violation(row: list[tuple[int, str, int]], end: int):
    """In a log that never lost power."""
    with pytest.raises(Violation, match="contiguous"):
        Places().see_row(QUEUE, 3, row, end)


def test_a_broker_that_lost_power_may_have_holes_that_stay_holes():
    """What was promised to nobody may be gone, but its offset is never given to another."""
    places = Places()
    places.holed.add("broker-a")

    assert places.see_row(QUEUE, 3, [(5, "c", 20)], 6) == [3, 4]

    with pytest.raises(Violation, match="never used twice"):
        places.see_row(QUEUE, 3, [(3, "a", 30), (4, "b", 40), (5, "c", 20)], 6)
