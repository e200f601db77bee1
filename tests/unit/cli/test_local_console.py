"""The console of `holdfast up`: when it is started, and what is said when not."""

import contextlib
import socket
from collections.abc import Iterator

import pytest

from holdfast.cli import local_console
from holdfast.cli.local_console import ConsolePlan, plan_console
from holdfast.config import UpOptions
from holdfast.console.options import DEFAULT_LISTEN
from holdfast.model.access.client_tls import ClientTls
from holdfast.model.errors import ConfigError


@pytest.fixture
def held() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def taken() -> Iterator[str]:
    """An address that another process has."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_the_usual_address_is_the_default(held: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch):
    """If it is free; if not, one line says so, and `up` continues."""
    monkeypatch.setattr(local_console, "is_free", lambda *_: True)
    assert plan_console(UpOptions(), has_auth=False, reserved_ports=held) == ConsolePlan(DEFAULT_LISTEN)

    monkeypatch.setattr(local_console, "is_free", lambda *_: False)
    plan = plan_console(UpOptions(), has_auth=False, reserved_ports=held)
    assert (plan.listen, plan.reason) == (None, "port 9880 is taken: choose another with --console HOST:PORT")


@pytest.mark.parametrize("options", [UpOptions(base_port=0), UpOptions(console="127.0.0.1:0")])
def test_a_free_port_is_picked_and_held(options: UpOptions, held: contextlib.ExitStack):
    """No other process gets it before the console listens."""
    plan = plan_console(options, has_auth=False, reserved_ports=held)

    assert plan.listen is not None
    host, _, port = plan.listen.rpartition(":")
    assert (host, int(port) > 1024) == ("127.0.0.1", True)
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((host, int(port)))


def test_it_can_be_left_out(held: contextlib.ExitStack):
    """Without a word."""
    assert plan_console(UpOptions(console="off"), has_auth=True, reserved_ports=held) == ConsolePlan()


def test_an_address_that_was_asked_for_and_is_taken_is_an_error(held: contextlib.ExitStack, taken: str):
    """With the way out."""
    with pytest.raises(ConfigError, match="is taken: choose another with --console HOST:PORT, or none with"):
        plan_console(UpOptions(console=taken), has_auth=False, reserved_ports=held)


@pytest.mark.parametrize("has_auth", [True, False])
def test_what_forbids_a_console_is_a_line_or_an_error(
    held: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch, *, has_auth: bool
):
    """A missing package, or access control that it has no login for: an error only if it was asked for."""
    reason = "it has no login yet" if has_auth else "run `pip install starlette`"
    monkeypatch.setattr(local_console, "find_missing_package", lambda: None if has_auth else reason)

    plan = plan_console(UpOptions(base_port=0), has_auth=has_auth, reserved_ports=held)

    assert plan.listen is None
    assert reason in str(plan.reason)
    with pytest.raises(ConfigError, match=r"no console can be started on 127\.0\.0\.1:0: "):
        plan_console(UpOptions(console="127.0.0.1:0"), has_auth=has_auth, reserved_ports=held)


@pytest.mark.parametrize("address", ["0.0.0.0:9880", "10.0.0.1:9880", "nonsense"])
def test_other_machines_cannot_reach_it(address: str, held: contextlib.ExitStack):
    """There is no login yet."""
    with pytest.raises(ConfigError, match=r"beyond loopback|is not an address"):
        plan_console(UpOptions(console=address), has_auth=False, reserved_ports=held)


def test_it_reaches_the_cluster_as_the_roles_do():
    """With their authority and certificate."""
    plan = ConsolePlan("127.0.0.1:9880")
    tls = ClientTls(ca="ca.pem", cert="cert.pem", key="key.pem", verify="chain")

    words = " ".join(plan.spec("127.0.0.1:9876", tls, ["--log-level", "warning"]).command)

    assert "serve console --namesrv 127.0.0.1:9876 --listen 127.0.0.1:9880" in words
    assert "--tls-verify chain --tls-ca ca.pem --tls-cert cert.pem --tls-key key.pem --log-level warning" in words
