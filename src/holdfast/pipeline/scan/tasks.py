"""Functions on many inputs: who runs them, and what becomes of what they return.

    inputs ─ one task each ─ function ─ msgpack ─ back, in the order of the inputs

What a task returns is small: counts, faults, names of files. `SparkTasks` in `spark_tasks` runs them on Spark; here is
the one that runs them in this process, one after the other, for folders that are not worth a Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from holdfast.model.errors import HoldfastError
from holdfast.pipeline.scan.log_ranges import LogRange, RangeDone, find_breaks, pack, replace_done

Progress = Callable[[int], None]
"""Is told how many more tasks are done."""

ShowProgress = Callable[[str, int], Progress]
"""Is told what begins and of how many tasks it is; returns who is told of each that is done."""

_Done = TypeVar("_Done", bound=RangeDone)


def show_nothing(_what: str, _count: int) -> Progress:
    """Tell nobody."""
    return lambda _done: None


class TaskFailed(HoldfastError):
    """A task could not be done, however often it was tried; the text says why."""


class Tasks(Protocol):
    """Runs functions."""

    @property
    def cores(self) -> int:
        """How many tasks run at once."""
        ...

    def run(self, function: Callable[[Any], Any], inputs: Sequence[Any], kind: Any, progress: Progress) -> list[Any]:
        """Return what *function* returns for each of *inputs*, in their order.

        Args:
            function: May run more than once for an input, also at the same time.
            inputs: Travel with the function.
            kind: The type of what it returns.
            progress: Is told of tasks that are done.

        Raises:
            TaskFailed: one of them could not be done.
        """
        ...


class InProcess:
    """Runs them here and now."""

    cores = 1

    def run(self, function: Callable[[Any], Any], inputs: Sequence[Any], kind: Any, progress: Progress) -> list[Any]:
        """Run them one after the other. What goes wrong is raised as it is."""
        found = []
        for each in inputs:
            found.append(msgspec.msgpack.decode(msgspec.msgpack.encode(function(each)), type=kind))
            progress(1)
        return found


def run_ranges(
    tasks: Tasks,
    function: Callable[[LogRange], _Done],
    ranges: Sequence[LogRange],
    kind: type[_Done],
    *,
    size: int,
    show: ShowProgress,
) -> list[_Done]:
    """Return what *function* finds in each of *ranges*, every record once.

    Args:
        tasks: Runs them.
        function: Works on one range.
        ranges: What there is to do.
        kind: What it returns.
        size: How much of the log one task takes.
        show: Shows how far it is.

    Raises:
        TaskFailed: one of them could not be done.
    """

    def work(mine: tuple[LogRange, ...]) -> list[_Done]:
        return [function(each) for each in mine]

    def run(these: Sequence[LogRange]) -> list[_Done]:
        packed = pack(these, size=size)
        done = tasks.run(work, packed, list[kind], show("log", len(packed)))  # type: ignore[valid-type]
        return [each for task in done for each in task]

    done = run(ranges)
    while again := find_breaks(done):
        done = replace_done(done, run(again))
    return done
