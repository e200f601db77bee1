"""Divides the rows of a backfill into pieces. A piece always contains the same rows, so it can be repeated.

    time      |T0        |T1        |T2                 chosen so that all intervals have about as many rows
    orders|0  [0 ...... 57)[57 .. 80)[80 ........       a piece is a range of offsets of every queue
    orders|1  [0 .. 31)[31 ......... 99)[99 ...

In each queue a piece begins at the first offset that was stored at T or later. So pieces keep the order of every queue,
even if the clocks of two brokers differ. Pieces are written one after the other. So keys that moved to another queue
when their topic grew stay in order, too. A plan is saved in a file, and excludes rows added to the source later.

Pure: does not depend on Spark.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np

from holdfast.columns.slices import Places
from holdfast.pipeline.archive.manifest import Interval


class Cell(NamedTuple):
    """The rows of one queue that were stored in one time step."""

    queue: str
    step: int
    rows: int
    first: int
    last: int


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that are written together.

    Attributes:
        ranges: The offsets of each queue.
        first_step, last_step: All rows were stored in these time steps: no other steps need to be read.
        rows: The number of rows, or a few more where a clock was set back.
    """

    ranges: dict[str, Interval]
    first_step: int
    last_step: int
    rows: int


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a backfill.

    Attributes:
        name: Identifies the write at the sink, which makes it idempotent.
        source, where, topic: The arguments of the backfill.
        rows: The number of rows.
        step_s: The length of a time step.
        partitions: Tasks per piece.
        empty: Rows without a body; they cannot be messages, so they are in no piece.
    """

    name: str
    source: str
    where: str
    topic: str
    rows: int
    step_s: int
    partitions: int
    empty: int
    pieces: list[Piece]


def cut_pieces(cells: Iterable[Cell], rows_max: int) -> list[Piece]:
    """Divide *cells* into pieces of about *rows_max* rows each, and return them in write order."""
    known = list(cells)
    begins = _choose_begins(known, rows_max)
    ranges: list[dict[str, Interval]] = [{} for _ in begins]
    inside: list[list[Cell]] = [[] for _ in begins]
    for queue, mine in sorted(_by_queue(known).items()):
        firsts = _bound_queue(mine, begins)
        end = max(cell.last for cell in mine) + 1
        for number, (first, next_first) in enumerate(pairwise([*firsts, end])):
            if first < next_first:
                ranges[number][queue] = (first, next_first)
        for cell in mine:
            # If several pieces begin at the same offset, all but the last are empty.
            for number in range(bisect_right(firsts, cell.first) - 1, bisect_left(firsts, cell.last + 1)):
                inside[number].append(cell)
    return [
        Piece(
            ranges=ranges[number],
            first_step=min(cell.step for cell in mine),
            last_step=max(cell.step for cell in mine),
            rows=sum(cell.rows for cell in mine),
        )
        for number, mine in enumerate(inside)
        if mine
    ]


def _choose_begins(cells: Sequence[Cell], rows_max: int) -> list[int]:
    """Return the time steps at which pieces begin."""
    by_step: dict[int, int] = {}
    for cell in cells:
        by_step[cell.step] = by_step.get(cell.step, 0) + cell.rows
    begins: list[int] = []
    held = rows_max
    for step, rows in sorted(by_step.items()):
        if held + rows > rows_max:
            begins.append(step)
            held = 0
        held += rows
    return begins


def _by_queue(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        found.setdefault(cell.queue, []).append(cell)
    return found


def _bound_queue(cells: Sequence[Cell], begins: Sequence[int]) -> list[int]:
    """Return the first offset of a queue in each piece, in rising order."""
    end = max(cell.last for cell in cells) + 1
    left = sorted(cells, key=lambda cell: cell.step)
    firsts: list[int] = []
    first = end
    for begin in reversed(begins):
        while left and left[-1].step >= begin:
            first = min(first, left.pop().first)
        firsts.append(first)
    return firsts[::-1]


def in_order(queues: Places, offsets: Places, times: Places) -> Places:
    """Return row numbers in write order: by offset within a queue, between queues by time, made monotonic per queue."""
    by_offset = np.lexsort((times, offsets, queues))
    mine, risen = queues[by_offset], times[by_offset].copy()
    for part in np.split(np.arange(len(risen)), np.flatnonzero(np.diff(mine)) + 1):
        risen[part] = np.maximum.accumulate(risen[part])
    return by_offset[np.lexsort((mine, risen))]  # Stable: rows of a queue with the same time keep their order.
