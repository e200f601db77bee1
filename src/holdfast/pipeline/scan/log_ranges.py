"""Splits logs into byte ranges, and checks that the results of adjacent ranges fit together.

    file     |r r r r r r r r r r r r|r r r r r r r r        r: a record
    ranges   [-----)[-----)[---------)[-----)[------)        each has the records that *begin* in it

A range may begin anywhere. Its task searches for the first valid record: one that states its own position, whose sizes
add up and whose body matches its checksum. Bytes in a message body could still imitate a record. So every task reports
the position after its last record, which must be the first record of the next range. If it is not, the next range is
processed again from that position. The first range of a file begins at the start of the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol, TypeVar

import msgspec

from holdfast.pipeline.scan.store_folder import StoreFolder

RANGE_SIZE: Final = 128 << 20
"""The most bytes of log that one task reads. A failed task repeats all of them."""
RANGE_SIZE_MIN: Final = 16 << 20
"""Smaller ranges do not repay the cost of a task."""
_TASKS_PER_CORE: Final = 2


class LogRange(msgspec.Struct, frozen=True):
    """A byte range of one log file.

    Attributes:
        store: The index of the store that the log belongs to.
        start, end: Positions in the log; both lie in one file.
        is_known: A record begins at *start*, or the log ends there.
    """

    store: int
    start: int
    end: int
    is_known: bool


class RangeResult(Protocol):
    """The result of a task for one range."""

    @property
    def range(self) -> LogRange:
        """The processed range."""
        ...

    @property
    def first(self) -> int:
        """The start of the first record in the range; of the next record, if none begins in the range."""
        ...

    @property
    def next_start(self) -> int:
        """The start of the first record after the range; the end of the file, if there is none."""
        ...


_Result = TypeVar("_Result", bound=RangeResult)


def choose_size(folders: Iterable[StoreFolder], cores: int) -> int:
    """Return the bytes of log per task that keep every core busy."""
    total = sum(folder.settled - folder.start for folder in folders)
    return max(RANGE_SIZE_MIN, min(RANGE_SIZE, total // (_TASKS_PER_CORE * cores)))


def split_log(folder: StoreFolder, store: int, start: int | None = None, *, size: int = RANGE_SIZE) -> list[LogRange]:
    """Return the ranges of the settled part of a log, beginning at *start*, where a record begins."""
    low = folder.start if start is None else max(start, folder.start)
    ranges: list[LogRange] = []
    for file in folder.log_files:
        end = min(file + folder.file_size, folder.settled)
        at, is_known = max(file, low), True
        while at < end:
            stop = min(end, at - (at - file) % size + size)
            ranges.append(LogRange(store, at, stop, is_known))
            at, is_known = stop, False
    return ranges


def group_ranges(ranges: Sequence[LogRange], *, size: int = RANGE_SIZE) -> list[tuple[LogRange, ...]]:
    """Return the ranges of each task: adjacent small ranges of one store share a task of at most *size* bytes."""
    tasks: list[list[LogRange]] = []
    remaining = 0
    for each in ranges:
        length = each.end - each.start
        if not tasks or length > remaining or tasks[-1][-1].store != each.store:
            tasks.append([])
            remaining = size
        tasks[-1].append(each)
        remaining -= length
    return [tuple(task) for task in tasks]


def find_mismatches(results: Iterable[RangeResult]) -> list[LogRange]:
    """Return the ranges to repeat, with corrected starts: those whose first record is not where the previous ended."""
    repeats: list[LogRange] = []
    previous: RangeResult | None = None
    for each in sorted(results, key=lambda found: (found.range.store, found.range.end)):
        current = each.range
        if (
            previous is not None
            and not current.is_known
            and _are_adjacent(previous.range, current)
            and previous.next_start != each.first
        ):
            repeats.append(LogRange(current.store, max(previous.next_start, current.start), current.end, is_known=True))
        previous = each
    return repeats


def _are_adjacent(one: LogRange, other: LogRange) -> bool:
    return one.store == other.store and one.end == other.start


def replace_results(results: Iterable[_Result], repeated: Iterable[_Result]) -> list[_Result]:
    """Return *results* with those in *repeated* replacing the results of the same ranges."""
    replacements = {(each.range.store, each.range.end): each for each in repeated}
    return [replacements.get((each.range.store, each.range.end), each) for each in results]
