"""`make demo`: a cluster goes from 2 brokers to 4 and down to 1 while a producer and a group work, and the ledger.

    2 brokers ── 2 more, which get their share ── 3 are drained, emptied, removed and stopped ── 1 broker ── ledger

The topic is static: 8 logical queues, whoever leads them. Every key has its own counter and never more than one send in
flight. The producer sends 0, 1, 2, ... of each key and nothing twice; the members of an ordered group write down what
arrives. At the end the two books must agree:

    failed          told the producer no                                                must be 0
    lost            acknowledged, but never consumed                                    must be 0
    repeated        consumed again                                                      must be 0
    out of order    consumed behind a later number of its key                           must be 0
    holes           offsets of a queue at which nothing was                             must be 0
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console

from holdfast.admin.cluster_start import ClusterPlan, plan_cluster, wait_until_registered
from holdfast.admin.draining import hold_text
from holdfast.admin.moves import MovePlan
from holdfast.admin.operations import Admin, now_ms
from holdfast.admin.tables import Table, left, print_all, right
from holdfast.admin.topic_plans import create_plan
from holdfast.client.producer import Producer
from holdfast.client.push_consumer import PushConsumer
from holdfast.config import UpOptions
from holdfast.machine.effects import Log
from holdfast.model.errors import HoldfastError
from holdfast.model.message import Message, ReceivedMessage
from holdfast.model.topic import TopicConfig
from holdfast.runtime.logs import start_logging
from holdfast.runtime.supervisor import Supervisor
from holdfast.wire.message_id import parse_message_id

TOPIC: Final = "orders"
GROUP: Final = "billing"
QUEUES: Final = 8
KEYS: Final = 64
FIRST: Final = 2
MOST: Final = 4
PHASE_S: Final = 3.0
PATIENCE_S: Final = 60.0
_PACE_S: Final = 0.02  # between two sends of a key: a demo need not heat the room
_LOOK_S: Final = 0.05
_EMPTY_S: Final = 0.5


class Verdict(msgspec.Struct, frozen=True):
    """The sums of the ledger."""

    acknowledged: int
    consumed: int
    failed: int
    lost: int
    repeated: int
    out_of_order: int
    holes: int
    pause_max_ms: float

    @property
    def is_good(self) -> bool:
        """Whether nobody can have noticed anything, and anything happened at all."""
        faults = (self.failed, self.lost, self.repeated, self.out_of_order, self.holes)
        return self.acknowledged > 0 and not any(faults)


class Ledger:
    """What was acknowledged and consumed, by key and number. Asks no broker anything.

    Attributes:
        stored: How many messages each broker took since the last look.
    """

    def __init__(self) -> None:
        self.stored: Counter[str] = Counter()
        self.failed = 0
        self.pause_max_ms = 0.0
        self._acknowledged = 0
        self._repeated = 0
        self._out_of_order = 0
        self._missing: set[tuple[str, int]] = set()
        self._consumed: set[tuple[str, int]] = set()
        self._latest: dict[str, int] = {}
        self._ends: dict[int, int] = {}
        self._offsets: Counter[int] = Counter()

    def fail(self) -> None:
        """Write down that a send was refused."""
        self.failed += 1

    def acknowledge(self, key: str, number: int, broker: str, pause_ms: float) -> None:
        """Write down that *broker* promised to keep a message, *pause_ms* after it was to be sent."""
        self._acknowledged += 1
        self.stored[broker] += 1
        self.pause_max_ms = max(self.pause_max_ms, pause_ms)
        if (key, number) not in self._consumed:
            self._missing.add((key, number))

    def consume(self, key: str, number: int, queue: int, offset: int) -> None:
        """Write down that a message arrived, and from where."""
        if (key, number) in self._consumed:
            self._repeated += 1
            return
        self._consumed.add((key, number))
        self._missing.discard((key, number))
        if number < self._latest.get(key, -1):
            self._out_of_order += 1
        self._latest[key] = max(number, self._latest.get(key, -1))
        self._ends[queue] = max(self._ends.get(queue, 0), offset + 1)
        self._offsets[queue] += 1

    @property
    def missing(self) -> int:
        """How many acknowledged messages have not arrived yet."""
        return len(self._missing)

    def take_shares(self) -> str:
        """Return who stored how much since the last look."""
        total = self.stored.total() or 1
        shares = ", ".join(f"{name} {count * 100 // total} %" for name, count in sorted(self.stored.items()))
        self.stored.clear()
        return shares or "nothing was stored"

    def close(self) -> Verdict:
        """Return the sums; what is missing now is lost."""
        return Verdict(
            acknowledged=self._acknowledged,
            consumed=len(self._consumed),
            failed=self.failed,
            lost=len(self._missing),
            repeated=self._repeated,
            out_of_order=self._out_of_order,
            holes=sum(end - self._offsets[queue] for queue, end in self._ends.items()),
            pause_max_ms=self.pause_max_ms,
        )


class Screen:
    """Tells what happens: a line for every event, and in between one that is rewritten, where there is a terminal."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._started_s = time.monotonic()
        self._status = self._console.status("starting") if self._console.is_terminal else None
        if self._status is not None:
            self._status.start()

    def event(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print(f"{time.monotonic() - self._started_s:6.1f} s  {text}", markup=False, soft_wrap=True)

    def now(self, text: str) -> None:
        """Show how things stand, where that can be rewritten."""
        if self._status is not None:
            self._status.update(text)

    def close(self) -> None:
        """Leave the terminal alone."""
        if self._status is not None:
            self._status.stop()


class Load:
    """A keyed producer that runs until it is told to stop."""

    def __init__(self, plan: ClusterPlan, ledger: Ledger) -> None:
        self._namesrv = plan.namesrv
        self._names = {broker.address: broker.name for broker in plan.brokers}
        self._ledger = ledger
        self._is_over = False

    def stop(self) -> None:
        """Let the sends in flight be the last."""
        self._is_over = True

    async def run(self) -> None:
        """Send every key's numbers in order."""
        async with Producer(self._namesrv, "shop", retries=0) as producer:
            await asyncio.gather(*(self._count_up(producer, f"customer-{number}") for number in range(KEYS)))

    async def _count_up(self, producer: Producer, key: str) -> None:
        number = 0
        while not self._is_over:
            begun_s = time.monotonic()
            try:
                result = await producer.send(Message(TOPIC, f"{key} {number}".encode(), key=key))
            except HoldfastError:
                self._ledger.fail()
            else:
                broker = self._names.get(parse_message_id(result.offset_id).address, "somebody")
                self._ledger.acknowledge(key, number, broker, (time.monotonic() - begun_s) * 1000)
            number += 1
            await asyncio.sleep(_PACE_S)


def consumer_of(namesrv: str, ledger: Ledger) -> PushConsumer:
    """Return a member of the ordered group that writes into the ledger."""

    async def listen(message: ReceivedMessage) -> None:
        key, _, number = message.body.decode().partition(" ")
        ledger.consume(key, int(number), message.queue.queue_id, message.offset)

    consumer = PushConsumer(namesrv, GROUP, listener=listen, ordered=True, start="earliest")
    consumer.subscribe(TOPIC)
    return consumer


class Play:
    """The cluster and what is done to it.

    Args:
        plan: All brokers that there will ever be.
        supervisor: Who starts and stops them.
    """

    def __init__(self, plan: ClusterPlan, supervisor: Supervisor, screen: Screen) -> None:
        self.plan = plan
        self.supervisor = supervisor
        self._screen = screen

    async def start(self, count: int) -> None:
        """Let *count* brokers run."""
        wanted = self.plan.brokers[:count]
        new = [broker for broker in wanted if not self.supervisor.has_child(broker.name)]
        await self.supervisor.start([self.plan.broker_spec(broker, _QUIET) for broker in new])
        await wait_until_registered(msgspec.structs.replace(self.plan, brokers=wanted))

    async def create(self, admin: Admin) -> None:
        """Make the static topic."""
        view = await admin.static.read()
        await admin.changes.apply(create_plan(view, TopicConfig(name=TOPIC), QUEUES, now_ms=now_ms()))

    async def grow(self, admin: Admin) -> None:
        """Start the other brokers and give each its share."""
        await self.start(MOST)
        self._screen.event(f"{MOST - FIRST} more brokers are up, and lead nothing yet")
        for broker in self.plan.brokers[FIRST:]:
            moved = await self.move(admin, await admin.moves.plan_spread(broker.name))
            self._screen.event(f"{broker.name} took over {moved}; bytes copied: 0")

    async def shrink(self, admin: Admin) -> None:
        """Take all brokers but one away: their queues first, then what they hold, then themselves."""
        *leaving, last = self.plan.brokers
        moved = await self.move(admin, await admin.moves.plan_topic(TOPIC, [last.name]))
        self._screen.event(f"{last.name} took over {moved}, the others lead nothing; bytes copied: 0")
        for broker in leaving:
            await self.retire(admin, broker.name, [GROUP])

    async def retire(self, admin: Admin, broker: str, groups: Sequence[str]) -> None:
        """Take away a broker that leads nothing, once *groups* have consumed what it holds."""
        await self._empty(admin, broker, groups)
        await admin.draining.remove(broker)
        await self.supervisor.stop([broker])
        self._screen.event(f"{broker} had nothing left that anybody needs: removed and stopped")

    async def move(self, admin: Admin, plan: MovePlan) -> str:
        """Carry *plan* out and return, in words, what was moved."""
        made = await admin.moves.follow(await admin.moves.start(plan))
        for move in made:
            if move.state != "done":
                raise DemoFailed(
                    f"the move of {len(move.queues)} queues to {move.target} is {move.state}: {move.reason}"
                )
        queues = sorted(queue for move in made for queue in move.queues)
        return f"logical queues {', '.join(map(str, queues))}"

    async def _empty(self, admin: Admin, broker: str, groups: Sequence[str]) -> None:
        """Drop what *groups* have consumed, until nothing is left."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            await admin.draining.discard_consumed(broker, groups)
            held = await admin.draining.holds(broker)
            if not held:
                return
            if time.monotonic() > deadline_s:
                raise DemoFailed(f"{broker} is still needed: {hold_text(held[0])}")
            self._screen.now(f"{broker} is still needed: {hold_text(held[0])}")
            await asyncio.sleep(_EMPTY_S)


class DemoFailed(HoldfastError):
    """Something did not happen that should have."""


_QUIET: Final = ["--log-level", "error"]


@contextlib.asynccontextmanager
async def running_cluster(folder: Path, screen: Screen) -> AsyncIterator[Play]:
    """Run a name server and the first brokers on free ports for the time of the block."""
    write = start_logging(level="error")

    def emit(line: Log) -> None:
        fields = " ".join(f"{name}={value}" for name, value in line.fields.items())
        screen.event(f"{line.event}: {fields}") if line.event.startswith(("died", "ready")) else write(line)

    plan = plan_cluster(UpOptions(brokers=MOST, base_port=0), folder)
    supervisor = Supervisor(emit)
    play = Play(plan, supervisor, screen)
    try:
        await supervisor.start([plan.name_server_spec(_QUIET)])
        await play.start(FIRST)
        yield play
    finally:
        await supervisor.stop([broker.name for broker in plan.brokers if supervisor.has_child(broker.name)])
        await supervisor.stop()


async def watch(ledger: Ledger, screen: Screen) -> None:
    """Show how things stand, every second."""
    while True:
        await asyncio.sleep(1)
        sums = ledger.close()
        screen.now(f"acknowledged {sums.acknowledged:,}  consumed {sums.consumed:,}  failed {sums.failed:,}")


async def wait_until(done: Callable[[], bool], timeout_s: float) -> bool:
    """Return True when *done* says so, or False after *timeout_s*."""
    deadline_s = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() > deadline_s:
            return False
        await asyncio.sleep(_LOOK_S)
    return True


async def let_it_run(ledger: Ledger, screen: Screen, what: str) -> None:
    """Let the load go on for a while, and tell who stored it."""
    ledger.take_shares()
    await asyncio.sleep(PHASE_S)
    screen.event(f"{what}: messages went to {ledger.take_shares()}")


async def run(folder: Path, screen: Screen) -> Verdict:
    """Play the whole demo and return the ledger's sums."""
    ledger = Ledger()
    async with running_cluster(folder, screen) as play, Admin(play.plan.namesrv) as admin:
        await play.create(admin)
        screen.event(f"static topic {TOPIC}: {QUEUES} logical queues; group {GROUP}: 2 members, ordered")
        namesrv = play.plan.namesrv
        async with consumer_of(namesrv, ledger), consumer_of(namesrv, ledger):
            load = Load(play.plan, ledger)
            tasks = [asyncio.create_task(load.run()), asyncio.create_task(watch(ledger, screen))]
            await let_it_run(ledger, screen, "2 brokers")
            await play.grow(admin)
            await let_it_run(ledger, screen, "4 brokers")
            await play.shrink(admin)
            await let_it_run(ledger, screen, "1 broker")
            load.stop()
            await tasks[0]
            screen.event("the producer is done")
            await wait_until(lambda: not ledger.missing, PATIENCE_S)
            tasks[1].cancel()
        screen.event("the consumers have left; the cluster stops")
    return ledger.close()


def ledger_rows(verdict: Verdict) -> Sequence[tuple[str, int, str]]:
    """Return the ledger as people read it."""
    return [
        ("acknowledged", verdict.acknowledged, "a broker promised to keep them"),
        ("consumed", verdict.consumed, "different messages that arrived"),
        ("failed", verdict.failed, "sends that were told no: must be 0"),
        ("lost", verdict.lost, "acknowledged but never consumed: must be 0"),
        ("repeated", verdict.repeated, "arrived again: must be 0"),
        ("out of order", verdict.out_of_order, "behind a later message of the same key: must be 0"),
        ("holes", verdict.holes, "offsets of a queue without a message: must be 0"),
        ("longest send", round(verdict.pause_max_ms), "milliseconds, through every move"),
    ]


def main() -> int:
    """Run the demo; 0 when the ledger is right, 1 when it is not."""
    screen = Screen()
    try:
        with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
            verdict = asyncio.run(run(Path(folder), screen))
    finally:
        screen.close()
    print_all([Table([*left("LEDGER"), *right("COUNT"), *left("")], ledger_rows(verdict))])
    sys.stdout.write("the ledger is right\n" if verdict.is_good else "THE LEDGER IS WRONG\n")
    return 0 if verdict.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
