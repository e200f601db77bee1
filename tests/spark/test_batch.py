"""Batch queries over a real cluster."""

import time

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, In, LessThan, LessThanOrEqual, Not
from tests.spark.conftest import Read, SparkCluster, numbers_of

from holdfast.spark.pushdown import combine_filters

COLUMNS = [
    "key", "body", "tags", "topic", "queue", "offset", "storeTimestamp", "bornTimestamp", "properties", "generation",
    "broker",
]  # fmt: skip


@pytest.fixture(scope="module")
def orders(cluster: SparkCluster) -> str:
    topic = cluster.new_topic()
    cluster.send(topic, range(1000))
    return topic


def test_every_message_of_a_static_topic_is_a_row(orders: str, read: Read):
    """With all its columns."""
    frame = read(orders)

    rows = sorted(frame.collect(), key=lambda row: int(row.body))

    assert frame.columns == COLUMNS
    assert [int(row.body) for row in rows] == list(range(1000))
    row = rows[17]
    assert (row.key, row.tags, row.topic, row.generation) == ("key-1", "tag-1", orders, 0)
    assert row.broker in {"broker-a", "broker-b"}
    assert row.properties["TAGS"] == "tag-1"
    assert 0 <= (row.storeTimestamp - row.bornTimestamp).total_seconds() < 60


def test_the_rows_of_a_queue_are_in_order_within_a_partition(orders: str, read: Read):
    """Also where a partition holds several queues."""
    partitions = read(orders).select("queue", "offset").rdd.glom().collect()

    for rows in partitions:
        for queue in {row.queue for row in rows}:
            offsets = [row.offset for row in rows if row.queue == queue]
            assert offsets == sorted(offsets)


def test_a_normal_topic_is_read_too(cluster: SparkCluster, read: Read):
    """Its queues are those of its brokers."""
    topic = cluster.new_topic(is_static=False, queues=2)
    cluster.send(topic, range(200))

    frame = read(topic)

    assert numbers_of(frame) == list(range(200))
    assert {(row.broker, row.generation) for row in frame.select("broker", "generation").distinct().collect()} == {
        ("broker-a", None), ("broker-b", None),
    }  # fmt: skip
    offsets = f'{{"{topic}": {{"broker-a/0": -1, "broker-a/1": -1, "broker-b/0": -2, "broker-b/1": -2}}}}'
    only_b = read(topic, startingOffsets=offsets)
    assert [row.broker for row in only_b.select("broker").distinct().collect()] == ["broker-b"]


def test_bounds_choose_what_is_read(cluster: SparkCluster, read: Read):
    """Offsets per queue, a time, times per queue."""
    topic = cluster.new_topic(queues=1)
    cluster.send(topic, range(10))
    time.sleep(0.01)  # so that the next message has a later time
    between_ms = time.time_ns() // 1_000_000
    time.sleep(0.01)
    cluster.send(topic, range(10, 20))

    def found(**options: object) -> list[int]:
        return numbers_of(read(topic, **options))

    assert found(startingOffsets=f'{{"{topic}":{{"0":3}}}}', endingOffsets=f'{{"{topic}":{{"0":5}}}}') == [3, 4]
    assert found(startingTimestamp=between_ms) == list(range(10, 20))
    assert found(endingTimestamp=between_ms) == list(range(10))
    assert found(startingOffsetsByTimestamp=f'{{"{topic}":{{"0":{between_ms}}}}}') == list(range(10, 20))
    assert found(startingOffsets="latest") == []
    late = between_ms + 10**7
    assert found(startingTimestamp=late, startingOffsetsByTimestampStrategy="latest") == []
    with pytest.raises(AnalysisException, match="has nothing in queue 0"):
        found(startingTimestamp=late)


def test_topics_are_chosen_by_pattern_and_queues_by_number(orders: str, cluster: SparkCluster, read: Read):
    """As with Kafka."""
    one, other = cluster.new_topic(name="match-1"), cluster.new_topic(name="match-2")
    cluster.send(one, range(3))
    cluster.send(other, range(3, 6))

    assert numbers_of(read(subscribePattern="match-.*")) == list(range(6))
    assigned = read(assign=f'{{"{orders}":[1,3]}}')
    assert {row.queue for row in assigned.select("queue").distinct().collect()} == {1, 3}


