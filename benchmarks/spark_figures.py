"""Spark on our topics beside Spark on the same rows from elsewhere, all in one run: only the ratios mean something.

python -m benchmarks.spark_figures [--rows 400000] [--size 1024] [--queues 4]

bare        a data source that yields one ready-made Arrow batch of the same rows, with the same columns, again and
            again: what Spark can take at all
parquet     Spark's own reader, on the same rows in a file
topic       our source: all columns, without properties, and two columns by schema
cold        the first query of a Spark that was just started, each in a process of its own
sink        our sink, at least once and exactly once; and the bare Arrow writer, which throws rows away
floor       how long a micro-batch takes that has next to nothing to do
"""

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from holdfast import Message, arrow, blocking
from holdfast.spark import session
from holdfast.spark.columns import TYPES

BATCH = 8192
ALL = arrow.COLUMNS
SLIM = ("body", "offset")
HOLDFAST = str(Path(sys.executable).with_name("holdfast"))


class BareReader(DataSourceReader):
    def __init__(self, rows: int, file: str) -> None:
        self._rows, self._file = rows, file

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self._rows // 2), InputPartition(self._rows - self._rows // 2)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        left = int(partition.value)
        with pa.OSFile(self._file) as file:
            whole = pa.ipc.open_stream(file).read_next_batch()
        while left > 0:
            yield whole.slice(0, left)
            left -= len(whole)


class BareWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class Bare(DataSource):
    @classmethod
    def name(cls) -> str:
        return "bare"

    def schema(self) -> StructType:
        names = str(self.options["columns"]).split(",")
        return StructType([StructField(name, from_arrow_type(TYPES[name])) for name in names])

    def reader(self, schema: StructType) -> DataSourceReader:
        names = [field.name for field in schema.fields]
        return BareReader(int(self.options["rows"]), bare_file(Path(self.options["folder"]), names))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: ARG002, FBT001
        return BareWriter()


def bare_file(folder: Path, columns: Sequence[str]) -> str:
    return str(folder / f"{len(columns)}-columns.arrow")


def keep_bare(namesrv: str, folder: Path) -> None:
    """Keep one batch of the topic, with all columns and with two, for the bare source."""
    for columns in (ALL, SLIM):
        rows = pa.Table.from_batches(itertools.islice(arrow.read(namesrv, "figures", columns=columns), 4))
        batch = rows.combine_chunks().to_batches(BATCH)[0]
        with pa.OSFile(bare_file(folder, columns), "wb") as file, pa.ipc.new_stream(file, batch.schema) as stream:
            stream.write_batch(batch)


def read_bare(spark: SparkSession, rows: int, folder: Path, columns: Sequence[str]) -> DataFrame:
    spark.dataSource.register(Bare)
    options = {"rows": str(rows), "folder": str(folder), "columns": ",".join(columns)}
    return spark.read.format("bare").options(**options).load()


def read_topic(spark: SparkSession, namesrv: str, **options: str) -> DataFrame:
    return spark.read.format("holdfast").options(namesrv=namesrv, subscribe="figures", **options).load()


def read_slim(spark: SparkSession, namesrv: str) -> DataFrame:
    reader = spark.read.schema("body binary, offset bigint").format("holdfast")
    return reader.options(namesrv=namesrv, subscribe="figures").load()


def start_spark() -> SparkSession:
    spark = session("figures", config={"spark.driver.memory": "4g"})
    spark.sparkContext.setLogLevel("OFF")
    return spark


def first_query(what: str, namesrv: str, rows: int, folder: Path) -> None:
    """Print how fast the first query of this process is."""
    spark = start_spark()
    frame = read_topic(spark, namesrv) if what == "topic" else read_bare(spark, rows, folder, ALL)
    print(rate(rows, drain(frame), 1)[0])
    spark.stop()


def cold(what: str, namesrv: str, rows: int, folder: Path) -> float:
    """Return rows per second of the first query in a new process."""
    words = [sys.executable, "-m", "benchmarks.spark_figures", "--cold", what, "--namesrv", namesrv]
    words += ["--rows", str(rows), "--folder", str(folder)]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return float(done.stdout.split()[-1])


def rate(rows: int, work: Callable[[], None], times: int = 3) -> tuple[float, float]:
    """Return rows per second of the first time, and of the best of the later ones."""
    seconds = []
    for _ in range(times):
        begun_s = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begun_s)
    return rows / seconds[0], rows / min(seconds[1:] or seconds)


def drain(frame: DataFrame) -> Callable[[], None]:
    return lambda: frame.write.format("noop").mode("overwrite").save()


