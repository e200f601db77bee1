"""The arithmetic of one home of a logical queue."""

import msgspec
import pytest

from holdfast.model.errors import MappingRefused
from holdfast.model.segment import (
    Segment,
    Status,
    generation_order,
    is_newer,
    newest_generation,
    next_generation,
)


def a_segment(first: int | None = 100, start: int = 10, end: int | None = None, **more: bool) -> Segment:
    return Segment(generation=1, broker="b", queue_id=3, first=first, start=start, end=end, **more)


def test_offsets_are_moved_by_the_delta():
    """There and back, also outside: the physical queue judges that."""
    segment = a_segment()

    assert segment.delta == 90
    assert [segment.to_logical(physical) for physical in (10, 11, 60)] == [100, 101, 150]
    assert [segment.to_physical(logical) for logical in (50, 100, 150)] == [-40, 10, 60]
    assert segment.to_logical(9) == 100, "what lies before the start counts as the start"


@pytest.mark.parametrize(
    ("first", "end", "physical", "logical"),
    [
        (100, None, 9, 100),
        (100, None, 50, 140),
        (100, 20, 20, 110),
        (100, 20, 21, 110),
        (100, 10, 11, 100),
    ],
)
def test_a_clamped_offset_stays_inside(first: int, end: int | None, physical: int, logical: int):
    """As upstream answers minimums: never beyond a recorded end."""
    segment = a_segment(first=first, end=end)

    assert segment.to_logical(segment.clamp(physical)) == logical


def test_an_undecided_start_never_enters_arithmetic():
    """It is refused, with the way out."""
    segment = a_segment(first=None)

    for ask in (
        lambda: segment.delta,
        lambda: segment.static_max,
        lambda: segment.to_logical(1),
        lambda: segment.to_physical(1),
    ):
        with pytest.raises(MappingRefused, match="finish the move or roll it back") as refused:
            ask()
        assert refused.value.rule == "undecided"
    assert segment.logical_end is None


@pytest.mark.parametrize(
    ("segment", "last", "static_max"),
    [
        (a_segment(), None, 100),
        (a_segment(end=10), 100, 100),
        (a_segment(end=25), 115, 115),
    ],
)
def test_the_logical_end_is_known_when_the_physical_is(segment: Segment, last: int | None, static_max: int):
    """Upstream takes the first offset where no end is recorded; we say None."""
    assert (segment.logical_end, segment.static_max) == (last, static_max)


def test_only_a_decided_segment_without_an_end_is_open():
    """Sealed, forced, expired and undecided ones take no writes."""
    assert a_segment().is_open
    closed = [a_segment(end=10), a_segment(forced=True), a_segment(expired=True), a_segment(first=None)]
    assert not any(segment.is_open for segment in closed)


def test_a_segment_that_ends_where_it_starts_is_empty():
    """An open one may still get records."""
    assert [segment.is_empty for segment in (a_segment(end=12), a_segment(end=10), a_segment())] == [False, True, False]


def test_people_see_the_words_of_the_proposal():
    """Also when printed."""
    assert [str(status) for status in Status] == ["Normal", "ReadOnly", "Expired"]


def test_the_keys_that_commands_print_stay():
    """Scripts read them from `topic describe --json`."""
    printed = msgspec.to_builtins(a_segment(is_detached=True))

    assert list(printed) == [
        "generation", "broker", "queue_id", "first", "start", "end", "first_ms", "last_ms", "expired", "forced", "cut"
    ]  # fmt: skip
    assert printed["cut"] is True


def test_an_unknown_generation_is_older_than_all_others():
    """Even than the first, which is 0."""
    assert sorted([2, None, 0], key=generation_order) == [None, 0, 2]
    assert newest_generation([None, 0]) == 0
    assert newest_generation([0, 3, None]) == 3


def test_the_newest_of_nothing_known_is_unknown():
    assert newest_generation([]) is None
    assert newest_generation([None, None]) is None


@pytest.mark.parametrize(("one", "other"), [(1, 0), (0, None)])
def test_one_of_two_is_newer(one: int, other: int | None):
    assert is_newer(one, other)
    assert not is_newer(other, one)


@pytest.mark.parametrize("generation", [0, 7, None])
def test_none_is_newer_than_itself(generation: int | None):
    """So that a repeated report changes nothing."""
    assert not is_newer(generation, generation)


def test_the_next_generation_counts_from_the_first_if_none_is_known():
    """A forced move skips one."""
    assert next_generation(4) == 5
    assert next_generation(None) == 0
    assert next_generation(4, skipped=1) == 6
    assert next_generation(None, skipped=1) == 1
