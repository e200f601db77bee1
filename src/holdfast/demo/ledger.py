"""A keyed load, and the record of which messages were acknowledged and which arrived.

    refused, in doubt   failed sends: not stored, so sent again; or perhaps stored
    lost                acknowledged, but never arrived
    repeated            arrived again
    unexpected          arrived, but never sent
    out of order        arrived after a later number of its key
    holes               offsets of a queue without a message

Every key has its own counter and at most one send in flight: 0, 1, 2, ... without repetition. The ledger asks no broker
anything.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Final

import msgspec

from holdfast.admin.cluster_start import ClusterPlan
from holdfast.client.producer import Producer
from holdfast.model.errors import HoldfastError, SendFailed
from holdfast.model.message import Message
from holdfast.wire.records.message_id import parse_message_id

# Pause between two sends of a key, which keeps the load of the machine low.
PACE_S: Final = 0.03

Item = tuple[str, int]
"""Key and number."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The totals of a ledger."""

    acknowledged: int
    arrived: int
    refused: int
    in_doubt: int
    lost: int
    repeated: int
    unexpected: int
    out_of_order: int
    holes: int
    pause_max_ms: float

    @property
    def is_good(self) -> bool:
        """Whether every acknowledged message arrived, once and in order, and there was at least one."""
        faults = (self.lost, self.repeated, self.unexpected, self.out_of_order, self.holes)
        return self.acknowledged > 0 and not any(faults)


class Ledger:
    """The acknowledged and the arrived messages, by key and number.

    Attributes:
        stored: How many messages each broker acknowledged.
        refused: How many sends failed.
    """

    def __init__(self) -> None:
        self.stored: Counter[str] = Counter()
        self.refused = 0
        self._pause_max_ms = 0.0
        self._repeated = 0
        self._out_of_order = 0
        self._acknowledged: set[Item] = set()
        self._in_doubt: set[Item] = set()
        self._arrived: set[Item] = set()
        self._missing = 0
        self._latest: dict[str, int] = {}
        self._ends: dict[int, int] = {}
        self._offsets: Counter[int] = Counter()
        self._stored_before: Counter[str] = Counter()

    def record_failure(self) -> None:
        """Record a failed send."""
        self.refused += 1

    def record_in_doubt(self, key: str, number: int) -> None:
        """Record that it is unknown whether a message was stored."""
        self._in_doubt.add((key, number))

    def record_acknowledgement(self, key: str, number: int, broker: str, pause_ms: float) -> None:
        """Record that *broker* acknowledged a message, *pause_ms* after its first attempt began."""
        self.stored[broker] += 1
        self._pause_max_ms = max(self._pause_max_ms, pause_ms)
        self._acknowledged.add((key, number))
        self._missing += (key, number) not in self._arrived

    def record_arrival(self, key: str, number: int, queue: int, offset: int) -> None:
        """Record that a message arrived, with its queue and offset."""
        if (key, number) in self._arrived:
            self._repeated += 1
            return
        self._arrived.add((key, number))
        self._missing -= (key, number) in self._acknowledged
        if number < self._latest.get(key, -1):
            self._out_of_order += 1
        self._latest[key] = max(number, self._latest.get(key, -1))
        self._ends[queue] = max(self._ends.get(queue, 0), offset + 1)
        self._offsets[queue] += 1

    @property
    def acknowledged(self) -> int:
        """The number of acknowledged messages."""
        return len(self._acknowledged)

    @property
    def arrived(self) -> int:
        """The number of different messages that arrived."""
        return len(self._arrived)

    @property
    def missing(self) -> int:
        """The number of acknowledged messages that have not arrived yet."""
        return self._missing

    def shares_since_last(self) -> str:
        """Return the share of each broker in the messages stored since the last call."""
        new = self.stored - self._stored_before
        self._stored_before = self.stored.copy()
        total = new.total() or 1
        return ", ".join(f"{name} {count * 100 // total} %" for name, count in sorted(new.items())) or "no broker"

    def close(self) -> Verdict:
        """Return the totals; messages still missing count as lost."""
        return Verdict(
            acknowledged=self.acknowledged,
            arrived=self.arrived,
            refused=self.refused,
            in_doubt=len(self._in_doubt),
            lost=self._missing,
            repeated=self._repeated,
            unexpected=len(self._arrived - self._acknowledged - self._in_doubt),
            out_of_order=self._out_of_order,
            holes=sum(end - self._offsets[queue] for queue, end in self._ends.items()),
            pause_max_ms=self._pause_max_ms,
        )


class LoadGenerator:
    """A keyed producer that runs until `stop` is called.

    Args:
        plan: The cluster.
        ledger: Receives the result of every send.
        topic: The topic of the messages.
        keys: The keys of the messages.
    """

    def __init__(self, plan: ClusterPlan, ledger: Ledger, topic: str, keys: list[str]) -> None:
        self._namesrv = plan.namesrv
        self._names = {broker.address: broker.name for broker in plan.brokers}
        self._ledger = ledger
        self._topic = topic
        self._keys = keys
        self._is_over = False

    def stop(self) -> None:
        """Stop after the sends in flight."""
        self._is_over = True

    async def run(self) -> None:
        """Send the numbers of every key in order."""
        async with Producer(self._namesrv, "load", retries=0) as producer:
            await asyncio.gather(*(self._count_up(producer, key) for key in self._keys))

    async def _count_up(self, producer: Producer, key: str) -> None:
        number, begun_s = 0, 0.0
        while not self._is_over:
            begun_s = begun_s or time.monotonic()
            if await self._send_number(producer, key, number, begun_s):
                number, begun_s = number + 1, 0.0
            await asyncio.sleep(PACE_S)

    async def _send_number(self, producer: Producer, key: str, number: int, begun_s: float) -> bool:
        """Send a message; return whether its number is used up: not if the message is certainly not stored."""
        try:
            result = await producer.send(Message(self._topic, b"%d" % number, key=key))
        except HoldfastError as error:
            self._ledger.record_failure()
            if not isinstance(error, SendFailed) or not error.maybe_stored:
                return False
            self._ledger.record_in_doubt(key, number)
            return True
        broker = self._names.get(parse_message_id(result.offset_id).address, "unknown")
        self._ledger.record_acknowledgement(key, number, broker, (time.monotonic() - begun_s) * 1000)
        return True
