"""Brokers of several clusters under the same name servers, as processes: asked by raw frames and by the command line.

    fleet.run("topic", "create", "orders", "--logical-queues", "4", "--scope", "east")   -> what it prints as JSON
    fleet.attempt("dr", "open")                                                          -> Said(status, out, err)
    fleet.route("orders", "west", kind=OLD)                                              -> as that client reads it

The command runs in this process: it is the same code, and a test may give many. A client here is whoever the header of
its question says: nothing of our own clients is asked what a route means.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.support.cluster.processes import BrokerProcess, Processes, wait_until_gone
from tests.support.cluster.units import java_publish, java_subscribe

from holdfast.cli.main import main

TIMEOUT_S = 30.0
JAVA_5 = {"language": "JAVA", "version": 513}
OLD = {"language": "JAVA", "version": 407}
OUR_CLIENT = {"language": "PYTHON", "version": 479, "extFields": {"hf.mapping": "1"}}
KINDS = {"java 5": JAVA_5, "java 4": OLD, "ours": OUR_CLIENT}
SMALL = {"log_file_size": 1 << 20}
"""So that a folder can be copied in no time."""
_ROUTE = 105
_opaques = itertools.count(1)


class Answer(NamedTuple):
    """What a server said."""

    code: int
    remark: str
    fields: Mapping[str, str]
    body: bytes


class CommandResult(NamedTuple):
    """What a command printed, and its status."""

    status: int
    out: str
    err: str


class RouteView(NamedTuple):
    """A route, as the client that asked for it works it out."""

    code: int
    writes: set[tuple[str, int]]
    reads: set[tuple[str, int]]
    brokers: set[str]

    @property
    def written_at(self) -> set[str]:
        """The brokers, real or not, to which a producer sends."""
        return {name for name, _ in self.writes}

    @property
    def read_at(self) -> set[str]:
        """The brokers, real or not, whose queues a consumer shares out."""
        return {name for name, _ in self.reads}


def call(address: str, code: int, fields: Mapping[str, str], body: bytes = b"", **header: Any) -> Answer:
    """Put one question to a server on a connection of its own."""
    extra_fields = dict(header.pop("extFields", {}))
    header_fields = {**JAVA_5, "code": code, "flag": 0, "opaque": next(_opaques), **header}
    encoded_header = json.dumps({**header_fields, "extFields": {**fields, **extra_fields}}).encode()
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as connection:
        connection.sendall(
            struct.pack(">II", 4 + len(encoded_header) + len(body), len(encoded_header)) + encoded_header + body
        )
        with connection.makefile("rb") as stream:
            while True:
                size, head_size = struct.unpack(">II", stream.read(8))
                received = stream.read(size - 4)
                header_received = json.loads(received[: head_size & 0xFFFFFF])
                if header_received["flag"] & 1:  # What a broker asks of its clients by the way is passed over.
                    break
    return Answer(
        header_received["code"],
        header_received.get("remark") or "",
        header_received.get("extFields") or {},
        received[head_size & 0xFFFFFF :],
    )


def wait_until(condition: Callable[[], bool], failure: str = "") -> None:
    """Return once *condition* is true: what is waited for tells nobody."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, failure or "waited in vain"
        time.sleep(0.02)


