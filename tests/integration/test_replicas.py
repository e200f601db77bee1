"""A master and its replica as real processes."""

import asyncio
import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.cluster.processes import BrokerProcess, ProcessCluster
from tests.support.cluster.raw_requests import make_topic, raw_request, wait_until

from holdfast import HoldfastError, Message, Producer, PullConsumer, SendStatus

pytestmark = pytest.mark.timeout(120)

LOG_FILE_SIZE = 1 << 20
_GET_ALL_CONSUMER_OFFSET = 43


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    with ProcessCluster(tmp_path_factory.mktemp("replicas"), settings={"log_file_size": LOG_FILE_SIZE}) as found:
        yield found


@pytest.fixture(scope="module")
def name_server(cluster: ProcessCluster) -> str:
    return cluster.namesrv


def start_replica(cluster: ProcessCluster, master: str, folder: Path, **settings: object) -> BrokerProcess:
    """Start a replica of a broker of ours."""
    return cluster.start(master, store=folder, settings={"replica_of": master, **settings})


def log_of(broker: BrokerProcess) -> bytes:
    """Return everything that lies in the log of a broker, without the zeros at its end."""
    files = sorted((broker.store / "commitlog").iterdir())
    return b"".join(file.read_bytes() for file in files).rstrip(b"\0")


def wait_for_copy(master: BrokerProcess, replica: BrokerProcess) -> None:
    """Return once the replica has everything that the master has."""
    wait_until(
        lambda: log_of(replica) == log_of(master),
        lambda: f"no copy:\n{master.child.last_lines()}\n{replica.child.last_lines()}",
    )


async def send(name_server: str, topic: str, count: int, size: int = 100) -> None:
    async with Producer(name_server) as producer:
        await asyncio.gather(*(producer.send(Message(topic, b"%d " % n + b"x" * size)) for n in range(count)))


async def test_a_replica_copies_what_was_there_and_what_comes_over_restarts_of_either(
    cluster: ProcessCluster, name_server: str, tmp_path: Path
) -> None:
    """Over several files of the log; killed and started again, each goes on where it was."""
    master = cluster.start("copied")
    make_topic(name_server, [master.address], "copied-topic", queues=2)
    await send(name_server, "copied-topic", 100, 20_000)
    replica = start_replica(cluster, "copied", tmp_path / "replica")
    await send(name_server, "copied-topic", 100)
    wait_for_copy(master, replica)

    cluster.kill(replica)
    await send(name_server, "copied-topic", 100, 20_000)
    cluster.restart(replica)
    wait_for_copy(master, replica)
    cluster.kill(master)
    cluster.restart(master)
    await send(name_server, "copied-topic", 10)

    wait_for_copy(master, replica)
    assert log_of(replica) == log_of(master)


async def consume(name_server: str, topic: str, group: str, count: int) -> list[bytes]:
    """Return *count* messages that a group gets, and commit them."""
    found: list[bytes] = []
    async with PullConsumer(name_server, group, start="earliest", auto_commit=False) as consumer:
        consumer.subscribe(topic)
        while len(found) < count:
            messages = await consumer.poll(timeout_s=5, messages_max=count - len(found))
            found += [message.body for message in messages]
        await consumer.poll(0, messages_max=0)
        await consumer.commit()
    return found


def wait_for_offsets(master: BrokerProcess, replica: BrokerProcess) -> None:
    """Return once the replica knows what groups committed at the master."""
    wait_until(lambda: _offsets(replica) == _offsets(master), lambda: f"{_offsets(replica)}, {_offsets(master)}")


def _offsets(broker: BrokerProcess) -> str:
    text = raw_request(broker.address, _GET_ALL_CONSUMER_OFFSET, {}).text
    return text[text.index('"offsetTable":') :].partition("}}")[0]


async def read_all(name_server: str, topic: str, *, enough: set[bytes]) -> set[bytes]:
    """Return what can be read of a topic: *enough*, or all that comes."""
    found: set[bytes] = set()
    async with PullConsumer(name_server, "readers-of-all", start="earliest", auto_commit=False) as consumer:
        consumer.subscribe(topic)
        while not enough <= found:
            messages = await consumer.poll(timeout_s=10)
            if not messages:
                break
            found |= {message.body for message in messages}
    return found


