"""Broker and name server machines in one virtual world: a clock, a network and disks that a test controls.

Everything is in one process and repeatable. A broker can be killed before any of its steps, and started again on what
is left of its disk.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from holdfast.access.role_secrets import RoleSecrets
from holdfast.broker.assembly import Components
from holdfast.broker.core import Broker
from holdfast.broker.options import BrokerOptions
from holdfast.broker.replication.ha_master import PURPOSE as REPLICATION
from holdfast.broker.service import store_options
from holdfast.client.cluster.server_request import ServerRequest
from holdfast.machine.effects import Effect
from holdfast.machine.events import Event
from holdfast.model.errors import HoldfastError
from holdfast.nameserver.cluster.queue_leases import FILE as LEASES_FILE
from holdfast.nameserver.core import NameServer
from holdfast.nameserver.options import NameServerOptions
from holdfast.sim.actors.client import SimClient
from holdfast.sim.world.disk import SimDisk
from holdfast.sim.world.network import Network
from holdfast.sim.world.node import BuiltMachine, Node
from holdfast.sim.world.shell import HostEnvironment
from holdfast.sim.world.trace import Trace
from holdfast.sim.world.world import World
from holdfast.store.message_store import MessageStore
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command
from holdfast.wire.requests.moves import encode_body

NAMESRV = "10.0.0.1:9876"


class StepCounter:
    """A machine that counts its events, and may be made to die before one of them."""

    def __init__(self, machine: Broker, is_last: Callable[[], bool]) -> None:
        self._machine = machine
        self._is_last = is_last

    def handle(self, event: Event) -> list[Effect]:
        """Take the event, unless this is the end."""
        return [] if self._is_last() else self._machine.handle(event)


class ManualClient(SimClient):
    """A client that asks what it is told to ask.

    Attributes:
        received: What brokers said without being asked, and who said it.
        node: Where it runs.
    """

    def __init__(self, name: str, name_servers: str, rng: Random) -> None:
        super().__init__(name, name_servers, rng)
        self.received: list[tuple[str, Command]] = []
        self.node: Node | None = None

    def handle_request(self, request: ServerRequest) -> None:
        """Take note of what a broker says."""
        self.received.append((request.address, request.command))


class SimulatedCluster:
    """Some brokers, one or more name servers, one or more clients.

    Attributes:
        options: What brokers are started with, besides what all are.
        components: Of every broker that was ever started; of one that runs, those of now.
    """

    def __init__(
        self,
        *names: str,
        flush: str = "sync",
        seed: int = 1,
        show: bool = False,
        log_file_size: int = 1 << 20,
        retention_ms: int | None = None,
        name_servers: int = 1,
        clusters: dict[str, str] | None = None,
        replicas: dict[str, str] | None = None,
        auth: bool = False,
        cluster_secret: str = "",
        **options: Any,
    ) -> None:
        self.replicas = replicas or {}  # the brokers that are replicas, and of which they are
        self.auth = auth
        self.cluster_secret = cluster_secret  # for the servers that are started from now on
        self.clusters = clusters or {}  # of brokers that are in another than the usual one
        self._log_file_size = log_file_size
        self._retention_ms = retention_ms
        self.options = options
        self._namesrv = tuple(f"10.0.0.{number}:9876" for number in range(1, name_servers + 1))
        self.world = World(seed, Trace(print) if show else None)
        self.network = Network(self.world)
        self.network.conditions.spike_probability = 0.0
        self.components: dict[str, Components] = {}
        self.stores: dict[str, MessageStore] = {}
        self.steps: dict[str, int] = dict.fromkeys(names, 0)
        self.flush = flush
        self._planned_ends: dict[str, tuple[int, str]] = {}
        self.name_servers = [self._name_server(address) for address in self._namesrv]
        self.name_server = self.name_servers[0]
        self.brokers = {name: self.create_broker(name, f"10.0.1.{at}:10911") for at, name in enumerate(names, 1)}
        for node in (*self.name_servers, *self.brokers.values()):
            node.start()
        self._client_count = 0
        self.client = self.add_client("hand")
        self.world.checks += self.checks()
        self.run(2_000)

    def checks(self) -> list[Callable[[], None]]:
        """Return what is checked after every step."""
        return []

    # Making it.

    def _node(
        self,
        name: str,
        address: str,
        build_machine: Callable[[HostEnvironment, int], BuiltMachine],
        *,
        host: str = "",
        disk: SimDisk | None = None,
        streams: dict[str, str] | None = None,
    ) -> Node:
        environment = HostEnvironment(
            name=name, host=host or address.partition(":")[0], rng=self.world.rng(name), disk=disk
        )
        addresses = (address,) if address else ()
        return Node(self.world, self.network, environment, build_machine, addresses=addresses, streams=streams)

    def _name_server(self, address: str) -> Node:
        disk = SimDisk()
        disk.replace(LEASES_FILE, b"{}")  # It was here before: nobody has to wait until old promises are void.
        number = self._namesrv.index(address)
        return self._node(f"namesrv{number or ''}", address, self._build_name_server, disk=disk)

    def _build_name_server(self, environment: HostEnvironment, _now_ms: int) -> BuiltMachine:
        options = NameServerOptions(data="kv", broker_timeout_ms=60_000, auth=self.auth)
        secrets = self._secrets(environment)
        return BuiltMachine(NameServer(options, environment.rng, disk=environment.disk, secrets=secrets))

    def _secrets(self, environment: HostEnvironment) -> RoleSecrets:
        return RoleSecrets(environment.rng.randbytes, (self.cluster_secret,) if self.cluster_secret else ())

    def create_broker(self, name: str, address: str, disk: SimDisk | None = None) -> Node:
        """Return a host for a broker, with the disk of another if there was one."""
        master = self.replicas.get(name)
        options = BrokerOptions(
            name=master or name,
            replica_of=master,
            auth=self.auth,
            namesrv=self._namesrv,
            listen=address,
            flush=self.flush,  # type: ignore[arg-type]
            log_file_size=self._log_file_size,
            register_interval_ms=3_000,
            offset_save_interval_ms=2_000,
            **({"cluster": self.clusters[name]} if name in self.clusters else {}),
            **self.options,
        )

        def build(environment: HostEnvironment, now_ms: int) -> BuiltMachine:
            assert environment.disk is not None
            options_used = store_options(options)
            if self._retention_ms is not None:
                options_used = msgspec.structs.replace(options_used, retention_ms=self._retention_ms)
            store = MessageStore.open(environment.disk, options_used, now_ms)
            components = self.components[name] = Components(
                options, store, environment.disk, environment.rng, now_ms, secrets=self._secrets(environment)
            )
            self.stores[name] = store
            machine = StepCounter(Broker(options, store, components), lambda: self._count(name))
            return BuiltMachine(machine, store.close)

        return self._node(name, address, build, disk=disk or SimDisk(), streams={options.ha_address: REPLICATION})

    def add_client(self, name: str) -> ManualClient:
        """Return one more client, on a host of its own."""
        self._client_count += 1
        hand = ManualClient(name, NAMESRV, self.world.rng(name))
        hand.node = self._node(
            name, "", lambda _environment, _now_ms: BuiltMachine(hand), host=f"10.0.2.{self._client_count}"
        )
        hand.node.start()
        return hand

    def address(self, name: str) -> str:
        """Return where a broker listens."""
        return self.brokers[name]._addresses[0]

    # Time, life and death.

    def run(self, span_ms: int, until: Callable[[], bool] | None = None) -> bool:
        """Let time pass, or until something is so; say whether it is."""
        return self.world.run(until_ms=self.world.now_ms + span_ms, until=until)

    def kill_before(self, name: str, step: int, ending: str = "kill") -> None:
        """Let a broker end before its *step*-th event from now on."""
        self._planned_ends[name] = (self.steps[name] + step, ending)

    def kill(self, name: str) -> None:
        """End a broker's process; its page cache survives."""
        self.brokers[name].kill()

    def power_off(self, name: str) -> None:
        """End a broker's host; what was not synced may be lost."""
        self.brokers[name].power_off()

    def stop(self, name: str) -> None:
        """Begin to end a broker in order."""
        self.brokers[name].stop(lambda: None)

    def restart(self, name: str) -> None:
        """Start a broker that was ended, on its disk."""
        self.brokers[name].start()

    def is_up(self, name: str) -> bool:
        """Return whether a broker runs."""
        return self.brokers[name].is_up

    def _count(self, name: str) -> bool:
        """Count a step of a broker; end it, and say so, if this was to be its last."""
        self.steps[name] += 1
        at, ending = self._planned_ends.get(name, (0, ""))
        if self.steps[name] != at:
            return False
        del self._planned_ends[name]
        node = self.brokers[name]
        if ending == "kill":
            node.kill()
        else:
            node.power_off()
        return True

    # Asking.

    def request(self, name: str, code: RequestCode, body: msgspec.Struct | None = None, **fields: str) -> Command:
        """Ask a broker; return its answer."""
        command = Command(code=code, body=b"" if body is None else encode_body(body), fields=fields)
        return self.call(name, command)

    def call(self, name: str, command: Command, timeout_ms: int = 20_000, by: ManualClient | None = None) -> Command:
        """Ask a broker anything; return its answer."""
        answers = self.call_later(name, command, timeout_ms, by)
        assert self.run(timeout_ms + 1_000, lambda: bool(answers)), "somebody is always answered"
        if isinstance(answers[0], HoldfastError):
            raise answers[0]
        return answers[0]

    def call_later(
        self, name: str, command: Command, timeout_ms: int = 30_000, by: ManualClient | None = None
    ) -> list[Command | HoldfastError]:
        """Ask a broker something that it may answer late; return where its answer will be."""
        answers: list[Command | HoldfastError] = []
        client = by or self.client
        self._run_in_client(
            client, lambda: client.request(self.address(name), command, answers.append, timeout_ms=timeout_ms)
        )
        return answers

    def _run_in_client(self, client: ManualClient, action: Callable[[], None]) -> None:
        """Let a client do something now."""
        assert client.node is not None
        assert client.node.shell is not None
        client.now_ms = self.world.now_ms
        action()
        effects, client._effects = client._effects, []
        for effect in effects:
            client.node.shell._effect_handlers[type(effect)](effect)
