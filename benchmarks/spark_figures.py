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
from benchmarks.servers import Fleet
from benchmarks.spark_findings import GrowthPoint, Readings, SparkFindings
from tests.support.child import Child, ChildFailed

Side = Literal["ours", "kafka"]
Job = dict[str, Any]

HOLDFAST: Final = str(Path(sys.executable).with_name("holdfast"))
JOB_TIMEOUT_S: Final = 900.0
MEMORY: Final = "4g"
WARMING_QUERIES: Final = 48
FIGURES: Final = "figures"
COPY: Final = "copy"
ONCE: Final = "copy-once"
WHOLE: Final = "-whole"  # suffix of topics that keep batches whole
# A consumer that has read a partition to its end polls once more, and the broker holds the poll for half a second by
# default: the connector pays that for every partition of every query.
EAGER: Final = {"kafka.fetch.max.wait.ms": "20"}
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


class Driver:
    """One Spark process; spark_driver.py lists its jobs."""

    def __init__(self, child: Child) -> None:
        self._child = child

    def ask(self, job: Job) -> list[float]:
        """Run *job* and return its seconds."""
        heard = len(self._child.lines())
        self._child.tell(msgspec.json.encode(job).decode())
        answer = self._child.wait_for_line("^= ", timeout_s=JOB_TIMEOUT_S, after=heard)
        return msgspec.json.decode(answer.removeprefix("= "), type=list[float])


@dataclass(frozen=True, slots=True)
class Case:
    """One query: its name, its side, and its job for Spark."""

    name: str
    side: Side
    job: Job


