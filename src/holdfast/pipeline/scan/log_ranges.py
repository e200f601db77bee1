"""Logs as a table of byte ranges, and what holds them together.

    file     |r r r r r r r r r r r r|r r r r r r r r        r: a record
    ranges   [-----)[-----)[---------)[-----)[------)        each has the records that *begin* in it

A range may begin anywhere. Its task looks for the first record that proves itself: it says where it lies, and its parts
and its body's checksum add up. What a sender put into a body could still look like one. So every task tells where its
own way, record by record, leads to: it must be where the next one began. If it is not, that one is done again from
there. The first range of a file begins where the file does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol, TypeVar

import msgspec

from holdfast.pipeline.scan.store_folder import StoreFolder

RANGE_SIZE: Final = 128 << 20
"""Bytes of log that a task reads at most: more are lost with it."""
RANGE_SIZE_MIN: Final = 16 << 20
"""Less does not pay for a task."""
_TASKS_PER_CORE: Final = 2


class LogRange(msgspec.Struct, frozen=True):
    """Some bytes of a log file.

    Attributes:
        store: Which of the stores it belongs to, by number.
        start, end: Positions in the log; both lie in one file.
        is_known: A record begins at *start*, or the log ends there.
    """

    store: int
    start: int
    end: int
    is_known: bool


class RangeDone(Protocol):
    """What a task tells of one range."""

    @property
    def range(self) -> LogRange:
        """Which one."""
        ...

    @property
    def first(self) -> int:
        """Where its first record begins; where the next one does, if none begins in it."""
        ...

    @property
    def behind(self) -> int:
        """Where the first record begins that is not in it any more; the end of its file, if none does."""
        ...


_Done = TypeVar("_Done", bound=RangeDone)


def choose_size(folders: Iterable[StoreFolder], cores: int) -> int:
    """Return how much of the logs a task reads, so that every core has something to do."""
    total = sum(folder.settled - folder.start for folder in folders)
    return max(RANGE_SIZE_MIN, min(RANGE_SIZE, total // (_TASKS_PER_CORE * cores)))


def cut_log(folder: StoreFolder, store: int, start: int | None = None, *, size: int = RANGE_SIZE) -> list[LogRange]:
    """Return the ranges of what is settled of a log, from *start*, where a record begins, on."""
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


def pack(ranges: Sequence[LogRange], *, size: int = RANGE_SIZE) -> list[tuple[LogRange, ...]]:
    """Return the ranges of each task: neighbours share one as long as they are no more than one large range."""
    tasks: list[list[LogRange]] = []
    room = 0
    for each in ranges:
        length = each.end - each.start
        if not tasks or length > room or tasks[-1][-1].store != each.store:
            tasks.append([])
            room = size
        tasks[-1].append(each)
        room -= length
    return [tuple(task) for task in tasks]


def find_breaks(done: Iterable[RangeDone]) -> list[LogRange]:
    """Return the ranges to be done again, and from where: those that do not begin where the one before them led to."""
    again: list[LogRange] = []
    before: RangeDone | None = None
    for each in sorted(done, key=lambda found: (found.range.store, found.range.end)):
        mine = each.range
        if before is not None and not mine.is_known and _meet(before.range, mine) and before.behind != each.first:
            again.append(LogRange(mine.store, max(before.behind, mine.start), mine.end, is_known=True))
        before = each
    return again


def _meet(one: LogRange, other: LogRange) -> bool:
    return one.store == other.store and one.end == other.start


def replace_done(done: Iterable[_Done], anew: Iterable[_Done]) -> list[_Done]:
    """Return what was found, with what was found anew in place of what it replaces."""
    better = {(each.range.store, each.range.end): each for each in anew}
    return [better.get((each.range.store, each.range.end), each) for each in done]
