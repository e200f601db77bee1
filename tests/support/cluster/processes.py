"""Name servers and brokers of ours as real processes, started through the installed command.

    with Processes(folder) as processes:
        name_server = processes.start_name_server()          -> "127.0.0.1:24100"
        processes.start_broker("broker-a", name_server)      -> a Broker that can be stopped, killed, started again

A broker takes port - 2 and port + 1 besides its port, so ports are searched in threes. Readiness is a connection taken
and a registration seen at the name server, never a time. Does not know the wire beyond three plain questions.
"""

import contextlib
import functools
import itertools
import json
import socket
import struct
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.support.child import Child, ChildFailed

# Below the range from which the kernel takes ports for outgoing connections, and apart from what `holdfast up` picks.
_PORT_FIRST, _PORT_LAST, _PORT_STEP = 20000, 26900, 10
_BLOCK_SIZE = 300
_READY_TIMEOUT_S = 60.0
_PAUSE_S = 0.02
_GET_BROKER_CLUSTER_INFO = 106
_UPDATE_AND_CREATE_TOPIC = 17
_GET_ROUTE = 105


@functools.cache
def _claim_block() -> tuple[socket.socket, Iterator[int]]:
    """Take a block of ports for this process alone, and return its bases in a circle.

    A broker that is down for a moment wants its port back: no other run may find it free meanwhile. Whoever holds the
    first port of a block has the block, until the process ends.
    """
    for first in range(_PORT_FIRST, _PORT_LAST, _BLOCK_SIZE):
        claim = socket.socket()
        try:
            claim.bind(("127.0.0.1", first))
        except OSError:
            claim.close()
            continue
        return claim, itertools.cycle(range(first + _PORT_STEP, first + _BLOCK_SIZE, _PORT_STEP))
    raise ChildFailed(f"no free block of ports between {_PORT_FIRST} and {_PORT_LAST}")


def free_port() -> int:
    """Return a port that is free on loopback together with the two below and the one above."""
    _, bases = _claim_block()
    for _ in range(0, _BLOCK_SIZE, _PORT_STEP):
        port = next(bases) + 4
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for each in range(port - 2, port + 2):
                probe = stack.enter_context(socket.socket())
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", each))
            return port
    raise ChildFailed(f"no free ports between {_PORT_FIRST} and {_PORT_LAST}")


def wait_until_listening(child: Child, port: int, *, timeout_s: float = _READY_TIMEOUT_S) -> None:
    """Return once *child* takes connections on *port*."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=timeout_s).close()
        except OSError:
            if not child.is_running:
                raise ChildFailed(f"{child.name} ended before it listened on {port}:\n{child.last_lines()}") from None
            if time.monotonic() > deadline:
                raise ChildFailed(f"{child.name} does not listen on {port}:\n{child.last_lines()}") from None
            time.sleep(_PAUSE_S)  # a refused connection gives nothing else to wait on
        else:
            return


def wait_until_registered(name_server: str, brokers: Iterable[str], *, timeout_s: float = _READY_TIMEOUT_S) -> None:
    """Return once the name server tells clients of all *brokers*, by name or by address."""
    _wait_for_brokers(name_server, set(brokers), present=True, timeout_s=timeout_s)


def wait_until_gone(name_server: str, brokers: Iterable[str], *, timeout_s: float = _READY_TIMEOUT_S) -> None:
    """Return once the name server tells clients of none of *brokers*, by name or by address."""
    _wait_for_brokers(name_server, set(brokers), present=False, timeout_s=timeout_s)


def _wait_for_brokers(name_server: str, brokers: set[str], *, present: bool, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        _, answer = call(name_server, _GET_BROKER_CLUSTER_INFO, {})
        if all((f'"{broker}"' in answer) is present for broker in brokers):
            return
        if time.monotonic() > deadline:
            raise ChildFailed(f"name server {name_server}: wanted {brokers} {present=}, it says {answer}")
        time.sleep(_PAUSE_S)  # the name server pushes nothing that could be awaited


def make_topic(
    name_server: str, brokers: Iterable[str], topic: str, *, queues: int, attributes: str | None = None
) -> None:
    """Make a topic on each of *brokers* (addresses) and return once the name server tells clients of all of them.

    With *attributes* as Java's tools write them: `+queue.type=BatchCQ` has it keep batches whole.
    """
    addresses = list(brokers)
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    if attributes is not None:
        fields["attributes"] = attributes
    for address in addresses:
        code, text = call(address, _UPDATE_AND_CREATE_TOPIC, fields)
        if code != 0:
            raise ChildFailed(f"broker {address} does not make topic {topic}: {text}")
    deadline = time.monotonic() + _READY_TIMEOUT_S
    while True:
        code, text = call(name_server, _GET_ROUTE, {"topic": topic})
        if code == 0 and text.count('"readQueueNums"') == len(addresses):
            return
        if time.monotonic() > deadline:
            raise ChildFailed(f"name server {name_server} says of topic {topic}: {text}")
        time.sleep(_PAUSE_S)


def call(address: str, code: int, fields: Mapping[str, str]) -> tuple[int, str]:
    """Put one question to a server on its own connection; return the answer's code, and all of it as text."""
    host, port = address.rsplit(":", 1)
    request = {"code": code, "flag": 0, "language": "JAVA", "opaque": 1, "version": 407, "extFields": dict(fields)}
    header = json.dumps(request).encode()
    with socket.create_connection((host, int(port)), timeout=_READY_TIMEOUT_S) as connection:
        connection.sendall(struct.pack(">II", 4 + len(header), len(header)) + header)
        with connection.makefile("rb") as answer:
            size, header_size = struct.unpack(">II", answer.read(8))
            received = answer.read(size - 4)
    answer_code: int = json.loads(received[: header_size & 0xFFFFFF])["code"]
    return answer_code, received.decode("utf-8", "replace").replace(" ", "")


