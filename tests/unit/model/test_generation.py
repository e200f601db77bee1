"""Generations of segments, of which some are unknown."""

import pytest

from holdfast.model.generation import generation_order, is_newer, newest_generation, next_generation


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
