"""Running one role."""

import json
import os
import sys

import pytest

from holdfast.cli.commands import serve
from holdfast.cli.main import main
from holdfast.machine.effects import Log
from holdfast.machine.security_options import SecurityOptions
from holdfast.model.errors import ConfigError


class Recorder:
    """A service that writes down what happens to it."""

    def __init__(self, *, fails: bool = False) -> None:
        self.address = "127.0.0.1:7"
        self.events: list[str] = []
        self._fails = fails

    async def start(self) -> None:
        """Start, or fail to."""
        self.events.append("start")
        if self._fails:
            raise ConfigError("cannot listen")

    async def stop(self) -> None:
        """Stop."""
        self.events.append("stop")


@pytest.fixture
def stdin_pipe(monkeypatch: pytest.MonkeyPatch) -> int:
    """Standard input is a pipe; the end that its holder writes to."""
    reading, writing = os.pipe()
    stream = os.fdopen(reading)
    monkeypatch.setattr(sys, "stdin", stream)
    return writing


async def test_a_role_stops_in_order_when_its_parent_is_gone(stdin_pipe: int, capsys: pytest.CaptureFixture[str]):
    """The other end of standard input closes, for whatever reason: start, one line, stop."""
    service = Recorder()
    os.close(stdin_pipe)

    await serve._serve(service, {"role": "x"}, as_json=True, with_parent=True)
    sys.stdin.close()

    assert service.events == ["start", "stop"]
    assert json.loads(capsys.readouterr().out) == {"role": "x", "address": "127.0.0.1:7"}


async def test_a_role_that_cannot_start_is_stopped_and_says_nothing(capsys: pytest.CaptureFixture[str]):
    """No ready line: whoever waits for it must not be fooled."""
    service = Recorder(fails=True)

    with pytest.raises(ConfigError):
        await serve._serve(service, {}, as_json=True, with_parent=False)

    assert service.events == ["start", "stop"]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("role", ["namesrv", "broker"])
def test_a_wrong_option_is_refused_before_anything_starts(role: str, capsys: pytest.CaptureFixture[str]):
    """One line, status 2, the nearest option."""
    assert main(["serve", role, "--set", "metrics_lisen=x:1"]) == 2
    assert "did you mean 'metrics_listen'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a/b", "..", "", "a b", "x" * 128])
def test_a_name_that_cannot_be_a_brokers_is_refused_with_the_reason(name: str, capsys: pytest.CaptureFixture[str]):
    """It becomes a topic and, under `holdfast up`, a folder."""
    assert main(["serve", "broker", "--name", name]) == 2
    told = capsys.readouterr().err
    assert "--name" in told
    assert "letters, digits" in told


def test_a_broker_that_listens_everywhere_advertises_an_address():
    """Clients dial what is advertised; nobody can dial 0.0.0.0."""
    assert serve._advertised("127.0.0.1:10911") is None
    advertised = serve._advertised("0.0.0.0:10911")
    assert advertised is not None
    assert advertised.endswith(":10911")
    assert not advertised.startswith("0.0.0.0")
    with pytest.raises(ConfigError, match="--advertise"):
        serve._advertised("0.0.0.0:0")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--name", "x", "--replica-of", "a"], "a replica of a has its master's name: omit --name x"),
        (["--replica-of", "a", "--set", "ha_master=nowhere"], "ha_master: 'nowhere' is not an address"),
        (["--replica-of", "a", "--set", "ha_master=10.0.0.1"], "write host:port"),
        (["--replica-unit", "west"], "replica_unit west is the unit of a replica, and this broker is not a replica"),
    ],
)
def test_a_replica_that_is_told_nonsense_does_not_start(
    words: list[str], hint: str, capsys: pytest.CaptureFixture[str]
):
    """It would dial nobody, without a word."""
    assert main(["serve", "broker", *words]) == 2
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize("role", ["namesrv", "broker"])
def test_a_system_that_cannot_keep_data_safe_is_named(
    role: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """On macOS, which has neither call, a role says so before it touches anything."""
    monkeypatch.delattr(os, "posix_fallocate")

    assert main(["serve", role]) == 2
    assert "servers run on Linux: this system has no posix_fallocate" in capsys.readouterr().err


@pytest.mark.parametrize("role", ["namesrv", "broker"])
def test_the_flags_of_access_control_are_options_of_every_role(monkeypatch: pytest.MonkeyPatch, role: str):
    """A flag that got lost would start an open server."""
    started: list[SecurityOptions] = []
    monkeypatch.setattr(serve.RoleStart, "run", lambda _start, service, _announced: started.append(service._options))

    words = ("--auth", "--cluster-secret", "c", "--acl-file", "acl", "--insecure", "--tls", "permissive")
    assert main(["serve", role, *words]) == 0
    assert main(["serve", role, "--set", "auth=true", "--set", "trusted-brokers=10.0.0.7"]) == 0

    first, second = started
    assert (first.auth, first.cluster_secret, first.acl_file, first.insecure) == (True, "c", "acl", True)
    assert first.tls == "permissive"
    assert (second.auth, second.insecure, second.trusted_brokers) == (True, False, ("10.0.0.7",))


def test_a_variable_that_no_role_knows_is_logged(monkeypatch: pytest.MonkeyPatch):
    """As a warning: other software may have defined it."""
    monkeypatch.setenv("HOLDFAST_BROKER_FLUSHH", "sync")
    logged: list[Log] = []

    serve.warn_of_variables(logged.append)

    (line,) = [each for each in logged if "HOLDFAST_BROKER_FLUSHH" in each.event]
    assert line.level == "warning"
