"""Functions on Spark: one partition, so one task, for each input.

A task that is lost is run again by Spark, as often as it allows; whoever stops the driver cancels what runs. Progress
is that of Spark's own stages.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec
from pyspark.sql import SparkSession

from holdfast.pipeline.scan.tasks import Progress, TaskFailed
from holdfast.spark.python_worker import settle

LEAN: Final = {
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.python.daemon.module": "holdfast.spark.quiet_daemon",
}
"""For a session that runs nothing but tasks: Java only hands them out, and is not worth being compiled with care."""
_POLL_S: Final = 0.2
_groups = itertools.count()


class SparkTasks:
    """Runs functions as tasks of a Spark session."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark

    @property
    def cores(self) -> int:
        """How many tasks run at once."""
        return max(1, self.spark.sparkContext.defaultParallelism)

    def run(self, function: Callable[[Any], Any], inputs: Sequence[Any], kind: Any, progress: Progress) -> list[Any]:
        """Return what *function* returns for each of *inputs*, in their order.

        Raises:
            TaskFailed: one of them failed as often as Spark allows.
        """
        if not inputs:
            return []

        def work(number: int) -> tuple[int, bytes]:
            settle()
            return number, msgspec.msgpack.encode(function(inputs[number]))

        # Not a query: planning and compiling its first one takes Spark seconds.
        numbers = self.spark.sparkContext.parallelize(range(len(inputs)), len(inputs))
        with _watch(self.spark, progress):
            try:
                done = numbers.map(work).collect()
            except Exception as error:
                raise _explain(error) from error
        decode = msgspec.msgpack.Decoder(kind).decode
        return [decode(result) for _, result in sorted(done)]


def _explain(error: Exception) -> Exception:
    """Return what a task complained of, without the way it took through Java."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = [line for line in lines if line.startswith(("holdfast.", "OSError", "FileNotFoundError", "PermissionError"))]
    if told:
        return TaskFailed(told[-1].partition(": ")[2])
    return TaskFailed(f"{type(error).__name__}: {lines[0] if lines else ''}")


@contextmanager
def _watch(spark: SparkSession, progress: Progress) -> Iterator[None]:
    """Tell of tasks that are done, as long as the block runs; cancel them if it is left early."""
    group = f"holdfast-pipeline-{next(_groups)}"
    context = spark.sparkContext
    context.setJobGroup(group, "holdfast pipeline", interruptOnCancel=True)
    is_over = threading.Event()
    watcher = threading.Thread(target=_poll, args=(context, group, progress, is_over), daemon=True)
    watcher.start()
    try:
        yield
    except BaseException:
        context.cancelJobGroup(group)
        raise
    finally:
        is_over.set()
        watcher.join()


def _poll(context: Any, group: str, progress: Progress, is_over: threading.Event) -> None:
    told = 0
    while not is_over.wait(_POLL_S):
        try:
            tracker = context.statusTracker()
            jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
            stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
            done = sum(stage.numCompletedTasks for stage in stages if stage is not None)
        except Exception:
            # A bar that stands still must not end the job that it shows.
            logging.getLogger(__name__).debug("Spark does not say how far it is", exc_info=True)
            return
        if done > told:
            progress(done - told)
            told = done
