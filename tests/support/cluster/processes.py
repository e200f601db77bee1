"""A cluster of real processes, started through the installed command.

    with ProcessCluster(folder, "broker-a", "broker-b", settings={"log_file_size": 1 << 20}) as cluster:
        cluster.kill("broker-a")                                     a crash; `stop` ends it in order, `paused` hangs
        cluster.restart("broker-a")                                  with the port, folder and settings that it had
        cluster.run("topic", "create", "orders", "--queues", "4")    -> the JSON that the command prints
        cluster.leaders("orders")                                    -> {0: "broker-b", ...}

All methods block. In a coroutine, use `await asyncio.to_thread(cluster.restart, "broker-a")` while other tasks have to
continue, and `cluster.operator` for commands: a command has an event loop of its own.
"""

import contextlib
import json
import os
import shutil
import signal
import sys
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.support.child import Child, ChildFailed
from tests.support.cluster import raw_requests
from tests.support.cluster.operator import HOLDFAST, CommandResult, HoldfastCommand, leaders_of, run_in_process
from tests.support.cluster.ports import free_port, port_of, wait_until_listening
from tests.support.cluster.raw_requests import JAVA_5, Answer
from tests.support.cluster.route_views import RouteView, route_view

_ROUTE = 105


@dataclass(slots=True, eq=False)
class BrokerProcess:
    """One broker: where it listens, where its store is, and its process. A restart replaces the process."""

    name: str
    cluster: str
    namesrv: str
    port: int
    store: Path
    flush: str
    settings: dict[str, object]
    child: Child = field(init=False)

    @property
    def address(self) -> str:
        """Where clients reach it."""
        return f"127.0.0.1:{self.port}"


