"""One cluster and one Spark session for all of these tests: either takes seconds to start."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: make install-spark")

from pyspark.sql import DataFrame, SparkSession
from tests.support.cluster.processes import ProcessCluster

from holdfast import Message, blocking
from holdfast.model.message import SendResult
from holdfast.spark import session

_numbers = itertools.count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything here."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.filterwarnings("ignore"))  # Spark's own


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    found = session("holdfast-tests", master="local[2]", config={"spark.driver.memory": "2g"})
    found.sparkContext.setLogLevel("OFF")
    yield found
    found.stop()


class SparkCluster(ProcessCluster):
    """Two name servers, some brokers, and a producer."""

    def __enter__(self) -> Self:
        super().__enter__()
        self.producer = blocking.Producer(self.namesrv, "tests", timeout_s=60)
        self.producer.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.producer.close()
        super().__exit__(*error)

    def new_topic(
        self, *, queues: int = 4, is_static: bool = True, name: str | None = None, keeps_batches: bool = False
    ) -> str:
        """Make a topic that nobody else uses."""
        name = name or f"topic-{next(_numbers)}"
        kind = ["--batches"] if keeps_batches else []
        self.run("topic", "create", name, "--logical-queues" if is_static else "--queues", str(queues), *kind)
        return name

    def send(self, topic: str, numbers: range, *, keys: int = 8) -> list[SendResult]:
        """Send some numbers, each under one of a few keys."""
        return self.producer.send_many(
            [Message(topic, b"%d" % number, key=f"key-{number % keys}", tags=f"tag-{number % 2}") for number in numbers]
        )


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("cluster"), "broker-a", "broker-b", name_servers=2) as found:
        yield found


Read = Callable[..., DataFrame]


@pytest.fixture
def read(spark: SparkSession, cluster: SparkCluster) -> Read:
    """Read a topic, or what the options say, as a batch."""

    def load(topic: str | None = None, schema: str | None = None, **options: object) -> DataFrame:
        reader = spark.read.format("holdfast").option("namesrv", cluster.namesrv)
        reader = reader if topic is None else reader.option("subscribe", topic)
        reader = reader if schema is None else reader.schema(schema)
        return reader.options(**{name: str(text) for name, text in options.items()}).load()

    return load


def numbers_of(frame: DataFrame) -> list[int]:
    """Return the numbers that were sent, sorted."""
    return sorted(int(row.body) for row in frame.select("body").collect())
