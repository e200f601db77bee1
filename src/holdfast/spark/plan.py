"""How much of each queue a batch takes, and how it is divided among tasks.

    available   0: 900 rows   1: 90 rows   2: none      at most 330 rows
    admitted    0: 300        1: 30                     in proportion, at least one row of each that has any
    divided     [0: 0-165] [0: 165-300, 1: 0-30]        only where a range is long, or more tasks are asked for

A Python task costs some 70 ms whatever it does, so short ranges share one; a range that is cut keeps its order within
each task. Pure arithmetic: the same batch is always divided alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from holdfast.bulk.read_options import Queue, Range

CUT_OVER: Final = 100_000
"""A range of more rows may be cut for the sake of an idle core."""
ROWS_PER_TASK_MIN: Final = 2_000
"""Fewer rows are read faster than a task is started."""


def admit(available: Mapping[Queue, int], most: int | None) -> dict[Queue, int]:
    """Return how many rows of each queue a batch takes, in proportion to what there is."""
    total = sum(available.values())
    if most is None or total <= most:
        return dict(available)
    shares = {queue: count * most // total for queue, count in available.items()}
    # What rounding left over goes to those that got least for what they have: nobody waits for ever.
    rest = most - sum(shares.values())
    hungry = sorted(available, key=lambda queue: (shares[queue] / available[queue] if available[queue] else 1.0, queue))
    for queue in hungry[:rest]:
        if shares[queue] < available[queue]:
            shares[queue] += 1
    return shares


def divide(
    ranges: Sequence[Range], parts: int, *, is_told: bool = False, rows_max: int | None = None
) -> list[list[Range]]:
    """Return the ranges of each task.

    Args:
        ranges: What is to be read; empty ones are left out.
        parts: How many tasks there shall be at most, or exactly if *is_told* and there is enough to read.
        is_told: The user asked for that many.
        rows_max: No task reads more than this; then there are as many as it takes.
    """
    ranges = sorted(each for each in ranges if len(each) > 0)
    total = sum(map(len, ranges))
    if not total:
        return []
    if rows_max is not None:
        return [
            [piece]
            for each in ranges
            for piece in _cut(each, min(rows_max, -(-total // parts) if is_told else rows_max))
        ]
    if not is_told:
        parts = max(1, min(parts, total // ROWS_PER_TASK_MIN))
    share = -(-total // max(1, parts))
    longest = share if is_told and len(ranges) < parts else max(share, CUT_OVER)
    pieces = [piece for each in ranges for piece in _cut(each, longest)]
    return _pack(pieces, parts)


def _cut(whole: Range, longest: int) -> list[Range]:
    count = -(-len(whole) // longest)
    bounds = [whole.start + len(whole) * at // count for at in range(count + 1)]
    return [Range(whole.topic, whole.queue, bounds[at], bounds[at + 1]) for at in range(count)]


def _pack(pieces: Sequence[Range], parts: int) -> list[list[Range]]:
    """Give the longest piece to the task that has least, and so on."""
    tasks: list[list[Range]] = [[] for _ in range(min(parts, len(pieces)))]
    loads = [0] * len(tasks)
    for piece in sorted(pieces, key=lambda piece: (-len(piece), piece)):
        least = loads.index(min(loads))
        tasks[least].append(piece)
        loads[least] += len(piece)
    return [sorted(task) for task in tasks]
