"""Which entries a pull gets, beside a twin that looks at one after the other."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.broker.consume.index_scan import (
    Scan,
    begins_with_run,
    choose_any,
    choose_records,
    choose_tagged,
    join_neighbours,
)
from holdfast.store.queues.queue_index import ENTRY
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.frames.frame import FRAME_SIZE_MAX
from holdfast.wire.records.record import RECORD_SIZE_MIN

Entry = tuple[int, int, int]
BLANK = 0x7FFFFFFF


def pack(entries: list[Entry]) -> bytes:
    return b"".join(ENTRY.pack(*entry) for entry in entries)


def slow_choice(entries: list[Entry], offset: int, size_max: int, codes: frozenset[int] | None = None) -> Scan:
    """The same, entry by entry."""
    scan = Scan(ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE", offset, [], [])
    for position, size, tag in entries:
        if RECORD_SIZE_MIN <= size <= FRAME_SIZE_MAX and (codes is None or tag in codes):
            if scan.count and scan.size + size > size_max:
                break
            scan.code, scan.remark = ResponseCode.SUCCESS, "FOUND"
            scan.positions, scan.sizes = [*scan.positions, position], [*scan.sizes, size]
            scan.size += size
            scan.count += 1
        scan.next_offset += 1
    return scan


def find_all(_position: int, size: int) -> memoryview:
    """Everything is in memory."""
    return memoryview(bytes(size))


def find_none(_position: int, _size: int) -> None:
    """Nothing is."""


def bytes_of(scan: Scan) -> list[int]:
    """The addresses of every byte that is chosen, in order."""
    return [
        at for position, size in zip(scan.positions, scan.sizes, strict=True) for at in range(position, position + size)
    ]


sizes = st.integers(RECORD_SIZE_MIN, RECORD_SIZE_MIN + 40)
like_sizes = st.sampled_from([200] * 40 + [RECORD_SIZE_MIN, 200 + (1 << 8), 200 + (1 << 16)])
gaps = st.sampled_from([0, 0, 0, 0, 7, 1000])
blanks = st.sampled_from([False] * 9 + [True])


@st.composite
def entry_lists(draw: st.DrawFn) -> list[Entry]:
    """Entries whose records follow each other, sometimes with others' between them, sometimes blank."""
    entries, position = [], draw(st.integers(0, 1 << 40))
    has_blanks = draw(st.booleans())
    has_gaps = draw(st.booleans())
    for size in draw(st.lists(draw(st.sampled_from([sizes, like_sizes])), min_size=1, max_size=200)):
        is_blank = has_blanks and draw(blanks)
        entries.append((position, BLANK if is_blank else size, draw(st.integers(0, 2))))
        position += size + (draw(gaps) if has_gaps else 0)
    return entries


@given(entry_lists(), st.integers(0, 1 << 40), st.integers(1, 30_000), st.booleans())
def test_the_choice_is_that_of_looking_at_each(
    entries: list[Entry],
    offset: int,
    size_max: int,
    is_hot: bool,  # noqa: FBT001 - hypothesis gives it
) -> None:
    """Neighbours taken as one are the same bytes."""
    found = choose_any(pack(entries), offset, size_max, find_all if is_hot else find_none)
    expected = slow_choice(entries, offset, size_max)

    if any(size == BLANK for _, size, _ in entries):  # Behind an offset without a message another pull may be needed.
        assert bytes_of(expected)[: found.size] == bytes_of(found)
        assert offset < found.next_offset <= expected.next_offset
    else:
        assert (found.code, found.count, found.next_offset) == (expected.code, expected.count, expected.next_offset)
        assert bytes_of(found) == bytes_of(expected)


@given(entry_lists(), st.sets(st.integers(0, 2), min_size=1), st.integers(1, 30_000))
def test_a_filter_lets_only_its_tags_through(entries: list[Entry], codes: set[int], size_max: int) -> None:
    """And the next pull begins behind everything that was looked at."""
    found = choose_tagged(pack(entries), 5, len(entries), size_max, frozenset(codes))
    expected = slow_choice(entries, 5, size_max, frozenset(codes))

    assert bytes_of(found) == bytes_of(expected)
    assert found.next_offset == expected.next_offset


def test_neighbours_are_one_range() -> None:
    """That is what makes a large pull one view of the log."""
    entries = [(1000 + 200 * number, 200, 0) for number in range(100)]

    found = choose_any(pack(entries), 0, 10_000, find_all)

    assert (found.positions, found.sizes, found.count, found.next_offset) == ((1000,), (10_000,), 50, 50)


def test_small_records_behind_large_ones_are_not_left_out() -> None:
    """How many entries are looked at is a guess, and a wrong one is made good."""
    entries = [(number * 9000, 8000 if number < 64 else 200, 0) for number in range(600)]

    found = choose_any(pack(entries), 0, 8000 * 64 + 200 * 500, find_all)

    assert found.count == 564


