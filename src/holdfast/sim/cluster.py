"""A whole cluster, ready to be lived through: name servers, brokers, clients on hosts, and the checkers' books."""

from __future__ import annotations

from typing import Final

from holdfast.broker.core import Broker
from holdfast.broker.options import BrokerOptions
from holdfast.broker.rooms import Rooms
from holdfast.model.queue import MessageQueue
from holdfast.nameserver.core import NameServer
from holdfast.nameserver.kv import FILE
from holdfast.nameserver.options import NameServerOptions
from holdfast.sim.checkers.ledger import Ledger
from holdfast.sim.checkers.places import Places
from holdfast.sim.checkers.progress import Progress
from holdfast.sim.client import SimClient
from holdfast.sim.consumer import Consumer
from holdfast.sim.disk import SimDisk
from holdfast.sim.network import Network
from holdfast.sim.node import Boot, Booted, Node
from holdfast.sim.orders import ORDERED_TOPIC, PLAIN_TOPIC, Orders
from holdfast.sim.plan import Plan
from holdfast.sim.producer import Producer
from holdfast.sim.shell import Surroundings
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
_NAMESRV_PORT: Final = 9876
BROKER_PORT: Final = 10911


class Cluster:
    """Everything that lives in one world.

    Attributes:
        pins: The queue of each key, as the application chose it.
    """

    def __init__(self, world: World, plan: Plan) -> None:
        self.world = world
        self.plan = plan
        self.network = Network(world)
        self.places = Places()
        self.ledger = Ledger(self.places)
        self.progress = Progress()
        self.pins: dict[str, MessageQueue] = {}
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
        self.producers = [self._producer(name) for name in names]
        self.consumers = [self._consumer(WORKERS, number) for number in range(plan.workers)]
        self.consumers += [self._consumer(ORDERLIES, number) for number in range(plan.orderlies)]

    @property
    def servers(self) -> list[Node]:
        """The roles that are being tested."""
        return [*self.name_servers, *self.brokers]

    @property
    def clients(self) -> list[Node]:
        """Those who use them."""
        return [*self.producers, *self.consumers]

    @property
    def nodes(self) -> list[Node]:
        """Everybody."""
        return [*self.servers, *self.clients]

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
            return Booted(NameServer(options, around.chance, kv_content=around.disk.read_file(FILE)))

        return self._node(name, boot, disk=SimDisk(), port=_NAMESRV_PORT)

    def _broker(self, name: str) -> Node:
        host = self._next_host()
        options = self._broker_options(name, f"{host}:{BROKER_PORT}")
        store_options = StoreOptions(
            store_host=pack_host(options.address),
            log_file_size=options.log_file_size,
            queue_file_size=options.queue_file_entries * 20,
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
            rooms = Rooms(options, store, around.disk, around.chance, now_ms)
            return Booted(Broker(options, store, rooms), store.close)

        node = self._node(name, boot, disk=SimDisk(), port=BROKER_PORT, host=host)
        node.on_power_lost = self._power_lost
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
        )

    def _power_lost(self, node: Node) -> None:
        """Forgive what may be lost: nothing that was promised, where the broker syncs before it speaks."""
        self.places.holed.add(node.name)
        if self.plan.flush == "async":
            self.progress.tainted.add(node.name)
            self.ledger.forgive(node.name, node.synced)

    # Clients.

    def _producer(self, name: str) -> Node:
        def boot(around: Surroundings, _now_ms: int) -> Booted:
            return Booted(
                Producer(name, self.namesrv_text, around.chance, orders=self.orders, ledger=self.ledger, pins=self.pins)
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
                )
            )

        return self._node(name, boot)
