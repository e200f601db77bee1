"""One cluster and one Spark session for all of these tests: either takes seconds to start."""

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: make install-spark")

from pyspark.sql import SparkSession
from tests.support.up import Up

from holdfast.spark import session


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything here."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.filterwarnings("ignore"))  # Spark's own


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    found = session("holdfast-tests", master="local[2]", config={"spark.driver.memory": "2g"})
    found.sparkContext.setLogLevel("ERROR")
    yield found
    found.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with Up(tmp_path_factory.mktemp("cluster"), "--brokers", "2", "--flush", "async") as up:
        yield up
