"""A stream that is not restarted, whatever happens to brokers and name servers.

`local[2]` as it is: the first task that fails ends the query. So everything here is retried within tasks or nowhere.
"""

import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession
from tests.spark.conftest import SparkCluster
from tests.support.cluster.raw_requests import wait_until, wait_until_registered

from holdfast import Message, blocking
from holdfast.model.errors import HoldfastError

KEYS = 16
DOWN_S = 8.0
QUERY = "survivor"


class Load:
    """A producer that counts up under each key until it is told to stop. What fails is sent again until it is taken."""

    def __init__(self, namesrv: str, topic: str) -> None:
        self.sent: dict[str, int] = defaultdict(int)
        self.failures = 0
        self._topic = topic
        self._producer = blocking.Producer(namesrv, "load", timeout_s=60)
        self._producer.start()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(0.02):
            keys = [f"key-{number}" for number in range(KEYS)]
            messages = [Message(self._topic, f"{key} {self.sent[key]}".encode(), key=key) for key in keys]
            try:
                self._producer.send_many(messages)
            except HoldfastError:
                self.failures += 1
            for key in keys:
                self.sent[key] += 1

    def stop(self) -> int:
        """Return how many messages were sent."""
        self._over.set()
        self._thread.join(90)
        self._producer.close()
        return sum(self.sent.values())

    @property
    def total(self) -> int:
        return sum(self.sent.values())


@pytest.fixture
def load(cluster: SparkCluster) -> Iterator[tuple[str, Load]]:
    topic = cluster.new_topic(queues=6)
    found = Load(cluster.namesrv, topic)
    yield topic, found
    found.stop()


@pytest.mark.timeout(900)
def test_a_query_outlives_moves_deaths_and_replacements(
    spark: SparkSession, cluster: SparkCluster, load: tuple[str, Load], tmp_path: Path
):
    """The same run from beginning to end; nothing lost, repeated or out of order in any queue."""
    topic, producer = load
    reader = spark.readStream.format("holdfast").option("namesrv", cluster.namesrv).option("subscribe", topic)
    frame = reader.options(startingOffsets="earliest", groupId=QUERY).load()
    writer = frame.selectExpr("queue", "offset", "cast(body as string) body", "broker", "generation").writeStream
    query = writer.format("memory").queryName(QUERY).option("checkpointLocation", str(tmp_path)).start()
    run = (query.id, query.runId)

    def goes_on() -> None:
        """Wait until rows come that were sent from now on."""
        goal = producer.total + 3 * KEYS
        wait_until(lambda: read_so_far() >= goal, timeout_s=90)

    def read_so_far() -> int:
        assert query.exception() is None, query.exception()
        return spark.table(QUERY).count()  # Of its batches a query remembers a hundred only.

    goes_on()
    cluster.start("broker-c")
    cluster.run("broker", "spread", "broker-c")
    goes_on()
    queue = next(queue for queue, leader in cluster.leaders(topic).items() if leader != "broker-b")
    cluster.run("queue", "migrate", topic, str(queue), "--to", "broker-b")
    goes_on()
    cluster.kill("broker-b")
    threading.Event().wait(DOWN_S)
    cluster.restart("broker-b")
    goes_on()
    for address in cluster.name_servers:
        cluster.kill(address)
        goes_on()
        cluster.restart(address, is_empty=True)
        wait_until_registered(address, ["broker-a", "broker-b", "broker-c"])
        goes_on()
    cluster.run("broker", "drain", "broker-c", "--wait", "--discard-consumed", QUERY)
    cluster.run("broker", "remove", "broker-c")
    cluster.stop("broker-c")
    goes_on()
    total = producer.stop()
    wait_until(lambda: read_so_far() >= total, timeout_s=90)
    query.processAllAvailable()
    rows = spark.sql(f"select * from {QUERY}").collect()
    assert (query.id, query.runId) == run
    query.stop()

    assert producer.failures == 0
    check_order(rows, total)
    assert {row.broker for row in rows} >= {"broker-b", "broker-c"}
    assert max(row.generation for row in rows) >= 2


def check_order(rows: list[Row], total: int) -> None:
    """Every offset once, in order in every queue; under every key all numbers in order.

    What was on its way to a broker when that was killed may be stored twice: its producer heard nothing.
    """
    ends: dict[int, int] = defaultdict(int)
    counts: dict[str, int] = defaultdict(int)
    again = 0
    for row in rows:
        assert row.offset == ends[row.queue]
        ends[row.queue] += 1
        key, _, number = row.body.partition(" ")
        if int(number) == counts[key] - 1:
            again += 1
            continue
        assert int(number) == counts[key]
        counts[key] += 1
    assert sum(counts.values()) == total
    assert again <= KEYS
