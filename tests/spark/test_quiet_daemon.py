"""Workers whose session has ended leave without a word."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark import daemon
from tests.support.conversions import fill_store, plain_disk

from holdfast.pipeline.scan.spark_tasks import LEAN
from holdfast.runtime.posix_disk import PosixDisk
from holdfast.spark import quiet_daemon


class Left(BaseException):
    pass


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> tuple[socket.socket, socket.socket]:
    def leave(status: int) -> None:
        raise Left(status)

    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(quiet_daemon, "_run_worker", lambda line, _authenticated: len(line.recv(10)))
    return socket.socketpair()


def test_a_worker_that_no_task_will_reach_leaves(lines: tuple[socket.socket, socket.socket]):
    """Whether Java closed its line in order or with something unread."""
    ours, javas = lines
    ours.sendall(b"never read")
    javas.close()
    for _ in range(2):
        with ours.dup() as again, pytest.raises(Left, match="0"):
            quiet_daemon.run_worker_or_exit(again, True)
    ours.close()


def test_a_task_is_run_as_ever(lines: tuple[socket.socket, socket.socket]):
    """Nothing of what Java said is lost."""
    ours, javas = lines
    javas.sendall(b"task")
    with ours, javas:
        assert quiet_daemon.run_worker_or_exit(ours, True) == 4
    assert callable(daemon.manager)
    assert callable(daemon.worker)
    assert importlib.util.find_spec(LEAN["spark.python.daemon.module"]) is not None


def test_a_worker_whose_session_ends_while_it_answers_leaves(
    lines: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
):
    """Java sends a task, and closes before the worker has answered."""
    ours, javas = lines
    javas.sendall(b"task")

    def answer_too_late(sock: socket.socket, _authenticated: object) -> int:
        assert sock.recv(10) == b"task"
        javas.close()
        return sock.send(b"done")

    monkeypatch.setattr(quiet_daemon, "_run_worker", answer_too_late)
    with ours, pytest.raises(Left, match="0"):
        quiet_daemon.run_worker_or_exit(ours, False)


@pytest.mark.slow
def test_a_command_says_nothing_but_its_result(tmp_path: Path):
    """In a Spark of its own, from its start to its end."""
    disk: Any = PosixDisk(tmp_path / "broker-a")
    plain_disk(disk)
    fill_store(disk, 31)
    program = str(Path(sys.executable).with_name("holdfast"))
    command = [program, "pipeline", "audit", str(tmp_path / "broker-a"), "--master", "local[2]", "--json"]

    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=200)

    assert json.loads(done.stdout)["counts"] == {}
    assert "Traceback" not in done.stderr