class SparkBench:
    """Measures everything once. *folder* receives stores, rows and checkpoints."""

    def __init__(self, fleet: Fleet, folder: Path, say: Callable[[str], None], extent: Extent) -> None:
        self._fleet, self._folder, self._say, self._extent = fleet, folder, say, extent
        self._drivers: dict[Side, Driver] = {}

    def measure(self) -> SparkFindings:
        """Measure everything.

        Raises:
            BenchmarkFailed: A program or package is missing, or rows were lost.
        """
        check_needs()
        load = os.getloadavg()[0]
        self._files = kafka.fetch(self._say)
        extent = self._extent
        found = SparkFindings(rows=extent.rows, size=extent.size, queues=extent.queues, versions=_versions(), load=load)
        self._folder.mkdir()
        name_server = self._fleet.start_holdfast_name_server()
        broker = self._fleet.start_holdfast(name_server, "async")
        self._namesrv = name_server.name_server
        try:
            with ExitStack() as stack:
                self._kafka = kafka.KafkaBroker(self._files, self._folder / "kafka", self._fleet.take_port())
                stack.callback(self._kafka.kill)
                self._prepare()
                self._cold(found)
                for side in ("ours", "kafka"):
                    self._drivers[side] = stack.enter_context(self._driver(side))
                self._warm(found)
                self._sinks(found)
                self._batches(found)
                self._growth(found)
        except ChildFailed as error:
            raise BenchmarkFailed(str(error)) from error
        self._fleet.stop(broker)
        self._fleet.stop(name_server)
        return found

    @contextmanager
    def _driver(self, side: Side) -> Iterator[Driver]:
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
            yield Driver(child)
            child.tell("end")
            child.wait(timeout_s=JOB_TIMEOUT_S)

    # Sources and sinks

    def _topic(self, topic: str, schema: str | None = None, **options: str) -> Job:
        everything = {"namesrv": self._namesrv, "subscribe": topic, **options}
        return {"work": "read", "format": "holdfast", "schema": schema, "options": everything}

    def _kafka_topic(self, topic: str, **options: str) -> Job:
        everything = {"kafka.bootstrap.servers": self._kafka.address, "subscribe": topic, **options}
        return {"work": "read", "format": "kafka", "options": everything}

    def _bare(self, name: str, **options: str) -> Job:
        tasks = str(os.cpu_count() or 1)
        return {"work": "read", "format": "bare", "options": {"file": self._file(name), "tasks": tasks, **options}}

    def _bare_again(self) -> Job:
        return self._bare("bare", again=str(self._extent.rows))

    def _parquet(self) -> Job:
        return {"work": "read", "format": "parquet", "options": {"path": self._file("parquet")}}

    def _to(self, side: Side, rows: str, topic: str, **options: str) -> Job:
        address = {"namesrv": self._namesrv} if side == "ours" else {"kafka.bootstrap.servers": self._kafka.address}
        everything = {"topic": topic, **address, **options}
        name = "holdfast" if side == "ours" else "kafka"
        return {"work": "write", "rows": self._file(rows), "format": name, "options": everything}

    def _file(self, name: str) -> str:
        return str(self._folder / name)

    # The parts

    def _prepare(self) -> None:
        """Make the rows, and let both sinks write them to their topics."""
        from benchmarks import spark_rows  # noqa: PLC0415 - needs pyarrow, which only Spark's users have

        extent = self._extent
        self._say(f"   {extent.rows:,} rows of {extent.size:,} bytes in {extent.queues} queues, on either side")
        spark_rows.write_rows(self._folder / "rows", extent.rows, extent.size)
        for topic in (FIGURES, COPY, ONCE):
            self._create(topic, extent.queues)
        self._say("   filling Kafka's topic")
        with self._driver("kafka") as driver:
            driver.ask(self._to("kafka", "rows", FIGURES, **LARGE_BATCHES))
            self._check(driver, self._kafka_topic(FIGURES), extent.rows)
        self._say("   filling our topic")
        with self._driver("ours") as driver:
            for topic in (FIGURES, FIGURES + WHOLE):
                driver.ask(self._to("ours", "rows", topic))
                self._check(driver, self._topic(topic), extent.rows)
            driver.ask({**self._topic(FIGURES), "work": "save", "file": self._file("parquet")})
        self._keep_bare(FIGURES, "bare")

    def _keep_bare(self, topic: str, name: str) -> None:
        """Store the rows of *topic* for the bare source."""
        # Use a separate process: a reader keeps its connections for a next call, which never comes here.
        command = [sys.executable, "-m", "benchmarks.spark_rows", self._namesrv, topic, self._file(name)]
        subprocess.run(command, check=True, cwd=SOURCES.parent)

    def _create(self, topic: str, queues: int) -> None:
        """Create a topic on either side, and one on ours that keeps batches whole."""
        for name, kind in ((topic, []), (topic + WHOLE, ["--batches"])):
            where = ["--logical-queues", str(queues), "--namesrv", self._namesrv]
            subprocess.run([HOLDFAST, "topic", "create", name, *where, *kind], check=True, stdout=subprocess.DEVNULL)
        self._kafka.create_topic(topic, queues)

    def _check(self, driver: Driver, job: Job, rows: int) -> None:
        """Fail unless a topic has exactly as many rows as were written to it."""
        (counted,) = driver.ask({**job, "work": "count"})
        if counted != rows:
            raise BenchmarkFailed(f"{job['format']}: {rows:,} rows were written and {counted:,.0f} are stored")

    def _whole_rows(self, bare: Job) -> list[Case]:
        """Return the reads of all columns that are compared with each other, including *bare*."""
        return [
            Case(spark_findings.TOPIC, "ours", self._topic(FIGURES)),
            Case(spark_findings.TOPIC_WHOLE, "ours", self._topic(FIGURES + WHOLE)),
            Case(spark_findings.KAFKA, "kafka", self._kafka_topic(FIGURES)),
            Case(spark_findings.KAFKA_EAGER, "kafka", self._kafka_topic(FIGURES, **EAGER)),
            Case(spark_findings.BARE, "ours", bare),
            Case(spark_findings.PARQUET, "ours", self._parquet()),
        ]

    def _cold(self, found: SparkFindings) -> None:
        # The first query would load all rows from a file, which is not part of the measurement.
        cases = self._whole_rows(self._bare_again())
        seconds: dict[str, list[float]] = {case.name: [] for case in cases}
        os.sync()
        for number in range(self._extent.cold_rounds):
            for case in cases if number % 2 == 0 else reversed(cases):
                with self._driver(case.side) as driver:
                    seconds[case.name] += driver.ask(case.job)
                self._report("cold", case.name, seconds[case.name][-1], found.rows)
        found.cold = self._readings(seconds)

    def _warm(self, found: SparkFindings) -> None:
        cases = [
            *self._whole_rows(self._bare("bare")),
            Case(spark_findings.KAFKA_PARQUET, "kafka", self._parquet()),
            Case(spark_findings.TOPIC_PLAIN, "ours", self._topic(FIGURES, includeHeaders="false")),
            Case(spark_findings.TOPIC_SLIM, "ours", self._topic(FIGURES, "body binary, offset bigint")),
            Case(spark_findings.TOPIC_WHOLE_SLIM, "ours", self._topic(FIGURES + WHOLE, "body binary, offset bigint")),
            Case(spark_findings.BARE_SLIM, "ours", self._bare("bare-slim")),
            Case(spark_findings.BARE_AGAIN, "ours", self._bare_again()),
        ]
        seconds: dict[str, list[float]] = {case.name: [] for case in cases}
        for case in cases:  # Warm the JVMs: both have run equally many queries before the first one counts.
            times = WARMING_QUERIES // sum(case.side == other.side for other in cases)
            taken = self._drivers[case.side].ask({**case.job, "times": times})
            self._report("warming", case.name, taken[-1], found.rows)
        for _ in range(self._extent.warm_rounds):
            for case in cases:
                taken = self._drivers[case.side].ask({**case.job, "times": 3})
                seconds[case.name] += taken[1:]  # skip the first run: other work has displaced the caches
                self._report("warm", case.name, taken[-1], found.rows)
        found.warm = self._readings(seconds)

    def _sinks(self, found: SparkFindings) -> None:
        cases = [
            Case(spark_findings.SINK, "ours", self._to("ours", "rows", COPY)),
            Case(spark_findings.SINK_WHOLE, "ours", self._to("ours", "rows", COPY + WHOLE)),
            Case(spark_findings.SINK_KAFKA, "kafka", self._to("kafka", "rows", COPY)),
            Case(spark_findings.SINK_KAFKA_LARGE, "kafka", self._to("kafka", "rows", COPY, **LARGE_BATCHES)),
            Case(spark_findings.SINK_ONCE, "ours", self._to("ours", "rows", ONCE, exactlyOnce="true")),
            Case(spark_findings.SINK_WHOLE_ONCE, "ours", self._to("ours", "rows", ONCE + WHOLE, exactlyOnce="true")),
            Case(spark_findings.SINK_BARE, "ours", {**self._to("ours", "rows", COPY), "format": "bare"}),
        ]
        seconds: dict[str, list[float]] = {case.name: [] for case in cases}
        times = 1 + self._extent.sink_rounds
        for number in range(times):
            for case in cases:
                os.sync()
                taken = self._drivers[case.side].ask(case.job)
                if number:
                    seconds[case.name] += taken
                self._report("write" if number else "warming", case.name, taken[-1], found.rows)
        found.sinks = self._readings(seconds)
        for topic in (COPY, ONCE, COPY + WHOLE, ONCE + WHOLE):
            self._check(self._drivers["ours"], self._topic(topic, "offset bigint"), times * found.rows)
        self._check(self._drivers["kafka"], self._kafka_topic(COPY), 2 * times * found.rows)

    def _batches(self, found: SparkFindings) -> None:
        few = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "100"}
        cases = [
            Case(spark_findings.TOPIC, "ours", self._topic(FIGURES, **few)),
            Case(spark_findings.KAFKA, "kafka", self._kafka_topic(FIGURES, **few)),
        ]
        for case in cases:
            job = {**case.job, "work": "stream", "folder": self._file(f"checkpoint-{case.side}")}
            found.batches[case.name] = self._drivers[case.side].ask(job)
            self._say(f"   micro-batch, {case.name}: {1000 * min(found.batches[case.name]):.0f} ms at best")

    def _growth(self, found: SparkFindings) -> None:
        from benchmarks import spark_rows  # noqa: PLC0415 - as above

        for number, (axis, rows, size, queues) in enumerate(self._extent.growth):
            file, topic, bare = f"rows-{number}", f"growth-{number}", f"bare-{number}"
            spark_rows.write_rows(self._folder / file, rows, size)
            self._create(topic, queues)
            ours, kafkas = self._drivers["ours"], self._drivers["kafka"]
            place = f"{rows:,} x {size:,} bytes in {queues} queues"
            taken: dict[str, Readings] = {}
            for name, driver, write, read in (
                ("ours", ours, self._to("ours", file, topic), self._topic(topic)),
                ("whole", ours, self._to("ours", file, topic + WHOLE), self._topic(topic + WHOLE)),
                (
                    "kafka",
                    kafkas,
                    self._to("kafka", file, topic, **LARGE_BATCHES),
                    self._kafka_topic(topic, **EAGER),
                ),
            ):
                os.sync()
                taken[f"{name} sink"] = Readings(rows=rows, size=size, seconds=driver.ask(write))
                taken[name] = Readings(rows=rows, size=size, seconds=driver.ask({**read, "times": 3})[1:])
                self._check(driver, read, rows)
                self._report(f"{place}, write", name, taken[f"{name} sink"].seconds[-1], rows)
                self._report(place, name, taken[name].seconds[-1], rows)
            self._keep_bare(topic, bare)
            seconds = ours.ask({**self._bare(bare), "times": 3})[1:]
            shutil.rmtree(self._folder / file)
            found.growth.append(
                GrowthPoint(
                    axis=axis, rows=rows, size=size, queues=queues, ours=taken["ours"], kafka=taken["kafka"],
                    our_sink=taken["ours sink"], kafka_sink=taken["kafka sink"], whole=taken["whole"],
                    whole_sink=taken["whole sink"], bare=Readings(rows=rows, size=size, seconds=seconds),
                )
            )  # fmt: skip

    def _readings(self, seconds: dict[str, list[float]]) -> dict[str, Readings]:
        extent = self._extent
        return {name: Readings(rows=extent.rows, size=extent.size, seconds=taken) for name, taken in seconds.items()}

    def _report(self, what: str, name: str, seconds: float, rows: int) -> None:
        self._say(f"   {what}, {name}: {rows / seconds:,.0f} rows/s")


def check_needs() -> None:
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
