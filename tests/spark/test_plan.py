"""How a batch is cut to size and divided among tasks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.bulk.read_options import Range
from holdfast.model.errors import ConfigError
from holdfast.spark.offsets import StreamPosition, begins_of, read_position
from holdfast.spark.plan import SPLIT_ROWS_MIN, admit, divide

COUNTS = st.dictionaries(st.tuples(st.just("t"), st.integers(0, 20).map(str)), st.integers(0, 10**6), min_size=1)
RANGES = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 300_000)), max_size=12).map(
    lambda lengths: [Range("t", str(at), start, start + size) for at, (start, size) in enumerate(lengths)]
)


@given(COUNTS, st.integers(1, 10**6))
def test_a_limit_is_used_up_and_never_exceeded(available: dict[tuple[str, str], int], most: int):
    """In proportion: nobody gets more than there is."""
    taken = admit(available, most)

    assert sum(taken.values()) == min(most, sum(available.values()))
    assert all(0 <= taken[queue] <= count for queue, count in available.items())


def test_a_queue_with_little_is_not_starved_by_one_with_much():
    """Rounding must not leave it out for ever."""
    taken = admit({("t", "0"): 10**9, ("t", "1"): 1}, 10)

    assert taken == {("t", "0"): 9, ("t", "1"): 1}


@given(ranges=RANGES, parts=st.integers(1, 9), is_told=st.booleans(), rows_max=st.none() | st.integers(1000, 10**5))
def test_every_row_is_read_once_and_in_order_within_a_task(
    *, ranges: list[Range], parts: int, is_told: bool, rows_max: int | None
):
    """However it is divided."""
    tasks = divide(ranges, parts, is_requested=is_told, rows_max=rows_max)

    pieces = sorted(piece for task in tasks for piece in task)
    for whole in ranges:
        mine = [piece for piece in pieces if piece.queue == whole.queue]
        bounds = [bound for piece in mine for bound in (piece.start, piece.end)]
        assert bounds == sorted(bounds)
        assert sum(map(len, mine)) == len(whole)
        assert not mine or (bounds[0], bounds[-1]) == (whole.start, whole.end)
        assert all(one == other for one, other in zip(bounds[1:-1:2], bounds[2::2], strict=True))
    assert all(task == sorted(task) for task in tasks)
    if rows_max is None:
        assert len(tasks) <= parts


def test_many_short_queues_share_tasks_and_a_long_one_is_cut():
    """A Python task costs more than reading a few thousand rows."""
    short = [Range("t", str(at), 0, 3_000) for at in range(32)]

    assert [sum(map(len, task)) for task in divide(short, 2)] == [48_000, 48_000]
    assert len(divide([Range("t", "0", 0, 10)], 8)) == 1
    assert [len(task) for task in divide([Range("t", "0", 0, 2 * SPLIT_ROWS_MIN)], 2)] == [1, 1]


def test_as_many_tasks_as_the_user_asks_for():
    """Also when the ranges are short."""
    tasks = divide([Range("t", "0", 0, 100), Range("t", "1", 0, 100)], 5, is_requested=True)

    assert len(tasks) == 5


def test_a_position_is_the_same_after_the_checkpoint():
    """Every number, whatever its size."""
    position = StreamPosition({("t", "0"): 2**60, ("t", "broker-a/1"): 0}, {("t", "0"): 17}, 3, is_initial=True)

    assert read_position(position.to_json()) == position


def test_a_batch_that_is_run_again_begins_where_it_began():
    """What a new query is told to start from may mean something else by then."""
    end = StreamPosition({("t", "0"): 30, ("t", "1"): 9}, begins={("t", "0"): 10})
    later = StreamPosition({("t", "0"): 25, ("t", "1"): 5}, is_initial=True)

    assert begins_of(later, end) == {("t", "0"): 10, ("t", "1"): 5}


@pytest.mark.parametrize("written", [{}, {"v": 2, "q": {}}, {"orders": {"0": 1}}])
def test_a_strangers_checkpoint_is_refused(written: dict[str, object]):
    """It would be read as beginning at nought."""
    with pytest.raises(ConfigError, match="not a position of a holdfast stream"):
        read_position(written)
