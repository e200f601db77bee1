"""Spark on our topics beside Spark on the same rows from elsewhere, all in one run: only the ratios mean something.

python -m benchmarks.spark_figures [--rows 400000] [--size 1024] [--queues 4]

bare        a data source that yields ready-made Arrow batches of the same rows: what Spark can take at all
parquet     Spark's own reader, on the same rows in a file
topic       our source: all columns, without properties, and two columns by schema
sink        our sink, at least once and exactly once; and the bare Arrow writer, which throws rows away
floor       how long a micro-batch takes that has next to nothing to do
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
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
from pyspark.sql.types import StructType

from holdfast import Message, blocking
from holdfast.spark import session

BATCH = 8192
HOLDFAST = str(Path(sys.executable).with_name("holdfast"))


class BareReader(DataSourceReader):
    def __init__(self, rows: int, size: int) -> None:
        self._rows, self._size = rows, size

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self._rows // 2), InputPartition(self._rows - self._rows // 2)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        left = int(partition.value)
        body = pa.array([os.urandom(self._size)] * BATCH, pa.binary())
        number = pa.array(range(BATCH), pa.int64())
        whole = pa.RecordBatch.from_arrays([body, number, number], names=["body", "offset", "at"])
        while left > 0:
            yield whole if left >= BATCH else whole.slice(0, left)
            left -= BATCH


class BareWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class Bare(DataSource):
    @classmethod
    def name(cls) -> str:
        return "bare"

    def schema(self) -> str:
        return "body binary, offset bigint, at bigint"

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        return BareReader(int(self.options["rows"]), int(self.options["size"]))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: ARG002, FBT001
        return BareWriter()


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


def measure(
    spark: SparkSession, namesrv: str, options: argparse.Namespace, folder: Path
) -> Iterator[tuple[str, float]]:
    rows, size = options.rows, options.size
    topic = spark.read.format("holdfast").option("namesrv", namesrv).option("subscribe", "figures")
    cold, warm = rate(rows, drain(topic.load()))
    yield "topic, all columns, cold", cold
    yield "topic, all columns", warm
    yield "topic, without properties", rate(rows, drain(topic.option("includeHeaders", "false").load()))[1]
    slim = spark.read.schema("body binary, offset bigint").format("holdfast")
    slim = slim.option("namesrv", namesrv).option("subscribe", "figures")
    yield "topic, body and offset", rate(rows, drain(slim.load()))[1]
    spark.dataSource.register(Bare)
    bare = spark.read.format("bare").option("rows", rows).option("size", size).load()
    yield "bare Arrow source", rate(rows, drain(bare))[1]
    slim.load().write.mode("overwrite").parquet(str(folder / "parquet"))
    yield "Parquet", rate(rows, drain(spark.read.parquet(str(folder / "parquet"))))[1]
    some = topic.option("includeHeaders", "false").load().select("key", "body").persist()
    some.count()
    yield "bare Arrow writer", rate(rows, lambda: some.write.format("bare").mode("append").save(), 2)[1]
    for exactly in ("false", "true"):
        sink = some.write.format("holdfast").option("namesrv", namesrv).option("topic", "copy")
        sink = sink.option("exactlyOnce", exactly).mode("append")
        yield f"sink, exactlyOnce={exactly}", rate(rows, sink.save, 2)[1]
    yield "micro-batch, median ms", floor(spark, namesrv, folder / "checkpoint")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--queues", type=int, default=4)
    options = parser.parse_args()
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
        spark = session("figures", config={"spark.driver.memory": "4g"})
        spark.sparkContext.setLogLevel("OFF")
        found = {}
        for what, figure in measure(spark, namesrv, options, folder):
            found[what] = figure
            unit = "" if "ms" in what else f" rows/s {figure * options.size / 1e6:>8,.0f} MB/s"
            print(f"{what:<28}{figure:>12,.0f}{unit}", flush=True)
        bare = found["bare Arrow source"]
        print(
            f"topic / bare: {found['topic, all columns'] / bare:.2f} with all columns, "
            f"{found['topic, body and offset'] / bare:.2f} with body and offset"
        )
        print(f"topic / Parquet: {found['topic, body and offset'] / found['Parquet']:.2f} slim")
        spark.stop()
    finally:
        up.terminate()
        up.wait(30)
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
