"""Brokers that stay away for minutes, or for ever, under a query whose first failed task is its end (`local[2]`)."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StreamingQuery
from tests.spark.conftest import SparkCluster
from tests.support.cluster.raw_requests import wait_until

from holdfast import Message
from holdfast.client.cluster.send_plan import queue_for_key

AWAY_S = 125.0
PATIENCE_S = 300.0  # on a busy machine Spark takes minutes to begin
NAME = "absence"


@dataclass
class Watched:
    """A query that keeps its rows, and is in its first run for as long as it is looked at."""

    spark: SparkSession
    query: StreamingQuery

    def __post_init__(self) -> None:
        self._run = (self.query.id, self.query.runId)

    def rows(self) -> list[Row]:
        """Return what came so far, in the order in which it came."""
        assert self.query.exception() is None, self.query.exception()
        assert self.query.isActive
        assert (self.query.id, self.query.runId) == self._run
        return self.spark.sql(f"select * from {NAME}").collect()

    def numbers(self, queue: int | None = None) -> list[int]:
        """Return the numbers that came, in their order."""
        return [row.number for row in self.rows() if queue in {None, row.queue}]


Start = Callable[..., Watched]


@pytest.fixture
def start(spark: SparkSession, cluster: SparkCluster, tmp_path: Path) -> Iterator[Start]:
    started: list[StreamingQuery] = []

    def begin(topic: str, **options: object) -> Watched:
        reader = spark.readStream.format("holdfast").option("namesrv", cluster.namesrv).option("subscribe", topic)
        frame = reader.options(startingOffsets="earliest", **{name: str(text) for name, text in options.items()}).load()
        rows = frame.selectExpr("queue", "offset", "cast(cast(body as string) as int) number", "broker")
        writer = rows.writeStream.format("memory").queryName(NAME)
        for attempt in range(5):
            started.append(writer.option("checkpointLocation", str(tmp_path / str(attempt))).start())
            wait_until(lambda: bool(started[-1].lastProgress) or not started[-1].isActive, timeout_s=PATIENCE_S)
            # Spark gives its own Python ten seconds to start, which are over soon on a busy machine.
            if "failed to connect back" not in str(started[-1].exception()):
                break
        return Watched(spark, started[-1])

    yield begin
    for query in started:
        query.stop()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_broker_is_away_for_two_minutes_in_the_middle_of_a_batch(cluster: SparkCluster, start: Start):
    """Its rows are planned, and the task that is to read them waits. Nothing is lost, repeated or out of order."""
    topic = cluster.new_topic(queues=4)
    assert "broker-b" in cluster.leaders(topic).values()
    cluster.send(topic, range(20_000), keys=64)
    watched = start(topic, maxOffsetsPerTrigger=400)
    wait_until(lambda: len(watched.rows()) >= 800, timeout_s=PATIENCE_S)

    cluster.kill("broker-b")
    threading.Event().wait(5)
    stuck = len(watched.rows())
    threading.Event().wait(AWAY_S)
    assert len(watched.rows()) == stuck < 20_000  # It waits in a batch, and not between two.
    cluster.restart("broker-b")
    watched.query.processAllAvailable()

    places = [(row.queue, row.offset) for row in watched.rows()]
    assert sorted(watched.numbers()) == list(range(20_000))
    for queue in range(4):
        offsets = [offset for number, offset in places if number == queue]
        assert offsets == list(range(len(offsets)))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_leaders_are_replaced_by_force_under_a_query(cluster: SparkCluster, start: Start):
    """One comes back, one is given up: either way the query waits at the unknown end, then goes on, in the same run."""
    topic = cluster.new_topic(queues=2)
    cluster.start("broker-f")
    for queue in (0, 1):
        cluster.run("queue", "migrate", topic, str(queue), "--to", "broker-f")
    send(cluster, topic, 0, range(10))
    send(cluster, topic, 1, range(10))
    watched = start(topic)
    wait_until(lambda: len(watched.rows()) == 20, timeout_s=PATIENCE_S)

    cluster.kill("broker-f")
    cluster.run("broker", "evacuate", "broker-f", "--force", "--yes")
    send(cluster, topic, 0, range(10, 20))
    send(cluster, topic, 1, range(10, 20))
    threading.Event().wait(5)
    assert len(watched.rows()) == 20  # The dead broker may have more, which would come before these.

    cluster.run("queue", "abandon", topic, "0", "--yes")
    wait_until(lambda: watched.numbers(queue=0) == list(range(20)), timeout_s=PATIENCE_S)
    assert watched.numbers(queue=1) == list(range(10))

    cluster.restart("broker-f")
    wait_until(lambda: watched.numbers(queue=1) == list(range(20)), timeout_s=PATIENCE_S)
    send(cluster, topic, 1, range(20, 30))
    wait_until(lambda: watched.numbers(queue=1) == list(range(30)), timeout_s=PATIENCE_S)
    assert watched.numbers(queue=0) == list(range(20))
    assert max(row.offset for row in watched.rows()) > 1 << 40
    cluster.stop(cluster.brokers.pop("broker-f"))  # The others take the cluster for one of two.


def send(cluster: SparkCluster, topic: str, queue: int, numbers: range) -> None:
    """Send some numbers to one queue, one behind the other."""
    queues = cluster.producer.queues(topic)
    key = next(key for key in map(str, range(100)) if queue_for_key(key, queues).queue_id == queue)
    for number in numbers:
        cluster.producer.send(Message(topic, b"%d" % number, key=key))
