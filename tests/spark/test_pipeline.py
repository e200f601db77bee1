"""Jobs over stored logs as Spark runs them: the same as in one process, over a live cluster, and back into a topic."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from tests.spark.conftest import Read, SparkCluster
from tests.support.store_folders import StoreFolderBuilder, flip
from tests.support.stores import NOW_MS

from holdfast.model.errors import ConfigError
from holdfast.pipeline.archive import backfill as backfill_job
from holdfast.pipeline.archive.archive_job import archive
from holdfast.pipeline.archive.backfill import backfill, read_archive
from holdfast.pipeline.audit.audit_job import audit
from holdfast.pipeline.scan.read_only import replace_file
from holdfast.pipeline.scan.spark_tasks import SparkTasks
from holdfast.pipeline.scan.tasks import InProcess, TaskFailed
from holdfast.pipeline.stats.stats_job import stats
from holdfast.spark import sink_requests
from holdfast.spark.delivery import Delivery

SETTLE_S = 60.0

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def tasks(spark: SparkSession) -> SparkTasks:
    return SparkTasks(spark)


@pytest.fixture
def folder(tmp_path: Path) -> StoreFolderBuilder:
    found = StoreFolderBuilder(tmp_path / "broker-a")
    found.append(b"the first")
    found.fill()
    found.close()
    return found


def test_spark_finds_what_one_process_finds(tasks: SparkTasks, folder: StoreFolderBuilder, tmp_path: Path):
    """Faults, counts and rows; and progress is told."""
    told: list[tuple[str, int]] = []

    def show(what: str, count: int) -> Callable[[int], None]:
        told.append((what, count))
        return lambda _: None

    flip(folder.log_path(0), skip=89)
    names = [str(folder)]

    found = audit(tasks, names, range_size=5000, show=show)
    counted = stats(tasks, names, range_size=5000)
    done = archive(tasks, names, str(tmp_path / "archive"), range_size=5000)

    assert found.faults == audit(InProcess(), names).faults
    assert counted.queues == stats(InProcess(), names).queues
    assert done.rows == {"batched": 18, "clicks": 12, "orders": 60}
    assert [what for what, _ in told] == ["indexes", "log"]
    assert told[1][1] > 1


def test_an_archive_is_a_table(tasks: SparkTasks, spark: SparkSession, folder: StoreFolderBuilder, tmp_path: Path):
    """In SQL, by topic and day; whatever a topic is called."""
    folder = StoreFolderBuilder(tmp_path / "broker-b", topics=("orders", "17", "%DLQ%group"))
    for number, topic in enumerate(("orders", "17", "%DLQ%group", "orders")):
        folder.append(b"%d" % number, topic=topic, now_ms=NOW_MS + number * 86_400_000)
    folder.close()
    archive(tasks, [str(folder)], str(tmp_path / "archive"))

    read_archive(spark, str(tmp_path / "archive")).createOrReplaceTempView("archive")
    rows = spark.sql("select topic, day, count(*), max(decode(body, 'utf-8')) from archive group by 1, 2 order by 4")

    assert [(row[0], str(row[1]), row[2]) for row in rows.collect()] == [
        ("orders", "2023-11-14", 1),
        ("17", "2023-11-15", 1),
        ("%DLQ%group", "2023-11-16", 1),
        ("orders", "2023-11-17", 1),
    ]


def test_a_task_that_fails_says_why(tasks: SparkTasks):
    """Not how Java came to hear of it."""

    def fail(_: int) -> int:
        raise ConfigError("there is no such thing")

    with pytest.raises(TaskFailed, match="there is no such thing"):
        tasks.run(fail, [1, 2], int, lambda _: None)


def archive_all(cluster: SparkCluster, topic: str, target: Path, count: int) -> None:
    """Archive a topic of live brokers until all of it is there: their marks move every ten seconds."""
    deadline_s = time.monotonic() + SETTLE_S
    rows = 0
    while rows < count:
        assert time.monotonic() < deadline_s, f"only {rows} messages are settled"
        names = [f"{name}={broker.store}" for name, broker in cluster.brokers.items()]
        done = archive(InProcess(), names, str(target), topics=[topic], holds=False)
        assert done.is_complete
        rows += done.rows.get(topic, 0)
        time.sleep(0.5)


def test_live_brokers_are_audited_and_archived_while_queues_move(
    cluster: SparkCluster, tasks: SparkTasks, tmp_path: Path
):
    """Offsets of each logical queue go on over both brokers, and nothing is wrong with either."""
    topic = cluster.new_topic(queues=2)
    cluster.send(topic, range(200))
    other = {"broker-a": "broker-b", "broker-b": "broker-a"}[cluster.leaders(topic)[0]]
    cluster.run("queue", "migrate", topic, "0", "--to", other)
    cluster.send(topic, range(200, 400))

    archive_all(cluster, topic, tmp_path / "archive", 400)
    found = audit(tasks, [f"{name}={broker.store}" for name, broker in cluster.brokers.items()])

    rows = read_archive(tasks.spark, str(tmp_path / "archive")).where(f"topic = '{topic}'").collect()
    assert sorted(int(row.body) for row in rows) == list(range(400))
    for queue in (0, 1):
        offsets = sorted(row.offset for row in rows if row.queue == queue)
        assert offsets == list(range(len(offsets)))
    assert {row.broker for row in rows if row.queue == 0} == {"broker-a", "broker-b"}
    assert found.faults == []


def orders_archive(tmp_path: Path, count: int) -> Path:
    """An archive of messages of some keys, over two queues."""
    folder = StoreFolderBuilder(tmp_path / "broker-a")
    for number in range(count):
        key = f"key-{number % 5}"
        more = f"KEYS\x01{key}\x02__SHARDINGKEY\x01{key}\x02colour\x01red\x02"
        now_ms = NOW_MS + number * 500
        folder.append(
            b"%d" % number, queue=number % 5 % 2, tags="paid", extra_properties=more, now_ms=now_ms, born_ms=now_ms - 7
        )
    folder.append(b"", now_ms=NOW_MS + count * 500)
    folder.close()
    # Many files, which Spark reads in an order of its own.
    archive(InProcess(), [str(folder)], str(tmp_path / "archive"), range_size=3000)
    return tmp_path / "archive"


def test_a_backfill_that_is_stopped_anywhere_writes_each_row_once(
    cluster: SparkCluster, spark: SparkSession, read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """In the order of each key, with key, tag, properties and where it came from; run again, it goes on."""
    source, topic, state = orders_archive(tmp_path, 200), cluster.new_topic(), str(tmp_path / "state")
    # Of a row of the second piece the clock said that it is of the first one.
    stored = F.col("storeTimestamp")
    late = F.when(F.decode("body", "utf-8") == "114", stored - F.expr("INTERVAL 7 SECONDS")).otherwise(stored)
    rows = read_archive(spark, str(source)).withColumn("storeTimestamp", late)

    def run() -> backfill_job.BackfillResult:
        return backfill(rows, cluster.namesrv, topic, state, source=str(source), rows_per_piece=110)

    def half(batches: Iterator[pa.RecordBatch], **how: object) -> Iterator[pa.RecordBatch]:
        parts = list(batches)
        rows_max, insist = sink_requests.REQUEST_ROWS_MAX, Delivery._send_until_answered

        async def die(self: Delivery, queue: object, requests: object, at: int) -> object:
            if at:
                raise RuntimeError("the power is gone")
            return await insist(self, queue, requests, at)  # type: ignore[arg-type]

        if any("key-3" in part.column("key").to_pylist() for part in parts):
            sink_requests.REQUEST_ROWS_MAX, Delivery._send_until_answered = 5, die  # type: ignore[misc, assignment, method-assign]
        try:
            yield from write(iter(parts), **how)
        finally:  # The process is used again.
            sink_requests.REQUEST_ROWS_MAX, Delivery._send_until_answered = rows_max, insist  # type: ignore[misc, method-assign]

    def dying(path: Path, data: bytes) -> None:
        if path.name == "progress.json":
            raise KeyboardInterrupt
        replace_file(path, data)

    write = backfill_job._write_partition
    with monkeypatch.context() as patch:  # One task has written all of its part, another one a few rows of each queue.
        patch.setattr(backfill_job, "_write_partition", half)
        with pytest.raises(PySparkException):
            run()
    with monkeypatch.context() as patch:  # A piece is written, and nobody takes note of it.
        patch.setattr(backfill_job, "replace_file", dying)
        with pytest.raises(KeyboardInterrupt):
            run()
    done = run()

    assert (done.rows, done.pieces, done.before, done.empty) == (200, 2, 0, 1)
    found = read(topic).collect()
    assert sorted(int(row.body) for row in found) == list(range(200))
    for key in {row.key for row in found}:
        mine = [row for row in found if row.key == key]
        assert len({row.queue for row in mine}) == 1
        numbers = [int(row.body) for row in sorted(mine, key=lambda row: row.offset)]
        assert numbers == sorted(numbers)
    row = next(row for row in found if row.body == b"7")
    assert (row.key, row.tags, row.properties["colour"]) == ("key-2", "paid", "red")
    origin = {name: row.properties[name] for name in backfill_job.ORIGIN}
    assert origin == {
        "originTopic": "orders",
        "originQueue": "0",
        "originOffset": "4",
        "originStoreTimestamp": str(NOW_MS + 3500),
        "originBornTimestamp": str(NOW_MS + 3493),
    }
    assert run().before == 2
    with pytest.raises(ConfigError, match="another folder"):
        backfill(rows, cluster.namesrv, "elsewhere", state, source=str(source))


def test_a_table_without_the_right_columns_is_refused(cluster: SparkCluster, spark: SparkSession, tmp_path: Path):
    """By name, before anything is planned."""
    table: Any = spark.createDataFrame([(b"one",)], "body binary")

    with pytest.raises(ConfigError, match="queue, offset, storeTimestamp"):
        backfill(table, cluster.namesrv, "nowhere", str(tmp_path / "state"))
