"""Replication between a Java broker and one of ours, in both directions."""

import asyncio
import re
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from tests.interop.conftest import fetched
from tests.interop.java_shell import JavaShell
from tests.support.child import Child
from tests.support.client_stories import wait_for_queues
from tests.support.cluster.ports import free_port
from tests.support.cluster.processes import BrokerProcess, ProcessCluster
from tests.support.cluster.raw_requests import make_topic, raw_request, wait_until, wait_until_gone
from tests.support.java_peer import JavaPeer

from holdfast import Message, Producer, PullConsumer

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(170)]

LOG_FILE_SIZE = 1 << 20
_CLUSTER_INFO = 106
_GET_ALL_TOPIC_CONFIG = 21
_GET_TOPIC_CONFIG = 351


@pytest.fixture(scope="module")
def peer() -> JavaPeer:
    return fetched("5.5.0")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ProcessCluster]:
    with ProcessCluster(tmp_path, settings={"log_file_size": LOG_FILE_SIZE}) as found:
        yield found


def start_java(peer: JavaPeer, name_server: str, port: int, store: Path, **settings: str) -> Child:
    """Start a Java broker whose log has small files."""
    return peer.start_broker(
        name="pair",
        cluster="DefaultCluster",
        port=port,
        name_server=name_server,
        store=store,
        settings={"mappedFileSizeCommitLog": str(LOG_FILE_SIZE), "timerWheelEnable": "false", **settings},
    )


def log_of(store: Path) -> bytes:
    """Return everything that lies in a log, without the zeros at its end."""
    files = sorted(file for file in (store / "commitlog").iterdir() if file.name.isdigit())
    return b"".join(file.read_bytes() for file in files).rstrip(b"\0")


def wait_for_copy(master: Path, replica: Path, cluster: ProcessCluster) -> None:
    """Return once the replica has everything that the master has."""
    wait_until(
        lambda: (replica / "commitlog").is_dir() and log_of(replica) == log_of(master),
        lambda: f"no copy of {len(log_of(master))} bytes:\n{cluster.last_lines()}",
        timeout_s=60,
    )


def wait_for_timer_checkpoint(slave: Path, after_ms: int) -> None:
    """Return once a slave has a checkpoint of its master's timer wheel: request 60, every 3 s."""
    file = slave / "config" / "timercheck"
    wait_until(
        lambda: file.is_file() and int.from_bytes(file.read_bytes()[:8]) >= after_ms,
        "the slave never got a timer checkpoint",
        timeout_s=60,
    )


def wait_for_route(name_server: str, address: str) -> None:
    """Return once the name server knows *address*."""
    wait_until(
        lambda: address in raw_request(name_server, _CLUSTER_INFO, {}).text.replace('"', ""), address, timeout_s=60
    )


async def send(name_server: str, topic: str, count: int, size: int) -> None:
    """Send bodies that no producer can compress, so that the log grows by what is sent."""
    async with Producer(name_server) as producer:
        for start in range(0, count, 20):
            await asyncio.gather(
                *(
                    producer.send(Message(topic, b"%d " % n + Random(n).randbytes(size), keys=(f"k{n}",)))
                    for n in range(start, min(start + 20, count))
                )
            )


async def test_a_java_slave_follows_our_master(peer: JavaPeer, cluster: ProcessCluster, tmp_path: Path) -> None:
    """From the beginning, over the ends of files, and on after the master was killed and started again."""
    name_server = cluster.namesrv
    master = cluster.start("pair")
    make_topic(name_server, [master.address], "topic", queues=2)
    await send(name_server, "topic", 150, 20_000)
    port = free_port()
    began_ms = time.time_ns() // 1_000_000
    role = {"brokerRole": "SLAVE", "brokerId": "1", "timerWheelEnable": "true"}
    slave = start_java(peer, name_server, port, tmp_path / "slave", **role)
    try:
        wait_for_route(name_server, f"1:127.0.0.1:{port}")
        wait_for_copy(master.store, tmp_path / "slave", cluster)
        wait_for_timer_checkpoint(tmp_path / "slave", began_ms)
        await send(name_server, "topic", 20, 100)
        cluster.kill(master)
        cluster.restart(master)
        await send(name_server, "topic", 20, 100)

        wait_for_copy(master.store, tmp_path / "slave", cluster)
        assert len(log_of(tmp_path / "slave")) > 2 * LOG_FILE_SIZE, "the copy goes over the ends of files"
    finally:
        slave.kill()


