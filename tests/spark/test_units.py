"""A stream of one unit follows `dr open` and `dr close` of another one, without a restart."""

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from tests.integration.test_local_reads import handed_out
from tests.support.cluster.process_presets import units_cluster
from tests.support.cluster.processes import ProcessCluster
from tests.support.cluster.raw_requests import wait_until

from holdfast import Message, blocking

PATIENCE_S = 60.0
TOPICS = ("orders", "plain")  # one is static in each unit, the other normal


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    with units_cluster(tmp_path_factory.mktemp("fleet"), {"e1": "east", "w1": "west"}, name_servers=2) as found:
        for unit, queues in (("east", 2), ("west", 3)):
            found.run("topic", "create", "orders", "--logical-queues", str(queues), "--scope", unit)
            found.run("topic", "create", "plain", "--queues", "2", "--cluster", unit)
        yield found


class Watched:
    """A stream of unit west, and the texts that it has handed out, however often it was started."""

    def __init__(self, spark: SparkSession, fleet: ProcessCluster, folder: Path) -> None:
        self._spark = spark
        self._fleet = fleet
        self._folder = folder
        self._numbers = itertools.count()
        self._batches: dict[int, list[str]] = {}
        self.sent: Counter[str] = Counter()

    def start(self) -> StreamingQuery:
        reader = self._spark.readStream.format("holdfast").options(namesrv=self._fleet.namesrv, unit="west")
        frame = reader.options(subscribe=",".join(TOPICS), startingOffsets="earliest", groupId="report").load()

        def take(batch: DataFrame, number: int) -> None:
            # Spark repeats a batch, with the same number, if the query was stopped before the batch was committed.
            self._batches[number] = [bytes(row.body).decode() for row in batch.select("body").collect()]

        writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(self._folder))
        self.query = writer.trigger(processingTime="200 milliseconds").start()
        return self.query

    @property
    def texts(self) -> Counter[str]:
        """What the batches handed out."""
        return Counter(text for batch in [*self._batches.values()] for text in batch)

    def send(self, unit: str, *, count: int = 40) -> set[str]:
        """Send new texts to both topics of a unit."""
        texts = [f"{unit}-{next(self._numbers)}" for _ in range(count)]
        with blocking.Producer(self._fleet.namesrv, "tests", unit=unit, timeout_s=60) as producer:
            producer.send_many([Message(TOPICS[at % 2], text.encode(), key=text) for at, text in enumerate(texts)])
        self.sent.update(texts)
        return set(texts)

    def wait_for(self, texts: set[str]) -> None:
        wait_until(lambda: texts <= self.texts.keys() or not self.query.isActive, timeout_s=PATIENCE_S)
        assert self.query.exception() is None, self.query.exception()
        assert texts <= self.texts.keys()

    def reads(self) -> dict[str, set[str]]:
        """Return the queues that it reads now."""
        progress = self.query.lastProgress
        told = progress and progress["sources"][0]["latestOffset"]
        found: dict[str, Any] = {} if not told else json.loads(told) if isinstance(told, str) else told
        return {topic: {*queues} for topic, queues in found.get("q", {}).items()}


def test_a_stream_follows_opening_and_closing(spark: SparkSession, fleet: ProcessCluster, tmp_path: Path):
    """Queues of the other unit come, stay where they are while it is closed, and resume there. Nothing is repeated."""
    watched = Watched(spark, fleet, tmp_path / "checkpoint")
    watched.send("east")
    run = watched.start().runId
    watched.wait_for(watched.send("west"))
    assert not any(text.startswith("east") for text in watched.texts)

    fleet.run("dr", "open", "--unit", "east")
    watched.wait_for(set(watched.sent))
    both = {"orders": {"0", "1", "2", "east/0", "east/1"}, "plain": {"w1/0", "w1/1", "e1/0", "e1/1"}}
    wait_until(lambda: watched.reads() == both, timeout_s=PATIENCE_S)
    watched.wait_for(watched.send("east"))

    fleet.run("dr", "close", "--unit", "east")
    watched.send("west")
    wait_until(lambda: watched.reads() == {"orders": {"0", "1", "2"}, "plain": {"w1/0", "w1/1"}}, timeout_s=PATIENCE_S)
    unread = watched.send("east")
    watched.wait_for(watched.send("west"))
    assert not unread & watched.texts.keys()
    assert watched.query.runId == run

    watched.query.stop()
    watched.start()
    watched.wait_for(watched.send("west"))
    assert not unread & watched.texts.keys()

    fleet.run("dr", "open", "--unit", "east")
    watched.wait_for(set(watched.sent))
    watched.query.stop()
    assert watched.texts == watched.sent  # each once
    fleet.run("dr", "close", "--unit", "east")


def test_a_batch_that_was_planned_while_a_unit_was_open_is_read_to_its_end(
    spark: SparkSession, fleet: ProcessCluster, tmp_path: Path
):
    """Else a query would wait in vain for what it has promised to read."""
    watched = Watched(spark, fleet, tmp_path / "checkpoint")
    fleet.run("dr", "open", "--unit", "east")
    reader = spark.read.format("holdfast").options(namesrv=fleet.namesrv, unit="west", brokerTimeout="30s")
    sent = watched.send("east", count=200)
    frame = reader.options(subscribe=",".join(TOPICS)).load().selectExpr("cast(body as string) text")
    frame.rdd.getNumPartitions()  # plans it

    fleet.run("dr", "close", "--unit", "east")

    assert sent <= {row.text for row in frame.rdd.collect()}


def test_tasks_read_an_open_unit_at_a_replica_in_their_own(spark: SparkSession, fleet: ProcessCluster, tmp_path: Path):
    """The master hands out what tells each process of the replica, and every row is there once."""
    settings = {"replica_of": "e1", "replica_id": 1, "replica_unit": "west"}
    master = fleet.brokers["e1"]
    replica = fleet.start("e1", cluster="east", store=tmp_path / "replica", settings=settings)
    watched = Watched(spark, fleet, tmp_path / "checkpoint")
    watched.send("east", count=2000)

    def rows_of(unit: str) -> DataFrame:
        reader = spark.read.format("holdfast").options(namesrv=fleet.namesrv, subscribe="orders", unit=unit)
        return reader.load().select("broker", "queue", "offset", "body")

    expected = sorted(row for unit in ("east", "west") for row in rows_of(unit).collect())
    fleet.run("dr", "open", "--unit", "east")
    try:
        rows = rows_of("west")

        def read_at_replica() -> bool:
            before = handed_out(replica), handed_out(master)
            assert sorted(rows.collect()) == expected
            return handed_out(replica) - before[0] >= 1000 and handed_out(master) - before[1] < 100

        wait_until(read_at_replica, timeout_s=PATIENCE_S)
        assert read_at_replica()
    finally:
        fleet.run("dr", "close", "--unit", "east")
        fleet.kill(replica)
