"""A master and its replica under every fault: processes that die, power that fails, links that are cut.

    producer ── one message at a time ──> master ── its log ──> replica
                                            both die and return, at any moment, on what their disks kept

Both sync before they acknowledge, and the master waits for the replica. Promised: whatever was acknowledged is in the
replica's log, whenever all power fails; and once all is well again, the replica is the master's log, byte by byte.
"""

from __future__ import annotations

import random
from typing import Final

import pytest

from holdfast.broker.assembly import Components
from holdfast.broker.core import Broker
from holdfast.broker.options import BrokerOptions
from holdfast.broker.replication.ha_master import PURPOSE
from holdfast.broker.replication.ha_replica import STUCK
from holdfast.broker.service import store_options
from holdfast.model.topic import TopicConfig
from holdfast.sim.world.disk import SimDisk
from holdfast.sim.world.network import Network, Socket
from holdfast.sim.world.node import BuiltMachine, Node
from holdfast.sim.world.shell import DiskLatency, HostEnvironment
from holdfast.sim.world.world import EPOCH_MS, World
from holdfast.store.message_store import MessageStore
from holdfast.wire.frames.command import Command, decode_command, encode_command
from holdfast.wire.frames.frame import split_frames

MASTER, REPLICA, PRODUCER = "10.0.0.1", "10.0.0.2", "10.0.0.3"
LOG_FILE_SIZE: Final = 65_536
FAULTS_MS: Final = 60_000
HEALED_MS: Final = 120_000
SEEDS: Final = (0, 5)


def options_of(host: str) -> BrokerOptions:
    """Return the settings of one of the two."""
    is_master = host == MASTER
    return BrokerOptions(
        namesrv=(),
        listen=f"{host}:10911",
        flush="sync",
        log_file_size=LOG_FILE_SIZE,
        replication="sync" if is_master else "async",
        replica_of=None if is_master else "broker-a",
        ha_master=None if is_master else f"{MASTER}:10912",
    )


def open_store(host: str, disk: SimDisk, now_ms: int) -> MessageStore:
    return MessageStore.open(disk, store_options(options_of(host)), now_ms)


class Producer:
    """Sends one message after the other, and knows which were acknowledged."""

    def __init__(self, world: World, network: Network) -> None:
        self.host = PRODUCER
        self.acknowledged: list[bytes] = []
        self._world = world
        self._network = network
        self._rng = world.rng("producer")
        self._socket: Socket | None = None
        self._buffer = b""
        self._number = 0
        self._body = b""
        self._is_waiting = False
        self._dial()

    def _dial(self) -> None:
        self._network.connect(self, f"{MASTER}:10911")

    def accepted(self, socket: Socket) -> None:
        raise AssertionError("nobody calls a producer")

    def connected(self, socket: Socket, dialed: str, purpose: str) -> None:
        self._socket, self._buffer = socket, b""
        self._send()

    def refused(self, dialed: str, reason: str, purpose: str) -> None:
        self._world.schedule(self._dial, delay_ms=200)

    def closed(self, socket: Socket, reason: str) -> None:
        if socket is self._socket:
            self._socket = None
            self._world.schedule(self._dial, delay_ms=200)

    def received(self, socket: Socket, data: bytes) -> None:
        if socket is not self._socket:
            return
        self._buffer += data
        frames, taken = split_frames(memoryview(self._buffer))
        for frame in frames:
            self._is_waiting = False
            if decode_command(frame).code == 0:
                self.acknowledged.append(self._body)
            self._world.schedule(self._send, delay_ms=self._rng.randrange(50))
        self._buffer = self._buffer[taken:]

    def _send(self) -> None:
        if self._socket is None:
            return
        self._number += 1
        number, self._is_waiting = self._number, True

        def give_up() -> None:
            """Take a connection for lost on which nothing comes: a host without power says nothing."""
            if self._is_waiting and self._number == number and self._socket is not None:
                self._network.close(self._socket)

        self._world.schedule(give_up, delay_ms=5_000)
        self._body = b"%d " % self._number + self._rng.randbytes(self._rng.randrange(3_000))
        fields = {"a": "p", "b": "T", "c": "TBW102", "d": "4", "e": str(self._number % 3), "f": "0"}
        fields |= {
            "g": str(self._world.now_ms),
            "h": "0",
            "i": f"UNIQ_KEY\x01{self._number}\x02",
            "j": "0",
            "m": "false",
        }
        self._network.send(
            self._socket, encode_command(Command(code=310, opaque=self._number, fields=fields, body=self._body))
        )


