"""What `holdfast up` would start."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.admin.cluster_start import PORT_STEP, broker_names, plan_cluster
from holdfast.config import UpOptions
from holdfast.model.errors import ConfigError


@pytest.fixture
def held() -> Iterator[contextlib.ExitStack]:
    """Hold the ports that a plan picks until the test ends."""
    with contextlib.ExitStack() as stack:
        yield stack


def test_a_new_folder_gets_two_brokers(tmp_path: Path, held: contextlib.ExitStack):
    """Each with a store of its own, on ports that are free together with their neighbours."""
    plan = plan_cluster(UpOptions(base_port=0), tmp_path, held)

    assert [broker.name for broker in plan.brokers] == ["broker-a", "broker-b"]
    assert len({broker.store for broker in plan.brokers}) == 2
    assert plan.namesrv not in {broker.address for broker in plan.brokers}
    assert plan.idle == []


@pytest.mark.parametrize("names", [["broker-a"], ["broker-a", "broker-b", "broker-c"]])
def test_a_folder_gets_all_its_brokers_back_and_no_more(tmp_path: Path, held: contextlib.ExitStack, names: list[str]):
    """The same command on the same folder starts the same cluster."""
    for name in names:
        (tmp_path / name).mkdir()

    assert [broker.name for broker in plan_cluster(UpOptions(base_port=0), tmp_path, held).brokers] == names


def test_brokers_that_are_left_out_are_named(tmp_path: Path, held: contextlib.ExitStack):
    """Their messages are not served: that must be said."""
    for name in ("broker-a", "broker-b", "broker-c"):
        (tmp_path / name).mkdir()

    plan = plan_cluster(UpOptions(base_port=0, brokers=1), tmp_path, held)

    assert plan.idle == ["broker-b", "broker-c"]


def test_picked_ports_are_held_for_the_servers_that_the_plan_starts(tmp_path: Path):
    """Also while a broker has not started yet, or restarts. No other process gets them, until the cluster has ended."""
    with contextlib.ExitStack() as held:
        plan = plan_cluster(UpOptions(base_port=0), tmp_path, held)
        ports = [int(address.rpartition(":")[2]) for address in (plan.namesrv, *(b.address for b in plan.brokers))]
        blocks = [port + offset for port in ports for offset in (-2, 0, 1)]
        for port in blocks:
            for _ in range(2):
                assert not can_take(port)
                socket.create_server(("127.0.0.1", port)).close()

    assert all(can_take(port) for port in blocks)


def can_take(port: int) -> bool:
    """Return whether another process could get *port*."""
    with socket.socket() as other:
        try:
            other.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def test_brokers_follow_the_base_port_in_steps(tmp_path: Path, held: contextlib.ExitStack):
    """Room for the old clients' port below and for replication above."""
    base = int(plan_cluster(UpOptions(base_port=0, brokers=1), tmp_path, held).brokers[0].listen.rpartition(":")[2])

    plan = plan_cluster(UpOptions(base_port=base, namesrv="127.0.0.1:0", brokers=1), tmp_path, held)

    assert plan.brokers[0].listen == f"127.0.0.1:{base}"
    assert PORT_STEP > 3


@pytest.mark.parametrize("below", [0, 2])
def test_a_taken_port_is_told_with_the_option_to_change_it(tmp_path: Path, held: contextlib.ExitStack, below: int):
    """Also the second port of a broker, which old clients use."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1] + below

        with pytest.raises(ConfigError, match=rf"port {port} \(or {port - 2}\) of broker-a is taken.*--base-port"):
            plan_cluster(UpOptions(base_port=port, namesrv="127.0.0.1:0"), tmp_path, held)


def test_a_port_that_cannot_be_is_told(tmp_path: Path, held: contextlib.ExitStack):
    """Ports end at 65535."""
    with pytest.raises(ConfigError, match="does not exist"):
        plan_cluster(UpOptions(base_port=65530, namesrv="127.0.0.1:0", brokers=2), tmp_path, held)


def test_listening_everywhere_advertises_an_address_that_can_be_dialled(tmp_path: Path, held: contextlib.ExitStack):
    """Clients cannot dial 0.0.0.0."""
    plan = plan_cluster(UpOptions(base_port=0, namesrv="0.0.0.0:0", brokers=1), tmp_path, held)

    assert plan.namesrv_listen.startswith("0.0.0.0:")
    assert not plan.namesrv.startswith("0.0.0.0")
    assert not plan.brokers[0].address.startswith("0.0.0.0")


def test_the_commands_are_those_a_user_would_type(tmp_path: Path, held: contextlib.ExitStack):
    """`serve` with everything said, so that a restart is the same."""
    plan = plan_cluster(UpOptions(base_port=0, brokers=1, flush="async"), tmp_path, held)

    words = plan.broker_spec(plan.brokers[0], ["--log-level", "error"]).command

    assert words[1:5] == ("-m", "holdfast", "serve", "broker")
    for option, value in (("--name", "broker-a"), ("--flush", "async"), ("--namesrv", plan.namesrv)):
        assert words[words.index(option) + 1] == value
    assert "--with-parent" in words
    assert "namesrv" in plan.name_server_spec([]).command


def test_names_go_on_behind_the_alphabet():
    """Nobody is left without a name."""
    assert broker_names(28)[24:] == ["broker-y", "broker-z", "broker-27", "broker-28"]
