"""A broker whose file system is really full: index and configuration writes resume when there is space, as sends do."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.child import Child
from tests.support.cluster.ports import free_port
from tests.support.cluster.processes import ProcessCluster

from holdfast import HoldfastError, Producer, PullConsumer

pytestmark = pytest.mark.timeout(120)

TOPIC, GROUP = "T", "readers"
ANY_COUNT = 1
"""Of a metric: one or more."""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB."""
    image, folder = tmp_path / "image", tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        pytest.skip("needs root and mkfs.ext4, to mount a small file system")
    with image.open("wb") as file:
        file.truncate(24 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", "-N", "512", image], check=True)
    mounted = subprocess.run(["mount", "-o", "loop", image, folder], check=False, capture_output=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill(folder: Path) -> Path:
    """Take all space that is left in *folder*; return the file that has it."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 10):
            with contextlib.suppress(OSError):  # No space left on device
                while True:
                    file.write(bytes(size))
        os.fsync(file.fileno())
    return filler


def measure(port: int, metric: str) -> int:
    """Return the value of a metric without labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    (value,) = [line.rpartition(" ")[2] for line in lines if line.startswith(f"holdfast_broker_{metric} ")]
    return int(float(value))


def wait_for(port: int, **metrics: int) -> None:
    """Wait until the broker reports these values."""
    deadline = time.monotonic() + 60
    while (found := {metric: min(measure(port, metric), ANY_COUNT) for metric in metrics}) != metrics:
        assert time.monotonic() < deadline, f"{found}, not {metrics}"
        time.sleep(0.1)


async def send_until_refused(producer: Producer, sent: list[bytes], limit: int) -> HoldfastError | None:
    """Send up to *limit* messages one after the other; note the acknowledged ones. Return the first refusal."""
    for _ in range(limit):
        body = b"%d" % len(sent)
        try:
            await producer.send(TOPIC, body, keys=[f"k{len(sent)}"])
        except HoldfastError as error:
            return error
        sent.append(body)
    return None


async def read_all(name_server: str, count: int) -> list[bytes]:
    """Return the bodies of the first *count* messages, and commit after them."""
    bodies: list[bytes] = []
    async with PullConsumer(name_server, GROUP, start="earliest", auto_commit=False) as consumer:
        await consumer.assign(queues := await consumer.queues(TOPIC))
        await consumer.seek_all("earliest")
        while len(bodies) < count:
            bodies += [message.body for message in await consumer.poll(10)]
        await consumer.commit()
        assert [await consumer.committed(queue) for queue in queues] == [count]
    return bodies


def events(broker: Child, *names: str) -> list[str]:
    """Return which of these events the broker logged, in order."""
    return [name for line in broker.lines() for name in names if f'"{name}"' in line or name in line]


async def test_index_and_configuration_are_written_when_a_full_disk_has_space_again(
    small_disk: Path, tmp_path: Path
) -> None:
    """Without a restart; meanwhile senders get the reason, readers read, and nothing acknowledged is lost."""
    port = free_port()
    settings = {
        "log_file_size": 4 << 20,
        "disk_full_percent": 100,
        "disk_force_percent": 100,
        "index_slots": 1000,
        "index_entries": 100_000,
        "offset_save_interval_ms": 200,
        "metrics_listen": f"127.0.0.1:{port}",
    }
    sent: list[bytes] = []

    with ProcessCluster(tmp_path) as cluster:
        name_server = cluster.namesrv
        store = small_disk / "store"
        broker = cluster.start("b", store=store, settings=settings)
        cluster.make_topic(TOPIC, queues=1)

        async with Producer(name_server, retries=0) as producer:
            await send_until_refused(producer, sent, 10)
            filler = fill(small_disk)
            refusal = await send_until_refused(producer, sent, 5000)
            assert "has no space for the index" in str(refusal)
            assert await read_all(name_server, len(sent)) == sent
            wait_for(port, disk_full=1, writable=1, unwritten_files=ANY_COUNT)

            filler.unlink()
            wait_for(port, disk_full=0, writable=1, unwritten_files=0, index_behind_bytes=0)
            assert await send_until_refused(producer, sent, 300) is None
            assert await read_all(name_server, len(sent)) == sent

        begun, over = "no space for the index", "the index is written again"
        assert events(broker.child, begun, over) == [begun, over]
        begun, over = "no space for configuration files", "configuration files are written again"
        assert events(broker.child, begun, over) == [begun, over]
        cluster.kill("b")
        cluster.restart("b")
        assert await read_all(name_server, len(sent)) == sent


async def test_a_log_keeps_its_space_over_a_crash(small_disk: Path, tmp_path: Path) -> None:
    """Recovery erases the rest of the last file. Where others take that space, a write to it would need a restart."""
    settings = {"log_file_size": 4 << 20, "disk_full_percent": 100, "disk_force_percent": 100, "index_slots": 1000}
    sent: list[bytes] = []

    async def send(name_server: str, count: int) -> HoldfastError | None:
        async with Producer(name_server, retries=0) as producer:
            return await send_until_refused(producer, sent, count)

    with ProcessCluster(tmp_path) as cluster:
        name_server = cluster.namesrv
        store = small_disk / "store"
        broker = cluster.start("b", store=store, settings=settings)
        cluster.make_topic(TOPIC, queues=1)
        assert await send(name_server, 10) is None
        cluster.kill("b")
        cluster.restart("b")

        filler = fill(small_disk)
        refusal = await send(name_server, 5000)
        assert "has no space for the index" in str(refusal)
        filler.unlink()

        deadline = time.monotonic() + 60
        while await send(name_server, 1) is not None:
            assert time.monotonic() < deadline, broker.child.last_lines()
        assert await read_all(name_server, len(sent)) == sent
