"""Java clients and `mqadmin`, unmodified, on our static topics: moves that a Java application does not notice.

The client keeps its defaults: it asks for routes every thirty seconds, and retries nothing.
"""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from tests.interop.java_shell import JavaShell, route
from tests.support.cluster.processes import ProcessCluster
from tests.support.java_peer import JavaPeer

from holdfast import Message, Producer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]

CLUSTER = "DefaultCluster"
QUEUES = 8
KEYS = 8
_TIMEOUT_S = 90.0
NOTHING = {"failed": {}, "lost": 0, "repeated": 0, "out_of_order": 0, "misplaced": 0, "holes": 0}


class JavaLoad:
    """`java/LoadLedger.java`, running."""

    def __init__(self, peer: JavaPeer, name_server: str, topic: str, home: Path) -> None:
        arguments = [name_server, topic, str(KEYS), "2000"]
        self._child = peer.start_program("LoadLedger", arguments, home=home)
        self._child.wait_for_line('"ready"', timeout_s=_TIMEOUT_S)

    def flow(self, count: int = 400) -> None:
        """Return once that many more messages were acknowledged and have come."""
        heard = len(self._child.lines())
        self._child.write_line(f"flow {count}")
        self._child.wait_for_line('"flowed"', timeout_s=_TIMEOUT_S, after=heard)

    def measure(self) -> None:
        """Forget the times so far."""
        self._child.write_line("measure")

    def settle(self) -> dict[str, Any]:
        """End the load and return its sums."""
        self._child.write_line("settle")
        sums: dict[str, Any] = json.loads(self._child.wait_for_line('"lost"', timeout_s=_TIMEOUT_S))
        sys.stdout.write(f"{self._child.name}: {sums}\n")
        return sums

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._child.kill()


def leads(cluster: ProcessCluster, topic: str) -> Counter[str]:
    """Return how many queues of *topic* each broker leads."""
    return Counter(cluster.leaders(topic).values())


def send_to(name_server: str, topic: str, queue: int, *, count: int) -> list[int]:
    """Send messages to one logical queue; return their offsets."""

    async def send() -> list[int]:
        async with Producer(name_server, timeout_s=30) as producer:
            target = (await producer.queues(topic))[queue]
            return [(await producer.send(Message(topic, b"x"), queue=target)).offset for _ in range(count)]

    return asyncio.run(send())


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    folder, settings = tmp_path_factory.mktemp("static"), {"log_file_size": 64 << 20}
    with ProcessCluster(folder, "broker-a", "broker-b", settings=settings) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def shell(brokers: ProcessCluster, peer_5: JavaPeer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaShell]:
    with JavaShell(peer_5, brokers.namesrv, tmp_path_factory.mktemp("mqadmin")) as java:
        yield java


@pytest.mark.parametrize("version", ["peer_5", "peer_4"])
def test_a_java_application_does_not_notice_moves(
    request: pytest.FixtureRequest, brokers: ProcessCluster, tmp_path: Path, version: str
) -> None:
    """Queue by queue, all at once, off a broker: nothing fails, is lost, repeated, late, or leaves a hole.

    5.5.0 reads the mapping; 4.9.7 knows of none and sends everything through one broker.
    """
    topic = f"moved-{version}"
    brokers.run("topic", "create", topic, "--logical-queues", str(QUEUES), "--brokers", "broker-a,broker-b")
    with JavaLoad(request.getfixturevalue(version), brokers.namesrv, topic, tmp_path) as load:
        load.flow()
        load.measure()
        for target in ("broker-b", "broker-a"):
            brokers.run("queue", "migrate", topic, "0", "--to", target)
            load.flow()
        load.measure()
        for target in ("broker-b", "broker-a", "broker-a,broker-b"):
            brokers.run("topic", "move", topic, "--to", target)
            load.flow()
        sums = load.settle()

    assert sums["acknowledged"] > 0
    assert sums | NOTHING == sums
    assert leads(brokers, topic) == {"broker-a": 4, "broker-b": 4}


