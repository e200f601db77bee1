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

from holdfast.bulk.read_options import QueueKey


@dataclass(slots=True)
class PushedFilters:
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

    def includes(self, name: QueueKey) -> bool:
        """Return whether the query reads a queue."""
        number = int(name[1].rpartition("/")[2])
        return (self.topics is None or name[0] in self.topics) and (self.queues is None or number in self.queues)

    def clip(
        self, starts: Mapping[QueueKey, int], ends: Mapping[QueueKey, int]
    ) -> tuple[dict[QueueKey, int], dict[QueueKey, int]]:
        """Return the starts and ends, narrowed to the offsets to read."""
        clipped_ends = {name: end if self.end is None else min(end, self.end) for name, end in ends.items()}
        clipped_starts = {name: max(start, self.start) for name, start in starts.items()}
        return {name: min(start, clipped_ends[name]) for name, start in clipped_starts.items()}, clipped_ends


def combine_filters(filters: Iterable[Filter]) -> PushedFilters:
    """Return what a query must read if all *filters* apply."""
    pushed = PushedFilters()
    for each in filters:
        path: tuple[str, ...] = getattr(each, "attribute", ())
        if len(path) == 1:
            _apply(pushed, path[0], each)
    return pushed


def _apply(pushed: PushedFilters, column: str, each: Filter) -> None:
    values: list[Any] | None = None
    if isinstance(each, EqualTo):
        values = [each.value]
    elif isinstance(each, In):
        values = list(each.value)
    if column == "topic" and values is not None:
        pushed.topics = frozenset(values) & (frozenset(values) if pushed.topics is None else pushed.topics)
    elif column == "queue" and values is not None:
        pushed.queues = frozenset(values) & (frozenset(values) if pushed.queues is None else pushed.queues)
    elif column == "offset":
        _apply_offset(pushed, each, values)
    elif column == "storeTimestamp" and isinstance(each, GreaterThan | GreaterThanOrEqual):
        _apply_time(pushed, each.value)


def _apply_time(pushed: PushedFilters, value: object) -> None:
    if isinstance(value, datetime) and value.tzinfo is not None:
        pushed.since_ms = max(pushed.since_ms or 0, int(value.timestamp() * 1000))


def _apply_offset(pushed: PushedFilters, each: Filter, values: list[Any] | None) -> None:
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
    pushed.start = max(pushed.start, low)
    if high is not None:
        pushed.end = high if pushed.end is None else min(pushed.end, high)
