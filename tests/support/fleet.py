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
from tests.support.cluster import Broker, Processes, wait_until_gone
from tests.support.units import java_publish, java_subscribe

from holdfast.cli.main import main

PATIENCE_S = 30.0
JAVA_5 = {"language": "JAVA", "version": 513}
OLD = {"language": "JAVA", "version": 407}
OURS = {"language": "PYTHON", "version": 479, "extFields": {"hf.mapping": "1"}}
KINDS = {"java 5": JAVA_5, "java 4": OLD, "ours": OURS}
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


class Said(NamedTuple):
    """What a command printed, and its status."""

    status: int
    out: str
    err: str


class Told(NamedTuple):
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


def ask(address: str, code: int, fields: Mapping[str, str], body: bytes = b"", **header: Any) -> Answer:
    """Put one question to a server on a connection of its own."""
    more = dict(header.pop("extFields", {}))
    question = {**JAVA_5, "code": code, "flag": 0, "opaque": next(_opaques), **header}
    head = json.dumps({**question, "extFields": {**fields, **more}}).encode()
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
        connection.sendall(struct.pack(">II", 4 + len(head) + len(body), len(head)) + head + body)
        with connection.makefile("rb") as stream:
            while True:
                size, head_size = struct.unpack(">II", stream.read(8))
                received = stream.read(size - 4)
                told = json.loads(received[: head_size & 0xFFFFFF])
                if told["flag"] & 1:  # What a broker asks of its clients by the way is passed over.
                    break
    return Answer(told["code"], told.get("remark") or "", told.get("extFields") or {}, received[head_size & 0xFFFFFF :])


def wait_until(condition: Callable[[], bool], what: str = "") -> None:
    """Return once *condition* is true: what is waited for tells nobody."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what or "waited in vain"
        time.sleep(0.02)


@dataclass
class Fleet:
    """The servers, by name."""

    processes: Processes
    folder: Path
    name_servers: list[str] = field(default_factory=list)
    brokers: dict[str, Broker] = field(default_factory=dict)

    @property
    def namesrv(self) -> str:
        """All name servers."""
        return ";".join(self.name_servers)

    def start(self, name: str, cluster: str, **how: Any) -> Broker:
        """Start a broker; it is known to all name servers then."""
        how = {"settings": SMALL, **how}
        self.brokers[name] = self.processes.start_broker(name, self.namesrv, cluster=cluster, **how)
        return self.brokers[name]

    def start_again(self, name: str) -> None:
        """Start a broker on its folder, where it was."""
        was = self.brokers[name]
        self.start(name, was.cluster, port=was.port, store=was.store)

    def lose(self, name: str) -> None:
        """End a broker without a word."""
        self.brokers[name].child.kill()
        for each in self.name_servers:
            wait_until_gone(each, [name])

    def attempt(self, *words: str, namesrv: str | None = None, unit: str | None = None) -> Said:
        """Run a command as a person does."""
        out, err = io.StringIO(), io.StringIO()
        before = dict(os.environ)
        os.environ |= {"HOLDFAST_NAMESRV": namesrv or self.namesrv, "COLUMNS": "200"}
        if unit is not None:
            os.environ["HOLDFAST_UNIT"] = unit
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                status = main(list(words))
        finally:
            os.environ.clear()
            os.environ.update(before)
        return Said(status, out.getvalue(), err.getvalue())

    def run(self, *words: str, **how: Any) -> Any:
        """Run a command that succeeds; return what it prints as JSON."""
        said = self.attempt(*words, "--json", **how)
        assert said.status == 0, f"holdfast {' '.join(words)}: {said.err}"
        return json.loads(said.out)

    def refused(self, *words: str, status: int = 1, **how: Any) -> str:
        """Run a command that is refused; return the one line that says why."""
        said = self.attempt(*words, **how)
        assert said.status == status, f"holdfast {' '.join(words)}: {said}"
        assert said.err.count("\n") == 1, said.err
        assert "Traceback" not in said.err
        return said.err

    def ask_route(
        self, topic: str, unit: str = "", *, kind: Mapping[str, Any] = JAVA_5, at: int = 0, **fields: str
    ) -> Answer:
        """Ask a name server for a route, as a client of a unit does, if one is named."""
        named = {"scope": unit} if unit else {}
        return ask(self.name_servers[at], _ROUTE, {"topic": topic, **named, **fields}, **kind)

    def route(
        self, topic: str, unit: str = "", *, kind: Mapping[str, Any] = JAVA_5, at: int = 0, **fields: str
    ) -> Told:
        """Return what a client makes of the route that it is told; nothing where there is none."""
        answer = self.ask_route(topic, unit, kind=kind, at=at, **fields)
        if answer.code != 0:
            return Told(answer.code, set(), set(), set())
        brokers = {data["brokerName"] for data in json.loads(answer.body)["brokerDatas"]}
        return Told(0, set(java_publish(answer.body)), set(java_subscribe(answer.body)), brokers)

    def mapping(self, topic: str, unit: str | None = None) -> dict[str, Any]:
        """Return the mapping of a static topic, as `queue list` tells it."""
        words = ["queue", "list", topic, *(["--unit", unit] if unit else [])]
        found: dict[str, Any] = self.run(*words)["mapping"]
        return found

    def leaders(self, topic: str, unit: str | None = None) -> list[str]:
        """Return who leads each queue."""
        queues = self.mapping(topic, unit)["queues"]
        homes = [queues[number]["segments"] for number in sorted(queues, key=int)]
        return [[home["broker"] for home in each if home["first"] >= 0][-1] for each in homes]


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
