"""Strangers on the replication port of a master that waits for its replica: senders notice nothing of them."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.support.cluster.process_presets import units_cluster
from tests.support.cluster.processes import ProcessCluster
from tests.support.cluster.raw_requests import wait_until

from holdfast import Message, Producer, SendStatus

MEMORY = {"memory_limit": 32 * 1024 * 1024}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    """A master that waits for its replica, and the replica."""
    folder = tmp_path_factory.mktemp("strangers")
    with units_cluster(folder, {}) as fleet:
        fleet.start("master", cluster="east", settings={**MEMORY, "replication": "sync"})
        replica = fleet.start(
            "master",
            cluster="east",
            store=folder / "copy",
            settings={**MEMORY, "replica_of": "master"},
        )
        replica.child.wait_for_line("following", timeout_s=60)
        fleet.run("topic", "create", "orders", "--queues", "2")
        yield fleet


def send(fleet: ProcessCluster, count: int = 3, size: int = 10) -> set[SendStatus]:
    """Send messages; return how they ended."""

    async def work() -> set[SendStatus]:
        async with Producer(fleet.namesrv) as producer:
            return {(await producer.send(Message("orders", os.urandom(size)))).status for _ in range(count)}

    return asyncio.run(work())


def connect(fleet: ProcessCluster) -> socket.socket:
    """Connect to the replication port."""
    return socket.create_connection(("127.0.0.1", fleet.brokers["master"].port + 1), timeout=30)


def ends(*numbers: int) -> bytes:
    return b"".join(struct.pack(">q", number) for number in numbers)


LIES = {
    "an end below zero": ends(-1),
    "an end that no log has": ends(1 << 62),
    "all of it in the first breath": ends(0, 1 << 50),
    "a page of the web": b"GET / HTTP/1.1\r\n\r\n",
    "a frame of a client": struct.pack(">II", 100, 20) + b'{"code":105}',
}


@pytest.mark.parametrize("lie", LIES)
def test_whoever_lies_is_hung_up_on(fleet: ProcessCluster, lie: str):
    """The replica is waited for as ever."""
    with connect(fleet) as stranger:
        stranger.sendall(LIES[lie])
        while stranger.recv(1 << 16):  # what it may be sent before the lie is found out
            continue

    assert send(fleet) == {SendStatus.OK}


def test_a_flood_of_strangers_that_take_nothing_costs_no_sender_anything(fleet: ProcessCluster):
    """Nor do those that say a byte now and then, or half of a number."""
    assert send(fleet, 40, 300_000) == {SendStatus.OK}
    with ExitStack() as stack:
        for number in range(60):
            stranger = stack.enter_context(connect(fleet))
            stranger.sendall(ends(0) if number % 3 else b"\0\0\0")

        assert send(fleet, 10, 10_000) == {SendStatus.OK}
        assert "of 41 in sync" in fleet.attempt("broker", "list").out
    wait_until(lambda: "1 of 1 in sync" in fleet.attempt("broker", "list").out)


@pytest.mark.parametrize("name", ["master", "stranger"])
def test_a_masters_folder_is_no_replicas(fleet: ProcessCluster, tmp_path: Path, name: str):
    """It is refused before anything in it changes."""
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / f"{0:020}").write_bytes(bytes(1 << 20))
    words = ["serve", "broker", "--replica-of", name, "--store", str(tmp_path), "--listen", "127.0.0.1:0"]

    assert "empty folder" in fleet.attempt(*words, "--advertise", "127.0.0.1:9").err
    assert not (tmp_path / "config").exists()


def test_operators_are_told_of_a_replica_in_words(fleet: ProcessCluster):
    """Who copies whom, and how it stands."""
    assert send(fleet) == {SendStatus.OK}
    rows = [line.split() for line in fleet.attempt("broker", "list").out.splitlines()]
    assert [row[2] for row in rows if row[0] == "master"] == ["0", "1"]
    assert rows[-1][-1] == "following"
