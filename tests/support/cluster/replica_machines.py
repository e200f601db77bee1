"""A master and its replica as machines. The test carries the replication stream between them."""

from __future__ import annotations

import random

from tests.support.cluster.broker_machine import BrokerHarness, a_send
from tests.support.cluster.machine import START_MS

from holdfast.broker.flow.awaitables import CALLS
from holdfast.broker.flow.component import SAVE_TIMER
from holdfast.broker.replication.ha_master import PURPOSE
from holdfast.broker.replication.ha_replica import TIMER as FOLLOWING_TIMER
from holdfast.broker.replication.table_sync import TIMER as REPLICA_TIMER
from holdfast.machine.effects import CloseChannel, OpenChannel
from holdfast.machine.events import (
    ChannelClosed,
    ChannelFailed,
    ChannelId,
    ChannelOpened,
    FramesReceived,
    StreamReceived,
)
from holdfast.model.mapping import TopicMapping, new_logical_queue
from holdfast.model.topic import TopicConfig
from holdfast.sim.world.disk import SimDisk
from holdfast.wire.frames.command import encode_command
from holdfast.wire.frames.frame import split_frames

MASTER = "10.0.0.9:10912"
MASTER_ADDRESS = "10.0.0.9:10911"
CALL_CHANNEL = ChannelId(7)


class ReplicaPair:
    """Both ends. Bytes go over by `exchange`, syncs are done on the way unless they are held."""

    def __init__(
        self,
        master: BrokerHarness | None = None,
        *,
        flush: str = "async",
        replica_disk: SimDisk | None = None,
        **options: object,
    ) -> None:
        self.master = master or BrokerHarness(flush=flush, **options)  # type: ignore[arg-type]
        self.replica = BrokerHarness(
            flush=flush,
            disk=replica_disk,
            replica_of="broker-a",
            ha_master=MASTER,
            advertise="127.0.0.1:10921",
            **options,  # type: ignore[arg-type]
        )
        self._channel = 100
        self._rng = random.Random(3)
        self.is_sync_paused = False
        self.is_read_split = True  # Reads bring parts of what was written.

    def send(self, count: int = 1, **fields: object) -> None:
        """Let the master take messages."""
        for number in range(count):
            self.master.call(a_send(body=b"message %d" % number, **fields))  # type: ignore[arg-type]
            self.master.sync()

    def connect(self, *, is_reachable: bool = True) -> bool:
        """Let the replica dial, if it wants to; return whether it did."""
        before = len(self.replica.effects)
        self.replica.pass_time(0, FOLLOWING_TIMER)
        dialed = [effect for effect in self.replica.effects[before:] if isinstance(effect, OpenChannel)]
        if not dialed:
            return False
        assert (dialed[0].address, dialed[0].purpose, dialed[0].is_stream) == (MASTER, PURPOSE, True)
        if not is_reachable:
            self.replica.feed(ChannelFailed(MASTER, "refused", self.replica.now_ms, PURPOSE))
            return True
        self._channel += 1
        channel = ChannelId(self._channel)
        for harness in (self.master, self.replica):
            harness.streams[channel] = bytearray()
        self.master.feed(ChannelOpened(channel, "10.0.0.8:4711", self.master.now_ms, None, PURPOSE))
        self.replica.feed(ChannelOpened(channel, MASTER, self.replica.now_ms, MASTER, PURPOSE))
        return True

    def exchange(self) -> None:
        """Carry bytes in both directions, cut anywhere, until nobody says anything more."""
        channel, is_quiet = self._channel, False
        while not is_quiet:
            is_quiet = True
            for source, target in ((self.replica, self.master), (self.master, self.replica)):
                data, source.streams[channel] = bytes(source.streams[channel]), bytearray()
                while data:
                    is_quiet = False
                    size = self._rng.randrange(1, len(data) + 1) if self.is_read_split else len(data)
                    target.feed(StreamReceived(ChannelId(channel), memoryview(data[:size]), target.now_ms))
                    data = data[size:]
                if not self.is_sync_paused:
                    target.sync()

    def sync_tables(self, *, milliseconds: int = 3_000) -> None:
        """Let the replica ask for what is not in the log, and get it."""
        sync = self.replica.components.table_sync
        sync.set_master(MASTER_ADDRESS)
        before = len(self.replica.effects)
        self.replica.pass_time(milliseconds, REPLICA_TIMER)
        while True:
            dialed = [effect for effect in self.replica.effects[before:] if isinstance(effect, OpenChannel)]
            before = len(self.replica.effects)
            for effect in dialed:
                if effect.purpose == CALLS:
                    self.replica.answers[CALL_CHANNEL] = []
                    self.replica.feed(
                        ChannelOpened(CALL_CHANNEL, effect.address, self.replica.now_ms, effect.address, CALLS)
                    )
            requests, self.replica.answers[CALL_CHANNEL] = self.replica.answers.get(CALL_CHANNEL, []), []
            if not requests and not dialed:
                return
            if CALL_CHANNEL not in self.master.answers:
                self.master.connect(CALL_CHANNEL)
            for command in requests:
                self.master.call(command, channel=CALL_CHANNEL)
                self.master.sync()
                data = b"".join(map(encode_command, self.master.answers[CALL_CHANNEL]))
                frames, _ = split_frames(memoryview(data))
                self.replica.feed(FramesReceived(CALL_CHANNEL, frames, self.replica.now_ms))

    def connect_and_catch_up(self) -> None:
        """Let the replica dial and catch up."""
        assert self.connect()
        self.exchange()

    def pass_time(self, milliseconds: int, *timers: str) -> None:
        """Let time pass for both, and the timers that each of them has fire."""
        for harness in (self.master, self.replica):
            harness.pass_time(milliseconds, *timers)

    def disconnect(self) -> None:
        """Lose the connection."""
        for harness in (self.master, self.replica):
            harness.feed(ChannelClosed(ChannelId(self._channel), harness.now_ms))

    def is_closed_by(self, harness: BrokerHarness) -> bool:
        """Say whether that end wants the connection closed."""
        return CloseChannel(ChannelId(self._channel)) in harness.effects

    @property
    def state(self) -> str:
        """How the replica stands."""
        return self.replica.components.ha_replica.state


def log_bytes(harness: BrokerHarness) -> bytes:
    """Return everything in the log of a broker that has one file."""
    store = harness.store
    return bytes(store.log.files.files[0].view(0, int(store.written)))


def make_static(harness: BrokerHarness, topic: str = "S", queues: int = 2) -> None:
    """Give a broker a static topic, all of whose queues it leads."""
    config = TopicConfig(name=topic, read_queues=queues, write_queues=queues)
    harness.components.topics.put(config)
    queues_created = {number: new_logical_queue(number, "broker-a", number) for number in range(queues)}
    mapping = TopicMapping(
        topic=topic, broker="broker-a", scope="__global__", epoch=START_MS, total=queues, queues=queues_created
    )
    harness.components.mappings.change(mapping, config=config)
    harness.pass_time(0, SAVE_TIMER)  # the end of any event writes what was recorded in it
