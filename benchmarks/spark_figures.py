"""Spark on our topics, beside Spark on the same rows from elsewhere: reads, writes, and the time of one micro-batch.

    rows (Parquet) ─> our sink ───> topic ─> our source ─────┐
                 └──> Kafka's sink ─> topic ─> its connector ─┴─> noop

topic       our source: all columns, without properties, and two columns by schema
whole       our source on a topic that stores each batch of the sink as one record, and our sink into such topics
bare        a data source that yields the same rows from memory, and does nothing else: the limit of Spark
parquet     Spark's own reader, on the same rows and columns in a file
Kafka       one broker beside our one, and Spark's connector in the newest Spark that it exists for (kafka.py)
cold        the first query of a freshly started Spark, each in a separate process
sinks       rows from memory into a topic; and the bare Arrow writer, which discards them
batches     how long a micro-batch with almost no work takes

Each side is one long-lived Spark process (spark_driver.py). They are measured in turn; the others are idle meanwhile.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from benchmarks import kafka, spark_findings
from benchmarks.programs import SOURCES, BenchmarkFailed
from benchmarks.servers import ServerFleet
from benchmarks.spark_findings import GrowthPoint, Readings, SparkFindings
from tests.support.child import Child, ChildFailed

Side = Literal["ours", "kafka"]
Job = dict[str, Any]

HOLDFAST: Final = str(Path(sys.executable).with_name("holdfast"))
JOB_TIMEOUT_S: Final = 900.0
MEMORY: Final = "4g"
WARMING_QUERIES: Final = 48
FIGURES: Final = "figures"
SINK_TOPIC: Final = "copy"
EXACT_SINK_TOPIC: Final = "copy-once"
WHOLE_SUFFIX: Final = "-whole"  # suffix of topics that keep batches whole
# A consumer that has read a partition to its end polls once more, and the broker holds the poll for half a second by
# default: the connector pays that for every partition of every query.
SHORT_FETCH_WAIT: Final = {"kafka.fetch.max.wait.ms": "20"}
# Kafka's producer packs 16 KiB by default. Topics for reads get larger batches, so that Kafka has no disadvantage.
LARGE_BATCHES: Final = {"kafka.batch.size": "131072", "kafka.linger.ms": "5"}
# The settings of our own session for one machine that apply to the other side, too; the class has moved since.
PLAIN_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager"
    ),
}


class Extent(msgspec.Struct, frozen=True, kw_only=True):
    """The amounts to measure.

    Attributes:
        cold_rounds: Processes that are started for each cold figure.
        warm_rounds: Rounds of warm reads, in each of which a query runs three times and two runs count.
        growth: Points that are read beside the main one: axis, rows, size, queues.
    """

    rows: int = 300_000
    size: int = 1024
    queues: int = 4
    cold_rounds: int = 2
    warm_rounds: int = 4
    sink_rounds: int = 4
    growth: tuple[tuple[str, int, int, int], ...] = (
        ("queues", 300_000, 1024, 1),
        ("queues", 300_000, 1024, 64),
        ("rows", 1_000_000, 1024, 4),
        ("row size", 300_000, 100, 4),
        ("row size", 30_000, 10_240, 4),
    )


QUICK: Final = Extent(rows=100_000, cold_rounds=1, warm_rounds=1, sink_rounds=1, growth=())


class DriverProcess:
    """One Spark process; spark_driver.py lists its jobs."""

    def __init__(self, child: Child) -> None:
        self._child = child

    def run_job(self, job: Job) -> list[float]:
        """Run *job* and return its seconds."""
        line_count = len(self._child.lines())
        self._child.write_line(msgspec.json.encode(job).decode())
        answer = self._child.wait_for_line("^= ", timeout_s=JOB_TIMEOUT_S, after=line_count)
        return msgspec.json.decode(answer.removeprefix("= "), type=list[float])


@dataclass(frozen=True, slots=True)
class QueryCase:
    """One query: its name, its side, and its job for Spark."""

    name: str
    side: Side
    job: Job


class SparkBench:
    """Measures everything once. *folder* receives stores, rows and checkpoints."""

    def __init__(self, fleet: ServerFleet, folder: Path, log: Callable[[str], None], extent: Extent) -> None:
        self._fleet, self._folder, self._log, self._extent = fleet, folder, log, extent
        self._drivers: dict[Side, DriverProcess] = {}

    def measure(self) -> SparkFindings:
        """Measure everything.

        Raises:
            BenchmarkFailed: A program or package is missing, or rows were lost.
        """
        check_requirements()
        load = os.getloadavg()[0]
        self._files = kafka.fetch(self._log)
        extent = self._extent
        findings = SparkFindings(
            rows=extent.rows, size=extent.size, queues=extent.queues, versions=_versions(), load=load
        )
        self._folder.mkdir()
        name_server = self._fleet.start_holdfast_name_server()
        broker = self._fleet.start_holdfast(name_server, "async")
        self._namesrv = name_server.name_server
        try:
            with ExitStack() as stack:
                self._kafka = kafka.KafkaBroker(self._files, self._folder / "kafka", self._fleet.allocate_port())
                stack.callback(self._kafka.kill)
                self._prepare()
                self._cold(findings)
                for side in ("ours", "kafka"):
                    self._drivers[side] = stack.enter_context(self._driver(side))
                self._warm(findings)
                self._sinks(findings)
                self._batches(findings)
                self._growth(findings)
        except ChildFailed as error:
            raise BenchmarkFailed(str(error)) from error
        self._fleet.stop(broker)
        self._fleet.stop(name_server)
        return findings

    @contextmanager
    def _driver(self, side: Side) -> Iterator[DriverProcess]:
        """Start a Spark; it and its Java have ended when the block ends."""
        settings = {"spark.driver.memory": MEMORY, "spark.local.dir": str(self._folder / "local")}
        if side == "ours":
            command = [sys.executable, "-m", "benchmarks.spark_driver", "ours"]
            environment = {"PYTHONPATH": os.pathsep.join([str(SOURCES.parent), os.environ.get("PYTHONPATH", "")])}
        else:
            command = [str(self._files.python), "-P", str(SOURCES / "spark_driver.py"), "plain"]
            environment = {"PYTHONPATH": "", "SPARK_LOCAL_IP": "127.0.0.1"}
            settings |= PLAIN_SETTINGS | {"spark.driver.extraClassPath": f"{self._files.connector}/*"}
        command += [f"{setting}={text}" for setting, text in settings.items()]
        with Child(command, name=f"Spark, {side}", environment=environment, folder=SOURCES.parent) as child:
            child.wait_for_line("^ready$", timeout_s=JOB_TIMEOUT_S)
            yield DriverProcess(child)
            child.write_line("end")
            child.wait(timeout_s=JOB_TIMEOUT_S)

    # Sources and sinks

    def _topic_job(self, topic: str, schema: str | None = None, **options: str) -> Job:
        all_options = {"namesrv": self._namesrv, "subscribe": topic, **options}
        return {"work": "read", "format": "holdfast", "schema": schema, "options": all_options}

    def _kafka_job(self, topic: str, **options: str) -> Job:
        all_options = {"kafka.bootstrap.servers": self._kafka.address, "subscribe": topic, **options}
        return {"work": "read", "format": "kafka", "options": all_options}

    def _bare_job(self, name: str, **options: str) -> Job:
        tasks = str(os.cpu_count() or 1)
        return {"work": "read", "format": "bare", "options": {"file": self._file(name), "tasks": tasks, **options}}

    def _repeated_bare_job(self) -> Job:
        return self._bare_job("bare", again=str(self._extent.rows))

    def _parquet_job(self) -> Job:
        return {"work": "read", "format": "parquet", "options": {"path": self._file("parquet")}}

    def _write_job(self, side: Side, rows: str, topic: str, **options: str) -> Job:
        address = {"namesrv": self._namesrv} if side == "ours" else {"kafka.bootstrap.servers": self._kafka.address}
        all_options = {"topic": topic, **address, **options}
        name = "holdfast" if side == "ours" else "kafka"
        return {"work": "write", "rows": self._file(rows), "format": name, "options": all_options}

    def _file(self, name: str) -> str:
        return str(self._folder / name)

    # The parts

    def _prepare(self) -> None:
        """Make the rows, and let both sinks write them to their topics."""
        from benchmarks import spark_rows  # noqa: PLC0415 - needs pyarrow, which only Spark's users have

        extent = self._extent
        self._log(f"   {extent.rows:,} rows of {extent.size:,} bytes in {extent.queues} queues, on either side")
        spark_rows.write_rows(self._folder / "rows", extent.rows, extent.size)
        for topic in (FIGURES, SINK_TOPIC, EXACT_SINK_TOPIC):
            self._create(topic, extent.queues)
        self._log("   filling Kafka's topic")
        with self._driver("kafka") as driver:
            driver.run_job(self._write_job("kafka", "rows", FIGURES, **LARGE_BATCHES))
            self._check(driver, self._kafka_job(FIGURES), extent.rows)
        self._log("   filling our topic")
        with self._driver("ours") as driver:
            for topic in (FIGURES, FIGURES + WHOLE_SUFFIX):
                driver.run_job(self._write_job("ours", "rows", topic))
                self._check(driver, self._topic_job(topic), extent.rows)
            driver.run_job({**self._topic_job(FIGURES), "work": "save", "file": self._file("parquet")})
        self._store_bare_rows(FIGURES, "bare")

    def _store_bare_rows(self, topic: str, name: str) -> None:
        """Store the rows of *topic* for the bare source."""
        # Use a separate process: a reader keeps its connections for a next call, which never comes here.
        command = [sys.executable, "-m", "benchmarks.spark_rows", self._namesrv, topic, self._file(name)]
        subprocess.run(command, check=True, cwd=SOURCES.parent)

    def _create(self, topic: str, queues: int) -> None:
        """Create a topic on either side, and one on ours that keeps batches whole."""
        for name, kind in ((topic, []), (topic + WHOLE_SUFFIX, ["--batches"])):
            where = ["--logical-queues", str(queues), "--namesrv", self._namesrv]
            subprocess.run([HOLDFAST, "topic", "create", name, *where, *kind], check=True, stdout=subprocess.DEVNULL)
        self._kafka.create_topic(topic, queues)

    def _check(self, driver: DriverProcess, job: Job, rows: int) -> None:
        """Fail unless a topic has exactly as many rows as were written to it."""
        (counted,) = driver.run_job({**job, "work": "count"})
        if counted != rows:
            raise BenchmarkFailed(f"{job['format']}: {rows:,} rows were written and {counted:,.0f} are stored")

    def _all_column_cases(self, bare: Job) -> list[QueryCase]:
        """Return the reads of all columns that are compared with each other, including *bare*."""
        return [
            QueryCase(spark_findings.TOPIC, "ours", self._topic_job(FIGURES)),
            QueryCase(spark_findings.TOPIC_WHOLE, "ours", self._topic_job(FIGURES + WHOLE_SUFFIX)),
            QueryCase(spark_findings.KAFKA, "kafka", self._kafka_job(FIGURES)),
            QueryCase(spark_findings.KAFKA_EAGER, "kafka", self._kafka_job(FIGURES, **SHORT_FETCH_WAIT)),
            QueryCase(spark_findings.BARE, "ours", bare),
            QueryCase(spark_findings.PARQUET, "ours", self._parquet_job()),
        ]

    def _cold(self, findings: SparkFindings) -> None:
        # The first query would load all rows from a file, which is not part of the measurement.
        cases = self._all_column_cases(self._repeated_bare_job())
        seconds: dict[str, list[float]] = {case.name: [] for case in cases}
        os.sync()
        for number in range(self._extent.cold_rounds):
            for case in cases if number % 2 == 0 else reversed(cases):
                with self._driver(case.side) as driver:
                    seconds[case.name] += driver.run_job(case.job)
                self._report("cold", case.name, seconds[case.name][-1], findings.rows)
        findings.cold = self._readings(seconds)

    def _warm(self, findings: SparkFindings) -> None:
        cases = [
            *self._all_column_cases(self._bare_job("bare")),
            QueryCase(spark_findings.KAFKA_PARQUET, "kafka", self._parquet_job()),
            QueryCase(spark_findings.TOPIC_PLAIN, "ours", self._topic_job(FIGURES, includeHeaders="false")),
            QueryCase(spark_findings.TOPIC_SLIM, "ours", self._topic_job(FIGURES, "body binary, offset bigint")),
            QueryCase(
                spark_findings.TOPIC_WHOLE_SLIM,
                "ours",
                self._topic_job(FIGURES + WHOLE_SUFFIX, "body binary, offset bigint"),
            ),
            QueryCase(spark_findings.BARE_SLIM, "ours", self._bare_job("bare-slim")),
            QueryCase(spark_findings.BARE_AGAIN, "ours", self._repeated_bare_job()),
        ]
        seconds: dict[str, list[float]] = {case.name: [] for case in cases}
        for case in cases:  # Warm the JVMs: both have run equally many queries before the first one counts.
            times = WARMING_QUERIES // sum(case.side == other.side for other in cases)
            run_seconds = self._drivers[case.side].run_job({**case.job, "times": times})
            self._report("warming", case.name, run_seconds[-1], findings.rows)
        for _ in range(self._extent.warm_rounds):
            for case in cases:
                run_seconds = self._drivers[case.side].run_job({**case.job, "times": 3})
                seconds[case.name] += run_seconds[1:]  # skip the first run: other work has displaced the caches
                self._report("warm", case.name, run_seconds[-1], findings.rows)
        findings.warm = self._readings(seconds)

    def _sinks(self, findings: SparkFindings) -> None:
        cases = [
            QueryCase(spark_findings.SINK, "ours", self._write_job("ours", "rows", SINK_TOPIC)),
            QueryCase(spark_findings.SINK_WHOLE, "ours", self._write_job("ours", "rows", SINK_TOPIC + WHOLE_SUFFIX)),
            QueryCase(spark_findings.SINK_KAFKA, "kafka", self._write_job("kafka", "rows", SINK_TOPIC)),
            QueryCase(
                spark_findings.SINK_KAFKA_LARGE, "kafka", self._write_job("kafka", "rows", SINK_TOPIC, **LARGE_BATCHES)
            ),
            QueryCase(
                spark_findings.SINK_ONCE, "ours", self._write_job("ours", "rows", EXACT_SINK_TOPIC, exactlyOnce="true")
            ),
            QueryCase(
                spark_findings.SINK_WHOLE_ONCE,
                "ours",
                self._write_job("ours", "rows", EXACT_SINK_TOPIC + WHOLE_SUFFIX, exactlyOnce="true"),
            ),
            QueryCase(
                spark_findings.SINK_BARE, "ours", {**self._write_job("ours", "rows", SINK_TOPIC), "format": "bare"}
            ),
        ]
        seconds: dict[str, list[float]] = {case.name: [] for case in cases}
        times = 1 + self._extent.sink_rounds
        for number in range(times):
            for case in cases:
                os.sync()
                run_seconds = self._drivers[case.side].run_job(case.job)
                if number:
                    seconds[case.name] += run_seconds
                self._report("write" if number else "warming", case.name, run_seconds[-1], findings.rows)
        findings.sinks = self._readings(seconds)
        for topic in (SINK_TOPIC, EXACT_SINK_TOPIC, SINK_TOPIC + WHOLE_SUFFIX, EXACT_SINK_TOPIC + WHOLE_SUFFIX):
            self._check(self._drivers["ours"], self._topic_job(topic, "offset bigint"), times * findings.rows)
        self._check(self._drivers["kafka"], self._kafka_job(SINK_TOPIC), 2 * times * findings.rows)

    def _batches(self, findings: SparkFindings) -> None:
        few_rows = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "100"}
        cases = [
            QueryCase(spark_findings.TOPIC, "ours", self._topic_job(FIGURES, **few_rows)),
            QueryCase(spark_findings.KAFKA, "kafka", self._kafka_job(FIGURES, **few_rows)),
        ]
        for case in cases:
            job = {**case.job, "work": "stream", "folder": self._file(f"checkpoint-{case.side}")}
            findings.batches[case.name] = self._drivers[case.side].run_job(job)
            self._log(f"   micro-batch, {case.name}: {1000 * min(findings.batches[case.name]):.0f} ms at best")

    def _growth(self, findings: SparkFindings) -> None:
        from benchmarks import spark_rows  # noqa: PLC0415 - as above

        for number, (axis, rows, size, queues) in enumerate(self._extent.growth):
            file, topic, bare = f"rows-{number}", f"growth-{number}", f"bare-{number}"
            spark_rows.write_rows(self._folder / file, rows, size)
            self._create(topic, queues)
            ours, kafka_driver = self._drivers["ours"], self._drivers["kafka"]
            shape = f"{rows:,} x {size:,} bytes in {queues} queues"
            readings: dict[str, Readings] = {}
            for name, driver, write, read in (
                ("ours", ours, self._write_job("ours", file, topic), self._topic_job(topic)),
                (
                    "whole",
                    ours,
                    self._write_job("ours", file, topic + WHOLE_SUFFIX),
                    self._topic_job(topic + WHOLE_SUFFIX),
                ),
                (
                    "kafka",
                    kafka_driver,
                    self._write_job("kafka", file, topic, **LARGE_BATCHES),
                    self._kafka_job(topic, **SHORT_FETCH_WAIT),
                ),
            ):
                os.sync()
                readings[f"{name} sink"] = Readings(rows=rows, size=size, seconds=driver.run_job(write))
                readings[name] = Readings(rows=rows, size=size, seconds=driver.run_job({**read, "times": 3})[1:])
                self._check(driver, read, rows)
                self._report(f"{shape}, write", name, readings[f"{name} sink"].seconds[-1], rows)
                self._report(shape, name, readings[name].seconds[-1], rows)
            self._store_bare_rows(topic, bare)
            seconds = ours.run_job({**self._bare_job(bare), "times": 3})[1:]
            shutil.rmtree(self._folder / file)
            findings.growth.append(
                GrowthPoint(
                    axis=axis, rows=rows, size=size, queues=queues, ours=readings["ours"], kafka=readings["kafka"],
                    our_sink=readings["ours sink"], kafka_sink=readings["kafka sink"], whole=readings["whole"],
                    whole_sink=readings["whole sink"], bare=Readings(rows=rows, size=size, seconds=seconds),
                )
            )  # fmt: skip

    def _readings(self, seconds: dict[str, list[float]]) -> dict[str, Readings]:
        extent = self._extent
        return {
            name: Readings(rows=extent.rows, size=extent.size, seconds=run_seconds)
            for name, run_seconds in seconds.items()
        }

    def _report(self, phase: str, name: str, seconds: float, rows: int) -> None:
        self._log(f"   {phase}, {name}: {rows / seconds:,.0f} rows/s")


def check_requirements() -> None:
    """Raise BenchmarkFailed if Spark or Java is missing."""
    if importlib.util.find_spec("pyspark") is None:
        raise BenchmarkFailed("Spark is missing: `make install-spark` installs it")
    if shutil.which("java") is None:
        raise BenchmarkFailed("Kafka's broker needs Java 17 or later: install one (Debian: apt install default-jre)")


def _versions() -> dict[str, str]:
    return {
        "spark": metadata.version("pyspark"),
        "connector": kafka.SPARK_VERSION,
        "kafka": kafka.KAFKA_VERSION,
        "pyarrow": metadata.version("pyarrow"),
    }
