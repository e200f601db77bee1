"""One Spark process that runs jobs over store folders as often as it is told, and says how long each took.

    python -m benchmarks.pipeline_driver MASTER CORES ROUNDS SCRATCH STORE...

Prints one JSON line for each reading. The first round of each job, over the first store, warms and does not count.
"""

from __future__ import annotations

import resource
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from benchmarks.pipeline_findings import CONVERT, JobReading
from benchmarks.pipeline_stores import TOPIC

from holdfast.pipeline.archive import archive
from holdfast.pipeline.audit import audit
from holdfast.pipeline.convert_index import convert_index
from holdfast.pipeline.spark_tasks import SparkTasks
from holdfast.pipeline.stats import stats
from holdfast.pipeline.tasks import Tasks
from holdfast.spark import session

Job = Callable[[str], tuple[int, int]]
"""Runs over a store; returns the bytes that it read, and the entries."""


class WatchedTasks:
    """Runs tasks, and remembers the largest memory that a worker had."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self.cores = tasks.cores
        self.memory = 0

    def run(self, function: Callable[[Any], Any], inputs: Sequence[Any], kind: Any, progress: Any) -> list[Any]:
        def watched(each: Any) -> tuple[Any, int]:
            found = function(each)
            return found, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

        done = self._tasks.run(watched, inputs, tuple[kind, int], progress)
        self.memory = max([self.memory, *(memory for _, memory in done)])
        return [found for found, _ in done]


class Jobs:
    """The jobs that are measured."""

    def __init__(self, tasks: WatchedTasks, scratch: Path) -> None:
        self._tasks = tasks
        self._scratch = scratch
        self.all: dict[str, Job] = {
            "audit": self._audit,
            "stats": self._stats,
            "archive": self._archive,
            CONVERT: self._convert,
        }

    def _audit(self, store: str) -> tuple[int, int]:
        found = audit(self._tasks, [store])
        assert found.is_right, found.counts
        return found.size, found.stores[0].records

    def _stats(self, store: str) -> tuple[int, int]:
        found = stats(self._tasks, [store])
        return found.size, sum(queue.records for queue in found.queues)

    def _archive(self, store: str) -> tuple[int, int]:
        target = self._scratch / "archive"
        shutil.rmtree(target, ignore_errors=True)
        found = archive(self._tasks, [store], str(target), holds=False)
        assert found.is_whole
        return found.read, sum(found.rows.values())

    def _convert(self, store: str) -> tuple[int, int]:
        """Convert there; what goes back is not measured."""
        found = convert_index(self._tasks, [store], TOPIC, "batch")
        queues = found.stores[0].queues
        return sum(queue.bytes for queue in queues), sum(queue.entries for queue in queues)

    def undo(self, job: str, store: str) -> None:
        """Put a store back to what it was."""
        if job == CONVERT:
            convert_index(self._tasks, [store], TOPIC, "simple")


def main() -> None:
    """Measure everything."""
    master, cores, rounds, scratch, *stores = sys.argv[1:]
    spark = session("holdfast-bench", master=master, config={"spark.driver.memory": "2g"})
    spark.sparkContext.setLogLevel("OFF")
    tasks = WatchedTasks(SparkTasks(spark))
    jobs = Jobs(tasks, Path(scratch))
    for name, job in jobs.all.items():
        tasks.memory = 0
        job(stores[0])
        jobs.undo(name, stores[0])
        for store in stores:
            seconds: list[float] = []
            size = entries = 0
            for _ in range(int(rounds)):
                began_s = time.monotonic()
                size, entries = job(store)
                seconds.append(time.monotonic() - began_s)
                jobs.undo(name, store)
            reading = JobReading(job=name, cores=int(cores), size=size, entries=entries, seconds=seconds)
            print(msgspec.json.encode({"reading": reading, "memory": tasks.memory}).decode(), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