def test_a_smaller_one_behind_records_of_one_size_is_not_left_out() -> None:
    """Two of 200 leave room for it."""
    entries = [(0, 200, 0), (1000, 200, 0), (2000, RECORD_SIZE_MIN, 0), (3000, 200, 0)]

    found = choose_any(pack(entries), 0, 400 + RECORD_SIZE_MIN, find_all)

    assert (found.count, found.size) == (3, 400 + RECORD_SIZE_MIN)


@given(
    st.lists(st.tuples(st.integers(1, 400), st.sampled_from([0, 1, 200, 5000])), min_size=1, max_size=6),
    st.lists(st.integers(200, 260), min_size=1, max_size=9),
)
def test_runs_are_what_looking_at_each_finds(runs: list[tuple[int, int]], sizes_told: list[int]) -> None:
    """As batches of several producers leave them: few long ones, or many short ones, of one size or of several."""
    entries, position = [], 1000
    for count, gap in runs:
        for size in itertools.islice(itertools.cycle(sizes_told), count):
            entries.append((position, size, 0))
            position += size
        position += gap

    found = choose_any(pack(entries), 7, 200 * 900, find_all)

    expected = slow_choice(entries, 7, 200 * 900)
    assert (found.count, found.size, found.next_offset) == (expected.count, expected.size, expected.next_offset)
    assert join_neighbours(found.positions, found.sizes) == join_neighbours(expected.positions, expected.sizes)


def test_long_runs_of_many_sizes_are_not_looked_at_one_by_one() -> None:
    """They leave as so many views, up to the last that fits."""
    sizes_told = [200 + number % 7 for number in range(600)]
    starts = list(itertools.accumulate(sizes_told, initial=0))
    entries = [(starts[number] + (1000 if number >= 300 else 0), size, 0) for number, size in enumerate(sizes_told)]

    found = choose_any(pack(entries), 0, starts[500] + 199, find_all)

    assert found.positions == (0, starts[300] + 1000)
    assert found.sizes == (starts[300], starts[500] - starts[300])
    assert (found.count, found.size) == (500, starts[500])


@pytest.mark.parametrize("wrong", [5, BLANK])
@pytest.mark.parametrize("place", [0, 2])
def test_what_cannot_be_a_record_is_no_part_of_a_run(wrong: int, place: int) -> None:
    """Though everything lies where it has to be, going by such sizes."""
    sizes_told = [200 + number for number in range(6)]
    sizes_told[place] = wrong
    starts = itertools.accumulate(sizes_told, initial=1000)
    entries = [(start, size, 0) for start, size in zip(starts, sizes_told, strict=False)]

    found = choose_any(pack(entries), 0, 1 << 20, find_all)

    assert all(
        start not in range(position, position + size)
        for start, size_told, _ in entries
        if size_told == wrong
        for position, size in zip(found.positions, found.sizes, strict=True)
    )
    assert found.size == sum(found.sizes) > 0


def test_small_records_behind_large_ones_are_not_left_out_of_a_run() -> None:
    """The guess that was too low is made good there, too."""
    sizes_told = [8000 + number % 2 for number in range(64)] + [200] * 536
    starts = list(itertools.accumulate(sizes_told, initial=0))
    entries = list(zip(starts[:-1], sizes_told, [0] * 600, strict=True))

    found = choose_any(pack(entries), 0, starts[564], find_all)

    assert (found.positions, found.sizes, found.count) == ((0,), (starts[564],), 564)


