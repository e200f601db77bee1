"""Broker desks that reach each other, and logical queues that are moved between them by hand.

There is no name server and no driver of moves here: what a mapping says is put into the brokers' records as it is, so
that every shape of it can be looked at, also those that only other tools write.
"""

from __future__ import annotations

from collections import deque

from tests.support.broker_desk import BrokerDesk, a_pull, a_send

from holdfast.broker.flow.peer_calls import PURPOSE
from holdfast.machine.effects import Effect, OpenChannel, SendBytes
from holdfast.machine.events import ChannelClosed, ChannelFailed, ChannelId, ChannelOpened, Event, FramesReceived
from holdfast.model.mapping import LogicalQueue, TopicMapping, first_home
from holdfast.model.topic import TopicConfig
from holdfast.sim.world.disk import SimDisk
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.frame import split_frames
from holdfast.wire.records.record import StoredRecord, decode_records

TOPIC = "T"
EPOCH = 1_700_000_000_000


class StaticDesk(BrokerDesk):
    """A desk with a telephone."""

    def __init__(self, desks: StaticDesks, name: str, disk: SimDisk | None = None, **options: object) -> None:
        self._desks = desks
        self.is_up = True
        super().__init__(disk=disk, name=name, listen=desks.address(name), **options)

    def feed(self, event: Event) -> list[Effect]:
        """Hand an event over, and take up calls to the others."""
        effects = super().feed(event)
        for effect in effects:
            if isinstance(effect, OpenChannel) and effect.purpose == PURPOSE:
                self._desks.dial(self, effect.address)
            elif isinstance(effect, SendBytes) and effect.channel >= self._desks.FIRST_LINE:
                self._desks.carry(self, effect)
        return effects

    def ask(self, *commands: Command, channel: int = 1) -> list[Command]:
        """Let commands arrive, and everything happen that they cause; return the answers."""
        super().ask(*commands, channel=channel)
        self._desks.settle()
        return list(self.answers[channel])


