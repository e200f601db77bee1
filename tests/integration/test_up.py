"""`holdfast up` as its user meets it: starts, serves, restarts what dies, stops, starts again on its data."""

import contextlib
import io
import json
import os
import select
import signal
import socket
import urllib.request
from pathlib import Path

import pytest
from tests.support.child import Child
from tests.support.cluster.operator import HOLDFAST
from tests.support.cluster.up import READY_TIMEOUT_S, Up

from holdfast.cli.main import main


def holdfast(*words: str) -> str:
    """Run a command that succeeds and return its standard output."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(words) == 0
    return printed.getvalue()


def tailed(cluster: Up, topic: str) -> list[str]:
    """Return the bodies of *topic*."""
    printed = holdfast("tail", topic, "--from", "earliest", "--json", "--namesrv", cluster.namesrv)
    return [message["body"] for message in json.loads(printed)["messages"]]


def test_one_json_line_says_where_everything_listens(tmp_path: Path):
    """Two brokers by default, named and addressed in exactly the agreed form, and they serve."""
    with Up(tmp_path / "data") as cluster:
        assert set(cluster.announced) == {"namesrv", "brokers", "console"}
        assert cluster.announced["console"] is None  # it was switched off
        assert [broker["name"] for broker in cluster.announced["brokers"]] == ["broker-a", "broker-b"]
        assert all(set(broker) == {"name", "address"} for broker in cluster.announced["brokers"])

        holdfast("send", "hello", "first message", "--namesrv", cluster.namesrv)

        assert tailed(cluster, "hello") == ["first message"]


def test_a_console_is_started_beside_the_brokers_and_named(tmp_path: Path):
    """In the line for programs; it shows this cluster, and ends with it."""
    with Up(tmp_path / "data", "--brokers", "1", has_console=True) as cluster:
        url = cluster.announced["console"]
        with urllib.request.urlopen(f"{url}/api/v1/brokers", timeout=READY_TIMEOUT_S) as answer:
            (broker,) = json.load(answer)["brokers"]
        assert (broker["name"], broker["address"]) == ("broker-a", cluster.brokers["broker-a"])
        pid = cluster.pid_of("console")
        assert cluster.stop() == 0

    assert not Path(f"/proc/{pid}").exists()


def test_a_console_where_another_server_listens_is_an_error(tmp_path: Path):
    """The user asked for it: status 2 with the way out, and nothing is started."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        words = ["up", "--data", str(tmp_path), "--base-port", "0", "--console", address]
        up = Child([HOLDFAST, *words], name="up")
        assert up.wait(timeout_s=READY_TIMEOUT_S) == 2

    assert "is taken: choose another with --console HOST:PORT" in up.last_lines()


def test_it_stops_on_interrupt_and_starts_again_with_its_messages(tmp_path: Path):
    """Ctrl-C ends everything in order with status 0; the same folder brings back what was sent."""
    with Up(tmp_path / "data") as cluster:
        holdfast("send", "hello", "kept", "--namesrv", cluster.namesrv)
        pids = [cluster.pid_of(role) for role in ("namesrv", "broker-a", "broker-b")]
        os.kill(cluster.child.pid, signal.SIGINT)
        assert cluster.child.wait(timeout_s=READY_TIMEOUT_S) == 0

    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert list((tmp_path / "data").glob("broker-*/abort")) == []
    with Up(tmp_path / "data") as cluster:
        assert tailed(cluster, "hello") == ["kept"]


def test_a_killed_broker_comes_back_with_its_messages(tmp_path: Path):
    """The crash is said, the role is restarted on its ports, and what was acknowledged is there."""
    with Up(tmp_path / "data", "--brokers", "1") as cluster:
        holdfast("send", "hello", "kept", "--namesrv", cluster.namesrv)
        heard = len(cluster.child.lines())

        os.kill(cluster.pid_of("broker-a"), signal.SIGKILL)
        cluster.child.wait_for_line("died, restarting.*SIGKILL", timeout_s=READY_TIMEOUT_S, after=heard)
        cluster.child.wait_for_line("ready.*role=broker-a", timeout_s=READY_TIMEOUT_S, after=heard)

        assert tailed(cluster, "hello") == ["kept"]
        assert cluster.child.is_running


