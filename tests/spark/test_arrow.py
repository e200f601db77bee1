"""Any Python program reads topics as Arrow, without Spark."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from tests.spark.conftest import SparkCluster

from holdfast import arrow
from holdfast.model.errors import ConfigError


@pytest.fixture
def topic(cluster: SparkCluster) -> str:
    found = cluster.new_topic(queues=2)
    cluster.send(found, range(100))
    return found


def numbers(cluster: SparkCluster, topic: str, **more: object) -> list[int]:
    batches = arrow.read(cluster.namesrv, topic, columns=["body"], **more)
    return sorted(int(body) for batch in batches for body in batch["body"].to_pylist())


def test_a_topic_is_read_as_columns(cluster: SparkCluster, topic: str):
    """All of them, and every queue in its order."""
    table = pa.Table.from_batches(arrow.read(cluster.namesrv, topic))

    assert table.schema == arrow.schema_of(arrow.COLUMNS)
    assert sorted(map(int, table["body"].to_pylist())) == list(range(100))
    assert {row["key"]: row["tags"] for row in table.to_pylist()}["key-3"] == "tag-1"
    for queue in (0, 1):
        offsets = [row["offset"] for row in table.to_pylist() if row["queue"] == queue]
        assert offsets == list(range(len(offsets)))


def test_only_what_is_asked_for_is_read(cluster: SparkCluster, topic: str):
    """Columns, tags, and places: offsets of some queues, times, ends."""
    batch = next(arrow.read(cluster.namesrv, topic, columns=["offset", "key"], start={"1": 5}, end={"1": 7}))
    soon = datetime.now(UTC) + timedelta(hours=1)

    assert batch.schema.names == ["offset", "key"]
    assert batch["offset"].to_pylist() == [5, 6]
    assert numbers(cluster, topic, tags="tag-1") == list(range(1, 100, 2))
    assert numbers(cluster, topic, start=soon) == numbers(cluster, topic, start="latest") == []
    assert numbers(cluster, topic, end=soon) == list(range(100))


def test_what_does_not_exist_is_refused_at_once(cluster: SparkCluster, topic: str):
    """Before the first batch is asked for."""
    with pytest.raises(ConfigError, match="no column 'bodi'"):
        arrow.read(cluster.namesrv, topic, columns=["bodi"])
    with pytest.raises(ConfigError, match="has no queue '7'"):
        arrow.read(cluster.namesrv, topic, start={"7": 0})
