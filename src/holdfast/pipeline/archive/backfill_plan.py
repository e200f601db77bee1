"""In which pieces rows are brought back, so that a piece is the same whenever it is looked at again.

    time      |T0        |T1        |T2                 chosen such that about as many rows lie between two
    orders|0  [0 ...... 57)[57 .. 80)[80 ........       a piece is a range of offsets of every queue
    orders|1  [0 .. 31)[31 ......... 99)[99 ...

A queue's piece begins at the first offset that was stored at T or later: so pieces never cut a queue out of its order,
whatever the clocks of two brokers said. One piece is written after the other; so keys that went to another queue when
their topic was grown stay in order, too. A plan is kept in a file: what was added to the source since is not in it.

Pure: knows no Spark.
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
    """The rows of one queue that were stored in one step of time."""

    queue: str
    step: int
    rows: int
    first: int
    last: int


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that are written together.

    Attributes:
        ranges: The offsets of each queue.
        first_step, last_step: Steps of time in which all of them were stored: what lies outside need not be read.
        rows: How many they are, or a few more where a clock was set back.
    """

    ranges: dict[str, Interval]
    first_step: int
    last_step: int
    rows: int


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is brought where, and how.

    Attributes:
        name: The name under which rows are written: their second time adds nothing.
        source, where, topic: What was asked for.
        rows: How many that are.
        step_s: How long a step of time is.
        partitions: Tasks of each piece.
        empty: Rows without a body, which are no messages: they are in no piece.
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
    """Return the pieces of about *rows_max* rows each that *cells* are, in the order in which they are written."""
    known = list(cells)
    begins = _choose_begins(known, rows_max)
    ranges: list[dict[str, Interval]] = [{} for _ in begins]
    inside: list[list[Cell]] = [[] for _ in begins]
    for queue, mine in sorted(_by_queue(known).items()):
        firsts = _bound_queue(mine, begins)
        end = max(cell.last for cell in mine) + 1
        for number, (first, behind) in enumerate(pairwise([*firsts, end])):
            if first < behind:
                ranges[number][queue] = (first, behind)
        for cell in mine:
            # Of pieces that begin at one offset all but the last are empty.
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
    """Return the steps at which pieces begin."""
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
    """Return the first offset of a queue in each piece. They rise."""
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
    """Return rows by number: in each queue by offset; between queues by time, where a queue's time never goes back."""
    by_offset = np.lexsort((times, offsets, queues))
    mine, risen = queues[by_offset], times[by_offset].copy()
    for part in np.split(np.arange(len(risen)), np.flatnonzero(np.diff(mine)) + 1):
        risen[part] = np.maximum.accumulate(risen[part])
    return by_offset[np.lexsort((mine, risen))]  # Stable: of one time, a queue's rows stay as they are.
