"""What every role serves with, around a role that only remembers its events."""

from __future__ import annotations

import asyncio
import urllib.request
from pathlib import Path
from typing import Self

import pytest
from tests.support.cluster.ports import free_port
from tests.support.components import Alone

from holdfast.access.authority import Authority
from holdfast.access.door import Door
from holdfast.access.sessions import Sessions
from holdfast.machine.effects import Effect, Log
from holdfast.machine.events import ChannelOpened, Event, Started, Stopping
from holdfast.machine.role_options import RoleOptions
from holdfast.machine.sample import Sample
from holdfast.model.errors import ConfigError
from holdfast.runtime.role_server import RoleServer


class Remembering:
    """A role that remembers its events, and reports a refused login when it starts."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.has_client = asyncio.Event()

    def handle(self, event: Event) -> list[Effect]:
        self.events.append(event)
        if isinstance(event, ChannelOpened):
            self.has_client.set()
        return [Log("warning", "login refused", {"user": "eve"}, "login")] if isinstance(event, Started) else []


class Running:
    """A role server with the role, from its start to its stop."""

    def __init__(self, **options: object) -> None:
        self.logs: list[Log] = []
        self.role = Remembering()
        self.alone = Alone("namesrv")
        self.options = RoleOptions(**{"listen": "127.0.0.1:0", **options})  # type: ignore[arg-type]
        self.serving = RoleServer("tester", self.options, self.logs.append, None)
        self.address = ""

    async def __aenter__(self) -> Self:
        self.serving.attach(self.role, self.alone.build(Sessions))
        self.address, port = await self.serving.listen()
        assert self.address == f"{self.serving.host}:{port}"
        self.serving.begin(
            self.address,
            lambda: [Sample("tester_jobs", "gauge", "Jobs.", 3)],
            lambda: None,
            self.alone.build(Authority),
            self.alone.build(Door),
        )
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.serving.stop()
        self.serving.close()


async def test_a_role_is_started_reached_and_stopped():
    """At the port that it got."""
    async with Running() as running:
        host, _, port = running.address.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        await running.role.has_client.wait()
        writer.close()

    kinds = [type(event) for event in running.role.events]
    assert kinds.index(Started) < kinds.index(ChannelOpened)
    assert kinds[-1] is Stopping


def test_a_role_that_anyone_could_reach_is_refused():
    """Before it opens anything."""
    with pytest.raises(ConfigError, match="access control"):
        RoleServer("tester", RoleOptions(listen="0.0.0.0:0"), lambda _: None, None)


async def test_the_operator_is_warned_of_an_insecure_port():
    """Once it is known which port it is."""
    async with Running(listen="0.0.0.0:0", insecure=True) as running:
        (warning,) = [log for log in running.logs if "without access control" in log.event]

    assert warning.fields == {"listen": running.address}


async def test_audit_lines_are_in_the_file_and_in_the_log(tmp_path: Path):
    """Under the title of the role."""
    path = tmp_path / "audit.jsonl"
    async with Running(audit_file=str(path)) as running:
        pass

    assert "login refused" in [log.event for log in running.logs]
    assert "tester" in path.read_text()
    assert "eve" in path.read_text()


async def test_metrics_are_of_the_role_its_server_and_its_limits():
    """The limits only if there are any."""
    address = f"127.0.0.1:{free_port()}"

    async with Running(metrics_listen=address, connections_per_address_max=5):
        limited = await asyncio.to_thread(_scrape, address)
    async with Running(metrics_listen=address):
        unlimited = await asyncio.to_thread(_scrape, address)

    assert {"holdfast_tester_jobs", "holdfast_connections_paused"} <= unlimited
    assert limited - unlimited == {
        "holdfast_connections_limited_total",
        "holdfast_connections_unproven",
        "holdfast_user_pauses_total",
        "holdfast_user_paused_ms_total",
        "holdfast_user_throttles_total",
        "holdfast_user_throttled_ms_total",
    }


def _scrape(address: str) -> set[str]:
    """Return the names of all metrics."""
    with urllib.request.urlopen(f"http://{address}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return {line.split()[2] for line in lines if line.startswith("# TYPE")}
