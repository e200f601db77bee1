"""Batch queries: read all messages between two bounds.

The driver resolves the bounds to offsets once, when the query is planned; the tasks read exactly these offsets.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from holdfast.bulk.cluster_session import Link, link_to
from holdfast.bulk.queue_selection import Queues
from holdfast.bulk.read_options import DEFAULT_GROUP, Queue, Range
from holdfast.bulk.task_reader import find_bounds, hold_ranges, read_ranges
from holdfast.spark.options import SourceOptions
from holdfast.spark.plan import divide
from holdfast.spark.pushdown import Narrowing, narrow
from holdfast.spark.python_worker import settle


class Share(InputPartition):
    """The input of one task: its value is a tuple of ranges."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        super().__init__(tuple(ranges))


class HoldfastBatchReader(DataSourceReader):
    """Reads all messages between two bounds."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        """Resolve the bounds, and divide the query into tasks."""
        options = self._options
        link = link_to(options.namesrv, options.group or DEFAULT_GROUP, options.patience_s, options.unit)
        link.require_name_server()
        return self._divide(link, *find_bounds(link, options))

    def _divide(
        self,
        link: Link,
        queues: Queues,  # noqa: ARG002 - used by the subclass
        starts: dict[Queue, int],
        ends: dict[Queue, int],
    ) -> list[InputPartition]:
        return to_shares(link, self._options, starts, ends)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the ranges of one task."""
        return read_share(self._options, self._columns, partition)


class HoldfastPushingReader(HoldfastBatchReader):
    """A batch reader with filter pushdown. Spark rejects readers with `pushFilters` if its pushdown is disabled."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        super().__init__(options, columns)
        self._left = Narrowing()

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802 - Spark's name
        """Use the filters to read less; return all of them, so that Spark still applies them."""
        self._left = narrow(filters)
        yield from filters

    def _divide(
        self, link: Link, queues: Queues, starts: dict[Queue, int], ends: dict[Queue, int]
    ) -> list[InputPartition]:
        left = self._left
        wanted = {name: queue for name, queue in queues.items() if left.wants(name)}
        if left.since_ms is not None:
            since = link.at_times(wanted, dict.fromkeys(wanted, left.since_ms))
            starts = {name: max(starts[name], since[name]) for name in wanted}
        cut = left.cut({name: starts[name] for name in wanted}, {name: ends[name] for name in wanted})
        return to_shares(link, self._options, *cut)


def to_shares(
    link: Link, options: SourceOptions, starts: dict[Queue, int], ends: dict[Queue, int], parts: int = 0
) -> list[InputPartition]:
    """Divide the messages between *starts* and *ends* among tasks."""
    ranges = hold_ranges(link, options, starts, ends)
    parts = parts or parts_of(options)
    is_told = options.partitions_min is not None and options.partitions_min >= parts
    tasks = divide(ranges, parts, is_told=is_told, rows_max=options.rows_per_partition_max)
    # Spark would add a default partition to an empty list.
    return [Share(task) for task in tasks] or [Share(())]


def parts_of(options: SourceOptions) -> int:
    """Return the most tasks that a batch may have: the number of cores here, within the limits of the options."""
    parts = max(options.partitions_min or 0, _CORES)
    return parts if options.partitions_max is None else min(parts, max(options.partitions_max, 1))


def read_share(options: SourceOptions, columns: tuple[str, ...], partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Read the ranges of one task."""
    assert isinstance(partition, Share)
    settle()
    yield from read_ranges(options, columns, partition.value)


_CORES: Final = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
