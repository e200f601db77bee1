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

from holdfast.columns.slices import Int64Array
from holdfast.pipeline.archive.manifest import Interval


class StepCount(NamedTuple):
    """The rows of one queue that were stored in one time step."""

    queue: str
    step: int
    rows: int
    first: int
    last: int


class BackfillPiece(msgspec.Struct, frozen=True, kw_only=True):
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


class BackfillPlan(msgspec.Struct, frozen=True, kw_only=True):
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
    pieces: list[BackfillPiece]


def plan_pieces(counts: Iterable[StepCount], rows_max: int) -> list[BackfillPiece]:
    """Divide the rows of *counts* into pieces of about *rows_max* rows each, and return them in write order."""
    all_counts = list(counts)
    starts = _choose_starts(all_counts, rows_max)
    ranges: list[dict[str, Interval]] = [{} for _ in starts]
    piece_counts: list[list[StepCount]] = [[] for _ in starts]
    for queue, group in sorted(_by_queue(all_counts).items()):
        firsts = _first_offsets(group, starts)
        end = max(count.last for count in group) + 1
        for number, (first, next_first) in enumerate(pairwise([*firsts, end])):
            if first < next_first:
                ranges[number][queue] = (first, next_first)
        for count in group:
            for number in range(bisect_right(firsts, count.first) - 1, bisect_left(firsts, count.last + 1)):
                if queue in ranges[number]:  # If several pieces begin at the same offset, all but the last are empty.
                    piece_counts[number].append(count)
    return [
        BackfillPiece(
            ranges=ranges[number],
            first_step=min(count.step for count in group),
            last_step=max(count.step for count in group),
            rows=sum(count.rows for count in group),
        )
        for number, group in enumerate(piece_counts)
        if group
    ]


def _choose_starts(counts: Sequence[StepCount], rows_max: int) -> list[int]:
    """Return the time steps at which pieces begin."""
    by_step: dict[int, int] = {}
    for count in counts:
        by_step[count.step] = by_step.get(count.step, 0) + count.rows
    starts: list[int] = []
    row_count = rows_max
    for step, rows in sorted(by_step.items()):
        if row_count + rows > rows_max:
            starts.append(step)
            row_count = 0
        row_count += rows
    return starts


def _by_queue(counts: Sequence[StepCount]) -> dict[str, list[StepCount]]:
    found: dict[str, list[StepCount]] = {}
    for count in counts:
        found.setdefault(count.queue, []).append(count)
    return found


def _first_offsets(counts: Sequence[StepCount], starts: Sequence[int]) -> list[int]:
    """Return the first offset of a queue in each piece, in rising order."""
    end = max(count.last for count in counts) + 1
    remaining = sorted(counts, key=lambda count: count.step)
    firsts: list[int] = []
    first = end
    for start in reversed(starts):
        while remaining and remaining[-1].step >= start:
            first = min(first, remaining.pop().first)
        firsts.append(first)
    return firsts[::-1]


def write_order(queues: Int64Array, offsets: Int64Array, times: Int64Array) -> Int64Array:
    """Return row numbers in write order: by offset within a queue, between queues by time, made monotonic per queue."""
    by_offset = np.lexsort((times, offsets, queues))
    sorted_queues, write_times = queues[by_offset], times[by_offset].copy()
    for part in np.split(np.arange(len(write_times)), np.flatnonzero(np.diff(sorted_queues)) + 1):
        write_times[part] = np.maximum.accumulate(write_times[part])
    return by_offset[
        np.lexsort((sorted_queues, write_times))
    ]  # Stable: rows of a queue with the same time keep their order.
