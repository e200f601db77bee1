"""A wrong name server fails a query when it is planned, in seconds and by address, whatever `brokerTimeout` says."""

import os
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tests.spark.conftest import Cluster
from tests.support.cluster import free_port

from holdfast import arrow
from holdfast.bulk.cluster_session import Unavailable
from holdfast.spark.sink_contact import _mark, require_contact
from holdfast.spark.sink_options import SinkOptions

PATIENCE = "20s"  # Without the check a query fails later, and its error is about this time.


@pytest.fixture
def nowhere() -> str:
    return f"127.0.0.1:{free_port()}"


@pytest.fixture
def frame(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([("k", "text")], "key string, body string")


def test_a_batch_query(spark: SparkSession, nowhere: str):
    reader = spark.read.format("holdfast").options(namesrv=nowhere, subscribe="orders", brokerTimeout=PATIENCE)

    with pytest.raises(PySparkException, match=rf"no name server answers at {nowhere}.*namesrv"):
        reader.load().collect()


def test_a_stream(spark: SparkSession, nowhere: str, tmp_path: Path):
    reader = spark.readStream.format("holdfast").options(namesrv=nowhere, subscribe="orders", brokerTimeout=PATIENCE)
    query = reader.load().writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()

    with pytest.raises(PySparkException, match=rf"no name server answers at {nowhere}"):
        query.awaitTermination()


def test_a_batch_write(frame: DataFrame, nowhere: str):
    writer = frame.write.format("holdfast").options(namesrv=nowhere, topic="orders", brokerTimeout=PATIENCE)

    with pytest.raises(PySparkException, match=rf"no name server answers at {nowhere}"):
        writer.mode("append").save()


def test_a_stream_that_writes(spark: SparkSession, nowhere: str, tmp_path: Path):
    rows = spark.readStream.format("rate").load().selectExpr("cast(value as string) body")
    writer = rows.writeStream.format("holdfast").options(namesrv=nowhere, topic="orders", brokerTimeout=PATIENCE)
    query = writer.option("checkpointLocation", str(tmp_path)).start()

    with pytest.raises(PySparkException, match=rf"no name server answers at {nowhere}"):
        query.awaitTermination()


def test_a_program_without_spark(nowhere: str):
    with pytest.raises(Unavailable, match=rf"no name server answers at {nowhere}"):
        next(arrow.read(nowhere, "orders", timeout_s=20))


def test_a_broker_is_no_name_server(cluster: Cluster):
    """Its port is a common mistake, and the error says so."""
    address = f"127.0.0.1:{cluster.brokers['broker-a'].port}"

    with pytest.raises(Unavailable, match=rf"{address} is no name server but perhaps a broker"):
        next(arrow.read(address, "orders", timeout_s=20))


def test_one_name_server_that_answers_is_enough(cluster: Cluster, nowhere: str):
    topic = cluster.make_topic(queues=1)
    cluster.send(topic, range(3))

    batches = arrow.read(f"{nowhere};{cluster.name_servers[0]}", topic, columns=["body"])

    assert sum(batch.num_rows for batch in batches) == 3


def test_a_sink_that_reached_its_name_servers_once_does_not_fail_for_an_outage(
    cluster: Cluster, nowhere: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Spark plans every batch anew, in any process: all planners of a driver know it."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    ended = tmp_path / f"holdfast-{os.getuid()}" / "999999999-0"
    ended.parent.mkdir()
    ended.touch()

    require_contact(SinkOptions(namesrv=cluster.namesrv))
    with pytest.raises(Unavailable):
        require_contact(SinkOptions(namesrv=nowhere))
    _mark(nowhere).touch()
    require_contact(SinkOptions(namesrv=nowhere))

    assert _mark(cluster.namesrv).exists()
    assert not ended.exists()
