"""Broker machines that reach each other, and logical queues that are moved between them by hand.

There is no name server and no driver of moves here: what a mapping says is put into the brokers' records as it is, so
that every shape of it can be looked at, also those that only other tools write.
"""

from __future__ import annotations

from collections import deque

from tests.support.cluster.broker_machine import BrokerHarness, a_pull, a_send
from tests.support.cluster.machine import START_MS

from holdfast.broker.flow.awaitables import CALLS
from holdfast.machine.effects import Effect, OpenChannel, SendBytes
from holdfast.machine.events import ChannelClosed, ChannelFailed, ChannelId, ChannelOpened, Event, FramesReceived
from holdfast.model.mapping import LogicalQueue, TopicMapping, new_logical_queue
from holdfast.model.topic import TopicConfig
from holdfast.sim.world.disk import SimDisk
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.frame import split_frames
from holdfast.wire.records.record import StoredRecord, decode_records

TOPIC = "T"
EPOCH = START_MS


class StaticBroker(BrokerHarness):
    """A broker machine that can call the others."""

    def __init__(self, brokers: StaticBrokers, name: str, disk: SimDisk | None = None, **options: object) -> None:
        self._cluster = brokers
        self.is_up = True
        super().__init__(disk=disk, name=name, listen=brokers.address(name), **options)

    def feed(self, event: Event) -> list[Effect]:
        """Hand an event over, and take up calls to the others."""
        effects = super().feed(event)
        for effect in effects:
            if isinstance(effect, OpenChannel) and effect.purpose == CALLS:
                self._cluster.dial(self, effect.address)
            elif isinstance(effect, SendBytes) and effect.channel >= self._cluster.FIRST_CHANNEL:
                self._cluster.forward(self, effect)
        return effects

    def call(self, *commands: Command, channel: int = 1) -> list[Command]:
        """Let commands arrive, and everything happen that they cause; return the answers."""
        super().call(*commands, channel=channel)
        self._cluster.deliver_all()
        return list(self.answers[channel])


