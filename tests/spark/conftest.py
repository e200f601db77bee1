"""One cluster and one Spark session for all of these tests: either takes seconds to start."""

import asyncio
import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: make install-spark")

from pyspark.sql import DataFrame, SparkSession
from tests.support.cluster.operator import HoldfastCommand
from tests.support.cluster.processes import BrokerProcess, Processes, free_port, wait_until_registered

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


class Cluster:
    """Two name servers and some brokers, and hands to use them with."""

    def __init__(self, processes: Processes, folder: Path) -> None:
        self.processes = processes
        self._folder = folder
        self.name_servers = [processes.start_name_server() for _ in range(2)]
        self.namesrv = ";".join(self.name_servers)
        self.brokers: dict[str, BrokerProcess] = {}
        for name in ("broker-a", "broker-b"):
            self.start(name)
        self.producer = blocking.Producer(self.namesrv, "tests", timeout_s=60)
        self.producer.start()

    def start(self, name: str) -> None:
        """Start a broker, again where it was if it was there before."""
        known = self.brokers.get(name)
        port, store = (free_port(), self._folder / name) if known is None else (known.port, known.store)
        command = ["serve", "broker", "--name", name, "--namesrv", self.namesrv, "--listen", f"127.0.0.1:{port}"]
        child = self.processes._start([*command, "--store", str(store), "--flush", "async"], name=name, port=port)
        wait_until_registered(self.name_servers[1], [name])
        self.brokers[name] = BrokerProcess(name, "DefaultCluster", port, store, child)

    def start_another_name_server(self, address: str) -> None:
        """Start a name server that knows nothing where one was before."""
        port = int(address.rpartition(":")[2])
        shutil.rmtree(self._folder / f"namesrv-{port}")
        self.processes.start_name_server(port=port)

    def operate(self, *words: str) -> dict[str, Any]:
        """Run a command of an operator."""
        return asyncio.run(HoldfastCommand(self.namesrv).run(*words))

    def leaders(self, topic: str) -> dict[int, str]:
        """Return who leads each queue."""
        return asyncio.run(HoldfastCommand(self.namesrv).leaders(topic))

    def make_topic(
        self, *, queues: int = 4, is_static: bool = True, name: str | None = None, keeps_batches: bool = False
    ) -> str:
        """Make a topic that nobody else uses."""
        name = name or f"topic-{next(_numbers)}"
        kind = ["--batches"] if keeps_batches else []
        self.operate("topic", "create", name, "--logical-queues" if is_static else "--queues", str(queues), *kind)
        return name

    def send(self, topic: str, numbers: range, *, keys: int = 8) -> list[SendResult]:
        """Send some numbers, each under one of a few keys."""
        return self.producer.send_many(
            [Message(topic, b"%d" % number, key=f"key-{number % keys}", tags=f"tag-{number % 2}") for number in numbers]
        )


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with Processes(folder) as processes:
        found = Cluster(processes, folder)
        yield found
        found.producer.close()


Read = Callable[..., DataFrame]


@pytest.fixture
def read(spark: SparkSession, cluster: Cluster) -> Read:
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
