"""`make demo`: a cluster, a keyed producer, an ordered consumer group, a broker killed under load, and the ledger.

    produce ── kill -9 a broker ── its supervisor restarts it ── its messages arrive again ── drain ── ledger

Every key has its own counter. The producer sends 0, 1, 2, ... of each key and sends one again until it is
acknowledged; the consumers write down what arrives. At the end the two books must agree:

    lost            acknowledged, but never consumed                                    must be 0
    out of order    consumed for the first time behind a later number of its key        must be 0
    repeated        consumed again, mostly because a send whose acknowledgement got lost is made again. Allowed, and
                    counted. The crash alone repeats nothing: the consumers know their places.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console

from holdfast.admin.cluster_start import ClusterPlan, plan_cluster, wait_until_registered
from holdfast.admin.operations import Admin
from holdfast.admin.tables import Table, left, print_all, right
from holdfast.client.producer import Producer
from holdfast.client.push_consumer import PushConsumer
from holdfast.config import UpOptions
from holdfast.machine.effects import Log
from holdfast.model.errors import HoldfastError
from holdfast.model.message import Message, ReceivedMessage
from holdfast.runtime.logs import start_logging
from holdfast.runtime.supervisor import Supervisor

TOPIC: Final = "orders"
GROUP: Final = "billing"
KEYS: Final = 64
PRODUCE_S: Final = 12.0
KILL_AFTER_S: Final = 4.0
DRAIN_S: Final = 30.0
_PAUSE_S: Final = 0.2  # between two attempts at a broker that is down
_LOOK_S: Final = 0.05


class Verdict(msgspec.Struct, frozen=True):
    """The sums of the ledger."""

    sent: int
    acknowledged: int
    consumed: int
    lost: int
    out_of_order: int
    repeated: int

    @property
    def is_good(self) -> bool:
        """Whether what was promised held, and anything happened at all."""
        return self.acknowledged > 0 and self.lost == 0 and self.out_of_order == 0


class Ledger:
    """What was sent, acknowledged and consumed, by key and number, and by whose broker. Asks no broker anything."""

    def __init__(self) -> None:
        self.repeated = 0
        self.out_of_order = 0
        self.arrived: Counter[str] = Counter()
        self._sent: set[tuple[str, int]] = set()
        self._acknowledged = 0
        self._missing: dict[tuple[str, int], str] = {}  # acknowledged and not consumed -> by which broker
        self._consumed: set[tuple[str, int]] = set()
        self._latest: dict[str, int] = {}

    def send(self, key: str, number: int) -> None:
        """Write down an attempt."""
        self._sent.add((key, number))

    def acknowledge(self, key: str, number: int, broker: str) -> None:
        """Write down that *broker* promised to keep it. Once for each."""
        self._acknowledged += 1
        if (key, number) not in self._consumed:
            self._missing[key, number] = broker

    def consume(self, key: str, number: int, broker: str) -> None:
        """Write down that it arrived from *broker*."""
        self.arrived[broker] += 1
        if (key, number) in self._consumed:
            self.repeated += 1
            return
        self._consumed.add((key, number))
        self._missing.pop((key, number), None)
        if number < self._latest.get(key, -1):
            self.out_of_order += 1
        self._latest[key] = max(number, self._latest.get(key, -1))

    @property
    def missing(self) -> Counter[str]:
        """How many acknowledged messages have not arrived yet, by broker."""
        return Counter(self._missing.values())

    def close(self) -> Verdict:
        """Return the sums; what is missing now is lost."""
        return Verdict(
            sent=len(self._sent),
            acknowledged=self._acknowledged,
            consumed=len(self._consumed),
            lost=len(self._missing),
            out_of_order=self.out_of_order,
            repeated=self.repeated,
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
        """Show how things stand; without a terminal this is a line like the others."""
        if self._status is None:
            self.event(text)
        else:
            self._status.update(text)

    def close(self) -> None:
        """Leave the terminal alone."""
        if self._status is not None:
            self._status.stop()


async def produce(namesrv: str, ledger: Ledger, until_s: float) -> None:
    """Send every key's numbers in order, each again until it is acknowledged, until the time is over."""
    async with Producer(namesrv, "shop", retries=0) as producer:

        async def count_up(key: str) -> None:
            number = 0
            while time.monotonic() < until_s:
                ledger.send(key, number)
                try:
                    result = await producer.send(Message(TOPIC, f"{key} {number}".encode(), key=key))
                except HoldfastError:
                    await asyncio.sleep(_PAUSE_S)
                    continue
                ledger.acknowledge(key, number, result.queue.broker_name)
                number += 1

        await asyncio.gather(*(count_up(f"customer-{number}") for number in range(KEYS)))


def consumer_of(namesrv: str, ledger: Ledger) -> PushConsumer:
    """Return a member of the ordered group that writes into the ledger."""

    async def listen(message: ReceivedMessage) -> None:
        key, _, number = message.body.decode().partition(" ")
        ledger.consume(key, int(number), message.queue.broker_name)

    consumer = PushConsumer(namesrv, GROUP, listener=listen, ordered=True, start="earliest")
    consumer.subscribe(TOPIC)
    return consumer


