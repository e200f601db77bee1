"""Ranges of the log that were found good."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.store.log import verified_ranges
from holdfast.store.log.verified_ranges import VerifiedRanges

TAIL = 50


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12))
@settings(deadline=None)
def test_ranges_are_a_set_of_positions(ranges: list[tuple[int, int]]):
    """Against the plainest twin: a set of all positions."""
    known = VerifiedRanges(TAIL)
    twin = set(range(TAIL, 100))
    for start, end in ranges:
        known.add(start, end)
        twin |= set(range(start, end))

    for position in range(70):
        end = known.find_end(position)
        assert (end is not None) == (position in twin)
        if end is not None and position < known.tail_start:
            assert set(range(position, end)) <= twin
            assert end not in twin or end == known.tail_start


def test_a_range_that_reaches_the_tail_joins_it():
    """From then on nothing needs to be looked up."""
    known = VerifiedRanges(TAIL)
    known.add(10, 20)
    known.add(20, 60)

    assert known.tail_start == 10


def test_the_oldest_ranges_are_forgotten_when_there_are_too_many():
    """They are merely checked again."""
    known = VerifiedRanges(1 << 30)
    for number in range(verified_ranges.RANGES_MAX + 5):
        known.add(number * 10, number * 10 + 1)

    assert known.find_end(0) is None
    assert known.find_end(50) == 51
