"""Ranges cover what is settled, once; tasks are as large as the number of cores wants it."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.pipeline.scan.log_ranges import RANGE_SIZE, RANGE_SIZE_MIN, choose_size, group_ranges, split_log
from holdfast.pipeline.scan.store_folder import StoreFolder


def a_folder(files: int, settled: int, *, first: int = 0, file_size: int = 1000) -> StoreFolder:
    starts = tuple(number * file_size for number in range(first, first + files))
    return StoreFolder(root="", broker="", file_size=file_size, log_files=starts, settled=settled)


@given(files=st.integers(1, 5), first=st.integers(0, 3), used=st.integers(0, 5000), size=st.integers(1, 3000))
def test_ranges_meet_and_lie_in_one_file_each(files: int, first: int, used: int, size: int):
    """The first of a file is known to begin with a record; none is larger than was wanted."""
    settled = first * 1000 + min(used, files * 1000)

    ranges = split_log(a_folder(files, settled, first=first), 7, size=size)

    ends = [first * 1000, *(each.end for each in ranges)]
    assert [each.start for each in ranges] == ends[:-1]
    assert ends[-1] == settled
    for each in ranges:
        assert each.store == 7
        assert each.start // 1000 == (each.end - 1) // 1000
        assert 0 < each.end - each.start <= size
        assert each.is_known == (each.start % 1000 == 0)


def test_a_log_goes_on_where_it_was_left():
    """There a record begins; ranges stay where they would have been."""
    ranges = split_log(a_folder(2, 1500), 0, 650, size=300)

    assert [(each.start, each.end, each.is_known) for each in ranges] == [
        (650, 900, True),
        (900, 1000, False),
        (1000, 1300, True),
        (1300, 1500, False),
    ]


@given(sizes=st.lists(st.integers(1, 10), max_size=12), size=st.integers(1, 30))
def test_small_neighbours_share_a_task(sizes: list[int], size: int):
    """In order, none is left out, and a task is no larger than one large range."""
    ranges = [split_log(a_folder(1, length, file_size=10), number // 3)[0] for number, length in enumerate(sizes)]

    tasks = group_ranges(ranges, size=size)

    assert [each for task in tasks for each in task] == ranges
    for task in tasks:
        assert len({each.store for each in task}) == 1
        assert len(task) == 1 or sum(each.end - each.start for each in task) <= size


def test_every_core_has_something_to_do():
    """As long as that pays."""
    large = a_folder(4, 4 << 30, file_size=1 << 30)

    assert choose_size([large], 2) == RANGE_SIZE
    assert choose_size([large], 64) == 32 << 20
    assert choose_size([large], 1000) == RANGE_SIZE_MIN
    assert choose_size([], 2) == RANGE_SIZE_MIN
