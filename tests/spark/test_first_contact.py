"""A wrong name server fails a query when it is planned, in seconds and by address, whatever `brokerTimeout` says."""

import os
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tests.spark.conftest import SparkCluster
from tests.support.cluster.ports import free_port

from holdfast import arrow
from holdfast.bulk.cluster_connection import Unavailable
from holdfast.spark import sink_contact
from holdfast.spark.sink_contact import _contact_file, require_contact
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


def test_a_broker_is_no_name_server(cluster: SparkCluster):
    """Its port is a common mistake, and the error says so."""
    address = f"127.0.0.1:{cluster.brokers['broker-a'].port}"

    with pytest.raises(Unavailable, match=rf"{address} is no name server but perhaps a broker"):
        next(arrow.read(address, "orders", timeout_s=20))


def test_one_name_server_that_answers_is_enough(cluster: SparkCluster, nowhere: str):
    topic = cluster.new_topic(queues=1)
    cluster.send(topic, range(3))

    batches = arrow.read(f"{nowhere};{cluster.name_servers[0]}", topic, columns=["body"])

    assert sum(batch.num_rows for batch in batches) == 3


def test_a_sink_that_reached_its_name_servers_once_does_not_fail_for_an_outage(
    cluster: SparkCluster, nowhere: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Spark plans every batch anew, in any process: all planners of a driver know it."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(sink_contact, "_answered_servers", set())
    ended = tmp_path / f"holdfast-{os.getuid()}" / "999999999-0"
    ended.parent.mkdir()
    ended.touch()

    require_contact(SinkOptions(namesrv=cluster.namesrv))
    with pytest.raises(Unavailable):
        require_contact(SinkOptions(namesrv=nowhere))
    mark = _contact_file(nowhere)
    assert mark is not None
    mark.touch()
    require_contact(SinkOptions(namesrv=nowhere))

    known = _contact_file(cluster.namesrv)
    assert known is not None
    assert known.exists()
    assert not ended.exists()


class Answering:
    """A link whose name server answers; it counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.connection = self

    def require_name_server(self) -> None:
        self.asked += 1


@pytest.mark.parametrize("obstacle", ["another user's folder", "a link to a folder", "a file", "a foreign file in it"])
def test_what_lies_in_the_way_in_the_temporary_directory_stops_no_sink(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, obstacle: str
):
    """Everybody may write there. A planner then records what it saw for itself, and nothing is written elsewhere."""
    uid, link = os.getuid(), Answering()
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(sink_contact, "_answered_servers", set())
    monkeypatch.setattr(sink_contact, "open_session", lambda *_: link)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    match obstacle:
        case "another user's folder":
            monkeypatch.setattr("os.getuid", lambda: uid + 1)
            (tmp_path / f"holdfast-{uid + 1}").mkdir()
        case "a link to a folder":
            (tmp_path / f"holdfast-{uid}").symlink_to(elsewhere)
        case "a file":
            (tmp_path / f"holdfast-{uid}").touch()
        case _:
            (tmp_path / f"holdfast-{uid}").mkdir()
            (tmp_path / f"holdfast-{uid}" / "notes.txt").touch()

    for _ in range(2):
        require_contact(SinkOptions(namesrv="ns:9876"))

    assert link.asked == 1
    assert [*elsewhere.iterdir()] == []
    assert (_contact_file("ns:9876") is not None) is (obstacle == "a foreign file in it")
