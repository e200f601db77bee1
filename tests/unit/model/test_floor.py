"""The arithmetic of floors."""

from holdfast.model.floor import NO_FLOOR, Floor, floor_of, highest_floor
from holdfast.model.mapping import FORCED_GAP, TopicMapping, accept_update, new_logical_queue


def test_a_floor_is_above_everything_that_a_record_knows():
    """The leader knows its end; others know where the newest home began. Expired homes have no holder."""
    moved = new_logical_queue(3, "a", 0).prepare("b", 2).seal(10).open_next()

    assert floor_of(moved) == Floor(offset=10, generation=1, brokers=("a", "b"))
    assert floor_of(moved, 15) == Floor(offset=15, generation=1, brokers=("a", "b"))
    assert floor_of(moved.expire(0, 0), 15).brokers == ("b",)
    assert floor_of(new_logical_queue(3, "a", 0)) == Floor(offset=0, generation=0, brokers=("a",))
    assert floor_of(new_logical_queue(3, "a", 0).prepare("b", 0)).generation == 1


def test_the_highest_of_many_counts_and_only_the_newest_have_holders():
    """Earlier holders need not be asked for ever."""
    old, new = Floor(offset=10, generation=1, brokers=("a", "b")), Floor(offset=7, generation=2, brokers=("c",))

    assert highest_floor([old, new]) == Floor(offset=10, generation=2, brokers=("c",))
    assert highest_floor([]) == highest_floor([NO_FLOOR]) == NO_FLOOR


def test_the_next_home_begins_at_the_floor_or_a_gap_above():
    """A queue that never had a home begins at 0, in the first generation."""
    floor = Floor(offset=10, generation=1)

    assert (floor.next_start(is_certain=True), floor.next_generation(is_certain=True)) == (10, 2)
    assert (floor.next_start(is_certain=False), floor.next_generation(is_certain=False)) == (10 + FORCED_GAP, 3)
    assert (NO_FLOOR.next_start(is_certain=True), NO_FLOOR.next_generation(is_certain=True)) == (0, 0)


def test_a_record_keeps_floors_whatever_a_tool_tells():
    """Nor does a lower one replace a higher one."""
    record = TopicMapping(topic="t", broker="a", epoch=5, total=2, queues={0: new_logical_queue(0, "a", 0)})
    retired = record.forget_queue(0, Floor(offset=10, generation=4, brokers=("a",)))
    told = TopicMapping(topic="t", broker="a", epoch=9, total=2, queues={1: new_logical_queue(1, "a", 1)})

    assert retired.queues == {}
    assert accept_update(retired, told).floors == retired.floors
    assert retired.with_queues(new_logical_queue(0, "a", 1)).forget_queue(0, Floor(offset=3)).floors == retired.floors
    assert retired.forget_holders({"a"}).floors == {0: Floor(offset=10, generation=4)}
