"""All processes of one simulated cluster: name servers, brokers and clients on their hosts, with the checkers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from holdfast.broker.assembly import Rooms
from holdfast.broker.core import Broker
from holdfast.broker.options import BrokerOptions
from holdfast.model.dr_switch import Switch
from holdfast.model.queue import MessageQueue
from holdfast.nameserver.cluster.queue_leases import FILE as LEASES_FILE
from holdfast.nameserver.config.kv_config import FILE
from holdfast.nameserver.core import NameServer
from holdfast.nameserver.options import NameServerOptions
from holdfast.nameserver.routes.static_topic_store import FILE as STATIC_FILE
from holdfast.nameserver.routes.static_topics import name_of
from holdfast.sim.actors.client import SimClient
from holdfast.sim.actors.consumer import Consumer
from holdfast.sim.actors.forcer import Forcer
from holdfast.sim.actors.operator import Duties, Operator
from holdfast.sim.actors.producer import Producer
from holdfast.sim.actors.reset_consumer import WANDERERS, Wanderer
from holdfast.sim.actors.switcher import Switcher, Switching
from holdfast.sim.actors.witness import Witness
from holdfast.sim.checkers.commits import NOTHING_SAVED, UNSAVED_MS
from holdfast.sim.checkers.ledger import Ledger
from holdfast.sim.checkers.offset_identity import Places
from holdfast.sim.checkers.progress import Progress
from holdfast.sim.checkers.reports import Reports
from holdfast.sim.checkers.unit_isolation import Borders
from holdfast.sim.site import BROKER_PORT, GROUP_TOPICS, ORDERLIES, WORKERS, Site
from holdfast.sim.world.disk import SimDisk
from holdfast.sim.world.network import Network
from holdfast.sim.world.node import Boot, Booted, Node
from holdfast.sim.world.plan import Plan
from holdfast.sim.world.shell import Surroundings
from holdfast.sim.world.workload import Orders
from holdfast.sim.world.world import World
from holdfast.store.base.options import StoreOptions
from holdfast.store.message_store import MessageStore
from holdfast.wire.frames.host import pack_host

BROKER_TIMEOUT_MS: Final = 9_000

_DELAYS: Final = "1s 2s 1s 2s 2s 3s 3s"
_DELAYS_MS: Final = tuple(int(text[:-1]) * 1000 for text in _DELAYS.split())
_REPORTS_MS: Final = 100
_LEASE_MS: Final = 3_000
_NAMESRV_PORT: Final = 9876


class Cluster:
    """Every process in one world.

    Attributes:
        pins: The queue of each key, as the application chose it.
        rooms: By broker, the components of the process started last. The checkers inspect them.
        sites: The units, or one site with all brokers if there are no units.
        are_moves_over: Whether the operators have stopped ordering moves.
        on_order: Called with (source, target) for every ordered move.
    """

    def __init__(self, world: World, plan: Plan) -> None:
        self.world = world
        self.plan = plan
        self.network = Network(world)
        self.places = Places()
        self.ledger = Ledger(self.places)
        self.progress = Progress()
        self.pins: dict[str, MessageQueue] = {}
        self.rooms: dict[str, Rooms] = {}
        self.are_moves_over = False
        self.on_order: Callable[[str, str], None] = lambda _source, _target: None
        names = [f"maker-{number}" for number in range(plan.producers)]
        self.orders = Orders(
            world.chance("orders"),
            producers=names,
            messages=plan.messages,
            storm_ms=plan.storm_ms,
            taste=plan.taste,
        )
        self.witness = Witness(self.orders, self.ledger, self.places, self.progress)
        if "clock" not in plan.faults:
            self.witness.delays_ms = _DELAYS_MS
        self._hosts = 0
        self._units: dict[str, str] = {}
        self.name_servers = [self._name_server(f"namesrv-{number}") for number in range(plan.name_servers)]
        self.namesrv_text = ";".join(f"{node.host}:{_NAMESRV_PORT}" for node in self.name_servers)
        self.sites = [Site(world, plan, unit, self.rooms, self.witness) for unit in plan.units or ("",)]
        self.borders = Borders()
        self.switching = Switching(plan.units, plan.switch_pause_ms)
        self.brokers = [self._broker(f"broker-{chr(ord('a') + number)}", number) for number in range(plan.brokers)]
        self.reports = Reports(self._name_servers_up)
        if plan.static:
            self._watch_heads()
        self.progress.find_shift = lambda: self.switching.changed_ms
        self.producers = [self._producer(name, number) for number, name in enumerate(names)]
        self.consumers = [self._consumer(WORKERS, number) for number in range(plan.workers)]
        self.consumers += [self._consumer(ORDERLIES, number) for number in range(plan.orderlies)]
        self.operators = [self._operator(number) for number in range(plan.operators)]
        self.operators += [self._switcher()] if plan.units else []
        self.consumers += [self._wanderer()] if plan.resets else []

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
        node = self._node(client.name, lambda _around, _now_ms: Booted(client))
        node.start()
        return node

    def find_unconsumed(self) -> list[str]:
        """Return the messages that a group has yet to consume, as `group message`."""
        expected = self.ledger.expected()
        return [
            f"{group} {uid}"
            for group, topic in GROUP_TOPICS.items()
            for uid in self.progress.find_missing(
                group, [job for job in expected if job.topic == topic and not self.is_tainted(job.uid)]
            )
        ]

    def is_tainted(self, uid: str) -> bool:
        """Return whether a message is only on brokers whose offsets have lost their meaning."""
        return all(ack.place.broker in self.progress.tainted for ack in self.ledger.acks[uid])

    def site_of(self, broker: str) -> Site:
        """Return the site of *broker*."""
        return next(site for site in self.sites if any(node.name == broker for node in site.brokers))

    def hosts_of(self, site: Site) -> list[str]:
        """Return the hosts of a unit: its brokers and the clients that belong to it."""
        return [node.host for node in self.nodes if self._units.get(node.name) == site.unit]

    def _settle_in(self, number: int, name: str) -> Site:
        """Assign the process *name* to a site, by its number among processes of its kind."""
        site = self.sites[number % len(self.sites)]
        self._units[name] = site.unit
        return site

    # State for the checkers.

    def _name_servers_up(self) -> dict[str, NameServer]:
        machines = {node.name: node.shell.machine for node in self.name_servers if node.shell is not None}
        return {name: machine for name, machine in machines.items() if isinstance(machine, NameServer)}

    def find_switches(self) -> dict[str, Switch]:
        """Return each name server's record of the open units."""
        return {name: server.units.switch for name, server in self._name_servers_up().items()}

    def has_claimed(self, claimant: str, leader: str) -> bool:
        """Return whether a name server has confirmed to *claimant* the lease of a queue that *leader* still leads."""
        return any(
            holding.broker == claimant and site.heads.leaders(name_of(key)).get(number) == leader
            for server in self._name_servers_up().values()
            for (key, number), holding in server.queue_leases.held.items()
            for site in self.sites
        )

    def _watch_heads(self) -> None:
        self.places.logical = frozenset(site.logical for site in self.sites)
        self.places.find_holes = lambda queue, start, end: self._may_lack(queue, start, end, self.places.holed)
        self.places.find_gaps = lambda queue, start, end: self._may_lack(queue, start, end, set())
        for site in self.sites:
            site.watch()
        self.world.schedule(self._watch_reports, delay_ms=_REPORTS_MS)

    def _may_lack(self, queue: MessageQueue, start: int, end: int, holed: set[str]) -> bool:
        return any(
            site.heads.may_lack(queue, start, end, holed) for site in self.sites if site.logical == queue.broker_name
        )

    def _watch_reports(self) -> None:
        self.reports.check()
        self.world.schedule(self._watch_reports, delay_ms=_REPORTS_MS)

    def _node(
        self, name: str, boot: Boot, *, disk: SimDisk | None = None, port: int | None = None, host: str | None = None
    ) -> Node:
        host = host or self._next_host()
        around = Surroundings(name=name, host=host, chance=self.world.chance(name), disk=disk)
        addresses = () if port is None else (f"{host}:{port}",)
        return Node(self.world, self.network, around, boot, addresses=addresses)

    def _next_host(self) -> str:
        self._hosts += 1
        return f"10.0.0.{self._hosts}"

    # Roles.

    def _name_server(self, name: str) -> Node:
        options = NameServerOptions(data="kv", broker_timeout_ms=BROKER_TIMEOUT_MS, scan_interval_ms=2_000)

        def boot(around: Surroundings, _now_ms: int) -> Booted:
            assert around.disk is not None
            kept, static, leases = map(around.disk.read_file, (FILE, STATIC_FILE, LEASES_FILE))
            machine = NameServer(options, around.chance, kv_content=kept, static_content=static, lease_content=leases)
            return Booted(machine)

        disk = SimDisk()
        disk.replace(LEASES_FILE, b"{}")  # An existing file: no lease of an earlier process can be in force.
        return self._node(name, boot, disk=disk, port=_NAMESRV_PORT)

    def _broker(self, name: str, number: int) -> Node:
        host = self._next_host()
        site = self._settle_in(number, name)
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

        def boot(around: Surroundings, now_ms: int) -> Booted:
            assert around.disk is not None
            store = MessageStore.open(around.disk, store_options, now_ms)
            rooms = self.rooms[name] = Rooms(options, store, around.disk, around.chance, now_ms)
            return Booted(Broker(options, store, rooms), store.close, store.written)

        node = self._node(name, boot, disk=SimDisk(), port=BROKER_PORT, host=host)
        node.on_power_lost = self._power_lost
        node.on_ended = self._ended
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
            auto_force=plan.leases,
            lease_ms=_LEASE_MS,
        )

    def _power_lost(self, node: Node) -> None:
        """Forgive the records that a power loss may take: none that was acknowledged after a sync."""
        self.places.holed.add(node.name)
        if self.plan.flush == "async":
            # It may have led any logical queue, so the offsets of all of them may be meaningless now.
            self.progress.tainted |= {node.name, *self.places.logical}
            self.ledger.forgive(f"{node.host}:{BROKER_PORT}", node.synced, self.world.now_ms)

    def _ended(self, node: Node, stopped_ms: int | None) -> None:
        """Forgive the offsets that a process had not saved when it ended, or could not save because its disk failed."""
        saved_ms = self.world.now_ms - UNSAVED_MS if stopped_ms is None else stopped_ms
        if (node.disk is not None and node.disk.before is not None) or self.progress.tainted:
            saved_ms = NOTHING_SAVED
        for site in self.sites:
            site.commits.forgive(node.name, saved_ms)
            site.resets.forgive(saved_ms)
            if self.progress.tainted:
                site.commits.forget()

    # Clients.

    def _producer(self, name: str, number: int) -> Node:
        unit = self._settle_in(number, name).unit

        def boot(around: Surroundings, _now_ms: int) -> Booted:
            return Booted(
                Producer(
                    name,
                    self.namesrv_text,
                    around.chance,
                    orders=self.orders,
                    ledger=self.ledger,
                    pins=self.pins,
                    borders=self.borders,
                    is_old=number < self.plan.old_producers,
                    unit=unit,
                )
            )

        return self._node(name, boot)

    def _consumer(self, group: str, number: int) -> Node:
        name = f"{group}-{number}"
        unit = self._settle_in(number, name).unit

        def boot(around: Surroundings, _now_ms: int) -> Booted:
            return Booted(
                Consumer(
                    name,
                    self.namesrv_text,
                    around.chance,
                    group=group,
                    topic=GROUP_TOPICS[group],
                    is_ordered=group == ORDERLIES,
                    witness=self.witness,
                    is_old=number < self.plan.old_consumers,
                    unit=unit,
                )
            )

        return self._node(name, boot)

    def _wanderer(self) -> Node:
        name = f"{WANDERERS}-0"

        def boot(around: Surroundings, _now_ms: int) -> Booted:
            return Booted(
                Wanderer(name, self.namesrv_text, around.chance, topics=self.plan.static, resets=self.sites[0].resets)
            )

        return self._node(name, boot)

    def _operator(self, number: int) -> Node:
        name = f"operator-{number}"
        site = self._settle_in(number, name)

        def boot(around: Surroundings, _now_ms: int) -> Booted:
            return Booted(
                Operator(
                    name,
                    self.namesrv_text,
                    around.chance,
                    addresses=site.addresses,
                    duties=Duties(
                        self.plan.static,
                        self.plan.order_pause_ms,
                        may_grow=self.plan.grows and number == 0,
                        resets=site.resets if self.plan.resets and number == 0 else None,
                    ),
                    is_over=lambda: self.are_moves_over,
                    on_order=self._ordered,
                )
            )

        return self._node(name, boot)

    def _switcher(self) -> Node:
        name = "switcher"

        def boot(around: Surroundings, _now_ms: int) -> Booted:
            return Booted(
                Switcher(
                    name,
                    self.namesrv_text,
                    around.chance,
                    addresses=self.addresses,
                    switching=self.switching,
                    is_over=lambda: self.are_moves_over,
                )
            )

        return self._node(name, boot)

    def _ordered(self, source: str, target: str) -> None:
        self.on_order(source, target)

    def make_forcer(self, number: int, victim: str, target: str, then: Callable[[], None]) -> Forcer:
        """Return the client that moves the queues of a dead broker by force."""
        name = f"forcer-{number}"
        return Forcer(
            name,
            self.namesrv_text,
            self.world.chance(name),
            addresses=self.site_of(victim).addresses,
            topics=self.plan.static,
            unit=self.site_of(victim).unit,
            victim=victim,
            target=target,
            then=then,
        )
