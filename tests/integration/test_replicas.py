"""A master and its replica as real processes."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.child import ChildFailed
from tests.support.client_stories import run
from tests.support.cluster import Broker, Processes, make_topic

from holdfast import Message, Producer

pytestmark = pytest.mark.timeout(120)

LOG_FILE_SIZE = 1 << 20
SMALL_FILES = {"log_file_size": LOG_FILE_SIZE}


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with Processes(tmp_path_factory.mktemp("replicas")) as processes:
        yield processes


@pytest.fixture(scope="module")
def name_server(processes: Processes) -> str:
    return processes.start_name_server()


def start_replica(processes: Processes, name_server: str, master: str, folder: Path, **settings: object) -> Broker:
    """Start a replica of a broker of ours."""
    return processes.start_broker(
        master, name_server, store=folder, settings={**SMALL_FILES, "replica_of": master, **settings}
    )


def log_of(broker: Broker) -> bytes:
    """Return everything that lies in the log of a broker, without the zeros at its end."""
    files = sorted((broker.store / "commitlog").iterdir())
    return b"".join(file.read_bytes() for file in files).rstrip(b"\0")


def wait_for_copy(master: Broker, replica: Broker) -> None:
    """Return once the replica has everything that the master has."""
    deadline = time.monotonic() + 30
    while log_of(replica) != log_of(master):
        if time.monotonic() > deadline:
            raise ChildFailed(f"no copy:\n{master.child.said()}\n{replica.child.said()}")
        time.sleep(0.05)


async def send(name_server: str, topic: str, count: int, size: int = 100) -> None:
    async with Producer(name_server) as producer:
        await asyncio.gather(*(producer.send(Message(topic, b"%d " % n + b"x" * size)) for n in range(count)))


def test_a_replica_copies_what_was_there_and_what_comes_over_restarts_of_either(
    processes: Processes, name_server: str, tmp_path: Path
) -> None:
    """Over several files of the log; killed and started again, each goes on where it was."""
    master = processes.start_broker("copied", name_server, settings=SMALL_FILES)
    make_topic(name_server, [master.address], "copied-topic", queues=2)
    run(send(name_server, "copied-topic", 100, 20_000))
    replica = start_replica(processes, name_server, "copied", tmp_path / "replica")
    run(send(name_server, "copied-topic", 100))
    wait_for_copy(master, replica)

    replica.child.kill()
    run(send(name_server, "copied-topic", 100, 20_000))
    replica = start_replica(processes, name_server, "copied", replica.store)
    wait_for_copy(master, replica)
    master.child.kill()
    master = processes.start_broker("copied", name_server, port=master.port, store=master.store, settings=SMALL_FILES)
    run(send(name_server, "copied-topic", 10))

    wait_for_copy(master, replica)
