"""One broker machine on a simulated disk, and the requests that clients send most: `a_send` and `a_pull`."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from tests.support.cluster.machine import START_MS, MachineHarness

from holdfast.access.role_secrets import RoleSecrets
from holdfast.broker.assembly import Components
from holdfast.broker.core import Broker
from holdfast.broker.options import BrokerOptions
from holdfast.broker.service import store_options
from holdfast.machine.effects import Effect, ReadLog, SyncLog, WriteFile
from holdfast.machine.events import (
    ChannelId,
    DiskFault,
    Event,
    FileWritten,
    FramesReceived,
    LogRead,
    LogSynced,
    ReadsReceived,
)
from holdfast.machine.pressure import MemoryPressure
from holdfast.model.errors import DiskFailed
from holdfast.model.topic import TopicConfig
from holdfast.sim.world.disk import SimDisk
from holdfast.store.message_store import MessageStore
from holdfast.wire.frames.command import Command, encode_command
from holdfast.wire.frames.frame import split_frames


class BrokerHarness(MachineHarness):
    """One broker with a client on channel 1, and more if a test connects them.

    Cold reads are answered at once; syncs only when `sync` is called.
    """

    def __init__(
        self,
        *,
        flush: str = "async",
        disk: SimDisk | None = None,
        secrets: RoleSecrets | None = None,
        **options: object,
    ) -> None:
        self.disk = disk or SimDisk()
        settings = {"namesrv": (), "log_file_size": 1 << 20, **options}
        self.options = BrokerOptions(flush=flush, **settings)  # type: ignore[arg-type]
        self.store = MessageStore.open(self.disk, store_options(self.options), START_MS)
        self.pressure = MemoryPressure()
        self.components = Components(
            self.options, self.store, self.disk, random.Random(7), START_MS, self.pressure, secrets
        )
        self.broker = Broker(self.options, self.store, self.components)
        self.syncs: list[SyncLog] = []
        super().__init__(self.broker)
        self.connect(1)

    def _client_address(self, channel: ChannelId) -> str:
        return f"10.0.0.{channel}:5000"

    def feed(self, event: Event) -> list[Effect]:
        """Let *event* happen, write files and answer cold reads; return all effects of the event."""
        effects = super().feed(event)
        for effect in effects:
            if isinstance(effect, SyncLog):
                self.syncs.append(effect)
            elif isinstance(effect, WriteFile):
                self.disk.replace(effect.path, effect.data, is_private=effect.is_private)
                super().feed(FileWritten(effect.path, self.now_ms))
            elif isinstance(effect, ReadLog):
                self.feed(self._read(effect))
        return effects

    def _read(self, effect: ReadLog) -> Event:
        try:
            data = effect.file.read(effect.start, effect.end)
        except DiskFailed as error:
            return DiskFault(str(error), self.now_ms, effect.token)
        return LogRead(effect.token, data, self.now_ms)

    def send_bytes(self, data: bytes, channel: int = 1) -> list[Command]:
        """Let *data* arrive as one read; return the answers that came at once."""
        self.answers[channel].clear()
        self.receive(channel, data)
        return list(self.answers[channel])

    def call(self, *commands: Command, channel: int = 1) -> list[Command]:
        """Let *commands* arrive in one read; return the answers that came at once."""
        return self.send_bytes(b"".join(encode_command(command) for command in commands), channel)

    def call_together(self, commands: Mapping[int, Sequence[Command]]) -> dict[int, list[Command]]:
        """Let the commands of several channels be read in one turn; return what each was answered at once."""
        reads = []
        for channel, commands_sent in commands.items():
            frames, _ = split_frames(memoryview(b"".join(encode_command(command) for command in commands_sent)))
            reads.append(FramesReceived(ChannelId(channel), frames, self.now_ms))
            self.answers[channel].clear()
        self.feed(ReadsReceived(reads, self.now_ms))
        return {channel: list(self.answers[channel]) for channel in commands}

    def sync(self) -> None:
        """Let everything that was asked for reach the disk."""
        syncs, self.syncs = self.syncs, []
        for effect in syncs:
            for file in effect.files:
                file.sync()
            self.feed(LogSynced(effect.position, self.now_ms))

    def make_topic(self, name: str, queues: int = 4, **rest: object) -> None:
        """Host a topic."""
        config = TopicConfig(name=name, read_queues=queues, write_queues=queues, **rest)  # type: ignore[arg-type]
        self.components.topics.put(config)


def a_send(
    topic: str = "T", *, queue: int = 0, body: bytes = b"hello", opaque: int = 1, code: int = 310, **fields: str
) -> Command:
    """Return a plain send as Java clients write it; `fields` adds or replaces one-letter fields."""
    return Command(
        code=code,
        opaque=opaque,
        fields={
            "a": "producers",
            "b": topic,
            "c": "TBW102",
            "d": "4",
            "e": str(queue),
            "f": "0",
            "g": "1699999999999",
            "h": "0",
            "i": "UNIQ_KEY\x017F00000100000001\x02TAGS\x01TagA\x02",
            "j": "0",
            "k": "false",
            "m": "false",
        }
        | fields,
        body=body,
    )


def a_pull(topic: str = "T", *, queue: int = 0, offset: int = 0, opaque: int = 1, **fields: str) -> Command:
    """Return a pull that brings its own subscription and does not wait; `fields` adds or replaces fields."""
    return Command(
        code=11,
        opaque=opaque,
        fields={
            "consumerGroup": "consumers",
            "topic": topic,
            "queueId": str(queue),
            "queueOffset": str(offset),
            "maxMsgNums": "32",
            "sysFlag": "4",
            "commitOffset": "-1",
            "suspendTimeoutMillis": "15000",
            "subscription": "*",
            "subVersion": "0",
        }
        | fields,
    )