@dataclass
class Fleet:
    """The servers, by name."""

    processes: Processes
    folder: Path
    name_servers: list[str] = field(default_factory=list)
    brokers: dict[str, BrokerProcess] = field(default_factory=dict)

    @property
    def namesrv(self) -> str:
        """All name servers."""
        return ";".join(self.name_servers)

    def start(self, name: str, cluster: str, **options: Any) -> BrokerProcess:
        """Start a broker; it is known to all name servers then."""
        options = {"settings": SMALL, **options}
        self.brokers[name] = self.processes.start_broker(name, self.namesrv, cluster=cluster, **options)
        return self.brokers[name]

    def restart(self, name: str) -> None:
        """Start a broker on its folder, where it was."""
        old = self.brokers[name]
        self.start(name, old.cluster, port=old.port, store=old.store)

    def kill(self, name: str) -> None:
        """End a broker without a word."""
        self.brokers[name].child.kill()
        for each in self.name_servers:
            wait_until_gone(each, [name])

    def attempt(self, *arguments: str, namesrv: str | None = None, unit: str | None = None) -> CommandResult:
        """Run a command as a person does."""
        out, err = io.StringIO(), io.StringIO()
        before = dict(os.environ)
        os.environ |= {"HOLDFAST_NAMESRV": namesrv or self.namesrv, "COLUMNS": "200"}
        if unit is not None:
            os.environ["HOLDFAST_UNIT"] = unit
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                status = main(list(arguments))
        finally:
            os.environ.clear()
            os.environ.update(before)
        return CommandResult(status, out.getvalue(), err.getvalue())

    def run(self, *arguments: str, **options: Any) -> Any:
        """Run a command that succeeds; return what it prints as JSON."""
        result = self.attempt(*arguments, "--json", **options)
        assert result.status == 0, f"holdfast {' '.join(arguments)}: {result.err}"
        return json.loads(result.out)

    def run_refused(self, *arguments: str, status: int = 1, **options: Any) -> str:
        """Run a command that is refused; return the one line that says why."""
        result = self.attempt(*arguments, **options)
        assert result.status == status, f"holdfast {' '.join(arguments)}: {result}"
        assert result.err.count("\n") == 1, result.err
        assert "Traceback" not in result.err
        return result.err

    def request_route(
        self, topic: str, unit: str = "", *, kind: Mapping[str, Any] = JAVA_5, at: int = 0, **fields: str
    ) -> Answer:
        """Ask a name server for a route, as a client of a unit does, if one is named."""
        scope_fields = {"scope": unit} if unit else {}
        return call(self.name_servers[at], _ROUTE, {"topic": topic, **scope_fields, **fields}, **kind)

    def route(
        self, topic: str, unit: str = "", *, kind: Mapping[str, Any] = JAVA_5, at: int = 0, **fields: str
    ) -> RouteView:
        """Return what a client makes of the route that it is told; nothing where there is none."""
        answer = self.request_route(topic, unit, kind=kind, at=at, **fields)
        if answer.code != 0:
            return RouteView(answer.code, set(), set(), set())
        brokers = {data["brokerName"] for data in json.loads(answer.body)["brokerDatas"]}
        return RouteView(0, set(java_publish(answer.body)), set(java_subscribe(answer.body)), brokers)

    def mapping(self, topic: str, unit: str | None = None) -> dict[str, Any]:
        """Return the mapping of a static topic, as `queue list` tells it."""
        arguments = ["queue", "list", topic, *(["--unit", unit] if unit else [])]
        found: dict[str, Any] = self.run(*arguments)["mapping"]
        return found

    def leaders(self, topic: str, unit: str | None = None) -> list[str]:
        """Return who leads each queue."""
        queues = self.mapping(topic, unit)["queues"]
        segments = [queues[number]["segments"] for number in sorted(queues, key=int)]
        return [[segment["broker"] for segment in each if segment["first"] >= 0][-1] for each in segments]


@contextlib.contextmanager
def a_fleet(folder: Path, brokers: Mapping[str, str], *, name_servers: int = 1) -> Iterator[Fleet]:
    """Run name servers and *brokers*: name to cluster."""
    with Processes(folder) as processes:
        fleet = Fleet(processes, folder)
        with pytest.MonkeyPatch.context() as environment:
            # Who watches is told at once, however busy the machine is.
            environment.setenv("HOLDFAST_NAMESRV_NOTIFY_BACK_OFF", "false")
            fleet.name_servers += [processes.start_name_server() for _ in range(name_servers)]
        for name, cluster in brokers.items():
            fleet.start(name, cluster)
        yield fleet
