"""Batches that a broker keeps whole, on a real cluster: the sink sends them, the source and `arrow` open them."""

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.spark.conftest import Read, SparkCluster
from tests.spark.test_sink import ROWS, Killed, Writer

from holdfast import arrow
from holdfast.bulk.cluster_session import open_session
from holdfast.bulk.pull_socket import PullSocket
from holdfast.bulk.queue_pulls import PullRequest
from holdfast.columns.inner_batches import are_batches
from holdfast.columns.records import Records, read_records
from holdfast.spark.sink_options import read_sink_options
from holdfast.spark.writer import write_rows

COLUMNS = ("concat('key-', id % 10) as key", "cast(id as string) as body", "concat('tag-', id % 2) as tags")


def records_of(cluster: SparkCluster, topic: str, queue: int = 0) -> Records:
    """Return what the first pull of a queue brings, as it is stored."""
    link = open_session(cluster.namesrv, "tests-raw", 60)
    pulled = link.pulls.pull(PullSocket(), PullRequest(link.find_queue((topic, str(queue))), 0, 4096, size_max=1 << 22))
    return read_records(pulled.block)


@pytest.fixture
def topic(cluster: SparkCluster) -> str:
    return cluster.new_topic(queues=2, keeps_batches=True)


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd", "zlib"])
def test_rows_go_out_as_few_records_and_come_back_as_rows(
    spark: SparkSession, cluster: SparkCluster, topic: str, read: Read, compression: str
):
    """Compressed or not; with their keys, tags, properties and offsets, from any offset on."""
    frame = spark.range(1000).selectExpr(*COLUMNS, "map('n', cast(id as string)) as properties").coalesce(1)
    options = {"namesrv": cluster.namesrv, "topic": topic, "compression": compression}
    frame.write.format("holdfast").options(**options).mode("append").save()

    records = records_of(cluster, topic)
    rows = read(topic).collect()

    assert are_batches(records).all()
    assert len(records) == 1
    assert (records.flags & 0x700).tolist() == [{"none": 0, "lz4": 0x100, "zstd": 0x200, "zlib": 0x300}[compression]]
    assert sorted(int(row.body) for row in rows) == list(range(1000))
    for row in rows:
        number = int(row.body)
        assert (row.key, row.tags, row.properties["n"]) == (f"key-{number % 10}", f"tag-{number % 2}", str(number))
    for queue in (0, 1):
        offsets = [row.offset for row in rows if row.queue == queue]
        assert offsets == list(range(len(offsets)))
    part = next(arrow.read(cluster.namesrv, topic, start={"1": 7}, end={"1": 12}))
    assert part["offset"].to_pylist() == [7, 8, 9, 10, 11]
    tagged = pa.Table.from_batches(arrow.read(cluster.namesrv, topic, tags="tag-1"))
    assert sorted(map(int, tagged["body"].to_pylist())) == list(range(1, 1000, 2))


def test_single_messages_and_batches_of_one_queue_are_read_together(cluster: SparkCluster, topic: str):
    """A producer's singles and batches of any size among the sink's."""
    options = read_sink_options({"namesrv": cluster.namesrv, "topic": topic})
    for start in (0, 100, 200):
        write_rows(
            options, [pa.RecordBatch.from_pylist([{"body": b"%d" % n} for n in range(start, start + 50)])], "", 0
        )
        cluster.send(topic, range(start + 50, start + 99))
        cluster.send(topic, range(start + 99, start + 100))

    found = [int(body) for batch in arrow.read(cluster.namesrv, topic) for body in batch["body"].to_pylist()]

    assert sorted(found) == list(range(300))


def test_each_row_is_there_once_whatever_dies(cluster: SparkCluster, read: Read, monkeypatch: pytest.MonkeyPatch):
    """A task after any request, the broker with nothing saved, then the leader by a move."""
    monkeypatch.setattr("holdfast.spark.sink_requests.INNER_BATCH_ROWS_MAX", 1000)
    topic = cluster.new_topic(queues=1, keeps_batches=True)
    writer = Writer(cluster, topic)
    with pytest.raises(Killed):
        writer.write(ROWS, stop_after=1)
    writer.write(ROWS)
    assert are_batches(records_of(cluster, topic)).all()
    with pytest.raises(Killed):
        writer.write(ROWS, batch=1, stop_after=2)
    leader = next(name for name in cluster.leaders(topic).values())
    cluster.kill(leader)
    cluster.restart(leader)
    writer.write(ROWS, batch=1)
    other = "broker-b" if leader == "broker-a" else "broker-a"
    with pytest.raises(Killed):
        writer.write(ROWS, batch=2, stop_after=1)
    cluster.run("queue", "migrate", topic, "0", "--to", other)
    writer.write(ROWS, batch=2)
    writer.write(ROWS, batch=2)

    assert [int(row.body) for row in read(topic).orderBy("offset").collect()] == [*ROWS] * 3


def test_a_topic_that_keeps_no_batches_gets_rows_apart(cluster: SparkCluster):
    """From the same writer, and the broker is the same."""
    topic = cluster.new_topic(queues=1)
    Writer(cluster, topic).write(range(10))

    records = records_of(cluster, topic)

    assert len(records) == 10
    assert not are_batches(records).any()
