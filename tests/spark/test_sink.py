"""The sink on a real cluster: where rows go, and that each is there once however often it was tried."""

import random
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from tests.spark.conftest import Read, SparkCluster, numbers_of

from holdfast.client.cluster.send_plan import queue_for_key
from holdfast.client.produce.sender import Sender
from holdfast.spark.delivery import Delivery, SinkRefused
from holdfast.spark.sink_options import read_sink_options
from holdfast.spark.sink_requests import REQUEST_ROWS_MAX, WriteName
from holdfast.spark.sink_rows import BadRow, MessageSelection, to_rows
from holdfast.spark.sink_session import SinkSession
from holdfast.spark.writer import write_rows

KEYED = ("concat('key-', id % 10) as key", "cast(id as string) as body")


@pytest.fixture
def write(cluster: SparkCluster) -> Callable[..., None]:
    """Write a frame."""

    def save(frame: DataFrame, topic: str | None = None, **options: object) -> None:
        writer = frame.write.format("holdfast").option("namesrv", cluster.namesrv).mode("append")
        writer = writer if topic is None else writer.option("topic", topic)
        writer.options(**{name: str(text) for name, text in options.items()}).save()

    return save


@pytest.mark.parametrize("is_static", [True, False])
@pytest.mark.parametrize("exactly", ["false", "true"])
def test_every_row_becomes_a_message_in_the_queue_of_its_key(
    spark: SparkSession, cluster: SparkCluster, read: Read, write: Callable[..., None], *, is_static: bool, exactly: str
):
    """The same queue that every other client chooses. Exactly once needs a static topic."""
    topic = cluster.new_topic(is_static=is_static)
    frame = spark.range(500).selectExpr(*KEYED, "'blue' as tags", "map('n', cast(id as string)) as properties")

    if exactly == "true" and not is_static:
        with pytest.raises(Exception, match="is not a static topic"):
            write(frame, topic, exactlyOnce=exactly)
        return
    write(frame, topic, exactlyOnce=exactly)

    found = read(topic)
    rows = found.collect()
    assert sorted(int(row.body) for row in rows) == list(range(500))
    queues = sorted(cluster.producer.queues(topic))
    for row in rows:
        assert (row.tags, row.properties["n"]) == ("blue", row.body.decode())
        assert queue_for_key(row.key, queues).queue_id == row.queue


def test_rows_may_name_their_topics_and_need_no_keys(
    spark: SparkSession, cluster: SparkCluster, read: Read, write: Callable[..., None]
):
    """Then they are spread over all queues."""
    one, other = cluster.new_topic(), cluster.new_topic()
    frame = spark.range(100).selectExpr("cast(id as string) value", f"if(id < 50, '{one}', '{other}') topic")

    write(frame)

    assert numbers_of(read(one)) == list(range(50))
    assert numbers_of(read(other)) == list(range(50, 100))
    assert read(one).select("queue").distinct().count() == 4


def test_a_batch_write_that_has_a_name_can_be_repeated(
    spark: SparkSession, cluster: SparkCluster, read: Read, write: Callable[..., None]
):
    """As `foreachBatch` needs it; with the next number it is another write."""
    topic = cluster.new_topic()
    for version, numbers in ((0, 30), (0, 30), (1, 10)):
        frame = spark.range(numbers).selectExpr(*KEYED)
        write(frame, topic, exactlyOnce="true", txnAppId="copy", txnVersion=version)

    assert Counter(numbers_of(read(topic))) == Counter(range(30)) + Counter(range(10))


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ("id", {}, "cannot write column 'id'"),
        ("cast(id as string) key", {}, "exactly one column must hold the message"),
        ("id as body", {}, "column 'body' is bigint"),
        ("cast(id as string) body", {"exactlyonce": "maybe"}, "'exactlyOnce' must be true or false"),
        ("cast(id as string) body", {"exactOnce": "true"}, "did you mean 'exactlyOnce'"),
        ("cast(id as string) body", {"txnAppId": "a"}, "'txnAppId' and 'txnVersion' go together"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_is(
    spark: SparkSession, write: Callable[..., None], columns: str, options: dict[str, str], said: str
):
    """By the name of the column or the option."""
    with pytest.raises(AnalysisException, match=said):
        write(spark.range(3).selectExpr(columns), "anywhere", **options)
    with pytest.raises(AnalysisException, match="there is no topic to write to"):
        write(spark.range(3).selectExpr("cast(id as string) body"))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"body": None}, "no body"),
        ({"body": b""}, "no body"),
        ({"body": b"x", "key": "a\x02b"}, "separator"),
        ({"body": b"x", "tags": "a\x01b"}, "separator"),
        ({"body": b"x", "key": "k" * 40_000}, "at most 32767"),
    ],
)
def test_a_row_that_cannot_be_a_message_is_refused(row: dict[str, object], said: str):
    """Rather than stored as something else."""
    with pytest.raises(BadRow, match=said):
        to_rows(pa.RecordBatch.from_pylist([row]), "T")


