"""One Spark process that repeats jobs over store folders, and prints how long each run took.

    python -m benchmarks.pipeline_driver PLAN        a `DriverPlan` as JSON

Prints one JSON line for each reading. The first round of each job, over the smaller store, warms and does not count.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import msgspec
from benchmarks.pipeline_findings import BACKFILL, CONVERT, SINK, DriverPlan, JobReading
from benchmarks.pipeline_stores import QUEUES, TOPIC

from holdfast.pipeline.archive.archive_job import archive
from holdfast.pipeline.archive.backfill import backfill, read_archive
from holdfast.pipeline.audit.audit_job import audit
from holdfast.pipeline.convert.convert_job import convert_index
from holdfast.pipeline.scan.spark_tasks import LEAN, SparkTasks
from holdfast.pipeline.scan.tasks import Tasks
from holdfast.pipeline.stats.stats_job import stats
from holdfast.spark import session

_WATCH_S: Final = 0.02

Job = Callable[[], tuple[int, int]]
"""Runs a job once; returns the bytes and entries that it read."""


class MemoryWatch:
    """Measures the largest private memory of this process, without file pages, which the system may reclaim."""

    def __init__(self) -> None:
        self.largest = 0
        self._stopped = threading.Event()
        self._watcher = threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._watcher.join()

    def _watch(self) -> None:
        while True:
            status = Path("/proc/self/status").read_text(encoding="ascii")
            rss_line = next(line for line in status.splitlines() if line.startswith("RssAnon:"))
            self.largest = max(self.largest, int(rss_line.split()[1]) << 10)
            if self._stopped.wait(_WATCH_S):
                return


class WatchedTasks:
    """Runs tasks, and records the largest memory that a worker had."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self.cores = tasks.cores
        self.memory = 0

    def run(self, function: Callable[[Any], Any], inputs: Sequence[Any], result_type: Any, progress: Any) -> list[Any]:
        def watched(each: Any) -> tuple[Any, int]:
            with MemoryWatch() as memory:
                found = function(each)
            return found, memory.largest

        done = self._tasks.run(watched, inputs, tuple[result_type, int], progress)
        self.memory = max([self.memory, *(memory for _, memory in done)])
        return [found for found, _ in done]


class JobSuite:
    """The measured jobs, each over a store and over one of twice the size."""

    def __init__(self, spark: SparkTasks, tasks: WatchedTasks, plan: DriverPlan) -> None:
        self._spark = spark.spark
        self._tasks = tasks
        self._plan = plan
        self._states = 0
        self._row_size = 0.0
        self.all: dict[str, list[Job]] = {
            "audit": [partial(self._audit, store) for store in plan.logs],
            "stats": [partial(self._stats, store) for store in plan.logs],
            "archive": [partial(self._archive, store) for store in plan.logs],
            CONVERT: [partial(self._convert, store) for store in plan.indexes],
            SINK: [partial(self._write, plan.rows * number) for number in (1, 2)],
            BACKFILL: [partial(self._backfill, plan.rows * number) for number in (1, 2)],
        }

    def _audit(self, store: str) -> tuple[int, int]:
        found = audit(self._tasks, [store])
        assert found.is_clean, found.counts
        return found.size, found.stores[0].records

    def _stats(self, store: str) -> tuple[int, int]:
        found = stats(self._tasks, [store])
        return found.size, sum(queue.records for queue in found.queues)

    def _archive(self, store: str) -> tuple[int, int]:
        found = archive(self._tasks, [store], self._target("archive"), holds=False)
        assert found.is_complete
        return found.read, sum(found.rows.values())

    def _convert(self, store: str) -> tuple[int, int]:
        found = convert_index(self._tasks, [store], TOPIC, "batch")
        queues = found.stores[0].queues
        return sum(queue.bytes for queue in queues), sum(queue.entries for queue in queues)

    def _write(self, rows: int) -> tuple[int, int]:
        table = read_archive(self._spark, self._target("table")).where(f"offset < {rows // QUEUES}")
        writer = table.select("key", "body", "tags").write.format("holdfast").mode("append")
        writer.options(namesrv=self._plan.namesrv, topic=self._plan.topic, exactlyOnce="true").save()
        count = rows // QUEUES * QUEUES
        return int(count * self._row_size), count

    def _backfill(self, rows: int) -> tuple[int, int]:
        self._states += 1
        found = backfill(
            read_archive(self._spark, self._target("table")),
            self._plan.namesrv,
            self._plan.topic,
            f"{self._plan.scratch}/state-{self._plan.cores}-{self._states}",
            where=f"offset < {rows // QUEUES}",
        )
        return int(found.rows * self._row_size), found.rows

    def prepare(self, job: str) -> None:
        """Restore the state before a round of a job, and let the disk rest."""
        shutil.rmtree(self._target("archive"), ignore_errors=True)
        if job == CONVERT:
            for store in self._plan.indexes:
                convert_index(self._tasks, [store], TOPIC, "simple")
        if job in {SINK, BACKFILL} and not Path(self._target("table")).exists():
            archived = archive(self._tasks, [self._plan.logs[0]], self._target("table"), holds=False)
            self._row_size = archived.read / sum(archived.rows.values())
        os.sync()

    def _target(self, name: str) -> str:
        return f"{self._plan.scratch}/{name}-{self._plan.cores}"


def main() -> None:
    """Measure everything."""
    plan = msgspec.json.decode(sys.argv[1], type=DriverPlan)
    config = {"spark.driver.memory": "2g", **({} if BACKFILL in plan.jobs else LEAN)}
    spark = session("holdfast-bench", master=f"local[{plan.cores}]", config=config)
    spark.sparkContext.setLogLevel("OFF")
    spark_tasks = SparkTasks(spark)
    tasks = WatchedTasks(spark_tasks)
    jobs = JobSuite(spark_tasks, tasks, plan)
    for name in plan.jobs:
        sizes = jobs.all[name]
        jobs.prepare(name)
        tasks.memory = 0
        sizes[0]()
        for job in sizes:
            seconds: list[float] = []
            size = entries = 0
            for _ in range(plan.rounds):
                jobs.prepare(name)
                began_s = time.monotonic()
                size, entries = job()
                seconds.append(time.monotonic() - began_s)
            reading = JobReading(job=name, cores=plan.cores, size=size, entries=entries, seconds=seconds)
            print(msgspec.json.encode({"reading": reading, "memory": tasks.memory}).decode(), flush=True)
    if CONVERT in plan.jobs:
        jobs.prepare(CONVERT)  # Restore the store for the next process.
    spark.stop()


if __name__ == "__main__":
    main()
