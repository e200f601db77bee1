"""Narrows a batch query by the filters that Spark pushes down.

    where queue in (1, 3) and offset >= 1000 and storeTimestamp >= '2026-11-01'
          only these queues    from this offset      from the first message of that time

Filters only reduce the rows that are read. Spark applies all of them again, so unsupported filters can be ignored, and
supported ones need not be exact: of times only lower bounds are used, because the clocks of brokers may differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from holdfast.bulk.read_options import Queue


@dataclass(slots=True)
class Narrowing:
    """The part of a query that is left to read.

    Attributes:
        topics: Read only these topics; None for all.
        queues: Read only queues with these numbers; None for all.
        start: The lowest offset to read.
        end: The end of the offsets to read, exclusive; None for no limit.
        since_ms: The lowest store time to read; None for no limit.
    """

    topics: frozenset[str] | None = None
    queues: frozenset[int] | None = None
    start: int = 0
    end: int | None = None
    since_ms: int | None = None

    def wants(self, name: Queue) -> bool:
        """Return whether the query reads a queue."""
        number = int(name[1].rpartition("/")[2])
        return (self.topics is None or name[0] in self.topics) and (self.queues is None or number in self.queues)

    def cut(self, starts: Mapping[Queue, int], ends: Mapping[Queue, int]) -> tuple[dict[Queue, int], dict[Queue, int]]:
        """Return the starts and ends, narrowed to the offsets to read."""
        cut_ends = {name: end if self.end is None else min(end, self.end) for name, end in ends.items()}
        cut_starts = {name: max(start, self.start) for name, start in starts.items()}
        return {name: min(start, cut_ends[name]) for name, start in cut_starts.items()}, cut_ends


def narrow(filters: Iterable[Filter]) -> Narrowing:
    """Return what a query must read if all *filters* apply."""
    left = Narrowing()
    for each in filters:
        path: tuple[str, ...] = getattr(each, "attribute", ())
        if len(path) == 1:
            _apply(left, path[0], each)
    return left


def _apply(left: Narrowing, column: str, each: Filter) -> None:
    values: list[Any] | None = None
    if isinstance(each, EqualTo):
        values = [each.value]
    elif isinstance(each, In):
        values = list(each.value)
    if column == "topic" and values is not None:
        left.topics = frozenset(values) & (frozenset(values) if left.topics is None else left.topics)
    elif column == "queue" and values is not None:
        left.queues = frozenset(values) & (frozenset(values) if left.queues is None else left.queues)
    elif column == "offset":
        _apply_offset(left, each, values)
    elif column == "storeTimestamp" and isinstance(each, GreaterThan | GreaterThanOrEqual):
        _apply_time(left, each.value)


def _apply_time(left: Narrowing, value: object) -> None:
    if isinstance(value, datetime) and value.tzinfo is not None:
        left.since_ms = max(left.since_ms or 0, int(value.timestamp() * 1000))


def _apply_offset(left: Narrowing, each: Filter, values: list[Any] | None) -> None:
    low, high = 0, None
    if values:
        low, high = min(values), max(values) + 1
    elif isinstance(each, GreaterThan):
        low = each.value + 1
    elif isinstance(each, GreaterThanOrEqual):
        low = each.value
    elif isinstance(each, LessThan):
        high = each.value
    elif isinstance(each, LessThanOrEqual):
        high = each.value + 1
    left.start = max(left.start, low)
    if high is not None:
        left.end = high if left.end is None else min(left.end, high)
