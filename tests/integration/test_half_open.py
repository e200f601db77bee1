"""Connections that are opened and then say nothing, or half of something: a client that works goes on working."""

import json
import select
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.support.child import Child
from tests.support.cluster.operator import HOLDFAST, run_in_process
from tests.support.cluster.ports import free_port
from tests.support.cluster.up import READY_TIMEOUT_S

pytestmark = pytest.mark.timeout(300)
TIMEOUT_S = 60
BEGINNINGS = (b"", b"\0\0", struct.pack(">II", 16_000_000, 500) + b"x" * 100)


@contextmanager
def guarded_name_server(folder: Path, *options: str, descriptors: str = "") -> Iterator[tuple[Child, str, str]]:
    """Provide a name server with access control, its address, and the file with its administrator's secret.

    *descriptors* are options of `ulimit`.
    """
    secret, admin = folder / "cluster.secret", str(folder / "admin.secret")
    secret.write_text("the-secret-of-all-servers")
    secret.chmod(0o600)
    data = str(folder / "ns")
    assert run_in_process("user", "init", data, "--save-to", admin, namesrv="127.0.0.1:1").status == 0
    words = ["serve", "namesrv", "--data", data, "--listen", f"127.0.0.1:{free_port()}", "--auth", "--json"]
    for option in options:
        words += ["--set", option]
    command = [HOLDFAST, *words, "--cluster-secret", str(secret)]
    if descriptors:
        command = ["sh", "-c", f'ulimit {descriptors}; exec "$@"', "sh", *command]
    with Child(command, name="namesrv") as child:
        ready = json.loads(child.wait_for_line('^{"role"', timeout_s=READY_TIMEOUT_S))
        yield child, ready["address"], admin


def open_halves(address: str, count: int, opened: ExitStack) -> list[socket.socket]:
    """Return connections that are closed with *opened*: some have sent nothing, some a part of a frame."""
    host, _, port = address.rpartition(":")
    halves = []
    for number in range(count):
        half = opened.enter_context(socket.create_connection((host, int(port)), timeout=TIMEOUT_S))
        half.sendall(BEGINNINGS[number % len(BEGINNINGS)])
        halves.append(half)
    return halves


def count_closed(halves: list[socket.socket]) -> int:
    """Return how many connections the server has closed: it never sends anything on them."""
    poll = select.poll()
    for half in halves:
        poll.register(half, select.POLLIN)
    return len(poll.poll(0))


@pytest.mark.parametrize(
    ("count", "most"),
    [
        (300, 100),
        pytest.param(10_000, 10_000, marks=pytest.mark.slow),
        pytest.param(10_000, 500, marks=pytest.mark.slow),
    ],
)
def test_half_open_connections_leave_a_working_client_working(tmp_path: Path, count: int, most: int) -> None:
    """It logs in and is answered. Above the limit, those that began first are closed."""
    limits = (f"unproven_connections_max={most}", "unproven_timeout_ms=600000")
    with guarded_name_server(tmp_path, *limits) as (child, address, admin), ExitStack() as opened:
        halves = open_halves(address, count, opened)

        listed = run_in_process("user", "list", "--access-key", "admin", "--secret-file", admin, namesrv=address)

        assert listed.status == 0, listed.err
        assert "admin" in listed.out
        assert count - most <= count_closed(halves) <= count - most + 1
        assert child.is_running
        assert not [line for line in child.lines() if "Traceback" in line]


def test_half_open_connections_leave_descriptors_to_others(tmp_path: Path) -> None:
    """More of them than the process may have open files: a client is answered, without waiting for any to end."""
    limits = ("unproven_timeout_ms=600000",)
    with guarded_name_server(tmp_path, *limits, descriptors="-n 200") as (child, address, admin), ExitStack() as opened:
        halves = open_halves(address, 400, opened)

        listed = run_in_process("user", "list", "--access-key", "admin", "--secret-file", admin, namesrv=address)

        assert listed.status == 0, listed.err
        assert count_closed(halves) >= 300
        assert [line for line in child.lines() if "unproven_connections_max lowered" in line]


def test_a_role_takes_all_descriptors_that_it_may_have(tmp_path: Path) -> None:
    """Most systems start a process with few, and permit more."""
    with guarded_name_server(tmp_path, descriptors="-Sn 200") as (child, _, _):
        soft, hard = Path(f"/proc/{child.pid}/limits").read_text().partition("Max open files")[2].split()[:2]

        assert soft == hard != "200"


def test_a_connection_that_proves_nothing_ends_in_time(tmp_path: Path) -> None:
    """Whatever part of a frame it has sent."""
    with guarded_name_server(tmp_path, "unproven_timeout_ms=500") as (_, address, _), ExitStack() as opened:
        for half in open_halves(address, len(BEGINNINGS), opened):
            assert half.recv(1) == b""


@pytest.mark.slow
def test_half_open_connections_leave_a_broker_without_access_control_working(tmp_path: Path) -> None:
    """There is no limit for them by default; each costs what it has sent."""
    words = ["serve", "broker", "--listen", f"127.0.0.1:{free_port()}", "--store", str(tmp_path), "--json"]
    words += ["--namesrv", f"127.0.0.1:{free_port()}", "--set", "log_file_size=16777216"]
    with Child([HOLDFAST, *words], name="broker") as child, ExitStack() as opened:
        address = json.loads(child.wait_for_line('^{"role"', timeout_s=READY_TIMEOUT_S))["address"]
        halves = open_halves(address, 10_000, opened)

        (client,) = open_halves(address, 1, opened)
        header = b'{"code":351,"extFields":{"topic":"TBW102"},"flag":0,"opaque":1,"version":401}'
        client.sendall(struct.pack(">II", 4 + len(header), len(header)) + header)
        assert len(client.recv(4)) == 4
        assert count_closed(halves) == 0