def fill(namesrv: str, rows: int, size: int) -> float:
    begun_s = time.perf_counter()
    body = os.urandom(size)
    with blocking.Producer(namesrv, compress_over=None, timeout_s=60) as producer:
        for at in range(0, rows, 2000):
            count = min(2000, rows - at)
            producer.send_many([Message("figures", body, key=f"key-{(at + n) % 997}", tags="t") for n in range(count)])
    return rows / (time.perf_counter() - begun_s)


def floor(spark: SparkSession, namesrv: str, folder: Path) -> float:
    """Return the median time of a batch with a few rows, in milliseconds."""
    stream = spark.readStream.format("holdfast").option("namesrv", namesrv).option("subscribe", "figures")
    stream = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "100").load()
    query = stream.writeStream.format("noop").option("checkpointLocation", str(folder)).start()
    while query.lastProgress is None or query.lastProgress["batchId"] < 25:
        time.sleep(0.1)
    times = sorted(each["durationMs"]["triggerExecution"] for each in query.recentProgress[5:])
    query.stop()
    return float(times[len(times) // 2])


def measure(namesrv: str, options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, float]]:
    rows = options.rows
    keep_bare(namesrv, folder)
    for what in ("topic", "bare"):
        yield f"{what}, all columns, cold", cold(what, namesrv, rows, folder)
    spark = start_spark()
    frames = {
        "topic, all columns": read_topic(spark, namesrv),
        "bare, all columns": read_bare(spark, rows, folder, ALL),
        "topic, without properties": read_topic(spark, namesrv, includeHeaders="false"),
        "topic, body and offset": read_slim(spark, namesrv),
        "bare, body and offset": read_bare(spark, rows, folder, SLIM),
    }
    for _ in range(2):  # All in turn: the first round is for the compilers of Java.
        warm = {what: rate(rows, drain(frame), 4)[1] for what, frame in frames.items()}
    yield from warm.items()
    read_slim(spark, namesrv).write.mode("overwrite").parquet(str(folder / "parquet"))
    yield "Parquet", rate(rows, drain(spark.read.parquet(str(folder / "parquet"))))[1]
    some = read_topic(spark, namesrv, includeHeaders="false").select("key", "body").persist()
    some.count()
    yield "bare Arrow writer", rate(rows, lambda: some.write.format("bare").mode("append").save(), 2)[1]
    for exactly in ("false", "true"):
        sink = some.write.format("holdfast").option("namesrv", namesrv).option("topic", "copy")
        sink = sink.option("exactlyOnce", exactly).mode("append")
        yield f"sink, exactlyOnce={exactly}", rate(rows, sink.save, 2)[1]
    yield "micro-batch, median ms", floor(spark, namesrv, folder / "checkpoint")
    spark.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--queues", type=int, default=4)
    parser.add_argument("--cold", choices=("topic", "bare"), help=argparse.SUPPRESS)
    parser.add_argument("--namesrv", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cold:
        first_query(options.cold, options.namesrv, options.rows, options.folder)
        return 0
    folder = Path(tempfile.mkdtemp(prefix="holdfast-spark-figures-"))
    command = [
        HOLDFAST,
        "up",
        "--brokers",
        "2",
        "--base-port",
        "0",
        "--flush",
        "async",
        "--json",
        "--data",
        str(folder / "data"),
    ]
    up = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert up.stdout is not None
        namesrv = json.loads(up.stdout.readline())["namesrv"]
        for topic in ("figures", "copy"):
            subprocess.run(
                [HOLDFAST, "topic", "create", topic, "--logical-queues", str(options.queues), "--namesrv", namesrv],
                check=True, stdout=subprocess.DEVNULL,
            )  # fmt: skip
        print(
            f"{options.rows:,} rows of {options.size} bytes in {options.queues} queues; load {os.getloadavg()[0]:.1f}"
        )
        print(f"{'filled':<28}{fill(namesrv, options.rows, options.size):>12,.0f} rows/s", flush=True)
        found = {}
        for what, figure in measure(namesrv, options, folder):
            found[what] = figure
            unit = "" if "ms" in what else f" rows/s {figure * options.size / 1e6:>8,.0f} MB/s"
            print(f"{what:<28}{figure:>12,.0f}{unit}", flush=True)
        for columns in ("all columns, cold", "all columns", "body and offset"):
            print(f"topic / bare, {columns}: {found[f'topic, {columns}'] / found[f'bare, {columns}']:.2f}")
        print(f"topic / Parquet: {found['topic, body and offset'] / found['Parquet']:.2f} slim")
    finally:
        up.terminate()
        up.wait(30)
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
