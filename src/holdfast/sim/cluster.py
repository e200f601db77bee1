"""All processes of one simulated cluster: name servers, brokers and clients on their hosts, with the checkers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from holdfast.access.role_secrets import RoleSecrets
from holdfast.broker.assembly import Components
from holdfast.broker.core import Broker
from holdfast.broker.options import BrokerOptions
from holdfast.model.dr_switch import DrSwitch
from holdfast.model.queue import MessageQueue
from holdfast.nameserver.cluster.queue_leases import FILE as LEASES_FILE
from holdfast.nameserver.core import NameServer
from holdfast.nameserver.options import NameServerOptions
from holdfast.nameserver.routes.static_topics import name_of
from holdfast.sim.access import CREDENTIALS, role_secrets, save_users
from holdfast.sim.actors.client import SimClient
from holdfast.sim.actors.consumer import Consumer
from holdfast.sim.actors.forcer import ForcedMover
from holdfast.sim.actors.operator import Operator, OperatorTasks
from holdfast.sim.actors.producer import Producer
from holdfast.sim.actors.reset_consumer import RESET_GROUP, ResetConsumer
from holdfast.sim.actors.switcher import Switcher, SwitchState
from holdfast.sim.actors.witness import Witness
from holdfast.sim.checkers.commits import NOTHING_SAVED, UNSAVED_MS
from holdfast.sim.checkers.ledger import Ledger
from holdfast.sim.checkers.offset_identity import OffsetIdentityChecker
from holdfast.sim.checkers.progress import ProgressChecker
from holdfast.sim.checkers.reports import ReportChecker
from holdfast.sim.checkers.unit_isolation import UnitIsolationChecker
from holdfast.sim.site import BROKER_PORT, CONCURRENT_GROUP, GROUP_TOPICS, ORDERED_GROUP, Site
from holdfast.sim.world.disk import SimDisk
from holdfast.sim.world.network import Network
from holdfast.sim.world.node import BuiltMachine, MachineFactory, Node
from holdfast.sim.world.plan import RunPlan
from holdfast.sim.world.shell import HostEnvironment
from holdfast.sim.world.workload import Workload
from holdfast.sim.world.world import World
from holdfast.store.base.options import StoreOptions
from holdfast.store.message_store import MessageStore
from holdfast.wire.frames.host import pack_host

BROKER_TIMEOUT_MS: Final = 9_000

_DELAYS: Final = "1s 2s 1s 2s 2s 3s 3s"
_DELAYS_MS: Final = tuple(int(text[:-1]) * 1000 for text in _DELAYS.split())
_REPORT_CHECK_MS: Final = 100
_LEASE_MS: Final = 3_000
_NAMESRV_PORT: Final = 9876


class SimCluster:
    """Every process in one world.

    Attributes:
        key_queues: The queue of each key, as the application chose it.
        components: By broker, the components of the process started last. The checkers inspect them.
        sites: The units, or one site with all brokers if there are no units.
        are_moves_over: Whether the operators have stopped ordering moves.
        on_move_ordered: Called with (source, target) for every ordered move.
    """

    def __init__(self, world: World, plan: RunPlan) -> None:
        self.world = world
        self.plan = plan
        self.network = Network(world)
        self.offset_checker = OffsetIdentityChecker()
        self.ledger = Ledger(self.offset_checker)
        self.progress_checker = ProgressChecker()
        self.key_queues: dict[str, MessageQueue] = {}
        self.components: dict[str, Components] = {}
        self.are_moves_over = False
        self.on_move_ordered: Callable[[str, str], None] = lambda _source, _target: None
        names = [f"maker-{number}" for number in range(plan.producers)]
        self.workload = Workload(
            world.rng("orders"),
            producers=names,
            message_count=plan.messages,
            storm_ms=plan.storm_ms,
            message_mix=plan.message_mix,
        )
        self.witness = Witness(self.workload, self.ledger, self.offset_checker, self.progress_checker)
        if "clock" not in plan.faults:
            self.witness.delays_ms = _DELAYS_MS
        self._host_count = 0
        self._units: dict[str, str] = {}
        self.name_servers = [self._name_server(f"namesrv-{number}") for number in range(plan.name_servers)]
        self.namesrv_text = ";".join(f"{node.host}:{_NAMESRV_PORT}" for node in self.name_servers)
        self.sites = [Site(world, plan, unit, self.components, self.witness) for unit in plan.units or ("",)]
        self.unit_checker = UnitIsolationChecker()
        self.switch_state = SwitchState(plan.units, plan.switch_pause_ms)
        self.brokers = [self._broker(f"broker-{chr(ord('a') + number)}", number) for number in range(plan.brokers)]
        self.report_checker = ReportChecker(self._name_servers_up)
        if plan.static:
            self._start_checks()
        self.progress_checker.last_switch_ms = lambda: self.switch_state.changed_ms
        self.producers = [self._producer(name, number) for number, name in enumerate(names)]
        self.consumers = [self._consumer(CONCURRENT_GROUP, number) for number in range(plan.concurrent_consumers)]
        self.consumers += [self._consumer(ORDERED_GROUP, number) for number in range(plan.ordered_consumers)]
        self.operators = [self._operator(number) for number in range(plan.operators)]
        self.operators += [self._switcher()] if plan.units else []
        self.consumers += [self._reset_consumer()] if plan.resets_enabled else []

    @property
    def servers(self) -> list[Node]:
        """The processes under test."""
        return [*self.name_servers, *self.brokers]

    @property
    def clients(self) -> list[Node]:
        """The processes that use the servers."""
        return [*self.producers, *self.consumers, *self.operators]

    @property
    def nodes(self) -> list[Node]:
        """All processes."""
        return [*self.servers, *self.clients]

    @property
    def addresses(self) -> dict[str, str]:
        """The address that each broker listens on."""
        return {node.name: f"{node.host}:{BROKER_PORT}" for node in self.brokers}

    def add_client(self, client: SimClient) -> Node:
        """Start *client* on a new host."""
        node = self._node(client.name, lambda _environment, _now_ms: BuiltMachine(client))
        node.start()
        return node

    def find_unconsumed(self) -> list[str]:
        """Return the messages that a group has yet to consume, as `group message`."""
        expected = self.ledger.expected()
        return [
            f"{group} {uid}"
            for group, topic in GROUP_TOPICS.items()
            for uid in self.progress_checker.find_missing(
                group, [planned for planned in expected if planned.topic == topic and not self.is_tainted(planned.uid)]
            )
        ]

    def is_tainted(self, uid: str) -> bool:
        """Return whether a message is only on brokers whose offsets have lost their meaning."""
        return all(ack.queue_offset.broker in self.progress_checker.tainted for ack in self.ledger.acks[uid])

    def site_of(self, broker: str) -> Site:
        """Return the site of *broker*."""
        return next(site for site in self.sites if any(node.name == broker for node in site.brokers))

    def hosts_of(self, site: Site) -> list[str]:
        """Return the hosts of a unit: its brokers and the clients that belong to it."""
        return [node.host for node in self.nodes if self._units.get(node.name) == site.unit]

    def _assign_site(self, number: int, name: str) -> Site:
        """Assign the process *name* to a site, by its number among processes of its kind."""
        site = self.sites[number % len(self.sites)]
        self._units[name] = site.unit
        return site

    # State for the checkers.

    def _name_servers_up(self) -> dict[str, NameServer]:
        machines = {node.name: node.shell.machine for node in self.name_servers if node.shell is not None}
        return {name: machine for name, machine in machines.items() if isinstance(machine, NameServer)}

    def find_switches(self) -> dict[str, DrSwitch]:
        """Return each name server's record of the open units."""
        return {name: server.open_units.switch for name, server in self._name_servers_up().items()}

    def has_claimed(self, claimant: str, leader: str) -> bool:
        """Return whether a name server has confirmed to *claimant* the lease of a queue that *leader* still leads."""
        return any(
            lease.broker == claimant and site.leader_checker.leaders(name_of(key)).get(number) == leader
            for server in self._name_servers_up().values()
            for (key, number), lease in server.queue_leases.leases.items()
            for site in self.sites
        )

    def _start_checks(self) -> None:
        self.offset_checker.logical = frozenset(site.mock_broker_name for site in self.sites)
        self.offset_checker.may_have_hole = lambda queue, start, end: self._may_be_empty(
            queue, start, end, self.offset_checker.power_lost
        )
        self.offset_checker.may_have_gap = lambda queue, start, end: self._may_be_empty(queue, start, end, set())
        for site in self.sites:
            site.start_checks()
        self.world.schedule(self._watch_reports, delay_ms=_REPORT_CHECK_MS)

    def _may_be_empty(self, queue: MessageQueue, start: int, end: int, power_lost: set[str]) -> bool:
        return any(
            site.leader_checker.may_be_empty(queue, start, end, power_lost)
            for site in self.sites
            if site.mock_broker_name == queue.broker_name
        )

    def _watch_reports(self) -> None:
        self.report_checker.check()
        self.world.schedule(self._watch_reports, delay_ms=_REPORT_CHECK_MS)

    def _node(
        self,
        name: str,
        build_machine: MachineFactory,
        *,
        disk: SimDisk | None = None,
        port: int | None = None,
        host: str | None = None,
    ) -> Node:
        host = host or self._next_host()
        environment = HostEnvironment(name=name, host=host, rng=self.world.rng(name), disk=disk)
        addresses = () if port is None else (f"{host}:{port}",)

        def build(environment: HostEnvironment, now_ms: int) -> BuiltMachine:
            built = build_machine(environment, now_ms)
            if self.plan.auth and isinstance(built.machine, SimClient):
                built.machine.credentials = CREDENTIALS
            return built

        return Node(self.world, self.network, environment, build, addresses=addresses)

    def _next_host(self) -> str:
        self._host_count += 1
        return f"10.0.0.{self._host_count}"

    # Roles.

    def _name_server(self, name: str) -> Node:
        options = NameServerOptions(
            data="kv", broker_timeout_ms=BROKER_TIMEOUT_MS, scan_interval_ms=2_000, auth=self.plan.auth
        )

        def build(environment: HostEnvironment, _now_ms: int) -> BuiltMachine:
            secrets = self._role_secrets(environment)
            return BuiltMachine(NameServer(options, environment.rng, disk=environment.disk, secrets=secrets))

        disk = self._new_disk()
        disk.replace(LEASES_FILE, b"{}")  # An existing file: no lease of an earlier process can be in force.
        return self._node(name, build, disk=disk, port=_NAMESRV_PORT)

    def _broker(self, name: str, number: int) -> Node:
        host = self._next_host()
        site = self._assign_site(number, name)
        options = self._broker_options(name, f"{host}:{BROKER_PORT}", site.unit)
        store_options = StoreOptions(
            store_host=pack_host(options.address),
            log_file_size=options.log_file_size,
            queue_file_size=options.queue_file_entries * 20,
            batch_file_size=options.queue_file_entries * 46,
            index_slots=options.index_slots,
            index_items=options.index_entries,
            body_size_max=options.message_size_max,
            hot_window=self.plan.hot_window,
            checkpoint_interval_ms=self.plan.checkpoint_interval_ms,
            delay_levels_ms=_DELAYS_MS,
        )

        def build(environment: HostEnvironment, now_ms: int) -> BuiltMachine:
            assert environment.disk is not None
            store = MessageStore.open(environment.disk, store_options, now_ms)
            secrets = self._role_secrets(environment)
            components = self.components[name] = Components(
                options, store, environment.disk, environment.rng, now_ms, secrets=secrets
            )
            return BuiltMachine(Broker(options, store, components), store.close, store.written)

        node = self._node(name, build, disk=self._new_disk(), port=BROKER_PORT, host=host)
        node.on_power_lost = self._on_power_lost
        node.on_ended = self._on_ended
        site.brokers.append(node)
        return node

    def _broker_options(self, name: str, address: str, unit: str) -> BrokerOptions:
        plan = self.plan
        return BrokerOptions(
            name=name,
            cluster=unit or "DefaultCluster",
            namesrv=tuple(self.namesrv_text.split(";")),
            listen=address,
            flush=plan.flush,
            log_file_size=plan.log_file_size,
            queue_file_entries=plan.queue_file_entries,
            index_slots=100,
            index_entries=400,
            message_size_max=12_000,
            delay_levels=_DELAYS,
            transaction_timeout_ms=2_000,
            transaction_check_interval_ms=3_000,
            transaction_check_max=1_000,
            register_interval_ms=3_000,
            client_timeout_ms=15_000,
            offset_save_interval_ms=2_000,
            auto_force=plan.leases_enabled,
            lease_ms=_LEASE_MS,
            auth=plan.auth,
        )

    def _role_secrets(self, environment: HostEnvironment) -> RoleSecrets | None:
        return role_secrets(environment.rng) if self.plan.auth else None

    def _new_disk(self) -> SimDisk:
        disk = SimDisk()
        if self.plan.auth:
            save_users(disk)
        return disk

    def _on_power_lost(self, node: Node) -> None:
        """Forgive the records that a power loss may take: none that was acknowledged after a sync."""
        self.offset_checker.power_lost.add(node.name)
        if self.plan.flush == "async":
            # It may have led any logical queue, so the offsets of all of them may be meaningless now.
            self.progress_checker.tainted |= {node.name, *self.offset_checker.logical}
            self.ledger.allow_loss(f"{node.host}:{BROKER_PORT}", node.synced, self.world.now_ms)

    def _on_ended(self, node: Node, stopped_ms: int | None) -> None:
        """Forgive the offsets that a process had not saved when it ended, or could not save because its disk failed."""
        saved_ms = self.world.now_ms - UNSAVED_MS if stopped_ms is None else stopped_ms
        if (node.disk is not None and node.disk.before is not None) or self.progress_checker.tainted:
            saved_ms = NOTHING_SAVED
        for site in self.sites:
            site.commit_checker.allow_loss(node.name, saved_ms)
            site.reset_checker.allow_loss(saved_ms)
            if self.progress_checker.tainted:
                site.commit_checker.clear()

    # Clients.

    def _producer(self, name: str, number: int) -> Node:
        unit = self._assign_site(number, name).unit

        def build(environment: HostEnvironment, _now_ms: int) -> BuiltMachine:
            return BuiltMachine(
                Producer(
                    name,
                    self.namesrv_text,
                    environment.rng,
                    workload=self.workload,
                    ledger=self.ledger,
                    key_queues=self.key_queues,
                    unit_checker=self.unit_checker,
                    is_old=number < self.plan.old_producers,
                    unit=unit,
                )
            )

        return self._node(name, build)

    def _consumer(self, group: str, number: int) -> Node:
        name = f"{group}-{number}"
        unit = self._assign_site(number, name).unit

        def build(environment: HostEnvironment, _now_ms: int) -> BuiltMachine:
            return BuiltMachine(
                Consumer(
                    name,
                    self.namesrv_text,
                    environment.rng,
                    group=group,
                    topic=GROUP_TOPICS[group],
                    is_ordered=group == ORDERED_GROUP,
                    witness=self.witness,
                    is_old=number < self.plan.old_consumers,
                    unit=unit,
                )
            )

        return self._node(name, build)

    def _reset_consumer(self) -> Node:
        name = f"{RESET_GROUP}-0"

        def build(environment: HostEnvironment, _now_ms: int) -> BuiltMachine:
            return BuiltMachine(
                ResetConsumer(
                    name,
                    self.namesrv_text,
                    environment.rng,
                    topics=self.plan.static,
                    reset_checker=self.sites[0].reset_checker,
                )
            )

        return self._node(name, build)

    def _operator(self, number: int) -> Node:
        name = f"operator-{number}"
        site = self._assign_site(number, name)

        def build(environment: HostEnvironment, _now_ms: int) -> BuiltMachine:
            return BuiltMachine(
                Operator(
                    name,
                    self.namesrv_text,
                    environment.rng,
                    addresses=site.addresses,
                    tasks=OperatorTasks(
                        self.plan.static,
                        self.plan.operator_pause_ms,
                        may_grow=self.plan.growth_enabled and number == 0,
                        reset_checker=site.reset_checker if self.plan.resets_enabled and number == 0 else None,
                    ),
                    is_over=lambda: self.are_moves_over,
                    on_move_ordered=self._on_move_ordered,
                )
            )

        return self._node(name, build)

    def _switcher(self) -> Node:
        name = "switcher"

        def build(environment: HostEnvironment, _now_ms: int) -> BuiltMachine:
            return BuiltMachine(
                Switcher(
                    name,
                    self.namesrv_text,
                    environment.rng,
                    addresses=self.addresses,
                    switch_state=self.switch_state,
                    is_over=lambda: self.are_moves_over,
                )
            )

        return self._node(name, build)

    def _on_move_ordered(self, source: str, target: str) -> None:
        self.on_move_ordered(source, target)

    def make_forced_mover(self, number: int, victim: str, target: str, then: Callable[[], None]) -> ForcedMover:
        """Return the client that moves the queues of a dead broker by force."""
        name = f"forcer-{number}"
        return ForcedMover(
            name,
            self.namesrv_text,
            self.world.rng(name),
            addresses=self.site_of(victim).addresses,
            topics=self.plan.static,
            unit=self.site_of(victim).unit,
            victim=victim,
            target=target,
            then=then,
        )
