"""`holdfast bench`: a small load from this process, to check that a cluster works. It does not measure its limits.

    producer 1 ── in flight: 16 ──┐            ┌── consumer 1
    producer 2 ── in flight: 16 ──┼── topic ───┼── consumer 2
                                  ┘            └── ...

The load generator is also Python and shares the machine: it prints the throughput of one client program.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Final

import msgspec
import typer

from holdfast.admin.operations import Admin
from holdfast.admin.tables import Facts, size_text
from holdfast.cli.progress import show_progress
from holdfast.cli.session import Session, cluster_command
from holdfast.client.cluster.queue_rpc import Start
from holdfast.client.producer import Producer
from holdfast.client.push_consumer import PushConsumer
from holdfast.model.errors import HoldfastError
from holdfast.model.message import Message, ReceivedMessage

TOPIC: Final = "holdfast-bench"
GROUP: Final = "holdfast-bench"
# Stop waiting for consumers when no message arrived for this long.
_SILENCE_S: Final = 5.0


def register(root: typer.Typer) -> None:
    """Add this command to the tree."""
    cluster_command(root, "bench")(bench)


class Load(msgspec.Struct, frozen=True):
    """The load to put on the cluster."""

    topic: str
    producers: int
    in_flight: int
    consumers: int
    size: int
    batch: int
    seconds: float


class Figures(msgspec.Struct, frozen=True):
    """The measured results. Latency is from the call of `send` to its acknowledgement."""

    sent: int
    failed: int
    consumed: int
    seconds: float
    sends_per_second: float
    bytes_per_second: float
    consumes_per_second: float
    p50_ms: float
    p99_ms: float


def bench(
    session: Session,
    *,
    topic: Annotated[
        str | None, typer.Option(help="Use this topic and keep it.", show_default="a new one, deleted afterwards")
    ] = None,
    producers: Annotated[int, typer.Option(min=1, help="Producers, each with a connection to every broker.")] = 2,
    in_flight: Annotated[int, typer.Option(min=1, help="Concurrent sends of each producer.")] = 64,
    consumers: Annotated[int, typer.Option(min=0, help="Consumers, members of one group.")] = 1,
    size: Annotated[int, typer.Option(min=1, help="Bytes of a message.")] = 1024,
    batch: Annotated[int, typer.Option(min=1, help="Messages per send.")] = 1,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long.")] = 5.0,
    queues: Annotated[int, typer.Option(min=1, help="Queues on each broker, for the new topic.")] = 8,
) -> None:
    """Put a small load on the cluster; print rates and latency.

    Example: holdfast bench --producers 4 --in-flight 64 --size 1024 --seconds 10
    """
    load = Load(topic or TOPIC, producers, in_flight, consumers, size, batch, seconds)
    figures = session.run(_run(session, load, own_queues=queues if topic is None else None))
    session.show({"load": load, "figures": figures}, _facts(load, figures))


async def _run(session: Session, load: Load, *, own_queues: int | None) -> Figures:
    async with Admin(
        session.namesrv, timeout_s=session.timeout_s, unit=session.unit, tls=session.tls, **session.access
    ) as admin:
        if own_queues is not None:
            await admin.topics.apply(load.topic, await admin.topics.plan(load.topic, queues=own_queues))
        else:
            await admin.access.get_route(load.topic)
        try:
            # A new topic is read from its beginning, so that no message is missed while consumers join.
            return await _measure(session, load, start="latest" if own_queues is None else "earliest")
        finally:
            if own_queues is not None:
                await admin.topics.delete(load.topic)
                with contextlib.suppress(HoldfastError):  # without consumers, the group does not exist
                    await admin.groups.delete(GROUP)


class _ConsumedCounter:
    """Counts the messages that the consumers receive."""

    def __init__(self) -> None:
        self.count = 0
        self.last_s = time.monotonic()
        self._arrived = asyncio.Event()

    async def count_message(self, message: ReceivedMessage) -> None:
        """Count one message; the listener of the consumers."""
        del message
        self.count += 1
        self.last_s = time.monotonic()
        self._arrived.set()

    async def wait_for(self, count: int) -> None:
        """Return once *count* messages arrived, or when none arrived for a while."""
        while self.count < count:
            self._arrived.clear()
            try:
                async with asyncio.timeout(_SILENCE_S):
                    await self._arrived.wait()
            except TimeoutError:
                return


async def _measure(session: Session, load: Load, *, start: Start) -> Figures:
    consumed = _ConsumedCounter()
    namesrv, unit, access = session.namesrv, session.unit, session.access
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(load.consumers):
            consumer = PushConsumer(
                namesrv,
                GROUP,
                listener=consumed.count_message,
                start=start,
                concurrency=64,
                unit=unit,
                tls=session.tls,
                **access,
            )
            consumer.subscribe(load.topic)
            await stack.enter_async_context(consumer)
        producers = [
            await stack.enter_async_context(
                Producer(namesrv, GROUP, timeout_s=session.timeout_s, unit=unit, tls=session.tls, **access)
            )
            for _ in range(load.producers)
        ]
        started_s = time.monotonic()
        latencies, failed = await _produce(producers, load, quiet=session.as_json)
        spent_s = time.monotonic() - started_s
        sent = len(latencies) * load.batch
        if load.consumers:
            await consumed.wait_for(sent)
    ordered = sorted(latencies) or [0.0]
    return Figures(
        sent=sent,
        failed=failed,
        consumed=consumed.count,
        seconds=round(spent_s, 3),
        sends_per_second=round(sent / spent_s, 1),
        bytes_per_second=round(sent * load.size / spent_s, 1),
        consumes_per_second=round(consumed.count / max(consumed.last_s - started_s, 1e-9), 1),
        p50_ms=round(1000 * percentile(ordered, 0.50), 3),
        p99_ms=round(1000 * percentile(ordered, 0.99), 3),
    )


async def _produce(producers: Sequence[Producer], load: Load, *, quiet: bool) -> tuple[list[float], int]:
    """Return how long each acknowledged send took, and how many failed."""
    messages = [Message(load.topic, bytes(load.size))] * load.batch
    deadline_s = time.monotonic() + load.seconds
    latencies: list[float] = []
    failed = 0

    async def work(producer: Producer) -> None:
        nonlocal failed
        while (started_s := time.monotonic()) < deadline_s:
            try:
                if load.batch == 1:
                    await producer.send(messages[0])
                else:
                    await producer.send_many(messages)
            except HoldfastError:
                failed += load.batch
            else:
                latencies.append(time.monotonic() - started_s)

    async def tick(advance: Callable[[int], None]) -> None:
        while True:
            await asyncio.sleep(1)
            advance(1)

    with show_progress("sending, seconds", int(load.seconds), quiet=quiet) as advance:
        ticker = asyncio.create_task(tick(advance))
        await asyncio.gather(*(work(producer) for producer in producers for _ in range(load.in_flight)))
        ticker.cancel()
    return latencies, failed


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which *share* of the values lie; *ordered* is sorted and not empty."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _facts(load: Load, figures: Figures) -> Facts:
    return Facts(
        [
            ("topic", load.topic),
            ("load", f"{load.producers} producers x {load.in_flight} in flight, {size_text(load.size)} messages"),
            ("sent", figures.sent),
            ("failed", figures.failed),
            ("sends", f"{figures.sends_per_second:,.0f}/s, {size_text(figures.bytes_per_second)}/s"),
            ("latency", f"p50 {figures.p50_ms:.2f} ms, p99 {figures.p99_ms:.2f} ms"),
            ("consumed", figures.consumed),
            ("consumes", f"{figures.consumes_per_second:,.0f}/s"),
        ]
    )
