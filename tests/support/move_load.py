"""Continuous load on a static topic, and its ledger: what was acknowledged against what arrived.

    key-0  ──1 send in flight──> queue of its key ──> one member of an ordered group ──> ledger
    key-1  ...

Every key counts up and never has two sends in flight, so the longest time between two acknowledgements of a key is the
pause that an application feels. Nothing is retried by the client but what a move asks for (code 501): a send that fails
is one that an application would have seen.
"""

import asyncio
import contextlib
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Self

from tests.support.client_stories import poll_until

from holdfast import HoldfastError, Message, Producer, PushConsumer, ReceivedMessage

_SEND_INTERVAL_S = (
    0.004  # between two sends of a key: the load is steady, and leaves room for others on a small machine
)
_RETRY_S = 0.05


@dataclass(slots=True)
class MoveLedger:
    """By key and number: where each message was acknowledged, and where it was seen."""

    acknowledged: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    deliveries: list[tuple[str, int, int, int]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    pauses_ms: list[float] = field(default_factory=list)
    delays_ms: list[float] = field(default_factory=list)
    missing: set[tuple[str, int]] = field(default_factory=set)
    _delivered: set[tuple[str, int]] = field(default_factory=set)
    _acknowledged_s: dict[tuple[str, int], float] = field(default_factory=dict)

    def record_ack(self, key: str, number: int, queue: int, offset: int) -> None:
        """Write down that a message is stored, and where."""
        self.acknowledged[key, number] = (queue, offset)
        self._acknowledged_s[key, number] = time.monotonic()
        if (key, number) not in self._delivered:
            self.missing.add((key, number))

    def record_delivery(self, key: str, number: int, queue: int, offset: int) -> None:
        """Write down that a message came."""
        if (key, number) in self.missing:
            self.missing.discard((key, number))
            self.delays_ms.append((time.monotonic() - self._acknowledged_s[key, number]) * 1000)
        self._delivered.add((key, number))
        self.deliveries.append((key, number, queue, offset))

    def lost(self) -> list[tuple[str, int]]:
        """Return what was acknowledged and never came."""
        return sorted(self.missing)

    def repeated(self) -> list[tuple[str, int]]:
        """Return what came more than once."""
        return [
            one for one, times in Counter((key, number) for key, number, _, _ in self.deliveries).items() if times > 1
        ]

    def out_of_order(self) -> list[tuple[str, int]]:
        """Return what came for the first time behind a later number of its key."""
        latest: dict[str, int] = {}
        first: set[tuple[str, int]] = set()
        late: list[tuple[str, int]] = []
        for key, number, _, _ in self.deliveries:
            if (key, number) not in first and number < latest.get(key, -1):
                late.append((key, number))
            first.add((key, number))
            latest[key] = max(number, latest.get(key, -1))
        return late

    def holes(self) -> dict[int, list[int]]:
        """Return, for each queue, the first few offsets below its last that nobody saw a message at."""
        offsets: dict[int, set[int]] = defaultdict(set)
        for _, _, queue, offset in self.deliveries:
            offsets[queue].add(offset)
        holes = {queue: sorted(set(range(max(found) + 1)) - found)[:5] for queue, found in offsets.items()}
        return {queue: some for queue, some in holes.items() if some}

    def misplaced(self) -> list[tuple[str, int]]:
        """Return what was never seen where its sender was told that it is."""
        seen_at: dict[tuple[str, int], set[tuple[int, int]]] = defaultdict(set)
        for key, number, queue, offset in self.deliveries:
            seen_at[key, number].add((queue, offset))
        return [
            message
            for message, stored_at in self.acknowledged.items()
            if message in seen_at and stored_at not in seen_at[message]
        ]

    def reused_offsets(self) -> list[tuple[int, int]]:
        """Return the places that were given to more than one message."""
        return [stored_at for stored_at, times in Counter(self.acknowledged.values()).items() if times > 1]

    def reset_times(self) -> None:
        """Forget the times so far: a group that has just begun is not what shall be measured."""
        self.pauses_ms.clear()
        self.delays_ms.clear()

    def check_unnoticed(self) -> None:
        """Fail unless nobody could have noticed that anything moved."""
        assert self.acknowledged
        assert not self.failures, self.failures[:3]
        assert not self.repeated(), self.repeated()[:10]
        self.check_kept()

    def check_kept(self) -> None:
        """Fail unless everything acknowledged came, in order, from where it was said to be, without holes."""
        assert not self.lost(), (len(self.lost()), self.lost()[:10])
        assert not self.out_of_order(), (len(self.out_of_order()), self.out_of_order()[:10])
        assert not self.misplaced(), self.misplaced()[:10]
        assert not self.reused_offsets(), self.reused_offsets()[:10]
        assert not self.holes(), self.holes()

    def print_summary(self, title: str) -> None:
        """Print what was measured; the machine decides about the numbers, so nothing is asserted of them."""
        sys.stdout.write(
            f"{title}: {len(self.acknowledged)} acknowledged, {len(self.failures)} failed,"
            f" write pause {_percentiles(self.pauses_ms)}, delivery {_percentiles(self.delays_ms)}\n"
        )


class StaticTopicLoad:
    """Producers and a group on *topic* for the time of the block; `finish` ends it well.

    Args:
        retries_forever: Send a message again until it is acknowledged, as an application does that outlives a crash.
    """

    def __init__(
        self,
        namesrv: str,
        topic: str,
        *,
        keys: int = 16,
        producers: int = 2,
        members: int = 2,
        timeout_s: float = 3,
        retries: int = 0,
        retries_forever: bool = False,
    ) -> None:
        self.ledger = MoveLedger()
        self._topic = topic
        self._retries_forever = retries_forever
        self._keys = [f"key-{number}" for number in range(keys)]
        self._producers = [
            Producer(namesrv, f"load-{number}", retries=retries, timeout_s=timeout_s) for number in range(producers)
        ]
        self._namesrv = namesrv
        self._members = [self.member() for _ in range(members)]
        self._is_stopped = False
        self._tasks: list[asyncio.Task[None]] = []
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        for member in self._members:
            await self._stack.enter_async_context(member)
        for producer in self._producers:
            await self._stack.enter_async_context(producer)
        self._tasks = [
            asyncio.create_task(self._count_up(key, self._producers[number % len(self._producers)]))
            for number, key in enumerate(self._keys)
        ]
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()

    def member(self) -> PushConsumer:
        """Return a member of the group that writes into the ledger; not started yet."""
        consumer = PushConsumer(
            self._namesrv, f"{self._topic}-load", listener=self._listen, ordered=True, start="earliest"
        )
        consumer.subscribe(self._topic)
        return consumer

    def stop(self) -> None:
        """End the sending."""
        self._is_stopped = True

    async def wait_for_deliveries(self, messages: int = 400) -> None:
        """Return once that many more messages were acknowledged and have come."""
        acknowledged, seen = len(self.ledger.acknowledged) + messages, len(self.ledger.deliveries) + messages
        await poll_until(lambda: len(self.ledger.acknowledged) >= acknowledged and len(self.ledger.deliveries) >= seen)

    async def wait_for_acks(self, messages: int) -> None:
        """Return once that many more messages were acknowledged."""
        acknowledged = len(self.ledger.acknowledged) + messages
        await poll_until(lambda: len(self.ledger.acknowledged) >= acknowledged)

    async def measure(self) -> None:
        """Measure from now on, once the group has caught up: how it began is not what shall be measured."""
        await self.wait_for_deliveries()
        await poll_until(lambda: len(self.ledger.missing) <= len(self._keys))
        self.ledger.reset_times()

    async def finish(self) -> MoveLedger:
        """End the sending and return the ledger once everything acknowledged has come."""
        self.stop()
        await asyncio.gather(*self._tasks)
        await poll_until(lambda: not self.ledger.missing)
        return self.ledger

    async def _count_up(self, key: str, producer: Producer) -> None:
        number, last_s = 0, time.monotonic()
        while not self._is_stopped:
            try:
                result = await producer.send(Message(self._topic, f"{key} {number}".encode(), key=key))
            except HoldfastError as error:
                self.ledger.failures.append(f"{key} {number}: {error}")
                await asyncio.sleep(_RETRY_S)
                number += not self._retries_forever
                continue
            now_s = time.monotonic()
            self.ledger.pauses_ms.append((now_s - last_s) * 1000)
            self.ledger.record_ack(key, number, result.queue.queue_id, result.offset)
            number += 1
            await asyncio.sleep(_SEND_INTERVAL_S)
            last_s = time.monotonic()

    async def _listen(self, message: ReceivedMessage) -> None:
        key, _, number = message.body.decode().partition(" ")
        self.ledger.record_delivery(key, int(number), message.queue.queue_id, message.offset)


def _percentiles(numbers: list[float]) -> str:
    ordered = sorted(numbers) or [0.0]
    return " ".join(
        f"{name} {ordered[min(len(ordered) - 1, int(len(ordered) * share))]:.1f} ms"
        for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
    )
