"""The servers of a transcript: brokers, replicas and name servers in a simulated world, and a command line beside them.

Everything takes the same time in each run. Time passes only while a command waits for something.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import Callable
from typing import Any
from unittest import mock

import msgspec
from tests.support.cluster.operator import CommandResult, run_in_process
from tests.support.cluster.simulated_world import SimulatedCluster
from tests.support.transcript import CommandError
from tests.support.transcript_loop import world_time

from holdfast.broker.assembly import Components
from holdfast.broker.core import Broker
from holdfast.broker.options import BrokerOptions
from holdfast.broker.replication.ha_master import PURPOSE as REPLICATION
from holdfast.broker.service import store_options
from holdfast.machine.effects import Effect
from holdfast.machine.events import Event, FramesReceived
from holdfast.machine.machine import Machine
from holdfast.model.errors import HoldfastError
from holdfast.runtime.pool import ConnectionPool
from holdfast.sim.world.disk import SimDisk
from holdfast.sim.world.node import BuiltMachine, Node
from holdfast.sim.world.shell import DiskLatency, HostEnvironment
from holdfast.sim.world.trace import Trace
from holdfast.store.message_store import MessageStore
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command, decode_command

ANSWER_TIMEOUT_S = 5.0
LOG_FILE_SIZE = 65_536
_UNLOGGED = {"log debug"}
_VARIABLES = ("HOLDFAST_", "FORCE_COLOR", "TTY_")


class _LogTrace(Trace):
    """Keeps the log lines of servers, and nothing else of what happens."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, list[str]] = defaultdict(list)

    def note(self, actor: str, label: str, detail: str = "") -> None:
        """Keep a line of a log."""
        if label.startswith("log ") and label not in _UNLOGGED:
            self.lines[actor].append(f"{label.removeprefix('log ')}: {detail.strip()}")


class _Trap(msgspec.Struct, frozen=True):
    """A server that ends as soon as another one, or it itself, receives a request."""

    victim: str
    receiver: str
    code: RequestCode


class _Guarded:
    """A machine that springs the traps that were set for its requests."""

    def __init__(self, name: str, machine: Machine, spring: Callable[[str, int], bool]) -> None:
        self._name = name
        self._machine = machine
        self._spring = spring

    def handle(self, event: Event) -> list[Effect]:
        """Pass an event on, unless its own end comes first."""
        if isinstance(event, FramesReceived):
            commands = map(decode_command, event.frames)
            if any(not command.is_response and self._spring(self._name, command.code) for command in commands):
                return []
        return self._machine.handle(event)


