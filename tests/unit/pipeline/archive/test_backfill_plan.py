"""Pieces hold every row once, and never cut a queue out of its order."""

from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.pipeline.archive.backfill_plan import BackfillPiece, StepCount, plan_pieces, write_order

ROWS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30)), min_size=1, max_size=60)
"""Queue and time of each row, in the order in which they were stored: clocks may go back."""


def cells_of(rows: list[tuple[int, int]]) -> tuple[list[StepCount], dict[tuple[str, int], int]]:
    """Return what a table says of the rows, and the time of each."""
    times: dict[tuple[str, int], int] = {}
    for queue, time in rows:
        name = f"q{queue}"
        times[name, sum(known == name for known, _ in times)] = time
    groups: dict[tuple[str, int], list[int]] = {}
    for (name, offset), time in times.items():
        groups.setdefault((name, time), []).append(offset)
    cells = [StepCount(name, step, len(mine), min(mine), max(mine)) for (name, step), mine in groups.items()]
    return cells, times


def held(piece: BackfillPiece, row: tuple[str, int]) -> bool:
    first, end = piece.ranges.get(row[0], (0, 0))
    return first <= row[1] < end


@given(rows=ROWS, rows_max=st.integers(1, 40))
def test_every_row_is_in_one_piece_and_queues_stay_in_order(rows: list[tuple[int, int]], rows_max: int):
    """Whatever clocks said: behind an offset there is none of an earlier piece."""
    cells, times = cells_of(rows)

    pieces = plan_pieces(cells, rows_max)

    places = {row: [number for number, piece in enumerate(pieces) if held(piece, row)] for row in times}
    assert all(len(found) == 1 for found in places.values())
    for name in {name for name, _ in times}:
        numbers = [found[0] for (queue, _), found in sorted(places.items()) if queue == name]
        assert numbers == sorted(numbers)


@given(rows=ROWS, rows_max=st.integers(1, 40))
@example(rows=[(0, 0), (0, 2), (0, 0), (0, 1)], rows_max=1)
def test_a_piece_knows_between_which_times_its_rows_lie(rows: list[tuple[int, int]], rows_max: int):
    """Only these are read."""
    cells, times = cells_of(rows)

    for piece in plan_pieces(cells, rows_max):
        mine = [time for row, time in times.items() if held(piece, row)]
        assert mine
        assert piece.first_step <= min(mine)
        assert max(mine) <= piece.last_step


def test_pieces_are_about_as_large_as_wanted():
    """Of rows that came evenly; a step is never divided."""
    cells = [StepCount("q", step, 10, step * 10, step * 10 + 9) for step in range(12)]

    assert [piece.rows for piece in plan_pieces(cells, 30)] == [30] * 4
    assert [piece.rows for piece in plan_pieces(cells, 5)] == [10] * 12
    assert plan_pieces([], 30) == []


def test_queues_go_side_by_side():
    """What was stored at one time is in one piece, whichever queue it went to."""
    cells = [
        StepCount("a", 0, 5, 0, 4),
        StepCount("b", 0, 5, 0, 4),
        StepCount("a", 1, 5, 5, 9),
        StepCount("b", 2, 5, 5, 9),
    ]

    first, second = plan_pieces(cells, 12)

    assert first.ranges == {"a": (0, 5), "b": (0, 5)}
    assert second.ranges == {"a": (5, 10), "b": (5, 10)}


@given(rows=ROWS, shuffled=st.randoms(use_true_random=False))
def test_rows_come_by_offset_whatever_the_clocks_said_and_however_they_lay(rows: list[tuple[int, int]], shuffled: Any):
    """In each queue; and a row that was stored when every queue had later times only comes before them."""
    _, times = cells_of(rows)
    table = [(int(name[1:]), offset, time) for (name, offset), time in times.items()]
    shuffled.shuffle(table)
    queues, offsets, stored = (np.array(column, dtype=np.int64) for column in zip(*table, strict=True))

    order = write_order(queues, offsets, stored)

    found = [table[number] for number in order.tolist()]
    assert sorted(found) == sorted(table)
    for queue in range(3):
        mine = [offset for number, offset, _ in found if number == queue]
        assert mine == sorted(mine)
    risen = dict.fromkeys(range(3), -1)
    latest = -1
    for queue, _, time in found:
        risen[queue] = max(risen[queue], time)
        assert risen[queue] >= latest
        latest = risen[queue]
