"""Batch queries: read all messages between two bounds.

The driver resolves the bounds to offsets once, when the query is planned; the tasks read exactly these offsets.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from holdfast.bulk.cluster_session import ClusterSession, session_for
from holdfast.bulk.queue_selection import QueuesByKey
from holdfast.bulk.read_options import QueueKey, Range
from holdfast.bulk.task_reader import find_bounds, plan_ranges, read_ranges
from holdfast.spark.options import SourceOptions
from holdfast.spark.plan import divide
from holdfast.spark.pushdown import PushedFilters, combine_filters
from holdfast.spark.python_worker import prepare_worker


class TaskInput(InputPartition):
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
        session = session_for(options)
        session.connection.require_name_server()
        return self._divide(session, *find_bounds(session, options))

    def _divide(
        self,
        session: ClusterSession,
        queues: QueuesByKey,  # noqa: ARG002 - used by the subclass
        starts: dict[QueueKey, int],
        ends: dict[QueueKey, int],
    ) -> list[InputPartition]:
        return to_task_inputs(session, self._options, starts, ends)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the ranges of one task."""
        return read_task_input(self._options, self._columns, partition)


class HoldfastPushdownReader(HoldfastBatchReader):
    """A batch reader with filter pushdown. Spark rejects readers with `pushFilters` if its pushdown is disabled."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        super().__init__(options, columns)
        self._pushed = PushedFilters()

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802 - Spark's name
        """Use the filters to read less; return all of them, so that Spark still applies them."""
        self._pushed = combine_filters(filters)
        yield from filters

    def _divide(
        self, session: ClusterSession, queues: QueuesByKey, starts: dict[QueueKey, int], ends: dict[QueueKey, int]
    ) -> list[InputPartition]:
        pushed = self._pushed
        selected = {name: queue for name, queue in queues.items() if pushed.includes(name)}
        if pushed.since_ms is not None:
            since = session.offsets.at_times(selected, dict.fromkeys(selected, pushed.since_ms))
            starts = {name: max(starts[name], since[name]) for name in selected}
        clipped = pushed.clip({name: starts[name] for name in selected}, {name: ends[name] for name in selected})
        return to_task_inputs(session, self._options, *clipped)


def to_task_inputs(
    session: ClusterSession,
    options: SourceOptions,
    starts: dict[QueueKey, int],
    ends: dict[QueueKey, int],
    parts: int = 0,
) -> list[InputPartition]:
    """Divide the messages between *starts* and *ends* among tasks."""
    ranges = plan_ranges(session, options, starts, ends)
    parts = parts or tasks_max(options)
    is_requested = options.partitions_min is not None and options.partitions_min >= parts
    tasks = divide(ranges, parts, is_requested=is_requested, rows_max=options.rows_per_partition_max)
    # Spark would add a default partition to an empty list.
    return [TaskInput(task) for task in tasks] or [TaskInput(())]


def tasks_max(options: SourceOptions) -> int:
    """Return the most tasks that a batch may have: the number of cores here, within the limits of the options."""
    parts = max(options.partitions_min or 0, _CORES)
    return parts if options.partitions_max is None else min(parts, max(options.partitions_max, 1))


def read_task_input(
    options: SourceOptions, columns: tuple[str, ...], partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """Read the ranges of one task."""
    assert isinstance(partition, TaskInput)
    prepare_worker()
    yield from read_ranges(options, columns, partition.value)


_CORES: Final = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
