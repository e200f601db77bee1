"""Streams over a real cluster: where they begin, how much they take, that they begin anew where they ended."""

import itertools
import json
from datetime import datetime
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.spark.conftest import SparkCluster
from tests.support.cluster.raw_requests import wait_until

from holdfast.spark.options import read_source_options
from holdfast.spark.stream_reader import HoldfastStreamReader

_names = itertools.count()


class Story:
    """A stream that is started again and again on one checkpoint, and what it has handed out."""

    def __init__(self, spark: SparkSession, cluster: SparkCluster, folder: Path) -> None:
        self._spark = spark
        self._cluster = cluster
        self._folder = folder
        self.numbers: list[int] = []

    def run(self, topic: str, *, fail_at: int | None = None, **options: object) -> StreamingQuery:
        """Read what there is. With *fail_at* die while that batch is worked on, before it is committed."""
        text = {name: str(value) for name, value in options.items()}
        subject = {} if {"subscribePattern", "assign"} & text.keys() else {"subscribe": topic}
        reader = self._spark.readStream.format("holdfast").option("namesrv", self._cluster.namesrv)
        frame = reader.options(**subject, **text).load()

        def take(batch: DataFrame, number: int) -> None:
            if number == fail_at:
                raise RuntimeError("killed")
            self.numbers += [int(row.body) for row in batch.select("body").collect()]

        writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(self._folder))
        query = writer.trigger(availableNow=True).start()
        if fail_at is None:
            query.awaitTermination(60)
            assert query.exception() is None, query.exception()
        else:
            with pytest.raises(StreamingQueryException):
                query.awaitTermination(60)
        return query

    def position(self, batch: int) -> dict[str, object]:
        """Return what Spark kept of a batch."""
        found: dict[str, object] = json.loads((self._folder / "offsets" / str(batch)).read_text().splitlines()[-1])
        return found


@pytest.fixture
def story(spark: SparkSession, cluster: SparkCluster, tmp_path: Path) -> Story:
    return Story(spark, cluster, tmp_path / "checkpoint")


def test_a_stream_goes_on_where_it_ended(story: Story, cluster: SparkCluster):
    """Every row once, over several runs."""
    topic = cluster.new_topic()
    for at in range(3):
        cluster.send(topic, range(at * 50, at * 50 + 50))

        story.run(topic, startingOffsets="earliest")

    assert sorted(story.numbers) == list(range(150))
    assert "broker" not in json.dumps(story.position(0))


def test_a_batch_takes_no_more_than_it_may(story: Story, cluster: SparkCluster):
    """And all batches together take everything that was there."""
    topic = cluster.new_topic()
    cluster.send(topic, range(100))

    query = story.run(topic, startingOffsets="earliest", maxOffsetsPerTrigger=30)

    assert [progress["numInputRows"] for progress in query.recentProgress] == [30, 30, 30, 10]
    assert sorted(story.numbers) == list(range(100))


def test_a_batch_takes_no_more_bytes_than_about_what_it_may(story: Story, cluster: SparkCluster):
    """Records of one size make it exact."""
    topic = cluster.new_topic(queues=1)
    cluster.send(topic, range(100, 200))

    query = story.run(topic, startingOffsets="earliest", maxBytesPerTrigger=25 * 220)

    sizes = [progress["numInputRows"] for progress in query.recentProgress]
    assert len(sizes) >= 3
    assert sorted(story.numbers) == list(range(100, 200))


def test_what_comes_after_a_new_query_died_in_its_first_batch_is_not_lost(story: Story, cluster: SparkCluster):
    """The word latest means what it meant when the query was first started, though Spark asks for it anew."""
    topic = cluster.new_topic()
    cluster.send(topic, range(1000, 1010))
    story.run(topic, startingOffsets="latest", fail_at=0)

    cluster.send(topic, range(20))
    story.run(topic, startingOffsets="latest", maxOffsetsPerTrigger=7)

    assert sorted(story.numbers) == list(range(20))


def test_a_query_that_died_in_a_later_batch_repeats_just_that_batch(story: Story, cluster: SparkCluster):
    """Each row is handed out once by a batch that was committed."""
    topic = cluster.new_topic()
    cluster.send(topic, range(30))
    story.run(topic, startingOffsets="earliest", maxOffsetsPerTrigger=10, fail_at=1)
    first = list(story.numbers)

    cluster.send(topic, range(30, 40))
    story.run(topic, startingOffsets="earliest", maxOffsetsPerTrigger=10)

    assert len(first) == 10
    assert sorted(story.numbers) == list(range(40))


