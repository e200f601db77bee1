"""One Spark process that runs jobs, one line of JSON each, and prints the seconds of each run.

    python spark_driver.py ours|plain [SETTING=VALUE ...]

    <- ready
    -> {"work": "read", "format": "kafka", "options": {...}, "times": 3}       <- = [2.31, 1.18, 1.15]
    -> {"work": "count", ...}                                                  <- = [400000.0]
    -> {"work": "save", ..., "file": "/tmp/copy"}                              <- = [2.51]
    -> {"work": "write", "rows": "/tmp/rows", "format": ..., "options": {...}} <- = [3.02]
    -> {"work": "stream", "format": ..., "options": {...}, "folder": ...}      <- = [0.091, ...], one for each batch
    -> end

Knows neither Kafka nor Holdfast, except that `ours` has our formats. It runs in two versions of Spark and needs only
pyspark in either.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession

# Java compiles while the first batches run, so they are not representative.
STREAM_WARM = 10
STREAM_BATCHES = 40


def start(side: str, settings: dict[str, str]) -> SparkSession:
    if side == "ours":
        from benchmarks.spark_bare import Bare  # noqa: PLC0415 - the other environment has neither

        from holdfast.spark import session  # noqa: PLC0415

        spark = session("bench", config=settings)
        spark.dataSource.register(Bare)
    else:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        builder = SparkSession.builder.appName("bench").master("local[*]")
        for setting, text in settings.items():
            builder = builder.config(setting, text)
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def time_runs(count: int, work: Callable[[], None]) -> list[float]:
    """Return the seconds of each run of *work*."""
    seconds = []
    for _ in range(count):
        begun_s = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begun_s)
    return seconds


def load_frame(spark: SparkSession, job: dict[str, Any]) -> DataFrame:
    reader = spark.read.schema(job["schema"]) if job.get("schema") else spark.read
    return reader.format(job["format"]).options(**job["options"]).load()


class Driver:
    """The session, and the rows for writes, which are kept in memory."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._cached: tuple[str, DataFrame] | None = None

    def run_job(self, job: dict[str, Any]) -> list[float]:
        seconds: list[float] = getattr(self, "_" + job["work"])(job)
        return seconds

    def _read(self, job: dict[str, Any]) -> list[float]:
        frame = load_frame(self._spark, job)
        return time_runs(job.get("times", 1), frame.write.format("noop").mode("overwrite").save)

    def _count(self, job: dict[str, Any]) -> list[float]:
        return [float(load_frame(self._spark, job).count())]

    def _save(self, job: dict[str, Any]) -> list[float]:
        return time_runs(1, lambda: load_frame(self._spark, job).write.parquet(job["file"]))

    def _write(self, job: dict[str, Any]) -> list[float]:
        rows = self._cache(job["rows"])
        return time_runs(
            job.get("times", 1), rows.write.format(job["format"]).options(**job["options"]).mode("append").save
        )

    def _cache(self, file: str) -> DataFrame:
        """Return the rows of *file*, cached in memory: reading them is not part of a write."""
        if self._cached is None or self._cached[0] != file:
            if self._cached is not None:
                self._cached[1].unpersist(blocking=True)
            rows = self._spark.read.parquet(file).persist()
            rows.write.format("noop").mode("overwrite").save()
            self._cached = file, rows
        return self._cached[1]

    def _stream(self, job: dict[str, Any]) -> list[float]:
        stream = self._spark.readStream.format(job["format"]).options(**job["options"]).load()
        query = stream.writeStream.format("noop").option("checkpointLocation", job["folder"]).start()
        while query.lastProgress is None or query.lastProgress["batchId"] < STREAM_WARM + STREAM_BATCHES:
            if not query.isActive:
                raise RuntimeError(f"the stream ended: {query.exception()}")
            time.sleep(0.1)
        batches = [each["durationMs"]["triggerExecution"] for each in query.recentProgress if each["numInputRows"]]
        query.stop()
        return [milliseconds / 1000 for milliseconds in batches[STREAM_WARM:]]


def main() -> None:
    side, *settings = sys.argv[1:]
    driver = Driver(spark := start(side, dict(setting.split("=", 1) for setting in settings)))
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "end":
            break
        # Start a new line: other programs may have written a partial line to the shared pipe.
        print("\n=", json.dumps(driver.run_job(json.loads(line))), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