@pytest.mark.parametrize("version", ["peer_5", "peer_4"])
def test_a_java_application_does_not_notice_a_new_broker(
    request: pytest.FixtureRequest, brokers: ProcessCluster, tmp_path: Path, version: str
) -> None:
    """A broker that the client has never spoken to takes over everything: what is stored there is delivered at once."""
    topic, name = f"spread-{version}", f"broker-{version}"
    brokers.run("topic", "create", topic, "--logical-queues", str(QUEUES), "--brokers", "broker-a,broker-b")
    with JavaLoad(request.getfixturevalue(version), brokers.namesrv, topic, tmp_path) as load:
        load.flow()
        load.measure()
        brokers.start(name)
        brokers.run("topic", "move", topic, "--to", name)
        load.flow()
        brokers.run("topic", "move", topic, "--to", "broker-b")
        load.flow()
        sums = load.settle()

    assert sums | NOTHING == sums


def test_mqadmin_creates_grows_and_remaps_a_static_topic(
    brokers: ProcessCluster, shell: JavaShell, peer_5: JavaPeer, tmp_path: Path
) -> None:
    """`updateStaticTopic` and `remappingStaticTopic` do here what they do to Java brokers, and without the damage."""
    topic = "by-mqadmin"
    shell.mqadmin("updateStaticTopic", "-t", topic, "-qn", "4", "-b", "broker-a,broker-b")
    assert leads(brokers, topic).total() == 4
    shell.mqadmin("updateStaticTopic", "-t", topic, "-qn", str(QUEUES), "-b", "broker-a,broker-b")
    assert leads(brokers, topic).total() == QUEUES
    with JavaLoad(peer_5, brokers.namesrv, topic, tmp_path) as load:
        load.flow()
        load.measure()
        for target in ("broker-a", "broker-b", "broker-a,broker-b"):
            printed = shell.mqadmin("remappingStaticTopic", "-t", topic, "-b", target)
            assert "Exception" not in printed, printed
            assert leads(brokers, topic).keys() == set(target.split(","))
            load.flow()
        sums = load.settle()

    assert sums | NOTHING == sums


def test_mqadmin_grows_a_topic_of_which_a_queue_was_set_again(brokers: ProcessCluster, shell: JavaShell) -> None:
    """It refuses to touch a topic while a queue is missing, and reads the new mapping, which begins above 0."""
    topic = "set-again"
    update = ("updateStaticTopic", "-t", topic, "-b", "broker-a,broker-b", "-qn")
    shell.mqadmin(*update, "4")
    assert send_to(brokers.namesrv, topic, 3, count=10) == list(range(10))
    brokers.run("queue", "unset", topic, "3", "--yes")

    assert "does not match the real hosted queues 4 != 3" in shell.mqadmin(*update, "4")
    brokers.run("queue", "set", topic, "3", "--broker", "broker-a")
    printed = shell.mqadmin(*update, str(QUEUES))

    assert leads(brokers, topic).total() == QUEUES, printed
    assert send_to(brokers.namesrv, topic, 3, count=5) == list(range(10, 15))


def test_mqadmin_reads_a_static_topic(brokers: ProcessCluster, shell: JavaShell) -> None:
    """`topicRoute` shows who leads every logical queue."""
    topic = "routed-by-mqadmin"
    brokers.run("topic", "create", topic, "--logical-queues", "4", "--brokers", "broker-a,broker-b")
    brokers.run("topic", "move", topic, "--to", "broker-b")

    told = route(shell.mqadmin("topicRoute", "-t", topic))

    assert set(told["topicQueueMappingByBroker"]["broker-b"]["currIdMap"]) == {"0", "1", "2", "3"}


@pytest.mark.parametrize("version", ["peer_5", "peer_4"])
def test_mqadmin_counts_a_static_topic(
    request: pytest.FixtureRequest, brokers: ProcessCluster, shell: JavaShell, tmp_path: Path, version: str
) -> None:
    """`topicStatus` and `consumerProgress` show every logical queue once; also to a tool that sees one broker only."""
    topic, group = f"read-by-{version}", f"read-by-{version}-group"
    brokers.run("topic", "create", topic, "--logical-queues", "4", "--brokers", "broker-a,broker-b")
    shell.seed(topic, group, 20)
    brokers.run("queue", "migrate", topic, "0", "--to", "broker-b")

    with JavaShell(request.getfixturevalue(version), brokers.namesrv, tmp_path) as tool:
        status = [line.split() for line in tool.mqadmin("topicStatus", "-t", topic).splitlines() if topic not in line]
        progress = tool.mqadmin("consumerProgress", "-g", group)

    table = [row for row in status if row[:1] == ["__syslo__global__"]]
    assert {row[1] for row in table} == {"0", "1", "2", "3"}, status
    assert sum(int(row[3]) - int(row[2]) for row in table) == 40, status
    assert "Diff Total: 20" in progress, progress
