"""Chooses the rows of a batch from each queue, and divides them among tasks.

    available   0: 900 rows   1: 90 rows   2: none      at most 330 rows
    admitted    0: 300        1: 30                     in proportion; rounding favours the smallest shares
    divided     [0: 0-165] [0: 165-300, 1: 0-30]        only if a range is long, or the user asks for more tasks

A Python task costs some 70 ms regardless of its work, so short ranges share one. A range that is cut keeps its order
within each task. Pure arithmetic: the same batch is always divided in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from holdfast.bulk.read_options import QueueKey, Range

SPLIT_ROWS_MIN: Final = 100_000
"""A range of more rows may be cut to use an idle core."""
ROWS_PER_TASK_MIN: Final = 2_000
"""Reading fewer rows takes less time than starting a task."""


def admit(available: Mapping[QueueKey, int], rows_max: int | None) -> dict[QueueKey, int]:
    """Return the number of rows that a batch reads from each queue, in proportion to the available rows."""
    total = sum(available.values())
    if rows_max is None or total <= rows_max:
        return dict(available)
    shares = {queue: count * rows_max // total for queue, count in available.items()}
    # The rest from rounding goes to the queues with the lowest share of their rows, so that no queue starves.
    rest = rows_max - sum(shares.values())
    neediest = sorted(
        available, key=lambda queue: (shares[queue] / available[queue] if available[queue] else 1.0, queue)
    )
    for queue in neediest[:rest]:
        if shares[queue] < available[queue]:
            shares[queue] += 1
    return shares


def divide(
    ranges: Sequence[Range], parts: int, *, is_requested: bool = False, rows_max: int | None = None
) -> list[list[Range]]:
    """Divide the ranges among tasks, and return the ranges of each task.

    Args:
        ranges: The ranges to read; empty ones are left out.
        parts: The most tasks; with *is_requested* the exact number, if there is enough to read.
        is_requested: The user asked for *parts* tasks.
        rows_max: The most rows per task; if given, the number of tasks follows from it.
    """
    ranges = sorted(each for each in ranges if len(each) > 0)
    total = sum(map(len, ranges))
    if not total:
        return []
    if rows_max is not None:
        return [
            [piece]
            for each in ranges
            for piece in _split(each, min(rows_max, -(-total // parts) if is_requested else rows_max))
        ]
    if not is_requested:
        parts = max(1, min(parts, total // ROWS_PER_TASK_MIN))
    share = -(-total // max(1, parts))
    longest = share if is_requested and len(ranges) < parts else max(share, SPLIT_ROWS_MIN)
    pieces = [piece for each in ranges for piece in _split(each, longest)]
    return _pack(pieces, parts)


def _split(row_range: Range, longest: int) -> list[Range]:
    count = -(-len(row_range) // longest)
    bounds = [row_range.start + len(row_range) * at // count for at in range(count + 1)]
    return [Range(row_range.topic, row_range.queue, bounds[at], bounds[at + 1]) for at in range(count)]


def _pack(pieces: Sequence[Range], parts: int) -> list[list[Range]]:
    """Distribute the pieces: always assign the longest remaining piece to the task with the fewest rows."""
    tasks: list[list[Range]] = [[] for _ in range(min(parts, len(pieces)))]
    loads = [0] * len(tasks)
    for piece in sorted(pieces, key=lambda piece: (-len(piece), piece)):
        least = loads.index(min(loads))
        tasks[least].append(piece)
        loads[least] += len(piece)
    return [sorted(task) for task in tasks]
