"""The cost of a static topic beside a normal one when nothing moves: sends and pulls, in one process.

    python -m benchmarks.static_cost [--rounds 101] [--reads 20]

Two real brokers with real stores take turns, one with a normal topic, one with a static topic of the same shape: every
round feeds both the same reads. A round takes some 10 ms, so that both sides of it meet the same machine, and the ratio
is the median of the rounds' ratios: if the speed of the processor changes within seconds, it changes for both. Nothing
else differs, so the ratio is the cost of logical queues in processor time, the kernel's writes included.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec
from benchmarks.profile_send import CHANNEL, TOPIC, make_read, open_broker

from holdfast.broker.assembly import Components
from holdfast.broker.core import Broker
from holdfast.machine.events import Event, FramesReceived
from holdfast.model.mapping import TopicMapping, new_logical_queue
from holdfast.wire.frames.frame import split_frames

STATIC: Final = "TopicStat"  # As long as the normal one's name.
QUEUES: Final = 4
FRAMES: Final = 64
RATIO_MAX: Final = 1.05
NOW_MS: Final = 1_700_000_000_000
PULL: Final = (
    b'{"code":11,"extFields":{"consumerGroup":"readers","topic":"%b","queueId":"%d","queueOffset":"%d",'
    b'"maxMsgNums":"32","sysFlag":"4","commitOffset":"0","suspendTimeoutMillis":"0","subscription":"*",'
    b'"subVersion":"0","expressionType":"TAG","bname":"broker-a"},"flag":0,"language":"JAVA","opaque":%d,'
    b'"serializeTypeCurrentRPC":"JSON","version":513}'
)


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of work, in nanoseconds."""

    work: str
    unit: str
    normal_ns: float
    static_ns: float
    ratio: float
    """The time of the static topic as a multiple of the normal one."""

    @property
    def reached(self) -> bool:
        """Whether the target is met."""
        return self.ratio <= RATIO_MAX


class Side:
    """One broker and its topic."""

    def __init__(self, folder: Path, topic: str) -> None:
        self.broker, _, components = open_broker(folder)
        self.topic = topic.encode()
        self._sent = 0
        if topic == STATIC:
            create_static_topic(components, topic)

    def send_read(self) -> Event:
        """Return a read full of sends."""
        data = make_read(FRAMES, first_opaque=self._sent).replace(TOPIC.encode(), self.topic)
        self._sent += FRAMES
        frames, _ = split_frames(memoryview(data))
        return FramesReceived(CHANNEL, frames, NOW_MS)

    def pull_read(self, number: int) -> Event:
        """Return a read with one pull, at another offset each time."""
        span = self._sent // QUEUES - 32
        header = PULL % (self.topic, number % QUEUES, number * 32 % span, number)
        data = (4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header
        frames, _ = split_frames(memoryview(data))
        return FramesReceived(CHANNEL, frames, NOW_MS)


def create_static_topic(components: Components, topic: str) -> None:
    """Make a broker the leader of all queues of a static topic."""
    name = components.mappings.broker
    normal = components.topics.find(TOPIC)
    assert normal is not None
    components.topics.put(msgspec.structs.replace(normal, name=topic))
    mapping = TopicMapping(topic=topic, broker=name, total=QUEUES)
    queues = (new_logical_queue(number, name, number) for number in range(QUEUES))
    components.mappings.change(mapping.with_queues(*queues, epoch=NOW_MS))


def time_events(broker: Broker, events: list[Event]) -> float:
    """Return the median time of an event, in ns."""
    spent = []
    for event in events:
        start = time.perf_counter_ns()
        broker.handle(event)
        spent.append(time.perf_counter_ns() - start)
    return statistics.median(spent)


def compare(work: str, unit: str, sides: tuple[Side, Side], rounds: Iterable[tuple[list[Event], list[Event]]]) -> Cost:
    """Return the times of both sides for the events of all rounds; the side that is first alternates."""
    times: tuple[list[float], list[float]] = ([], [])
    for number, events in enumerate(rounds):
        for at in (0, 1) if number % 2 else (1, 0):
            times[at].append(time_events(sides[at].broker, events[at]))
    normal, static = map(statistics.median, times)
    ratio = statistics.median(static_time / normal_time for normal_time, static_time in zip(*times, strict=True))
    return Cost(work=work, unit=unit, normal_ns=normal, static_ns=static, ratio=ratio)


def measure_static_cost(folder: Path, *, rounds: int = 101, reads: int = 20) -> list[Cost]:
    """Return the cost of sends and pulls, per message and per pull."""
    normal, static = sides = Side(folder / "normal", TOPIC), Side(folder / "static", STATIC)

    def sends(side: Side) -> list[Event]:
        return [side.send_read() for _ in range(reads)]

    def pulls(side: Side, number: int) -> list[Event]:
        return [side.pull_read(number * 8 * reads + each) for each in range(8 * reads)]

    sent = compare("send 1 KiB", "read", sides, ((sends(normal), sends(static)) for _ in range(rounds)))
    sent = msgspec.structs.replace(
        sent,
        work=f"send 1 KiB, {FRAMES} a read",
        unit="message",
        normal_ns=sent.normal_ns / FRAMES,
        static_ns=sent.static_ns / FRAMES,
    )
    pulled = ((pulls(normal, number), pulls(static, number)) for number in range(rounds))
    return [sent, compare("pull of 32 x 1 KiB", "pull", sides, pulled)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Print the cost of a static topic when nothing moves.")
    parser.add_argument("--rounds", type=int, default=101)
    parser.add_argument("--reads", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="holdfast-static-") as folder:
        for cost in measure_static_cost(Path(folder), rounds=options.rounds, reads=options.reads):
            print(f"{cost.work:<28}{cost.normal_ns:>10,.0f}{cost.static_ns:>10,.0f} ns a {cost.unit}, {cost.ratio:.3f}")


if __name__ == "__main__":
    main()