class Killed(Exception):
    """The end of a task."""


class Writer:
    """Tasks of one query, without Spark: what is retried, and in what order, is in our hands."""

    def __init__(self, cluster: SparkCluster, topic: str) -> None:
        self.link = SinkSession(cluster.namesrv, 60, group="tests-sink")
        self._queues = self.link.publishable(topic)
        self.query = f"query-{topic}"

    def write(self, numbers: range, *, batch: int = 0, partition: int = 0, stop_after: int | None = None) -> None:
        """Write one row per number to queue 0. With *stop_after* die after so many requests."""
        name = WriteName(self.query, batch, partition)
        sender = _Mortal(self.link, stop_after)
        rows = to_rows(pa.RecordBatch.from_pylist([{"body": b"%d" % number} for number in numbers]), "T")["T"]
        mine = {self._queues[0]: MessageSelection(rows, rows.arrival_order())}
        Delivery(self.link, sender, name).deliver(mine, len(self._queues))


class _Mortal(Sender):
    """A sender whose process is killed after some requests: the last one leaves, and nobody hears its answer."""

    def __init__(self, link: SinkSession, requests_max: int | None) -> None:
        super().__init__(link.connection.client, "tests", inner_batch_support=link.inner_batch_support)
        self._left = requests_max

    async def send(self, *arguments: object, **more: object):  # noqa: ANN202 - as the one above
        receipt = await super().send(*arguments, **more)  # type: ignore[arg-type]
        if self._left is not None:
            self._left -= 1
            if not self._left:
                raise Killed
        return receipt


ROWS = range(REQUEST_ROWS_MAX * 2 + 100)


@pytest.mark.parametrize("requests", [1, 2, 3])
def test_a_task_that_is_killed_at_any_request_is_completed_by_its_retry(
    cluster: SparkCluster, read: Read, requests: int
):
    """Each row once, in order."""
    topic = cluster.new_topic(queues=1)
    writer = Writer(cluster, topic)
    with pytest.raises(Killed):
        writer.write(ROWS, stop_after=requests)

    writer.write(ROWS)
    writer.write(ROWS)

    rows = read(topic).orderBy("offset").collect()
    assert [int(row.body) for row in rows] == list(ROWS)


def test_a_retry_that_cuts_its_rows_otherwise_goes_on_behind_what_is_there(
    cluster: SparkCluster, read: Read, monkeypatch: pytest.MonkeyPatch
):
    """The first attempt may have run with other sizes of requests: rows are what counts."""
    topic = cluster.new_topic(queues=1)
    writer = Writer(cluster, topic)
    monkeypatch.setattr("holdfast.spark.sink_requests.REQUEST_ROWS_MAX", 300)
    with pytest.raises(Killed):
        writer.write(ROWS, stop_after=2)
    monkeypatch.undo()

    writer.write(ROWS)

    assert [int(row.body) for row in read(topic).orderBy("offset").collect()] == list(ROWS)


def test_a_retry_with_other_rows_is_refused_by_name(cluster: SparkCluster):
    """Half of the one and half of the other would be neither."""
    writer = Writer(cluster, cluster.new_topic(queues=1))
    writer.write(range(10))

    with pytest.raises(
        SinkRefused, match=r"partition 0 of batch 0 of query query-.* was written before with other rows"
    ):
        writer.write(range(1, 11))
    with pytest.raises(SinkRefused, match="all of 10 rows, now they are 12"):
        writer.write(range(12))
    writer.write(range(20, 22), batch=1)
    with pytest.raises(SinkRefused, match=r"batch 0 of query .* is over"):
        writer.write(range(10))