class StaticDesks:
    """Some brokers in one room."""

    FIRST_LINE = 1000

    def __init__(self, *names: str, **options: object) -> None:
        self.attributes: dict[str, str] = {}  # of topics that are made from now on
        self._names = list(names)
        self._options = options
        self._lines: dict[tuple[str, int], tuple[StaticDesk, int]] = {}
        self._carried: deque[tuple[StaticDesk, int, bytes]] = deque()
        self._last = self.FIRST_LINE
        self.desks = {name: self.make(name) for name in names}
        for desk in self.desks.values():
            self.introduce(desk)

    def __getitem__(self, name: str) -> StaticDesk:
        return self.desks[name]

    def address(self, name: str) -> str:
        """Return where a broker is reached."""
        return f"10.1.0.{self._names.index(name) + 1}:10911"

    def make(self, name: str, disk: SimDisk | None = None) -> StaticDesk:
        """Start a broker."""
        return StaticDesk(self, name, disk, **self._options)

    def introduce(self, desk: StaticDesk) -> None:
        """Let a broker know where the others are."""
        for name in self._names:
            desk.rooms.view.teach(name, self.address(name))

    def restart(self, name: str) -> StaticDesk:
        """Kill a broker and start it on what is on its disk."""
        self.desks[name] = self.make(name, self.desks[name].disk)
        self.introduce(self.desks[name])
        return self.desks[name]

    # The wires.

    def dial(self, caller: StaticDesk, address: str) -> None:
        """Connect two desks, or fail."""
        called = next((desk for desk in self.desks.values() if desk.options.address == address and desk.is_up), None)
        if called is None:
            caller.feed(ChannelFailed(address, "connection refused", caller.now_ms, PURPOSE))
            return
        self._last += 1
        line = self._last
        self._lines[caller.options.name, line] = (called, line)
        self._lines[called.options.name, line] = (caller, line)
        called.answers[line] = []
        caller.answers[line] = []
        called.feed(ChannelOpened(ChannelId(line), "10.1.9.9:5000", called.now_ms))
        caller.feed(ChannelOpened(ChannelId(line), address, caller.now_ms, address, PURPOSE))

    def carry(self, sender: StaticDesk, effect: SendBytes) -> None:
        """Take bytes to the other end of a line."""
        other, line = self._lines[sender.options.name, effect.channel]
        self._carried.append((other, line, b"".join(bytes(piece) for piece in effect.pieces)))

    def settle(self) -> None:
        """Let everything happen that is under way, but the passing of time."""
        while self._carried or any(desk.syncs for desk in self.desks.values()):
            while self._carried:
                desk, line, data = self._carried.popleft()
                if desk.is_up:
                    frames, _ = split_frames(memoryview(data))
                    desk.feed(FramesReceived(ChannelId(line), frames, desk.now_ms))
            for desk in self.desks.values():
                desk.sync()

    def go_down(self, name: str) -> None:
        """Let a broker be silent: nobody reaches it."""
        self.desks[name].is_up = False
        for (owner, line), (other, _) in list(self._lines.items()):
            if owner == name:
                other.feed(ChannelClosed(ChannelId(line), other.now_ms))
                del self._lines[owner, line], self._lines[other.options.name, line]

    # Mappings.

    def record(self, *queues: LogicalQueue, total: int | None = None, epoch: int = EPOCH, topic: str = TOPIC) -> None:
        """Let every broker record *queues* as they are."""
        for desk in self.desks.values():
            self.record_at(desk, *queues, total=total, epoch=epoch, topic=topic)

    def record_at(
        self, desk: StaticDesk, *queues: LogicalQueue, total: int | None, epoch: int, topic: str = TOPIC
    ) -> None:
        """Let one broker record *queues* as they are."""
        name, mappings = desk.options.name, desk.rooms.mappings
        mapping = mappings.find(topic) or TopicMapping(topic=topic, broker=name, total=total or len(queues))
        mapping = mapping.put(*queues, epoch=epoch)
        count = max(mapping.used_on(name), default=-1) + 1
        config = TopicConfig(name=topic, read_queues=count, write_queues=count, attributes=self.attributes)
        desk.rooms.topics.put(config, desk.now_ms)
        mappings.change(mapping, now_ms=desk.now_ms)

    def create(self, *leaders: str, topic: str = TOPIC) -> None:
        """Make a static topic with one logical queue for each of *leaders*."""
        counts = dict.fromkeys(leaders, 0)
        queues = []
        for number, name in enumerate(leaders):
            queues.append(first_home(number, name, counts[name]))
            counts[name] += 1
        self.record(*queues, topic=topic)
        self.settle()

    def queue(self, number: int = 0, topic: str = TOPIC) -> LogicalQueue:
        """Return a logical queue as its leader records it."""
        for desk in self.desks.values():
            if desk.rooms.mappings.place(topic, number).is_led:
                mapping = desk.rooms.mappings.find(topic)
                assert mapping is not None
                return mapping.queues[number]
        raise AssertionError("nobody leads it")

    def move(self, number: int, target: str, topic: str = TOPIC) -> None:
        """Move a queue: sealed where it is, open at its exact end elsewhere."""
        queue = self.queue(number, topic)
        source, desk = self.desks[queue.leader.broker], self.desks[target]
        mapping = source.rooms.mappings.find(topic)
        assert mapping is not None
        known = desk.rooms.mappings.find(topic)
        if known is not None:  # The target has to know what is to be moved, to find an expired queue of its own in it.
            desk.rooms.mappings.change(known.put(queue), now_ms=desk.now_ms)
        record = desk.rooms.mappings.find(topic) or TopicMapping(topic=topic, broker=target)
        physical = desk.rooms.mappings.allocate(record, [number], desk.now_ms)[number]
        ends = source.rooms.mappings.seal(topic, [number])
        moved = queue.prepare(target, physical).seal(*ends[number]).open_next()
        epoch = mapping.epoch + 1000
        for each in self.desks.values():
            self.record_at(each, moved, total=mapping.total, epoch=epoch, topic=topic)
        source.rooms.pulls.wake_queue(topic, number)
        self.settle()

    # Hands.

    def send(self, number: int, *bodies: bytes, topic: str = TOPIC) -> list[int]:
        """Send to whoever leads; return the offsets that were answered."""
        leader = self.desks[self.queue(number, topic).leader.broker]
        answers = [leader.ask(a_send(topic, queue=number, body=body))[0] for body in bodies]
        assert [answer.code for answer in answers] == [0] * len(bodies), answers
        assert {answer.fields["queueId"] for answer in answers} <= {str(number)}
        return [int(answer.fields["queueOffset"]) for answer in answers]

    def pull(self, number: int, offset: int, *, at: str | None = None, **fields: str) -> Command:
        """Pull from whoever leads, as a client that reads mappings."""
        leader = self.desks[at or self.queue(number).leader.broker]
        (answer,) = leader.ask(a_pull(TOPIC, queue=number, offset=offset, **{"hf.mapping": "1"} | fields))
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
