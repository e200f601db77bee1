"""A master and its replica as real processes."""

import asyncio
import itertools
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.child import ChildFailed
from tests.support.cluster.operator import HoldfastCommand
from tests.support.cluster.processes import BrokerProcess, Processes, call, make_topic

from holdfast import HoldfastError, Message, Producer, PullConsumer, SendStatus

pytestmark = pytest.mark.timeout(120)

LOG_FILE_SIZE = 1 << 20
SMALL_FILES = {"log_file_size": LOG_FILE_SIZE}
_GET_ALL_CONSUMER_OFFSET = 43


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with Processes(tmp_path_factory.mktemp("replicas")) as processes:
        yield processes


@pytest.fixture(scope="module")
def name_server(processes: Processes) -> str:
    return processes.start_name_server()


def start_replica(
    processes: Processes, name_server: str, master: str, folder: Path, **settings: object
) -> BrokerProcess:
    """Start a replica of a broker of ours."""
    return processes.start_broker(
        master, name_server, store=folder, settings={**SMALL_FILES, "replica_of": master, **settings}
    )


def log_of(broker: BrokerProcess) -> bytes:
    """Return everything that lies in the log of a broker, without the zeros at its end."""
    files = sorted((broker.store / "commitlog").iterdir())
    return b"".join(file.read_bytes() for file in files).rstrip(b"\0")


def wait_for_copy(master: BrokerProcess, replica: BrokerProcess) -> None:
    """Return once the replica has everything that the master has."""
    deadline = time.monotonic() + 30
    while log_of(replica) != log_of(master):
        if time.monotonic() > deadline:
            raise ChildFailed(f"no copy:\n{master.child.last_lines()}\n{replica.child.last_lines()}")
        time.sleep(0.05)


async def send(name_server: str, topic: str, count: int, size: int = 100) -> None:
    async with Producer(name_server) as producer:
        await asyncio.gather(*(producer.send(Message(topic, b"%d " % n + b"x" * size)) for n in range(count)))


async def test_a_replica_copies_what_was_there_and_what_comes_over_restarts_of_either(
    processes: Processes, name_server: str, tmp_path: Path
) -> None:
    """Over several files of the log; killed and started again, each goes on where it was."""
    master = processes.start_broker("copied", name_server, settings=SMALL_FILES)
    make_topic(name_server, [master.address], "copied-topic", queues=2)
    await send(name_server, "copied-topic", 100, 20_000)
    replica = start_replica(processes, name_server, "copied", tmp_path / "replica")
    await send(name_server, "copied-topic", 100)
    wait_for_copy(master, replica)

    replica.child.kill()
    await send(name_server, "copied-topic", 100, 20_000)
    replica = start_replica(processes, name_server, "copied", replica.store)
    wait_for_copy(master, replica)
    master.child.kill()
    master = processes.start_broker("copied", name_server, port=master.port, store=master.store, settings=SMALL_FILES)
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
    deadline = time.monotonic() + 30
    while _offsets(replica) != _offsets(master):
        assert time.monotonic() < deadline, (_offsets(replica), _offsets(master))
        time.sleep(0.05)


def _offsets(broker: BrokerProcess) -> str:
    text = call(broker.address, _GET_ALL_CONSUMER_OFFSET, {})[1]
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
    processes: Processes, name_server: str, tmp_path: Path, flush: str
) -> None:
    """Under synchronous replication everything that was acknowledged is at the replica."""
    name, topic = f"burnt-{flush}", f"burnt-topic-{flush}"
    master = processes.start_broker(name, name_server, flush=flush, settings={**SMALL_FILES, "replication": "sync"})
    make_topic(name_server, [master.address], topic, queues=2)
    start_replica(processes, name_server, name, tmp_path / "replica")
    await send(name_server, topic, 1)

    enough = asyncio.Event()
    sending = asyncio.create_task(send_until_it_dies(name_server, topic, enough))
    await asyncio.wait_for(enough.wait(), 60)
    master.child.kill()
    shutil.rmtree(master.store)
    acknowledged = await sending

    assert len(acknowledged) > 500
    found = await read_all(name_server, topic, enough=set(acknowledged))
    assert set(acknowledged) - found == set()


@pytest.mark.parametrize("kind", [pytest.param("normal", marks=pytest.mark.slow), "static"])
async def test_a_group_goes_on_at_the_replica_and_back_at_the_master(
    processes: Processes, name_server: str, tmp_path: Path, kind: str
) -> None:
    """No message is missed, and none comes twice: what it committed at either is known at the other."""
    name, topic, group = f"carried-{kind}", f"carried-topic-{kind}", f"carried-group-{kind}"
    master = processes.start_broker(name, name_server, settings=SMALL_FILES)
    if kind == "normal":
        make_topic(name_server, [master.address], topic, queues=2)
    else:
        await HoldfastCommand(name_server).run("topic", "create", topic, "--logical-queues", "2", "--brokers", name)
    replica = start_replica(processes, name_server, name, tmp_path / "replica")
    await send(name_server, topic, 30)
    first = await consume(name_server, topic, group, 10)
    wait_for_copy(master, replica)
    wait_for_offsets(master, replica)
    master.child.kill()

    second = await consume(name_server, topic, group, 10)
    master = processes.start_broker(name, name_server, port=master.port, store=master.store, settings=SMALL_FILES)
    third = await consume(name_server, topic, group, 30 - len(first) - len(second))

    everything = sorted(first + second + third)
    assert everything == sorted(b"%d " % n + b"x" * 100 for n in range(30))


@pytest.mark.slow
async def test_promotion_is_a_forced_move_and_the_replica_keeps_what_the_dead_master_had(
    processes: Processes, name_server: str, tmp_path: Path
) -> None:
    """The queues open elsewhere; what was before is read at the replica, whose end is where the dead master's is."""
    operator, topic, group = HoldfastCommand(name_server), "promoted-topic", "promoted-group"
    master = processes.start_broker("promoted-a", name_server, settings=SMALL_FILES)
    processes.start_broker("promoted-b", name_server, settings=SMALL_FILES)
    await operator.run("topic", "create", topic, "--logical-queues", "2", "--brokers", "promoted-a")
    replica = start_replica(processes, name_server, "promoted-a", tmp_path / "replica")
    await send(name_server, topic, 30)
    first = await consume(name_server, topic, group, 10)
    wait_for_copy(master, replica)
    wait_for_offsets(master, replica)
    master.child.kill()
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