def test_a_retry_may_bring_its_rows_in_another_order(cluster: SparkCluster, read: Read):
    """A shuffle promises none. Who says that the input is ordered is believed, and held to it."""
    topic = cluster.new_topic()
    rows = [{"key": f"key-{number % 7}", "body": b"%d" % number} for number in range(300)]

    def attempt(query: str, seed: int, **more: str) -> None:
        options = {"namesrv": cluster.namesrv, "topic": topic, "exactlyOnce": "true", "brokerTimeout": "60s", **more}
        mixed = random.Random(seed).sample(rows, len(rows))
        batches = [pa.RecordBatch.from_pylist(mixed[:100]), pa.RecordBatch.from_pylist(mixed[100:])]
        write_rows(read_sink_options(options), batches, query, 0)

    for seed in range(3):
        attempt("shuffled", seed)
    assert numbers_of(read(topic)) == list(range(300))

    attempt("ordered", 0, inputOrdered="true")
    with pytest.raises(SinkRefused, match="was written before with other rows"):
        attempt("ordered", 1, inputOrdered="true")


def test_two_attempts_at_once_write_the_rows_once(cluster: SparkCluster, read: Read):
    """One of them is a ghost; neither knows of the other."""
    topic = cluster.new_topic(queues=1)
    writer = Writer(cluster, topic)
    attempts = [threading.Thread(target=writer.write, args=(ROWS,)) for _ in range(3)]

    for attempt in attempts:
        attempt.start()
    for attempt in attempts:
        attempt.join(60)

    assert [int(row.body) for row in read(topic).orderBy("offset").collect()] == list(ROWS)


def test_the_broker_remembers_through_its_death_and_a_move(cluster: SparkCluster, read: Read):
    """Killed with nothing saved; then the queue moves, and the next leader knows."""
    topic = cluster.new_topic(queues=1)
    writer = Writer(cluster, topic)
    with pytest.raises(Killed):
        writer.write(ROWS, stop_after=1)
    leader = next(name for name in cluster.leaders(topic).values())
    cluster.kill(leader)
    cluster.restart(leader)
    with pytest.raises(Killed):
        writer.write(ROWS, stop_after=2)
    other = "broker-b" if leader == "broker-a" else "broker-a"
    cluster.run("queue", "migrate", topic, "0", "--to", other)

    writer.write(ROWS)
    cluster.kill(other)
    cluster.restart(other)
    writer.write(ROWS)

    assert [int(row.body) for row in read(topic).orderBy("offset").collect()] == list(ROWS)


def copy(spark: SparkSession, cluster: SparkCluster, source: str, target: str, folder: Path) -> StreamingQuery:
    """Run a query with a shuffle in it from one topic into another, exactly once, over what there is now."""
    reader = spark.readStream.format("holdfast").option("namesrv", cluster.namesrv).option("subscribe", source)
    frame = reader.options(startingOffsets="earliest", maxOffsetsPerTrigger="400").load()
    frame = frame.select("key", "body").repartition(2, "body")
    writer = frame.writeStream.format("holdfast").option("namesrv", cluster.namesrv).option("topic", target)
    writer = writer.option("exactlyOnce", "true").option("checkpointLocation", str(folder))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination(60)
    return query


def test_a_query_that_is_started_again_writes_no_row_twice(
    spark: SparkSession, cluster: SparkCluster, read: Read, tmp_path: Path
):
    """Also when the driver died after the rows were written and before Spark took note of it."""
    source, target = cluster.new_topic(), cluster.new_topic()
    cluster.send(source, range(1000), keys=random.Random(3).randrange(20, 30))
    query = copy(spark, cluster, source, target, tmp_path)
    assert query.exception() is None, query.exception()
    last = max((tmp_path / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    for path in (last, last.with_name(f".{last.name}.crc")):
        path.unlink(missing_ok=True)

    query = copy(spark, cluster, source, target, tmp_path)

    assert query.exception() is None, query.exception()
    assert Counter(numbers_of(read(target))) == Counter(range(1000))