@contextlib.asynccontextmanager
async def running_cluster(folder: Path, screen: Screen) -> AsyncIterator[tuple[ClusterPlan, Supervisor]]:
    """Run a name server and two brokers on free ports for the time of the block."""
    write = start_logging(level="error")

    def emit(line: Log) -> None:
        fields = " ".join(f"{name}={value}" for name, value in line.fields.items())
        screen.event(f"{line.event}: {fields}") if line.event.startswith(("died", "ready")) else write(line)

    plan = plan_cluster(UpOptions(brokers=2, base_port=0, flush="sync"), folder)
    supervisor = Supervisor(emit)
    quiet = ["--log-level", "error"]
    try:
        await supervisor.start([plan.name_server_spec(quiet)])
        await supervisor.start([plan.broker_spec(broker, quiet) for broker in plan.brokers])
        await wait_until_registered(plan)
        yield plan, supervisor
    finally:
        await supervisor.stop([broker.name for broker in plan.brokers if supervisor.has_child(broker.name)])
        await supervisor.stop()


def standing(ledger: Ledger, *, is_producing: bool) -> str:
    """Return how things stand, in a line."""
    sums = ledger.close()
    if is_producing:
        return f"sent {sums.sent:,}  acknowledged {sums.acknowledged:,}  consumed {sums.consumed:,}"
    where = ", ".join(f"{count:,} of {broker}" for broker, count in sorted(ledger.missing.items()))
    return f"waiting for {sums.lost:,} messages to arrive: {where}" if where else "everything has arrived"


async def watch(ledger: Ledger, screen: Screen, until_s: float) -> None:
    """Show how things stand, every second."""
    while True:
        await asyncio.sleep(1)
        screen.now(standing(ledger, is_producing=time.monotonic() < until_s))


async def kill_one(supervisor: Supervisor, plan: ClusterPlan, ledger: Ledger, screen: Screen) -> None:
    """Kill a broker without warning, in the middle of the load, and see its messages arrive again."""
    await asyncio.sleep(KILL_AFTER_S)
    victim = supervisor.get_child(random.choice(plan.brokers).name)
    screen.event(f"kill -9 {victim.name} (pid {victim.pid})")
    victim.kill()
    await wait_until(lambda: victim.restarts > 0, DRAIN_S)
    arrived = ledger.arrived[victim.name]
    await victim.ready.wait()
    ready_s = time.monotonic()
    if await wait_until(lambda: ledger.arrived[victim.name] > arrived, DRAIN_S):
        screen.event(f"messages of {victim.name} arrive again, {time.monotonic() - ready_s:.1f} s after it was ready")


async def wait_until(done: Callable[[], bool], timeout_s: float) -> bool:
    """Return True when *done* says so, or False after *timeout_s*."""
    deadline_s = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() > deadline_s:
            return False
        await asyncio.sleep(_LOOK_S)
    return True


async def run(folder: Path, screen: Screen) -> Verdict:
    """Play the whole demo and return the ledger's sums."""
    ledger = Ledger()
    async with running_cluster(folder, screen) as (plan, supervisor):
        async with Admin(plan.namesrv) as admin:
            await admin.topics.apply(TOPIC, await admin.topics.plan(TOPIC, queues=4, order=True))
        screen.event(f"topic {TOPIC}: 4 queues on each of 2 brokers; group {GROUP}: 2 members, ordered")
        async with consumer_of(plan.namesrv, ledger), consumer_of(plan.namesrv, ledger):
            until_s = time.monotonic() + PRODUCE_S
            watcher = asyncio.create_task(watch(ledger, screen, until_s))
            await asyncio.gather(produce(plan.namesrv, ledger, until_s), kill_one(supervisor, plan, ledger, screen))
            screen.event(f"the producer is done; {standing(ledger, is_producing=False)}")
            await wait_until(lambda: not ledger.missing, DRAIN_S)
            watcher.cancel()
        screen.event("the consumers have left; the cluster stops")
    return ledger.close()


def main() -> int:
    """Run the demo; 0 when the ledger is right, 1 when it is not."""
    screen = Screen()
    try:
        with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
            verdict = asyncio.run(run(Path(folder), screen))
    finally:
        screen.close()
    rows: list[tuple[str, int, str]] = [
        ("sent", verdict.sent, "different messages, some of them in several attempts"),
        ("acknowledged", verdict.acknowledged, "a broker promised to keep them"),
        ("consumed", verdict.consumed, "different messages that arrived"),
        ("lost", verdict.lost, "acknowledged but never consumed: must be 0"),
        ("out of order", verdict.out_of_order, "behind a later message of the same key: must be 0"),
        ("repeated", verdict.repeated, "arrived again: allowed"),
    ]
    print_all([Table([*left("LEDGER"), *right("COUNT"), *left("")], rows)])
    sys.stdout.write("the ledger is right\n" if verdict.is_good else "THE LEDGER IS WRONG\n")
    return 0 if verdict.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