class TranscriptCluster(SimulatedCluster):
    """Servers by name, which are added one after the other."""

    def __init__(self, *, name_servers: int = 1, retention_ms: int | None = None) -> None:
        super().__init__(name_servers=name_servers, retention_ms=retention_ms, log_file_size=LOG_FILE_SIZE)
        self._log_trace = self.world.trace = _LogTrace()
        self._traps: list[_Trap] = []
        self._units: dict[str, str | None] = {}
        conditions = self.network.conditions
        conditions.delay_ms, conditions.partial_read = (1, 1), 0.0

    # Servers.

    def add_broker(self, name: str, *, unit: str | None = None, replica_of: str | None = None, **settings: Any) -> None:
        """Start a new broker of a unit, or a new replica of one, which consumers of *unit* read."""
        address = f"10.0.1.{len(self.brokers) + 1}:10911"
        cluster = self._units[name] = unit if replica_of is None else self._units[replica_of]
        options = BrokerOptions(
            name=replica_of or name,
            replica_of=replica_of,
            namesrv=self._namesrv,
            listen=address,
            log_file_size=LOG_FILE_SIZE,
            **({} if cluster is None else {"cluster": cluster}),
            **({} if replica_of is None else {"replica_unit": unit}),
            **settings,
        )
        environment = HostEnvironment(
            name=name,
            host=address.partition(":")[0],
            rng=self.world.rng(name),
            disk=SimDisk(),
            disk_latency=DiskLatency(sync_ms=(1, 1), work_ms=(1, 1)),
        )

        def build(environment: HostEnvironment, now_ms: int) -> BuiltMachine:
            assert environment.disk is not None
            settings = store_options(options)
            if self._retention_ms is not None:
                settings = msgspec.structs.replace(settings, retention_ms=self._retention_ms)
            store = MessageStore.open(environment.disk, settings, now_ms)
            components = Components(options, store, environment.disk, environment.rng, now_ms)
            machine = _Guarded(name, Broker(options, store, components), self._spring)
            return BuiltMachine(machine, store.close)

        streams = {} if replica_of else {options.ha_address: REPLICATION}
        node = Node(self.world, self.network, environment, build, addresses=(address,), streams=streams)
        self.brokers[name] = node
        node.start()

    @property
    def servers(self) -> dict[str, Node]:
        """All brokers and name servers, by name."""
        return {**{node.name: node for node in self.name_servers}, **self.brokers}

    def require_server(self, name: str) -> Node:
        """Return a server.

        Raises:
            CommandError: there is none of that name.
        """
        if name not in self.servers:
            raise CommandError(f"no server {name!r}; there are {', '.join(self.servers)}")
        return self.servers[name]

    def address(self, name: str) -> str:
        """Return where a server listens."""
        return self.servers[name]._addresses[0]

    def name_at(self, address: str) -> str:
        """Return the server that listens at an address."""
        return next((name for name in self.servers if self.address(name) == address), address)

    def set_trap(self, victim: str, receiver: str, code: RequestCode) -> None:
        """End *victim* as soon as *receiver* gets a request with *code*, before it is handled."""
        self._traps.append(_Trap(victim, receiver, code))

    def _spring(self, receiver: str, code: int) -> bool:
        """End the victims of the traps for a request; return whether the receiver is one of them."""
        sprung = [trap for trap in self._traps if (trap.receiver, trap.code) == (receiver, code)]
        for trap in sprung:
            self._traps.remove(trap)
            self.servers[trap.victim].kill()
        return any(trap.victim == receiver for trap in sprung)

    def cut(self, one: Node, other: Node) -> None:
        """Stop all traffic between two servers."""
        self.network.cut_link(one.host, other.host)
        self.network.cut_link(other.host, one.host)

    def wipe(self, name: str) -> None:
        """Give a server that is down an empty disk."""
        self.servers[name].environment.disk = SimDisk()

    def pop_log(self, name: str) -> list[str]:
        """Return the lines that a server logged since the last time."""
        return self._log_trace.lines.pop(name, [])

    # Clients.

    @property
    def namesrv(self) -> str:
        """The addresses of the name servers as clients are given them."""
        return ";".join(self._namesrv)

    def holdfast(self, *words: str) -> CommandResult:
        """Run the command line, as a user without settings of their own."""
        own_variables = [name for name in os.environ if name.startswith(_VARIABLES)]
        with mock.patch.dict(os.environ), world_time(self.world, self.network):
            for name in own_variables:
                del os.environ[name]
            return run_in_process(*words, namesrv=self.namesrv)

    def ask(self, server: str, command: Command) -> Command:
        """Return the answer of a server to a request on a new connection.

        Raises:
            HoldfastError: there is none.
        """

        async def exchange() -> Command:
            pool = ConnectionPool(on_request=lambda _connection, _command: None)
            try:
                return await pool.invoke(self.address(server), command, ANSWER_TIMEOUT_S)
            finally:
                await pool.close()

        with world_time(self.world, self.network):
            return asyncio.run(exchange())

    def send_repeatedly(self, server: str, commands: list[Command], pause_ms: int) -> list[Command | HoldfastError]:
        """Begin to send requests one after the other on one connection; return the list that gets the answers."""
        answers: list[Command | HoldfastError] = []
        remaining = iter(commands)

        def send() -> None:
            command = next(remaining, None)
            if command is not None:
                self.client.request(self.address(server), command, answered, timeout_ms=30_000)

        def answered(answer: Command | HoldfastError) -> None:
            answers.append(answer)
            self.client.after(pause_ms, send)

        self._run_in_client(self.client, send)
        return answers