async def send_until_it_dies(name_server: str, topic: str, enough: asyncio.Event) -> list[bytes]:
    """Send until the broker is gone; return what was acknowledged."""
    acknowledged: list[bytes] = []

    async def one(producer: Producer, lane: int) -> None:
        for number in itertools.count():
            body = b"%d/%d" % (lane, number)
            try:
                result = await producer.send(Message(topic, body))
            except HoldfastError:
                return
            if result.status is SendStatus.OK:
                acknowledged.append(body)
            if len(acknowledged) > 500:
                enough.set()

    async with Producer(name_server, timeout_s=1, retries=0) as producer:
        await asyncio.gather(*(one(producer, lane) for lane in range(8)))
    return acknowledged


@pytest.mark.parametrize("flush", ["sync", pytest.param("async", marks=pytest.mark.slow)])
async def test_no_acknowledged_message_is_lost_with_the_masters_disk(
    cluster: ProcessCluster, name_server: str, tmp_path: Path, flush: str
) -> None:
    """Under synchronous replication everything that was acknowledged is at the replica."""
    name, topic = f"burnt-{flush}", f"burnt-topic-{flush}"
    master = cluster.start(name, flush=flush, settings={"replication": "sync"})
    make_topic(name_server, [master.address], topic, queues=2)
    start_replica(cluster, name, tmp_path / "replica")
    await send(name_server, topic, 1)

    enough = asyncio.Event()
    sending = asyncio.create_task(send_until_it_dies(name_server, topic, enough))
    await asyncio.wait_for(enough.wait(), 60)
    cluster.kill(master)
    shutil.rmtree(master.store)
    acknowledged = await sending

    assert len(acknowledged) > 500
    found = await read_all(name_server, topic, enough=set(acknowledged))
    assert set(acknowledged) - found == set()


@pytest.mark.parametrize("kind", [pytest.param("normal", marks=pytest.mark.slow), "static"])
async def test_a_group_goes_on_at_the_replica_and_back_at_the_master(
    cluster: ProcessCluster, name_server: str, tmp_path: Path, kind: str
) -> None:
    """No message is missed, and none comes twice: what it committed at either is known at the other."""
    name, topic, group = f"carried-{kind}", f"carried-topic-{kind}", f"carried-group-{kind}"
    master = cluster.start(name)
    if kind == "normal":
        make_topic(name_server, [master.address], topic, queues=2)
    else:
        await cluster.operator.run("topic", "create", topic, "--logical-queues", "2", "--brokers", name)
    replica = start_replica(cluster, name, tmp_path / "replica")
    await send(name_server, topic, 30)
    first = await consume(name_server, topic, group, 10)
    wait_for_copy(master, replica)
    wait_for_offsets(master, replica)
    cluster.kill(master)

    second = await consume(name_server, topic, group, 10)
    cluster.restart(master)
    third = await consume(name_server, topic, group, 30 - len(first) - len(second))

    everything = sorted(first + second + third)
    assert everything == sorted(b"%d " % n + b"x" * 100 for n in range(30))


@pytest.mark.slow
async def test_promotion_is_a_forced_move_and_the_replica_keeps_what_the_dead_master_had(
    cluster: ProcessCluster, name_server: str, tmp_path: Path
) -> None:
    """The queues open elsewhere; what was before is read at the replica, whose end is where the dead master's is."""
    operator, topic, group = cluster.operator, "promoted-topic", "promoted-group"
    master = cluster.start("promoted-a")
    cluster.start("promoted-b")
    await operator.run("topic", "create", topic, "--logical-queues", "2", "--brokers", "promoted-a")
    replica = start_replica(cluster, "promoted-a", tmp_path / "replica")
    await send(name_server, topic, 30)
    first = await consume(name_server, topic, group, 10)
    wait_for_copy(master, replica)
    wait_for_offsets(master, replica)
    cluster.kill(master)
    second = await consume(name_server, topic, group, 10)

    await operator.run("broker", "evacuate", "promoted-a", "--force", "--yes")
    third = await consume(name_server, topic, group, 10)
    for queue in ("0", "1"):
        await operator.run("queue", "abandon", topic, queue, "--yes")
    await send(name_server, topic, 5, 7)
    fourth = await consume(name_server, topic, group, 5)

    assert sorted(first + second + third) == sorted(b"%d " % n + b"x" * 100 for n in range(30))
    assert sorted(fourth) == sorted(b"%d " % n + b"x" * 7 for n in range(5))
    assert "promoted-a" not in (await operator.leaders(topic)).values()
