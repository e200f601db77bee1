"""A whole cluster, ready to be lived through: name servers, brokers, clients on hosts, and the checkers' books."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from holdfast.broker.core import Broker
from holdfast.broker.options import BrokerOptions
from holdfast.broker.rooms import Rooms
from holdfast.model.queue import MessageQueue
from holdfast.nameserver.core import NameServer
from holdfast.nameserver.fences import FILE as STATIC_FILE
from holdfast.nameserver.kv import FILE
from holdfast.nameserver.options import NameServerOptions
from holdfast.nameserver.queue_leases import FILE as LEASES_FILE
from holdfast.sim.checkers.commits import NOTHING_SAVED, UNSAVED_MS, Commits
from holdfast.sim.checkers.heads import LOGICAL, Heads
from holdfast.sim.checkers.ledger import Ledger
from holdfast.sim.checkers.places import Places
from holdfast.sim.checkers.progress import Progress
from holdfast.sim.checkers.reports import Reports
from holdfast.sim.checkers.resets import Resets
from holdfast.sim.client import SimClient
from holdfast.sim.consumer import Consumer
from holdfast.sim.disk import SimDisk
from holdfast.sim.forcer import Forcer
from holdfast.sim.network import Network
from holdfast.sim.node import Boot, Booted, Node
from holdfast.sim.operator import Duties, Operator
from holdfast.sim.orders import ORDERED_TOPIC, PLAIN_TOPIC, Orders
from holdfast.sim.plan import Plan
from holdfast.sim.producer import Producer
from holdfast.sim.shell import Shell, Surroundings
from holdfast.sim.wanderer import WANDERERS, Wanderer
from holdfast.sim.witness import Witness
from holdfast.sim.world import World
from holdfast.store.message_store import MessageStore
from holdfast.store.options import StoreOptions
from holdfast.wire.host import pack_host

WORKERS: Final = "workers"
ORDERLIES: Final = "orderlies"
GROUP_TOPICS: Final = {WORKERS: PLAIN_TOPIC, ORDERLIES: ORDERED_TOPIC}
BROKER_TIMEOUT_MS: Final = 9_000

_DELAYS: Final = "1s 2s 1s 2s 2s 3s 3s"
_DELAYS_MS: Final = tuple(int(text[:-1]) * 1000 for text in _DELAYS.split())
_COMMITS_MS: Final = 500
_REPORTS_MS: Final = 100
_LEASE_MS: Final = 3_000
_NAMESRV_PORT: Final = 9876
BROKER_PORT: Final = 10911


class Cluster:
    """Everything that lives in one world.

    Attributes:
        pins: The queue of each key, as the application chose it.
        rooms: What each broker consists of that was started last; the checkers look into them.
        are_moves_over: No operator orders anything any more.
        on_order: Is told of every order for a move: source, target.
    """

    def __init__(self, world: World, plan: Plan) -> None:
        self.world = world
        self.plan = plan
        self.network = Network(world)
        self.places = Places()
        self.ledger = Ledger(self.places)
        self.progress = Progress()
        self.pins: dict[str, MessageQueue] = {}
        self.commits = Commits()
        self.resets = Resets(self._find_reset)
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
        self.name_servers = [self._name_server(f"namesrv-{number}") for number in range(plan.name_servers)]
        self.namesrv_text = ";".join(f"{node.host}:{_NAMESRV_PORT}" for node in self.name_servers)
        self.brokers = [self._broker(f"broker-{chr(ord('a') + number)}") for number in range(plan.brokers)]
        self.heads = Heads(self._rooms_up, self._count_turns)
        self._lives: list[tuple[Shell | None, int]] = []  # of the brokers, when they were last looked at
        self.reports = Reports(self._name_servers_up)
        if plan.static:
            self._watch_heads()
        self.producers = [self._producer(name, number) for number, name in enumerate(names)]
        self.consumers = [self._consumer(WORKERS, number) for number in range(plan.workers)]
        self.consumers += [self._consumer(ORDERLIES, number) for number in range(plan.orderlies)]
        self.operators = [self._operator(number) for number in range(plan.operators)]
        self.consumers += [self._wanderer()] if plan.resets else []

    @property
    def servers(self) -> list[Node]:
        """The roles that are being tested."""
        return [*self.name_servers, *self.brokers]

    @property
    def clients(self) -> list[Node]:
        """Those who use them."""
        return [*self.producers, *self.consumers, *self.operators]

    @property
    def nodes(self) -> list[Node]:
        """Everybody."""
        return [*self.servers, *self.clients]

    @property
    def addresses(self) -> dict[str, str]:
        """Where each broker listens."""
        return {node.name: f"{node.host}:{BROKER_PORT}" for node in self.brokers}

    def add_client(self, client: SimClient) -> Node:
        """Put one more client on a host of its own, and start it."""
        node = self._node(client.name, lambda _around, _now_ms: Booted(client))
        node.start()
        return node

    def find_unconsumed(self) -> list[str]:
        """Return what some group has still to consume, as `group message`."""
        expected = self.ledger.expected()
        return [
            f"{group} {uid}"
            for group, topic in GROUP_TOPICS.items()
            for uid in self.progress.find_missing(
                group, [job for job in expected if job.topic == topic and not self.is_tainted(job.uid)]
            )
        ]

    def is_tainted(self, uid: str) -> bool:
        """Say whether a message is only on brokers where offsets have lost their meaning."""
        return all(ack.place.broker in self.progress.tainted for ack in self.ledger.acks[uid])

    # What the checkers look at.

    def _rooms_up(self) -> dict[str, Rooms]:
        return {node.name: self.rooms[node.name] for node in self.brokers if node.is_up}

    def _count_turns(self, broker: str) -> int:
        return next(node.shell.turns for node in self.brokers if node.name == broker and node.shell is not None)

    def _check_heads(self) -> None:
        """Look at the brokers if one of them took an event, began or ended: most steps are those of others."""
        lives = [(node.shell, 0 if node.shell is None else node.shell.turns) for node in self.brokers]
        if lives != self._lives:
            self._lives = lives
            self.heads.check()

    def _name_servers_up(self) -> dict[str, NameServer]:
        machines = {node.name: node.shell.machine for node in self.name_servers if node.shell is not None}
        return {name: machine for name, machine in machines.items() if isinstance(machine, NameServer)}

    def has_claimed(self, claimant: str, leader: str) -> bool:
        """Say whether a name server has confirmed to *claimant* a queue that *leader* still leads."""
        return any(
            holding.broker == claimant and self.heads.leaders(topic).get(number) == leader
            for server in self._name_servers_up().values()
            for (topic, number), holding in server.queue_leases.held.items()
        )

    def _watch_heads(self) -> None:
        self.places.logical = frozenset({LOGICAL})
        self.places.find_holes = lambda queue, start, end: self.heads.may_lack(queue, start, end, self.places.holed)
        self.places.find_gaps = lambda queue, start, end: self.heads.may_lack(queue, start, end, set())
        self.heads.on_leader = self._see_commits
        self.world.checks.append(self._check_heads)
        self.world.schedule(self._watch_commits, delay_ms=_COMMITS_MS)
        self.world.schedule(self._watch_reports, delay_ms=_REPORTS_MS)

    def _watch_reports(self) -> None:
        self.reports.check()
        self.world.schedule(self._watch_reports, delay_ms=_REPORTS_MS)

    def _see_commits(self, topic: str, number: int, broker: str) -> None:
        """See that whoever leads a queue knows what the one before it knew, and nothing that nobody did.

        It is looked at when it opens the queue, too, before anybody commits there.
        """
        was_forced = self.heads.was_forced(topic, number)
        for group, wanted in GROUP_TOPICS.items():
            if wanted == topic:
                row = (group, topic, number)
                if self.plan.leases and was_forced:
                    # Whoever replaces a dead leader by itself may reach nobody who has a copy.
                    self.commits.pass_over(row, broker)
                found = self.rooms[broker].offsets.find(group, topic, number)
                self.commits.see(row, found, self.world.now_ms, broker)
                if found is not None:
                    self.witness.committed(group, MessageQueue(topic, LOGICAL, number), found)

        if was_forced:
            self.resets.pass_over((topic, number), broker)

    def _find_reset(self, row: tuple[str, int]) -> int | None:
        """Return what the leader of a queue has as committed by the group that is sent elsewhere and not told yet."""
        topic, number = row
        leader = self.heads.leaders(topic).get(number)
        rooms = None if leader is None else self._rooms_up().get(leader)
        if rooms is None or WANDERERS not in rooms.offsets.resets_of(topic, {number}):
            return None
        return rooms.offsets.find(WANDERERS, topic, number)

    def expect_copied(self, victim: str, target: str) -> None:
        """Let *target*, should it lead the queues of *victim* next, know what it has a copy of."""
        if self.rooms[victim].offset_copies.peer != target or self.progress.tainted:
            return  # Somebody else was told later; or the dead one's log, and all that was told of it, lost its end.
        self._see_copies()
        for group, topic in GROUP_TOPICS.items():
            for number, leader in self.heads.leaders(topic).items():
                queue = self.heads.find_queue(topic, number)
                if leader == victim and queue is not None:
                    self.commits.expect((group, topic, number), queue.leader.generation, victim, target)

    def _see_copies(self) -> None:
        """See what brokers keep for each other."""
        for keeper, rooms in self._rooms_up().items():
            for group, topic in GROUP_TOPICS.items():
                for number in self.heads.leaders(topic):
                    copy = rooms.offset_copies.find(topic, number)
                    if copy is not None and group in copy.offsets:
                        row, offset = (group, topic, number), copy.offsets[group]
                        self.commits.see_copy(row, copy.generation, offset, self.world.now_ms, keeper)

    def _watch_commits(self) -> None:
        """See what is committed, at the brokers that would be asked for it."""
        for topic in self.plan.static:
            for number, name in self.heads.heads(topic).items():
                self._see_commits(topic, number, name)
        self._see_copies()
        self.resets.check()
        self.world.schedule(self._watch_commits, delay_ms=_COMMITS_MS)

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
        disk.replace(LEASES_FILE, b"{}")  # It has been here for long: nothing of before is in force.
        return self._node(name, boot, disk=disk, port=_NAMESRV_PORT)

    def _broker(self, name: str) -> Node:
        host = self._next_host()
        options = self._broker_options(name, f"{host}:{BROKER_PORT}")
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
        return node

    def _broker_options(self, name: str, address: str) -> BrokerOptions:
        plan = self.plan
        return BrokerOptions(
            name=name,
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
        """Forgive what may be lost: nothing that was promised, where the broker syncs before it speaks."""
        self.places.holed.add(node.name)
        if self.plan.flush == "async":
            # Which logical queues it led is not looked at: offsets of all of them may mean nothing now.
            self.progress.tainted |= {node.name, *self.places.logical}
            self.ledger.forgive(f"{node.host}:{BROKER_PORT}", node.synced, self.world.now_ms)

    def _ended(self, node: Node, stopped_ms: int | None) -> None:
        """Forgive what a process may forget that has not saved what it heard last, or whose disk has failed."""
        saved_ms = self.world.now_ms - UNSAVED_MS if stopped_ms is None else stopped_ms
        if (node.disk is not None and node.disk.before is not None) or self.progress.tainted:
            saved_ms = NOTHING_SAVED
        self.commits.forgive(node.name, saved_ms)
        self.resets.forgive(saved_ms)
        if self.progress.tainted:
            self.commits.forget()

    # Clients.

    def _producer(self, name: str, number: int) -> Node:
        def boot(around: Surroundings, _now_ms: int) -> Booted:
            return Booted(
                Producer(
                    name,
                    self.namesrv_text,
                    around.chance,
                    orders=self.orders,
                    ledger=self.ledger,
                    pins=self.pins,
                    is_old=number < self.plan.old_producers,
                )
            )

        return self._node(name, boot)

    def _consumer(self, group: str, number: int) -> Node:
        name = f"{group}-{number}"

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
                )
            )

        return self._node(name, boot)

    def _wanderer(self) -> Node:
        name = f"{WANDERERS}-0"

        def boot(around: Surroundings, _now_ms: int) -> Booted:
            return Booted(Wanderer(name, self.namesrv_text, around.chance, topics=self.plan.static, resets=self.resets))

        return self._node(name, boot)

    def _operator(self, number: int) -> Node:
        name = f"operator-{number}"

        def boot(around: Surroundings, _now_ms: int) -> Booted:
            return Booted(
                Operator(
                    name,
                    self.namesrv_text,
                    around.chance,
                    addresses=self.addresses,
                    duties=Duties(
                        self.plan.static,
                        self.plan.order_pause_ms,
                        may_grow=self.plan.grows and number == 0,
                        resets=self.resets if self.plan.resets and number == 0 else None,
                    ),
                    is_over=lambda: self.are_moves_over,
                    on_order=self._ordered,
                )
            )

        return self._node(name, boot)

    def _ordered(self, source: str, target: str) -> None:
        self.on_order(source, target)

    def make_forcer(self, number: int, victim: str, target: str, then: Callable[[], None]) -> Forcer:
        """Return who moves the queues of a dead broker by force."""
        name = f"forcer-{number}"
        return Forcer(
            name,
            self.namesrv_text,
            self.world.chance(name),
            addresses=self.addresses,
            topics=self.plan.static,
            victim=victim,
            target=target,
            then=then,
        )
