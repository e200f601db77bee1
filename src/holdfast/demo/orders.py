"""`make demo-core`: a producer and an ordered group keep working while their cluster goes from 2 brokers to 4 and to 1.

The topic is static: it always has 8 logical queues, whichever brokers lead them. Nothing is killed here, so clients
must not notice anything: no send is refused, and at the end the records of both sides agree (see `ledger`). Needs
neither Spark nor Java.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from holdfast.admin.operations import Admin
from holdfast.admin.tables import Table, left, print_all, right
from holdfast.client.push_consumer import PushConsumer
from holdfast.demo.ledger import Ledger, LoadGenerator, Verdict
from holdfast.demo.screen import Screen
from holdfast.demo.stage import PATIENCE_S, QUEUES, running_cluster, wait_until
from holdfast.model.message import ReceivedMessage

TOPIC: Final = "orders"
GROUP: Final = "billing"
KEYS: Final = 64
PHASE_S: Final = 3.0


def consumer_of(namesrv: str, ledger: Ledger) -> PushConsumer:
    """Return a member of the ordered group that records every arrival in the ledger."""

    async def listen(message: ReceivedMessage) -> None:
        ledger.record_arrival(message.key or "", int(message.body), message.queue.queue_id, message.offset)

    consumer = PushConsumer(namesrv, GROUP, listener=listen, ordered=True, start="earliest")
    consumer.subscribe(TOPIC)
    return consumer


async def watch(ledger: Ledger, screen: Screen) -> None:
    """Show the current counts every second."""
    while True:
        await asyncio.sleep(1)
        screen.show_status(
            f"acknowledged {ledger.acknowledged:,}  arrived {ledger.arrived:,}  refused {ledger.refused:,}"
        )


async def phase(ledger: Ledger, screen: Screen, label: str) -> None:
    """Let the load run for a while, then report which brokers stored it."""
    ledger.shares_since_last()
    await asyncio.sleep(PHASE_S)
    screen.show_event(f"{label}: messages went to {ledger.shares_since_last()}")


async def run(folder: Path, screen: Screen) -> Verdict:
    """Run the whole demo and return the totals of the ledger."""
    ledger = Ledger()
    async with running_cluster(folder, screen) as cluster, Admin(cluster.plan.namesrv) as admin:
        await cluster.create(admin, TOPIC)
        screen.show_event(f"static topic {TOPIC}: {QUEUES} logical queues; group {GROUP}: 2 members, ordered")
        namesrv = cluster.plan.namesrv
        async with consumer_of(namesrv, ledger), consumer_of(namesrv, ledger):
            load = LoadGenerator(cluster.plan, ledger, TOPIC, [f"customer-{number}" for number in range(KEYS)])
            tasks = [asyncio.create_task(load.run()), asyncio.create_task(watch(ledger, screen))]
            await phase(ledger, screen, "2 brokers")
            await cluster.grow(admin)
            await phase(ledger, screen, "4 brokers")
            await cluster.shrink(admin, [TOPIC], [GROUP])
            await phase(ledger, screen, "1 broker")
            load.stop()
            await tasks[0]
            screen.show_event("the producer is done")
            await wait_until(lambda: not ledger.missing, PATIENCE_S)
            tasks[1].cancel()
        screen.show_event("the consumers have stopped; stopping the cluster")
    return ledger.close()


def ledger_rows(verdict: Verdict) -> Sequence[tuple[str, int, str]]:
    """Return the totals as rows of the printed table."""
    return [
        ("acknowledged", verdict.acknowledged, "a broker promised to keep them"),
        ("arrived", verdict.arrived, "different messages that were consumed"),
        ("refused", verdict.refused, "sends that failed: must be 0"),
        ("lost", verdict.lost, "acknowledged but never consumed: must be 0"),
        ("repeated", verdict.repeated, "arrived again: must be 0"),
        ("unexpected", verdict.unexpected, "arrived but never sent: must be 0"),
        ("out of order", verdict.out_of_order, "after a later message of the same key: must be 0"),
        ("holes", verdict.holes, "offsets of a queue without a message: must be 0"),
        ("longest send", round(verdict.pause_max_ms), "milliseconds, through every move"),
    ]


def main() -> int:
    """Run the demo; return 0 if the ledger is right, else 1."""
    screen = Screen()
    try:
        with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
            verdict = asyncio.run(run(Path(folder), screen))
    finally:
        screen.close()
    print_all([Table([*left("LEDGER"), *right("COUNT"), *left("")], ledger_rows(verdict))])
    is_right = verdict.is_good and not verdict.refused
    sys.stdout.write("the ledger is right\n" if is_right else "THE LEDGER IS WRONG\n")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