async def test_our_replica_follows_a_java_master(peer: JavaPeer, cluster: ProcessCluster, tmp_path: Path) -> None:
    """While it is in its first file, and over the ends of files; killed and started again, it goes on where it was."""
    name_server = cluster.namesrv
    port = free_port()
    master = start_java(peer, name_server, port, tmp_path / "master", brokerRole="ASYNC_MASTER")
    try:
        wait_for_route(name_server, f"0:127.0.0.1:{port}")
        make_topic(name_server, [f"127.0.0.1:{port}"], "topic", queues=2)
        await send(name_server, "topic", 5, 100)
        settings = {"replica_of": "pair"}
        replica = cluster.start("pair", store=tmp_path / "replica", settings=settings)
        wait_for_route(name_server, f"1:{replica.address}")
        wait_for_copy(tmp_path / "master", replica.store, cluster)  # A Java master gives a new replica its last file.
        await send(name_server, "topic", 150, 20_000)
        wait_for_copy(tmp_path / "master", replica.store, cluster)
        cluster.kill(replica)
        await send(name_server, "topic", 20, 100)
        cluster.restart(replica)

        wait_for_copy(tmp_path / "master", replica.store, cluster)
        assert len(log_of(replica.store)) > 2 * LOG_FILE_SIZE, "the copy goes over the ends of files"
    finally:
        master.kill()


def wait_for_topic(replica: BrokerProcess, topic: str) -> None:
    """Return once a replica has heard of a topic."""
    wait_until(lambda: topic in raw_request(replica.address, _GET_ALL_TOPIC_CONFIG, {}).text, topic, timeout_s=60)


@pytest.mark.parametrize("kind", ["normal", "static"])
async def test_java_consumers_read_our_replica_while_the_master_is_down(
    peer: JavaPeer, cluster: ProcessCluster, tmp_path: Path, kind: str
) -> None:
    """Every message, of a normal and of a static topic."""
    name_server = cluster.namesrv
    master = cluster.start("pair")
    if kind == "normal":
        make_topic(name_server, [master.address], "topic", queues=2)
    else:
        await cluster.operator.run("topic", "create", "topic", "--logical-queues", "2")
    replica = cluster.start("pair", store=tmp_path / "replica", settings={"replica_of": "pair"})
    await send(name_server, "topic", 20, 10)
    wait_for_copy(master.store, replica.store, cluster)
    wait_for_topic(replica, "topic")
    cluster.kill(master)
    with JavaShell(peer, name_server, tmp_path / "shell") as shell:
        consumed = shell.run("consume", "topic", "group", "*", 20, "-")[1]

    keys = [key for line in consumed for key in re.findall(r'"keys":"(\w+)"', line)]
    assert sorted(keys) == sorted(f"k{number}" for number in range(20)), consumed


async def test_our_replica_serves_the_static_topics_of_a_java_master(
    peer: JavaPeer, cluster: ProcessCluster, tmp_path: Path
) -> None:
    """No log has their mappings. The topic grows while the replica follows; when the master dies, it is read there."""
    name_server, port = cluster.namesrv, free_port()
    master = start_java(peer, name_server, port, tmp_path / "master", brokerRole="ASYNC_MASTER")
    try:
        wait_for_route(name_server, f"0:127.0.0.1:{port}")
        settings = {"replica_of": "pair"}
        replica = cluster.start("pair", store=tmp_path / "replica", settings=settings)
        wait_for_route(name_server, f"1:{replica.address}")
        with JavaShell(peer, name_server, tmp_path / "shell") as shell:
            for count in ("2", "3"):
                shell.mqadmin("updateStaticTopic", "-t", "fixed", "-qn", count, "-b", "pair")
        await send_to_all(name_server, "fixed", queues=3, rounds=5)
        wait_for_copy(tmp_path / "master", replica.store, cluster)
        wait_for_mapping(replica, "fixed", queues=3)
    finally:
        master.kill()
    wait_until_gone(name_server, [f"127.0.0.1:{port}"])

    bodies = await read_all(name_server, "fixed", count=15)

    assert bodies == {number: [f"{number} {at}" for at in range(5)] for number in range(3)}


async def send_to_all(name_server: str, topic: str, *, queues: int, rounds: int) -> None:
    """Send to every logical queue, as soon as all of them are known."""
    async with Producer(name_server) as producer:
        await wait_for_queues(producer, topic, queues)
        for at in range(rounds):
            for queue in await producer.queues(topic):
                await producer.send(Message(topic, f"{queue.queue_id} {at}".encode()), queue=queue)


async def read_all(name_server: str, topic: str, *, count: int) -> dict[int, list[str]]:
    """Return what the queues hold, in order."""
    found: dict[int, list[str]] = defaultdict(list)
    async with PullConsumer(name_server, "auditors", auto_commit=False) as consumer:
        queues = await consumer.queues(topic)
        assert {queue.broker_name for queue in queues} == {"__syslo__global__"}
        await consumer.assign(queues)
        await consumer.seek_all("earliest")
        for _ in range(count):
            (message,) = await consumer.poll(timeout_s=30, messages_max=1)
            found[message.queue.queue_id].append(message.body.decode())
    return dict(found)


def wait_for_mapping(replica: BrokerProcess, topic: str, *, queues: int) -> None:
    """Return once a replica knows so many logical queues of a topic."""

    def find_config() -> str:
        return raw_request(replica.address, _GET_TOPIC_CONFIG, {"topic": topic, "lo": "true"}).text

    wait_until(lambda: f'"totalQueues":{queues}' in find_config(), find_config, timeout_s=60)
