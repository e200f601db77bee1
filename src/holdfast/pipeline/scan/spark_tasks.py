"""Runs functions on Spark, with one partition and so one task per input.

Spark retries failed tasks up to its limit. Stopping the driver cancels the running tasks. Progress comes from Spark's
stages.
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
from holdfast.spark.python_worker import prepare_worker

LEAN: Final = {
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.python.daemon.module": "holdfast.spark.quiet_daemon",
}
"""For a session that only runs tasks: Java merely distributes them, so optimizing its code does not pay."""
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

    def run(
        self, function: Callable[[Any], Any], inputs: Sequence[Any], result_type: Any, progress: Progress
    ) -> list[Any]:
        """Return what *function* returns for each of *inputs*, in their order.

        Raises:
            TaskFailed: a task failed as often as Spark allows.
        """
        if not inputs:
            return []

        def work(number: int) -> tuple[int, bytes]:
            prepare_worker()
            return number, msgspec.msgpack.encode(function(inputs[number]))

        # An RDD, not a query: Spark needs seconds to plan and compile its first query.
        numbers = self.spark.sparkContext.parallelize(range(len(inputs)), len(inputs))
        with _watch(self.spark, progress):
            try:
                done = numbers.map(work).collect()
            except Exception as error:
                raise _explain(error) from error
        decode = msgspec.msgpack.Decoder(result_type).decode
        return [decode(result) for _, result in sorted(done)]


def _explain(error: Exception) -> Exception:
    """Return the original error of a task, without the Java stack trace around it."""
    lines = [line.strip() for line in str(error).splitlines()]
    causes = [
        line for line in lines if line.startswith(("holdfast.", "OSError", "FileNotFoundError", "PermissionError"))
    ]
    if causes:
        return TaskFailed(causes[-1].partition(": ")[2])
    return TaskFailed(f"{type(error).__name__}: {lines[0] if lines else ''}")


@contextmanager
def _watch(spark: SparkSession, progress: Progress) -> Iterator[None]:
    """Report completed tasks while the block runs; cancel the rest if it raises."""
    group = f"holdfast-pipeline-{next(_groups)}"
    context = spark.sparkContext
    context.setJobGroup(group, "holdfast pipeline", interruptOnCancel=True)
    stopped = threading.Event()
    watcher = threading.Thread(target=_poll, args=(context, group, progress, stopped), daemon=True)
    watcher.start()
    try:
        yield
    except BaseException:
        context.cancelJobGroup(group)
        raise
    finally:
        stopped.set()
        watcher.join()


def _poll(context: Any, group: str, progress: Progress, stopped: threading.Event) -> None:
    reported = 0
    while not stopped.wait(_POLL_S):
        try:
            tracker = context.statusTracker()
            jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
            stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
            done = sum(stage.numCompletedTasks for stage in stages if stage is not None)
        except Exception:
            # A failure of the progress bar must not end the job.
            logging.getLogger(__name__).debug("Spark does not report its progress", exc_info=True)
            return
        if done > reported:
            progress(done - reported)
            reported = done