def test_a_killed_name_server_comes_back_and_the_brokers_register_again(tmp_path: Path):
    """Routes are in memory only: the brokers bring them back without being restarted."""
    with Up(tmp_path / "data", "--brokers", "1", "--set", "register_interval_ms=200") as cluster:
        holdfast("send", "hello", "kept", "--namesrv", cluster.namesrv)
        heard = len(cluster.child.lines())
        broker = cluster.pid_of("broker-a")

        os.kill(cluster.pid_of("namesrv"), signal.SIGKILL)
        cluster.child.wait_for_line("ready.*role=namesrv", timeout_s=READY_TIMEOUT_S, after=heard)

        while "hello" not in holdfast("topic", "list", "--namesrv", cluster.namesrv):
            assert cluster.child.is_running
        assert cluster.pid_of("broker-a") == broker


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs process descriptors: Linux")
def test_children_do_not_outlive_a_killed_supervisor(tmp_path: Path):
    """A crash of `up` itself leaves no broker behind that holds the data."""
    with Up(tmp_path / "data", "--brokers", "1") as cluster, contextlib.ExitStack() as stack:
        processes = [os.pidfd_open(cluster.pid_of(role)) for role in ("namesrv", "broker-a")]
        for process in processes:
            stack.callback(os.close, process)

        os.kill(cluster.child.pid, signal.SIGKILL)
        cluster.child.wait(timeout_s=READY_TIMEOUT_S)

        for process in processes:
            ending = select.poll()
            ending.register(process, select.POLLIN)
            assert ending.poll(READY_TIMEOUT_S * 1000)


def test_a_second_cluster_on_the_same_folder_is_refused(tmp_path: Path):
    """Two brokers in one store would destroy it: the second `up` says who is there, with status 2."""
    with Up(tmp_path / "data", "--brokers", "1"):
        second = Child([HOLDFAST, "up", "--data", str(tmp_path / "data"), "--base-port", "0"], name="second up")
        assert second.wait(timeout_s=READY_TIMEOUT_S) == 2

    assert "in use by another `holdfast up`" in second.last_lines()


def test_a_taken_port_is_named_with_the_way_out(tmp_path: Path):
    """Nothing is started, the port and the option are named, status 2."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        up = Child([HOLDFAST, "up", "--data", str(tmp_path), "--namesrv", f"127.0.0.1:{port}"], name="up")
        assert up.wait(timeout_s=READY_TIMEOUT_S) == 2

    assert f"port {port} is taken" in up.last_lines()


def test_a_role_that_cannot_start_ends_everything(tmp_path: Path):
    """A setting that a broker refuses is told by the broker; `up` stops what it had started, with status 1."""
    up = Child([HOLDFAST, "up", "--data", str(tmp_path), "--base-port", "0", "--set", "flsuh=sync"], name="up")
    assert up.wait(timeout_s=READY_TIMEOUT_S) == 1

    assert "unknown broker option 'flsuh'; did you mean 'flush'" in up.last_lines()
    assert "could not start" in up.last_lines()


def test_a_cluster_starts_again_with_as_many_brokers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The folder decides where the command does not; a variable without effect is reported once, not by each role."""
    monkeypatch.setenv("HOLDFAST_HOME", "/opt/holdfast")
    with Up(tmp_path / "data", "--brokers", "1"):
        pass

    with Up(tmp_path / "data") as cluster:
        assert list(cluster.brokers) == ["broker-a"]
        assert len([line for line in cluster.child.lines() if "HOLDFAST_HOME has no effect" in line]) == 1


def test_settings_that_contradict_the_plan_are_refused(tmp_path: Path):
    """`up` gives each broker its store: a second one by `--set` is refused, and not silently ignored."""
    up = Child([HOLDFAST, "up", "--data", str(tmp_path), "--base-port", "0", "--set", "store=/elsewhere"], name="up")
    assert up.wait(timeout_s=READY_TIMEOUT_S) == 1

    assert "--set store=/elsewhere and --store" in up.last_lines()


@pytest.mark.parametrize("role", ["up", "namesrv"])
def test_listening_beyond_loopback_is_said_loudly(tmp_path: Path, role: str):
    """At every start, one warning."""
    words = ["serve", "namesrv", "--listen", "0.0.0.0:0"]
    if role == "up":
        words = ["up", "--data", str(tmp_path), "--namesrv", "0.0.0.0:0", "--base-port", "0", "--brokers", "1"]
    server = Child([HOLDFAST, *words], name=role, environment={"HOLDFAST_INSECURE": "true"})
    try:
        server.wait_for_line(r"warning.*beyond loopback without access control", timeout_s=READY_TIMEOUT_S)
    finally:
        server.stop()
    assert len([line for line in server.lines() if "beyond loopback" in line]) == 1