def test_a_tag_is_chosen_at_the_broker(orders: str, read: Read):
    """And compared as a whole here."""
    assert numbers_of(read(orders, tags="tag-1 || nothing")) == list(range(1, 1000, 2))


def test_a_schema_chooses_columns(orders: str, read: Read):
    """In any order; a wrong one is refused."""
    frame = read(orders, schema="offset bigint, queue int")

    assert frame.columns == ["offset", "queue"]
    assert len({tuple(row) for row in frame.collect()}) == 1000
    assert read(orders, includeHeaders="false").columns == [name for name in COLUMNS if name != "properties"]
    with pytest.raises(AnalysisException, match="no column 'value'"):
        read(orders, schema="value binary").count()
    with pytest.raises(AnalysisException, match="column 'key' is string, not binary"):
        read(orders, schema="key binary").count()


def test_partitions_follow_what_is_asked_for(orders: str, read: Read):
    """Few rows need one task; whoever wants more gets more."""
    assert read(orders).rdd.getNumPartitions() == 1
    assert read(orders, minPartitions=6).rdd.getNumPartitions() == 6
    assert read(orders, maxRecordsPerPartition=100).rdd.getNumPartitions() >= 10


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"subscribe": "orders", "startingOfsets": "latest"}, "did you mean 'startingOffsets'"),
        ({"subscribe": "no-such-topic"}, "no-such-topic"),
        ({"minPartitions": "2"}, "exactly one of"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_read(
    spark: SparkSession, read: Read, options: dict[str, str], said: str
):
    """By the name of the option."""
    with pytest.raises(AnalysisException, match=said):
        read(**options).count()


def test_an_empty_topic_has_no_rows(cluster: SparkCluster, read: Read):
    """And its columns all the same."""
    topic = cluster.new_topic()

    assert read(topic).collect() == []


def test_filters_make_what_is_read_smaller(spark: SparkSession, orders: str, read: Read):
    """And change nothing about what is found."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        every = read(orders, pushdown="true")
        row = every.where("offset = 17 and queue = 1").collect()[0]
        some = every.where(f"queue in (1, 2) and offset >= 10 and offset < 20 and topic = '{orders}'")
        found = sorted((each.queue, each.offset) for each in some.collect())
        late = every.where(f"storeTimestamp >= timestamp_millis({int(row.storeTimestamp.timestamp() * 1000)})")
        assert {(1, 17)} <= {(each.queue, each.offset) for each in late.collect()}
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")

    assert found == [(queue, offset) for queue in (1, 2) for offset in range(10, 20)]


@pytest.mark.parametrize(
    ("filters", "ranges"),
    [
        ([], {"0": (5, 50), "1": (0, 40)}),
        ([EqualTo(("queue",), 1)], {"1": (0, 40)}),
        ([In(("queue",), (0, 7)), GreaterThan(("offset",), 9)], {"0": (10, 50)}),
        ([LessThanOrEqual(("offset",), 9), EqualTo(("key",), "x")], {"0": (5, 10), "1": (0, 10)}),
        ([In(("offset",), (7, 30))], {"0": (7, 31), "1": (7, 31)}),
        ([EqualTo(("topic",), "other")], {}),
        ([LessThan(("offset",), 3), Not(EqualTo(("queue",), 1))], {"0": (3, 3), "1": (0, 3)}),
    ],
)
def test_what_filters_leave(filters: list[Filter], ranges: dict[str, tuple[int, int]]):
    """Those that are not understood leave everything."""
    left = combine_filters(filters)
    starts = {("t", "0"): 5, ("t", "1"): 0}
    ends = {("t", "0"): 50, ("t", "1"): 40}

    wanted = [name for name in starts if left.includes(name)]
    found = left.clip({name: starts[name] for name in wanted}, {name: ends[name] for name in wanted})

    assert {name[1]: (found[0][name], found[1][name]) for name in wanted} == ranges