class StaticBrokers:
    """Some brokers that reach each other."""

    FIRST_CHANNEL = 1000

    def __init__(self, *names: str, **options: object) -> None:
        self.attributes: dict[str, str] = {}  # of topics that are made from now on
        self._names = list(names)
        self._options = options
        self._connections: dict[tuple[str, int], tuple[StaticBroker, int]] = {}
        self._in_flight: deque[tuple[StaticBroker, int, bytes]] = deque()
        self._last_channel = self.FIRST_CHANNEL
        self.brokers = {name: self.start(name) for name in names}
        for broker in self.brokers.values():
            self.announce_addresses(broker)

    def __getitem__(self, name: str) -> StaticBroker:
        return self.brokers[name]

    def address(self, name: str) -> str:
        """Return where a broker is reached."""
        return f"10.1.0.{self._names.index(name) + 1}:10911"

    def start(self, name: str, disk: SimDisk | None = None) -> StaticBroker:
        """Start a broker."""
        return StaticBroker(self, name, disk, **self._options)

    def announce_addresses(self, broker: StaticBroker) -> None:
        """Let a broker know where the others are."""
        for name in self._names:
            broker.components.view.record_address(name, self.address(name))

    def restart(self, name: str) -> StaticBroker:
        """Kill a broker and start it on what is on its disk."""
        self.brokers[name] = self.start(name, self.brokers[name].disk)
        self.announce_addresses(self.brokers[name])
        return self.brokers[name]

    # The wires.

    def dial(self, caller: StaticBroker, address: str) -> None:
        """Connect two brokers, or fail."""
        called = next(
            (broker for broker in self.brokers.values() if broker.options.address == address and broker.is_up), None
        )
        if called is None:
            caller.feed(ChannelFailed(address, "connection refused", caller.now_ms, CALLS))
            return
        self._last_channel += 1
        line = self._last_channel
        self._connections[caller.options.name, line] = (called, line)
        self._connections[called.options.name, line] = (caller, line)
        called.answers[line] = []
        caller.answers[line] = []
        called.feed(ChannelOpened(ChannelId(line), "10.1.9.9:5000", called.now_ms))
        caller.feed(ChannelOpened(ChannelId(line), address, caller.now_ms, address, CALLS))

    def forward(self, sender: StaticBroker, effect: SendBytes) -> None:
        """Take bytes to the other end of a line."""
        receiver, channel = self._connections[sender.options.name, effect.channel]
        self._in_flight.append((receiver, channel, b"".join(bytes(piece) for piece in effect.pieces)))

    def deliver_all(self) -> None:
        """Let everything happen that is under way, but the passing of time."""
        while self._in_flight or any(broker.syncs for broker in self.brokers.values()):
            while self._in_flight:
                broker, channel, data = self._in_flight.popleft()
                if broker.is_up:
                    frames, _ = split_frames(memoryview(data))
                    broker.feed(FramesReceived(ChannelId(channel), frames, broker.now_ms))
            for broker in self.brokers.values():
                broker.sync()

    def kill(self, name: str) -> None:
        """End a broker: its connections close, and no other broker reaches it."""
        self.brokers[name].is_up = False
        for (owner, channel), (receiver, _) in list(self._connections.items()):
            if owner == name:
                receiver.feed(ChannelClosed(ChannelId(channel), receiver.now_ms))
                del self._connections[owner, channel], self._connections[receiver.options.name, channel]

    # Mappings.

    def record(self, *queues: LogicalQueue, total: int | None = None, epoch: int = EPOCH, topic: str = TOPIC) -> None:
        """Let every broker record *queues* as they are."""
        for broker in self.brokers.values():
            self.record_at(broker, *queues, total=total, epoch=epoch, topic=topic)

    def record_at(
        self, broker: StaticBroker, *queues: LogicalQueue, total: int | None, epoch: int, topic: str = TOPIC
    ) -> None:
        """Let one broker record *queues* as they are."""
        name, mappings = broker.options.name, broker.components.mappings
        mapping = mappings.find(topic) or TopicMapping(topic=topic, broker=name, total=total or len(queues))
        mapping = mapping.with_queues(*queues, epoch=epoch)
        count = max(mapping.used_queue_ids(name), default=-1) + 1
        config = TopicConfig(name=topic, read_queues=count, write_queues=count, attributes=self.attributes)
        broker.components.topics.put(config)
        mappings.change(mapping)

    def create(self, *leaders: str, topic: str = TOPIC) -> None:
        """Make a static topic with one logical queue for each of *leaders*."""
        counts = dict.fromkeys(leaders, 0)
        queues = []
        for number, name in enumerate(leaders):
            queues.append(new_logical_queue(number, name, counts[name]))
            counts[name] += 1
        self.record(*queues, topic=topic)
        self.deliver_all()

    def queue(self, number: int = 0, topic: str = TOPIC) -> LogicalQueue:
        """Return a logical queue as its leader records it."""
        for broker in self.brokers.values():
            if broker.components.mappings.placement(topic, number).is_led:
                mapping = broker.components.mappings.find(topic)
                assert mapping is not None
                return mapping.queues[number]
        raise AssertionError("nobody leads it")

    def move(self, number: int, target: str, topic: str = TOPIC) -> None:
        """Move a queue: sealed where it is, open at its exact end elsewhere."""
        queue = self.queue(number, topic)
        source, broker = self.brokers[queue.leader.broker], self.brokers[target]
        mapping = source.components.mappings.find(topic)
        assert mapping is not None
        known_mapping = broker.components.mappings.find(topic)
        if (
            known_mapping is not None
        ):  # The target has to know what is to be moved, to find an expired queue of its own in it.
            broker.components.mappings.change(known_mapping.with_queues(queue))
        record = broker.components.mappings.find(topic) or TopicMapping(topic=topic, broker=target)
        physical_queue = broker.components.mappings.allocate(record, [number])[number]
        ends = source.components.mappings.seal(topic, [number])
        moved = queue.prepare(target, physical_queue).seal(*ends[number]).open_next()
        epoch = mapping.epoch + 1000
        for each in self.brokers.values():
            self.record_at(each, moved, total=mapping.total, epoch=epoch, topic=topic)
        source.components.pull_handler.wake_queue(topic, number)
        self.deliver_all()

    # Hands.

    def send(self, number: int, *bodies: bytes, topic: str = TOPIC) -> list[int]:
        """Send to whoever leads; return the offsets that were answered."""
        leader = self.brokers[self.queue(number, topic).leader.broker]
        answers = [leader.call(a_send(topic, queue=number, body=body))[0] for body in bodies]
        assert [answer.code for answer in answers] == [0] * len(bodies), answers
        assert {answer.fields["queueId"] for answer in answers} <= {str(number)}
        return [int(answer.fields["queueOffset"]) for answer in answers]

    def pull(self, number: int, offset: int, *, at: str | None = None, **fields: str) -> Command:
        """Pull from whoever leads, as a client that reads mappings."""
        leader = self.brokers[at or self.queue(number).leader.broker]
        (answer,) = leader.call(a_pull(TOPIC, queue=number, offset=offset, **{"hf.mapping": "1"} | fields))
        return answer

    def read_all(self, number: int = 0, *, start: int = 0, **fields: str) -> list[tuple[int, bytes]]:
        """Read a queue as a client does, from *start* to its end; return offsets and bodies."""
        found: list[tuple[int, bytes]] = []
        offset = start
        for _ in range(1000):
            answer = self.pull(number, offset, **fields)
            assert answer.code in {0, 19, 20, 21}, answer
            delta = int(answer.fields.get("offsetDelta", 0))
            found += [(record.offset + delta, bytes(record.body)) for record in records(answer)]
            offset = int(answer.fields["nextBeginOffset"])
            if answer.code == 19:
                return found
        raise AssertionError("the end was never reached")


def records(answer: Command) -> list[StoredRecord]:
    """Return the records in the body of a pull's answer."""
    return list(decode_records(answer.body))