def test_topics_and_queues_that_appear_later_are_read_from_their_beginning(story: Story, cluster: SparkCluster):
    """Those of a pattern, and those that a topic gets when it grows."""
    topic = cluster.new_topic(name="later-1", queues=2)
    cluster.send(topic, range(10))
    story.run(topic, subscribePattern="later-.*", startingOffsets="earliest")

    cluster.new_topic(name="later-2", queues=2)
    cluster.send("later-2", range(10, 20))
    cluster.run("topic", "grow", topic, "--logical-queues", "4")
    cluster.send(topic, range(20, 60), keys=40)
    story.run(topic, subscribePattern="later-.*", startingOffsets="latest")

    assert sorted(story.numbers) == list(range(60))


def test_few_rows_wait_for_more(spark: SparkSession, cluster: SparkCluster, tmp_path: Path):
    """Until there are enough of them, or they have waited long enough."""
    topic = cluster.new_topic()
    reader = spark.readStream.format("holdfast").option("namesrv", cluster.namesrv).option("subscribe", topic)
    frame = reader.options(minOffsetsPerTrigger="10", maxTriggerDelay="3s", startingOffsets="earliest").load()
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    try:
        wait_until(lambda: bool(query.lastProgress))  # the first batch, which is empty

        cluster.send(topic, range(10))
        wait_until(lambda: rows_read(query) == [10])
        cluster.send(topic, range(3))
        wait_until(lambda: rows_read(query) == [10, 3])
        delays = [progress["timestamp"] for progress in query.recentProgress if progress["numInputRows"]]
    finally:
        query.stop()

    assert seconds_between(*delays) >= 2.5


def test_progress_shows_how_far_behind_the_stream_is(story: Story, cluster: SparkCluster):
    """Ends per queue, and the group's own offsets at the broker where one is named."""
    topic = cluster.new_topic(queues=2)
    cluster.send(topic, range(40))

    query = story.run(topic, startingOffsets="earliest", maxOffsetsPerTrigger=10, groupId="dashboard")

    source = json.loads(query.recentProgress[0].json)["sources"][0]
    ends = source["latestOffset"]["q"][topic]
    assert sum(ends.values()) == 40
    assert sum(source["endOffset"]["q"][topic].values()) == 10


@pytest.mark.timeout(120)
def test_a_stream_that_has_nothing_to_do_holds_no_broker(spark: SparkSession, cluster: SparkCluster, tmp_path: Path):
    """The last batch is published as well, though Spark plans no other; so what it read can be dropped."""
    topic = cluster.new_topic(queues=2)
    cluster.start("broker-idle")
    cluster.run("queue", "migrate", topic, "0", "--to", "broker-idle")
    cluster.send(topic, range(20))
    reader = spark.readStream.format("holdfast").option("namesrv", cluster.namesrv).option("subscribe", topic)
    frame = reader.options(startingOffsets="earliest", groupId="idle").load()
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    try:
        query.processAllAvailable()
        drained = cluster.run("broker", "drain", "broker-idle", "--wait", "--discard-consumed", "idle")
        cluster.run("broker", "remove", "broker-idle")
        cluster.stop("broker-idle")
    finally:
        query.stop()

    assert drained["removable"]
    assert [(home["topic"], home["queue"]) for home in drained["discarded"]] == [(topic, 0)]


def rows_read(query: StreamingQuery) -> list[int]:
    assert query.exception() is None, query.exception()
    return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]


def seconds_between(one: str, other: str) -> float:
    return (datetime.fromisoformat(other) - datetime.fromisoformat(one)).total_seconds()


def test_the_first_batch_run_again_by_a_new_process_is_the_same(cluster: SparkCluster):
    """Spark asks the new process where to begin, and by then the end of the topic is elsewhere."""
    topic = cluster.new_topic()
    options = read_source_options(
        {"namesrv": cluster.namesrv, "subscribe": topic, "startingOffsets": "latest"}, is_stream=True
    )
    cluster.send(topic, range(1000, 1010))
    first = HoldfastStreamReader(options, ("body",))
    start = first.initialOffset()
    cluster.send(topic, range(20))
    end = first.latestOffset(start, ReadAllAvailable())
    cluster.send(topic, range(20, 50))

    second = HoldfastStreamReader(options, ("body",))
    shares = second.partitions(second.initialOffset(), end)

    batches = [batch for share in shares for batch in second.read(share)]
    assert sorted(int(body) for batch in batches for body in batch["body"].to_pylist()) == list(range(20))
    after = second.latestOffset(end, ReadAllAvailable())
    batches = [batch for share in second.partitions(end, after) for batch in second.read(share)]
    assert sorted(int(body) for batch in batches for body in batch["body"].to_pylist()) == list(range(20, 50))
