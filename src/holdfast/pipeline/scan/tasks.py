"""Run a function over many inputs, one task per input.

    inputs ─ one task each ─ function ─ msgpack ─ results, in the order of the inputs

Results are small: counts, faults, file names. `SparkTasks` in `spark_tasks` runs the tasks on Spark. `InProcess` runs
them one after the other in this process, for folders too small to justify Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from holdfast.model.errors import HoldfastError
from holdfast.pipeline.scan.log_ranges import LogRange, RangeResult, find_mismatches, group_ranges, replace_results

Progress = Callable[[int], None]
"""Receives the number of tasks completed since the last call."""

ShowProgress = Callable[[str, int], Progress]
"""Receives the name of a phase and its number of tasks; returns the callback for completed tasks."""

_Result = TypeVar("_Result", bound=RangeResult)


def no_progress(_phase: str, _count: int) -> Progress:
    """Show no progress."""
    return lambda _done: None


class TaskFailed(HoldfastError):
    """A task failed in every attempt; the text says why."""


class Tasks(Protocol):
    """Runs a function as tasks."""

    @property
    def cores(self) -> int:
        """How many tasks run at once."""
        ...

    def run(
        self, function: Callable[[Any], Any], inputs: Sequence[Any], result_type: Any, progress: Progress
    ) -> list[Any]:
        """Return what *function* returns for each of *inputs*, in their order.

        Args:
            function: May run more than once for an input, also at the same time.
            inputs: Are shipped with the function.
            result_type: The return type of *function*.
            progress: Receives the number of completed tasks.

        Raises:
            TaskFailed: a task failed.
        """
        ...


class InProcess:
    """Runs tasks in this process."""

    cores = 1

    def run(
        self, function: Callable[[Any], Any], inputs: Sequence[Any], result_type: Any, progress: Progress
    ) -> list[Any]:
        """Return the results, computed one after the other. Errors propagate unchanged."""
        results = []
        for each in inputs:
            results.append(msgspec.msgpack.decode(msgspec.msgpack.encode(function(each)), type=result_type))
            progress(1)
        return results


def run_ranges(
    tasks: Tasks,
    function: Callable[[LogRange], _Result],
    ranges: Sequence[LogRange],
    result_type: type[_Result],
    *,
    size: int,
    show: ShowProgress,
) -> list[_Result]:
    """Return the result of *function* for each of *ranges*. Every record is processed exactly once.

    Args:
        tasks: Runs the tasks.
        function: Processes one range.
        ranges: The ranges to process.
        result_type: The return type of *function*.
        size: Bytes of log per task.
        show: Shows the progress.

    Raises:
        TaskFailed: a task failed.
    """

    def work(task_ranges: tuple[LogRange, ...]) -> list[_Result]:
        return [function(each) for each in task_ranges]

    def run(pending: Sequence[LogRange]) -> list[_Result]:
        packed = group_ranges(pending, size=size)
        task_results = tasks.run(work, packed, list[result_type], show("log", len(packed)))  # type: ignore[valid-type]
        return [result for task_result in task_results for result in task_result]

    results = run(ranges)
    while repeats := find_mismatches(results):
        results = replace_results(results, run(repeats))
    return results
