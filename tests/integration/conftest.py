"""A cluster of ours for the stories about the client library.

`HOLDFAST_TEST_NAMESRV=host:port` tells the same stories of any other cluster, which must check transactions within
seconds.
"""

import asyncio
import os
from collections.abc import Iterator

import pytest
from tests.support.client_stories import broker_addresses, new_name
from tests.support.cluster.processes import Processes, make_topic

_FAST_CHECKS = {"transaction_timeout_ms": 1000, "transaction_check_interval_ms": 1000}


@pytest.fixture(scope="session")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name server of a cluster of two brokers."""
    given = os.environ.get("HOLDFAST_TEST_NAMESRV")
    if given:
        yield given
        return
    with Processes(tmp_path_factory.mktemp("client")) as processes:
        name_server = processes.start_name_server()
        for name in ("broker-a", "broker-b"):
            processes.start_broker(name, name_server, settings=_FAST_CHECKS)
        yield name_server


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