@dataclass(slots=True)
class BrokerProcess:
    """One broker of ours: where it listens, where its store is, and its process."""

    name: str
    cluster: str
    port: int
    store: Path
    child: Child

    @property
    def address(self) -> str:
        """Where clients reach it."""
        return f"127.0.0.1:{self.port}"


class Processes:
    """Roles of ours, all stopped in the reverse order of their start when the block ends.

    Attributes:
        name_servers: Address to the process that serves there.
    """

    def __init__(self, folder: Path) -> None:
        self.name_servers: dict[str, Child] = {}
        self._folder = folder
        self._children: list[Child] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for child in reversed(self._children):
            try:
                child.stop(timeout_s=20)
            except ChildFailed:
                child.kill()

    def last_lines(self) -> str:
        """Return the last lines of every process, to explain a failure with."""
        return "\n".join(f"-- {child.name} ({child.pid}) said:\n{child.last_lines()}" for child in self._children)

    def start_name_server(self, *, port: int | None = None) -> str:
        """Start a name server and return its address once it listens."""
        port = port or free_port()
        data = self._folder / f"namesrv-{port}"
        command = ["serve", "namesrv", "--listen", f"127.0.0.1:{port}", "--data", str(data)]
        self.name_servers[f"127.0.0.1:{port}"] = self._start(command, name=f"name server {port}", port=port)
        return f"127.0.0.1:{port}"

    def start_broker(
        self,
        name: str,
        name_server: str,
        *,
        cluster: str = "DefaultCluster",
        port: int | None = None,
        store: Path | None = None,
        flush: str = "async",
        settings: Mapping[str, object] | None = None,
    ) -> BrokerProcess:
        """Start a broker with any *settings*; return it once it listens and the name servers, `;` between, know it."""
        port = port or free_port()
        store = store or self._folder / name
        command = ["serve", "broker", "--name", name, "--cluster", cluster, "--namesrv", name_server]
        command += ["--listen", f"127.0.0.1:{port}", "--store", str(store), "--flush", flush]
        for option, value in (settings or {}).items():
            command += ["--set", f"{option}={value}"]
        child = self._start(command, name=f"broker {name}", port=port)
        broker = BrokerProcess(name, cluster, port, store, child)
        for each in name_server.split(";"):
            wait_until_registered(each, [broker.address])  # its name is known while any replica of it is up
        return broker

    def _start(self, arguments: list[str], *, name: str, port: int) -> Child:
        # --with-parent: a test run that is killed leaves no server behind.
        command = [str(Path(sys.executable).with_name("holdfast")), *arguments, "--with-parent"]
        child = Child(command, name=name)
        self._children.append(child)
        wait_until_listening(child, port)
        return child
