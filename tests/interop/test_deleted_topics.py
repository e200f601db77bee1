"""Java clients, unmodified, and topics that were deleted: none comes back by automatic creation."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from tests.interop.java_shell import JavaShell
from tests.support.cluster.operator import HoldfastCommand
from tests.support.cluster.processes import ProcessCluster
from tests.support.java_peer import JavaPeer

from holdfast.admin.operations import Admin
from holdfast.model.errors import RouteNotFound

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

_TIMEOUT_S = 90.0
TOPIC_NOT_EXIST = 17


class JavaProducer:
    """`java/LineProducer.java`, running."""

    def __init__(self, peer: JavaPeer, name_server: str, home: Path) -> None:
        home.mkdir()
        self._child = peer.start_program("LineProducer", [name_server], home=home)
        self._child.wait_for_line('"ready"', timeout_s=_TIMEOUT_S)

    def send(self, topic: str) -> dict[str, Any]:
        """Send a message and return what came of it."""
        return self._ask(f"send {topic}", '"sent"|"failed"')

    def subscribe(self, topic: str, group: str) -> None:
        """Start a consumer in the same process."""
        self._ask(f"subscribe {topic} {group}", '"subscribed"')

    def _ask(self, line: str, answer: str) -> dict[str, Any]:
        heard = len(self._child.lines())
        self._child.write_line(line)
        told: dict[str, Any] = json.loads(self._child.wait_for_line(answer, timeout_s=_TIMEOUT_S, after=heard))
        return told

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._child.kill()


@pytest.fixture
def name_server(tmp_path: Path) -> Iterator[str]:
    """Two brokers of ours that create topics."""
    with ProcessCluster(tmp_path, "broker-a", "broker-b", settings={"log_file_size": 64 << 20}) as cluster:
        yield cluster.namesrv


def operate(name_server: str, *words: str) -> None:
    asyncio.run(HoldfastCommand(name_server).run(*words))


def topics(name_server: str) -> dict[str, tuple[str, int]]:
    """Return the topics that users have: their kinds, and how many queues they have."""

    async def ask() -> dict[str, tuple[str, int]]:
        async with Admin(name_server) as admin:
            return {found.name: (found.kind, found.queues) for found in await admin.topics.summaries()}

    return asyncio.run(ask())


def send_until_sent(producer: JavaProducer, topic: str) -> None:
    """Send until it works: a producer looks at routes twice a second."""
    while "sent" not in producer.send(topic):
        pass


@pytest.mark.parametrize("version", ["peer_5", "peer_4"])
def test_a_deleted_static_topic_comes_back_only_when_it_is_created(
    request: pytest.FixtureRequest, name_server: str, tmp_path: Path, version: str
) -> None:
    """A producer that used it and one that never heard of it are refused; consumers create nothing either."""
    peer = request.getfixturevalue(version)
    operate(name_server, "topic", "create", "orders", "--logical-queues", "4")
    with (
        JavaProducer(peer, name_server, tmp_path / "old") as old,
        JavaProducer(peer, name_server, tmp_path / "new") as new,
    ):
        assert "sent" in old.send("orders")
        operate(name_server, "topic", "delete", "orders", "--yes")

        new.subscribe("orders", "readers")
        for producer in (old, new, old, new):
            answer = producer.send("orders")
            assert answer["failed"] == TOPIC_NOT_EXIST
            assert "was deleted" in answer["text"]
        assert topics(name_server) == {}

        operate(name_server, "topic", "create", "orders", "--logical-queues", "3")
        for producer in (old, new):
            send_until_sent(producer, "orders")
        assert topics(name_server) == {"orders": ("static", 3)}


def test_mqadmin_deletes_and_creates_topics(name_server: str, peer_5: JavaPeer, tmp_path: Path) -> None:
    """A normal topic that it deleted stays so until updateTopic creates it."""
    with (
        JavaShell(peer_5, name_server, tmp_path / "shell") as shell,
        JavaProducer(peer_5, name_server, tmp_path / "producer") as producer,
    ):
        shell.make_topic("bills", "DefaultCluster", 2, 2)
        send_until_sent(producer, "bills")
        assert "success" in shell.mqadmin("deleteTopic", "-c", "DefaultCluster", "-t", "bills")

        answer = producer.send("bills")
        assert (answer["failed"], "was deleted" in answer["text"]) == (TOPIC_NOT_EXIST, True)
        assert topics(name_server) == {}

        shell.make_topic("bills", "DefaultCluster", 2, 2)
        send_until_sent(producer, "bills")


@pytest.mark.parametrize("version", ["peer_5", "peer_4"])
async def test_a_topic_that_a_java_send_creates_is_on_every_broker(
    request: pytest.FixtureRequest, name_server: str, tmp_path: Path, version: str
) -> None:
    """With four queues on each: the client's default is smaller than the broker's."""
    with JavaProducer(request.getfixturevalue(version), name_server, tmp_path / "producer") as producer:
        assert "sent" in producer.send("bills")

        async with Admin(name_server) as admin, asyncio.timeout(_TIMEOUT_S):
            while await hosts_of(admin, "bills") != [("broker-a", 4), ("broker-b", 4)]:
                pass


async def hosts_of(admin: Admin, topic: str) -> list[tuple[str, int]]:
    """Return the brokers that serve a topic with their queues; none before the first of them has registered it."""
    try:
        return [(host.broker, host.write_queues) for host in (await admin.topics.describe(topic)).hosts]
    except RouteNotFound:
        return []