class Story:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.network = Network(self.world)
        self.disks = {host: SimDisk() for host in (MASTER, REPLICA)}
        self.rooms: dict[str, Components] = {}
        self.nodes = {host: self._node(host) for host in (MASTER, REPLICA)}
        for node in self.nodes.values():
            node.start()
        self.rooms[MASTER].topics.put(TopicConfig(name="T", read_queues=3, write_queues=3))
        self.producer = Producer(self.world, self.network)
        self._rng = self.world.rng("faults")
        self.faults = 0

    def _node(self, host: str) -> Node:
        options = options_of(host)

        def boot(around: HostEnvironment, now_ms: int) -> BuiltMachine:
            store = open_store(host, self.disks[host], now_ms)
            rooms = self.rooms[host] = Components(options, store, self.disks[host], random.Random(1), now_ms)
            return BuiltMachine(Broker(options, store, rooms), store.close, int(store.written))

        # Slow enough that power fails while something is on its way to the disk.
        around = HostEnvironment(host, host, self.world.rng(host), self.disks[host], DiskLatency(sync_ms=(1, 100)))
        streams = {f"{host}:10912": PURPOSE} if host == MASTER else None
        return Node(self.world, self.network, around, boot, addresses=(f"{host}:10911",), streams=streams)

    def torment(self) -> None:
        """Let something bad happen, and again in a while."""
        if self.world.elapsed_ms > FAULTS_MS:
            return
        rng, host = self._rng, self._rng.choice((MASTER, REPLICA))
        node = self.nodes[host]
        match rng.randrange(7):
            case 0:
                node.kill()
            case 1:
                node.power_off()
            case 2 if node.is_up:
                node.stop(lambda: None)
            case 3:
                self.network.cut_link(MASTER, REPLICA)
            case 4:
                self.network.cut_link(REPLICA, MASTER)
            case _:
                if connections := self.network.connections():
                    both = rng.random() < 0.5
                    self.network.break_connection(rng.choice(connections), is_seen_by_both=both)
        self.faults += 1
        self.world.schedule(self.mend, delay_ms=rng.randrange(3_000))
        self.world.schedule(self.torment, delay_ms=rng.randrange(4_000))

    def mend(self) -> None:
        """Let everything be well for a moment."""
        self.network.mend()
        for node in self.nodes.values():
            node.start()

    def is_copied(self) -> bool:
        """Say whether the replica has the whole log."""
        master, replica = self.rooms[MASTER].store, self.rooms[REPLICA].store
        return (
            self.rooms[REPLICA].ha_replica.state == "following"
            and replica.confirmed == master.confirmed == master.written
        )


def log_of(store: MessageStore) -> list[bytes]:
    """Return everything in a log, file by file."""
    return [
        file.read(0, min(store.log_file_size, int(store.written) - number * store.log_file_size))
        for number, file in store.log.files.files.items()
        if number * store.log_file_size < store.written
    ]


def bodies_of(store: MessageStore) -> set[bytes]:
    """Return the bodies of all messages that can be read."""
    found = set()
    for queue in store.list_queues():
        for position, _, _ in queue.entries(queue.offset_min, queue.offset_max):
            record = store.read_record(position)
            assert record is not None
            found.add(bytes(record.body))
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_the_replica_is_the_masters_log_once_all_is_well(seed: int) -> None:
    """Whatever died, and whenever; and it never says that it is not, as it always is."""
    story = Story(seed)

    def is_never_stuck() -> None:
        following = story.rooms[REPLICA].ha_replica
        assert following.state not in STUCK, following.problem

    story.world.checks.append(is_never_stuck)
    story.world.schedule(story.torment, delay_ms=2_000)
    story.world.run(until_ms=EPOCH_MS + FAULTS_MS)
    story.mend()
    acknowledged = len(story.producer.acknowledged)

    assert story.world.run(
        until_ms=EPOCH_MS + HEALED_MS,
        until=lambda: story.is_copied() and len(story.producer.acknowledged) > acknowledged,
    )

    master, replica = story.rooms[MASTER].store, story.rooms[REPLICA].store
    assert story.faults > 10
    assert acknowledged > 50
    assert log_of(replica) == log_of(master)
    assert bodies_of(replica) == bodies_of(master) >= set(story.producer.acknowledged)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_acknowledged_outlives_the_masters_disk(seed: int) -> None:
    """At any moment all power fails, and only the replica's disk is left."""
    story = Story(seed + 100)
    story.world.schedule(story.torment, delay_ms=2_000)
    end_ms = story.world.rng("end").randrange(20_000, FAULTS_MS)
    story.world.run(until_ms=EPOCH_MS + end_ms)

    for node in story.nodes.values():
        node.power_off()
    left = open_store(REPLICA, story.disks[REPLICA], story.world.now_ms)

    assert len(story.producer.acknowledged) > 10
    assert set(story.producer.acknowledged) - bodies_of(left) == set()