def test_a_run_before_an_offset_without_a_message_is_one_range() -> None:
    """What comes behind is for the next pull; a blank that comes first is passed over."""
    entries = [(200 * number + number * (number - 1) // 2, 200 + number, 0) for number in range(20)]
    blank = (entries[-1][0] + 219, BLANK, 0)

    before = choose_any(pack([*entries, blank, *entries]), 0, 1 << 20, find_all)
    behind = choose_any(pack([blank, *entries]), 20, 1 << 20, find_all)

    assert (before.positions, before.sizes, before.next_offset) == ((0,), (sum(size for _, size, _ in entries),), 20)
    assert (len(behind.positions), behind.next_offset) == (20, 41)


def test_a_few_long_runs_are_not_unpacked() -> None:
    """They leave as so many views; cold ones as so many records, each of which is checked."""
    entries = [(200 * number + (1000 if number >= 300 else 0), 200, 0) for number in range(500)]

    hot, cold = (choose_any(pack(entries), 0, 1 << 20, find) for find in (find_all, find_none))

    assert (hot.positions, hot.sizes) == ((0, 61_000), (60_000, 40_000))
    assert hot.span is not None
    assert len(hot.span) == 101_000
    assert len(cold.positions) == 500


def test_positions_that_go_back_are_taken_one_by_one() -> None:
    """A damaged index says where records are, but not in which order."""
    entries = [(position + 200 * number, 200, 0) for position in (500_000, 100_000) for number in range(200)]

    found = choose_any(pack(entries), 0, 1 << 20, find_all)

    assert list(found.positions) == [position for position, _, _ in entries]


def test_scattered_records_of_one_size_are_taken_up_to_the_limit() -> None:
    """The last of them is the last that fits."""
    entries = [(1000 * number, 200, 0) for number in range(100)]

    found = choose_any(pack(entries), 7, 10_199, find_all)

    assert (found.count, found.size, found.next_offset) == (50, 10_000, 57)
    assert list(found.positions) == [1000 * number for number in range(50)]


@pytest.mark.parametrize("larger_by", [1, 1 << 8, 1 << 16])
def test_one_record_of_another_size_is_seen_among_many(larger_by: int) -> None:
    """Whichever byte of its size tells."""
    sizes_told = [200] * 10 + [200 + larger_by] + [200] * 10
    entries = [(100_000 * number, size, 0) for number, size in enumerate(sizes_told)]

    found = choose_any(pack(entries), 0, 1 << 20, find_all)

    assert list(found.sizes) == sizes_told


def test_scattered_records_of_many_sizes_are_taken_up_to_the_limit() -> None:
    """Those that were looked at and do not fit are left for the next pull."""
    entries = [(1000 * number, 200 + 100 * (number % 2), 0) for number in range(100)]

    found = choose_any(pack(entries), 7, 999, find_all)

    assert (found.count, found.size, found.next_offset) == (3, 700, 10)
    assert (list(found.positions), list(found.sizes)) == ([0, 1000, 2000], [200, 300, 200])


def test_a_size_that_no_record_has_is_passed_over() -> None:
    """A damaged index may say anything; the records around it are good."""
    entries = [(1000 * number, 5 if number == 2 else 200 + number, 0) for number in range(5)]

    found = choose_any(pack(entries), 0, 1 << 20, find_all)

    assert (list(found.positions), found.next_offset) == ([0, 1000, 3000, 4000], 5)


@given(st.lists(st.tuples(sizes, gaps), min_size=1, max_size=60))
def test_neighbours_are_joined_and_nothing_else(records: list[tuple[int, int]]):
    """The same bytes in the same order, in as few pieces as there are gaps."""
    positions, position = [], 5
    for size, gap in records:
        positions.append(position)
        position += size + gap
    lengths = [size for size, _ in records]

    runs = join_neighbours(positions, lengths)

    scattered = Scan(0, "", 0, positions, lengths)
    assert [at for start, end in runs for at in range(start, end)] == bytes_of(scattered)
    assert len(runs) == 1 + sum(1 for _, gap in records[:-1] if gap)
    assert begins_with_run(positions, lengths) == (len(records) > 1 and records[0][1] == 0)


def test_records_of_many_messages_are_counted_by_their_messages() -> None:
    """Whole records, one at least; what the first holds before the start is not counted."""
    entries = [(1000 * number, 200, 0) for number in range(5)]
    spans = [(20 * number, 20 * number + 20) for number in range(5)]

    def found(offset: int, count: int, size: int = 1 << 20) -> tuple[int, int, int]:
        scan = choose_records(pack(entries), spans, offset, count, size, None)
        assert (scan.code, scan.size) == (ResponseCode.SUCCESS, 200 * len(scan.positions))
        return len(scan.positions), scan.count, scan.next_offset

    assert found(5, 1) == (1, 15, 20)
    assert found(0, 39) == (1, 20, 20)
    assert found(0, 60) == (3, 60, 60)
    assert found(5, 55) == (3, 55, 60)
    assert found(0, 1000, 100) == (1, 20, 20)
    assert found(0, 1000, 400) == (2, 40, 40)
    assert found(0, 1000) == (5, 100, 100)


def test_a_record_without_a_common_tag_may_hold_any() -> None:
    """It passes the filter, and its consumer looks inside. One of a single message may be a batch all the same."""
    entries = [(0, 200, 7), (1000, 200, 8), (2000, 200, 0), (3000, 200, 0), (4000, BLANK, 7), (5000, 200, 8)]
    spans = [(0, 1), (1, 9), (9, 10), (10, 20), (20, 25), (30, 40)]

    scan = choose_records(pack(entries), spans, 0, 100, 1 << 20, frozenset({7}))
    nothing = choose_records(pack(entries[4:]), spans[4:], 22, 100, 1 << 20, frozenset({7}))

    assert (scan.positions, scan.count, scan.next_offset) == ([0, 2000, 3000], 12, 40)
    assert (nothing.code, nothing.next_offset) == (ResponseCode.PULL_RETRY_IMMEDIATELY, 40)