class ProcessCluster:
    """Name servers and brokers. When the block ends, all are stopped in the reverse order of their start.

    If the block fails, the last lines of every process are printed.

    Args:
        folder: Where name servers and brokers keep their files.
        brokers: Started with the block.
        name_servers: How many of them are started with the block.
        cluster: The RocketMQ cluster (unit) of brokers that name no other.
        flush: The flush mode of brokers that name no other.
        settings: Of every broker.
        name_server_environment: Of every name server, beside this process's own.
        signer: The administrator as whom this cluster asks its servers, if they have access control.

    Attributes:
        name_servers: The addresses of all that were started.
        brokers: By name. Of brokers with one name (a master and its replica), the first.
    """

    def __init__(
        self,
        folder: Path,
        *brokers: str,
        name_servers: int = 1,
        cluster: str = "DefaultCluster",
        flush: str = "async",
        settings: Mapping[str, object] | None = None,
        name_server_environment: Mapping[str, str] | None = None,
        signer: raw_requests.Signer | None = None,
    ) -> None:
        self.folder = folder
        self.name_servers: list[str] = []
        self.brokers: dict[str, BrokerProcess] = {}
        self.settings = dict(settings or {})
        self._cluster = cluster
        self._flush = flush
        self._at_first = (name_servers, brokers)
        self._name_server_environment = name_server_environment
        self._signer = signer
        self._name_server_children: dict[str, Child] = {}
        self._children: list[Child] = []

    def __enter__(self) -> Self:
        try:
            name_servers, brokers = self._at_first
            for _ in range(name_servers):
                self.start_name_server()
            for name in brokers:
                self.start(name)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None:
            sys.stdout.write(self.last_lines() + "\n")
        self._close()

    def _close(self) -> None:
        for child in reversed(self._children):
            try:
                child.stop(timeout_s=20)
            except ChildFailed:
                child.kill()

    @property
    def namesrv(self) -> str:
        """All name servers, `;` between them."""
        return ";".join(self.name_servers)

    def last_lines(self) -> str:
        """Return the last lines of every process, to explain a failure with."""
        return "\n".join(f"-- {child.name} ({child.pid}) said:\n{child.last_lines()}" for child in self._children)

    # Start and end.

    def start_name_server(self, *, port: int | None = None) -> str:
        """Start a name server and return its address once it listens."""
        port = port or free_port()
        address = f"127.0.0.1:{port}"
        command = ["serve", "namesrv", "--listen", address, "--data", str(self._data_of(address))]
        self._name_server_children[address] = self._start(
            command, name=f"name server {port}", port=port, environment=self._name_server_environment
        )
        if address not in self.name_servers:
            self.name_servers.append(address)
        return address

    def start(
        self,
        name: str,
        *,
        namesrv: str | None = None,
        cluster: str | None = None,
        port: int | None = None,
        store: Path | None = None,
        flush: str | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> BrokerProcess:
        """Start a new broker; return it once it listens and all its name servers list it."""
        broker = BrokerProcess(
            name,
            cluster or self._cluster,
            namesrv or self.namesrv,
            port or free_port(),
            store or self.folder / name,
            flush or self._flush,
            {**self.settings, **(settings or {})},
        )
        self.brokers.setdefault(name, broker)
        return self._start_broker(broker)

    def _start_broker(self, broker: BrokerProcess) -> BrokerProcess:
        command = ["serve", "broker", "--name", broker.name, "--cluster", broker.cluster, "--namesrv", broker.namesrv]
        command += ["--listen", broker.address, "--store", str(broker.store), "--flush", broker.flush]
        for option, value in broker.settings.items():
            command += ["--set", f"{option}={value}"]
        broker.child = self._start(command, name=f"broker {broker.name}", port=broker.port)
        for each in broker.namesrv.split(";"):
            raw_requests.wait_until_registered(
                each, [broker.address], signer=self._signer
            )  # Its name is listed while any replica is up.
        return broker

    def restart(self, server: str | BrokerProcess, *, port: int | None = None, is_empty: bool = False) -> None:
        """Start a broker, or the name server at an address, that was ended: with what it had, or *is_empty*."""
        if server in self._name_server_children:
            assert isinstance(server, str)
            if is_empty:
                shutil.rmtree(self._data_of(server))
            self.start_name_server(port=port_of(server))
            return
        broker = self._broker(server)
        if is_empty:
            shutil.rmtree(broker.store)
        broker.port = port or broker.port
        self._start_broker(broker)

    def kill(self, server: str | BrokerProcess, *, until_gone: bool = False) -> None:
        """End a broker, or the name server at an address, as a crash does; also wait until no name server lists it."""
        self.child(server).kill()
        if until_gone:
            self.wait_until_gone(self._broker(server).address)

    def stop(self, server: str | BrokerProcess) -> None:
        """End a broker, or the name server at an address, in order."""
        self.child(server).stop()

    @contextlib.contextmanager
    def paused(self, server: str | BrokerProcess) -> Iterator[None]:
        """Let a broker, or the name server at an address, hang while the block runs."""
        child = self.child(server)
        os.kill(child.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(child.pid, signal.SIGCONT)

    def child(self, server: str | BrokerProcess) -> Child:
        """Return the process of a broker, or of the name server at an address."""
        if isinstance(server, str) and server in self._name_server_children:
            return self._name_server_children[server]
        return self._broker(server).child

    def _broker(self, server: str | BrokerProcess) -> BrokerProcess:
        return server if isinstance(server, BrokerProcess) else self.brokers[server]

    def _data_of(self, name_server: str) -> Path:
        return self.folder / f"namesrv-{port_of(name_server)}"

    def _start(
        self, arguments: list[str], *, name: str, port: int, environment: Mapping[str, str] | None = None
    ) -> Child:
        # --with-parent: a test run that is killed leaves no server behind.
        child = Child([HOLDFAST, *arguments, "--with-parent"], name=name, environment=environment)
        self._children.append(child)
        wait_until_listening(child, port)
        return child

    # What name servers list.

    def wait_until_registered(self, *brokers: str) -> None:
        """Return once all name servers list these brokers, by name or address; without any: all of the cluster."""
        addresses = [broker.address for broker in self.brokers.values()]
        for each in self.name_servers:
            raw_requests.wait_until_registered(each, brokers or addresses, signer=self._signer)

    def wait_until_gone(self, *brokers: str) -> None:
        """Return once no name server lists any of these brokers, by name or address."""
        for each in self.name_servers:
            raw_requests.wait_until_gone(each, brokers, signer=self._signer)

    def make_topic(
        self, topic: str, *, queues: int, on: Iterable[str] | None = None, attributes: str | None = None
    ) -> None:
        """Make a normal topic on brokers, all unless some are named; return once clients find it on all of them."""
        addresses = [self.brokers[name].address for name in on or self.brokers]
        raw_requests.make_topic(
            self.name_servers[0], addresses, topic, queues=queues, attributes=attributes, signer=self._signer
        )

    def metrics(self, name: str) -> str:
        """Return the metrics of a broker that was started with the setting `metrics_listen`."""
        address = self.brokers[name].settings["metrics_listen"]
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            text: str = answer.read().decode()
        return text

    # Raw requests.

    def request(self, server: str, code: int, fields: Mapping[str, str], body: bytes = b"", **header: Any) -> Answer:
        """Send a request to a broker, or to an address; return its answer."""
        address = self.brokers[server].address if server in self.brokers else server
        return raw_requests.raw_request(address, code, fields, body, **header)

    def request_route(
        self, topic: str, unit: str = "", *, kind: Mapping[str, Any] = JAVA_5, at: int = 0, **fields: str
    ) -> Answer:
        """Ask a name server for a route, as a client of a kind and a unit."""
        scope_fields = {"scope": unit} if unit else {}
        return self.request(self.name_servers[at], _ROUTE, {"topic": topic, **scope_fields, **fields}, **kind)

    def route(
        self, topic: str, unit: str = "", *, kind: Mapping[str, Any] = JAVA_5, at: int = 0, **fields: str
    ) -> RouteView:
        """Return what such a client makes of the route; no queues where there is no route."""
        return route_view(self.request_route(topic, unit, kind=kind, at=at, **fields))

    # Commands.

    @property
    def operator(self) -> HoldfastCommand:
        """Runs commands as processes of their own, in coroutines."""
        return HoldfastCommand(self.namesrv)

    def attempt(self, *arguments: str, namesrv: str | None = None, unit: str | None = None) -> CommandResult:
        """Run a command, with the status and the output that it has."""
        return run_in_process(*arguments, namesrv=namesrv or self.namesrv, unit=unit)

    def run(self, *arguments: str, **options: Any) -> Any:
        """Run a command that succeeds; return the JSON that it prints."""
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

    def mapping(self, topic: str, unit: str | None = None) -> dict[str, Any]:
        """Return the mapping of a static topic, as `queue list` prints it."""
        arguments = ["queue", "list", topic, *(["--unit", unit] if unit else [])]
        found: dict[str, Any] = self.run(*arguments)["mapping"]
        return found

    def leaders(self, topic: str, unit: str | None = None) -> dict[int, str]:
        """Return the leader of each queue of a static topic."""
        return leaders_of(self.mapping(topic, unit))
