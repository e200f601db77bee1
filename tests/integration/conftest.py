"""A cluster of ours for the stories about the client library.

`HOLDFAST_TEST_NAMESRV=host:port` tells the same stories of any other cluster, which must check transactions within
seconds.
"""

import asyncio
import os
from collections.abc import Iterator

import pytest
from tests.support.client_stories import broker_addresses, new_name
from tests.support.cluster.processes import ProcessCluster
from tests.support.cluster.raw_requests import make_topic

_FAST_CHECKS = {"transaction_timeout_ms": 1000, "transaction_check_interval_ms": 1000}


@pytest.fixture(scope="session")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name server of a cluster of two brokers."""
    given = os.environ.get("HOLDFAST_TEST_NAMESRV")
    if given:
        yield given
        return
    with ProcessCluster(tmp_path_factory.mktemp("client"), "broker-a", "broker-b", settings=_FAST_CHECKS) as cluster:
        yield cluster.namesrv


@pytest.fixture
def topic(namesrv: str) -> str:
    """A topic that all brokers have, with two queues on each."""
    name = new_name("topic")
    make_topic(namesrv, asyncio.run(broker_addresses(namesrv)), name, queues=2)
    return name


@pytest.fixture
def group() -> str:
    """A consumer group that nobody knows yet."""
    return new_name("group")
