"""Counters of puts and gets: totals for the runtime statistics, and counts by topic and group for tools (315).

A counter is a growing number. A sample is its value at a time. A rate is the difference of two samples:

    every 10 s  ->  last minute        every 10 min  ->  last hour        every hour  ->  last day

Counting is on the hot path and consists of additions only. Everything else happens on request, or every ten seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

import msgspec

from holdfast.broker.flow.request import Timers
from holdfast.machine.component import Component
from holdfast.machine.sample import Sample
from holdfast.machine.turn import Turn

TIMER: Final = "stats"
SAMPLE_INTERVAL_MS: Final = 10_000
_HOUR_SAMPLE_MS: Final = 600_000
_DAY_SAMPLE_MS: Final = 3_600_000
_DAY_MS: Final = 86_400_000

TOPIC_PUT_NUMS: Final = "TOPIC_PUT_NUMS"
TOPIC_PUT_SIZE: Final = "TOPIC_PUT_SIZE"
GROUP_GET_NUMS: Final = "GROUP_GET_NUMS"
GROUP_GET_SIZE: Final = "GROUP_GET_SIZE"
SEND_BACK_NUMS: Final = "SNDBCK_PUT_NUMS"
BROKER_PUT_NUMS: Final = "BROKER_PUT_NUMS"
BROKER_GET_NUMS: Final = "BROKER_GET_NUMS"

# Counter -> name and help text of the metric. Keys that contain a group have the form `topic@group`.
_BY_TOPIC: Final = {
    TOPIC_PUT_NUMS: ("broker_topic_puts", "Messages stored, by topic."),
    TOPIC_PUT_SIZE: ("broker_topic_put_bytes", "Bytes stored, by topic."),
}
_BY_GROUP: Final = {
    GROUP_GET_NUMS: ("broker_group_gets", "Messages delivered, by topic and group."),
    GROUP_GET_SIZE: ("broker_group_get_bytes", "Bytes delivered, by topic and group."),
    SEND_BACK_NUMS: ("broker_group_send_backs", "Messages that a group failed to consume, by topic and group."),
}


class Rate(msgspec.Struct, frozen=True):
    """The events within a time span. The field names are those of the wire format.

    Attributes:
        avgpt: Average amount per event.
    """

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


class Rates(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Body of the answer to 315."""

    stats_minute: Rate = Rate()
    stats_hour: Rate = Rate()
    stats_day: Rate = Rate()


class Counter:
    """A growing number with samples of earlier values.

    Attributes:
        value: The sum of all amounts counted.
        times: The number of events counted.
    """

    __slots__ = ("_day", "_hour", "_minute", "times", "value")

    def __init__(self) -> None:
        self.value = 0
        self.times = 0
        self._minute: deque[tuple[int, int, int]] = deque(maxlen=7)
        self._hour: deque[tuple[int, int, int]] = deque(maxlen=7)
        self._day: deque[tuple[int, int, int]] = deque(maxlen=25)

    def sample(self, now_ms: int) -> None:
        """Append the present value to every series whose interval has passed."""
        entry = (now_ms, self.value, self.times)
        self._minute.append(entry)
        for row, interval_ms in ((self._hour, _HOUR_SAMPLE_MS), (self._day, _DAY_SAMPLE_MS)):
            if not row or now_ms - row[-1][0] >= interval_ms:
                row.append(entry)

    def rates(self) -> Rates:
        """Return the rates of the last minute, hour and day, from the samples."""
        return Rates(stats_minute=_rate(self._minute), stats_hour=_rate(self._hour), stats_day=_rate(self._day))

    def tps(self, span_ms: int) -> float:
        """Return the rate over about the last *span_ms*, from the samples."""
        row = self._minute if span_ms <= 60_000 else self._hour
        if not row:
            return 0.0
        end_ms, end_value, _ = row[-1]
        for start_ms, start_value, _ in row:
            if end_ms - start_ms <= span_ms:
                return (end_value - start_value) * 1000 / (end_ms - start_ms) if end_ms > start_ms else 0.0
        return 0.0

    def is_idle(self) -> bool:
        """Return whether nothing was counted within the span of the longest series."""
        return bool(self._day) and self._day[0][1] == self.value and len(self._day) == self._day.maxlen


def _rate(row: deque[tuple[int, int, int]]) -> Rate:
    if len(row) < 2:
        return Rate()
    (start_ms, start_value, start_times), (end_ms, end_value, end_times) = row[0], row[-1]
    amount, times = end_value - start_value, end_times - start_times
    return Rate(
        sum=amount,
        tps=amount * 1000 / (end_ms - start_ms) if end_ms > start_ms else 0.0,
        avgpt=amount / times if times else 0.0,
    )


class BrokerStats(Component):
    """Every counter of the broker.

    Attributes:
        started_ms: When counting began.
        puts, gets: Messages stored and delivered.
        pulls_found, pulls_missed: Pulls that returned messages, and those that returned none.
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self.started_ms = turn.now_ms
        self.puts = Counter()
        self.gets = Counter()
        self.pulls_found = Counter()
        self.pulls_missed = Counter()
        self._named: dict[tuple[str, str], Counter] = {}
        self._topic_puts: dict[str, tuple[Counter, Counter]] = {}
        self._group_gets: dict[tuple[str, str], tuple[Counter, Counter]] = {}
        # (puts, gets) at the last two midnights.
        self._midnights = [(0, 0), (0, 0)]
        self._day = turn.now_ms // _DAY_MS
        self._sampled_ms = turn.now_ms

    # Counting.

    def count_puts(self, topic: str, messages: int, size: int) -> None:
        """Count messages stored in *topic*, and the bytes of their bodies."""
        self.puts.value += messages
        self.puts.times += 1
        counters = self._topic_puts.get(topic)
        if counters is None:
            counters = self.named(TOPIC_PUT_NUMS, topic), self.named(TOPIC_PUT_SIZE, topic)
            self._topic_puts[topic] = counters
        counted, sized = counters
        counted.value += messages
        counted.times += 1
        sized.value += size
        sized.times += 1

    def count_gets(self, group: str, topic: str, messages: int, size: int) -> None:
        """Count a pull that returned *messages* messages with *size* bytes."""
        self.gets.value += messages
        self.gets.times += 1
        self.pulls_found.value += 1
        key = (group, topic)
        counters = self._group_gets.get(key)
        if counters is None:
            name = f"{topic}@{group}"
            counters = self.named(GROUP_GET_NUMS, name), self.named(GROUP_GET_SIZE, name)
            self._group_gets[key] = counters
        counters[0].value += messages
        counters[0].times += 1
        counters[1].value += size
        counters[1].times += 1

    def count_miss(self) -> None:
        """Count a pull that returned no message."""
        self.pulls_missed.value += 1

    def count(self, name: str, key: str, amount: int = 1) -> None:
        """Add *amount* to a named counter; for events that are rarer than puts and gets."""
        counter = self.named(name, key)
        counter.value += amount
        counter.times += 1

    # Queries.

    def named(self, name: str, key: str) -> Counter:
        """Return the counter of that name and key, creating it if necessary."""
        counter = self._named.get((name, key))
        if counter is None:
            counter = self._named[name, key] = Counter()
            # It was 0 at the last sample, so that rates include everything counted before the next one.
            counter.sample(self._sampled_ms)
        return counter

    def metrics(self) -> Iterator[Sample]:
        """Yield the totals, and the counts by topic and group."""
        yield Sample("broker_puts", "counter", "Messages stored.", self.puts.value)
        yield Sample("broker_gets", "counter", "Messages delivered.", self.gets.value)
        yield Sample("broker_pulls_found", "counter", "Pulls that returned messages.", self.pulls_found.value)
        yield Sample("broker_pulls_missed", "counter", "Pulls that returned no message.", self.pulls_missed.value)
        for name, key, counter in self.all_named():
            if name in _BY_TOPIC:
                metric, about = _BY_TOPIC[name]
                yield Sample(metric, "counter", about, counter.value, {"topic": key})
            elif name in _BY_GROUP:
                metric, about = _BY_GROUP[name]
                topic, _, group = key.partition("@")
                yield Sample(metric, "counter", about, counter.value, {"topic": topic, "group": group})

    def all_named(self) -> list[tuple[str, str, Counter]]:
        """Return every counter that has a name, as (name, key, counter)."""
        return [(name, key, counter) for (name, key), counter in self._named.items()]

    def find_named(self, name: str, key: str) -> Counter | None:
        """Return the counter of that name and key, or None if it does not exist."""
        if name == BROKER_PUT_NUMS:
            return self.puts
        if name == BROKER_GET_NUMS:
            return self.gets
        return self._named.get((name, key))

    def put_tps(self, topic: str) -> float:
        """Return the messages per second stored in *topic* in the last minute."""
        counter = self._named.get((TOPIC_PUT_NUMS, topic))
        return counter.rates().stats_minute.tps if counter is not None else 0.0

    def get_tps(self, group: str, topic: str) -> float:
        """Return the messages per second of *topic* delivered to *group* in the last minute."""
        counter = self._named.get((GROUP_GET_NUMS, f"{topic}@{group}"))
        return counter.rates().stats_minute.tps if counter is not None else 0.0

    def at_midnights(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return (puts, gets) at the start of today and at the start of yesterday."""
        return self._midnights[1], self._midnights[0]

    # Time.

    def timers(self) -> Timers:
        """Return the timers of this component, by name."""
        return {TIMER: self.on_timer}

    def start(self) -> None:
        """Take the first sample and start the timer."""
        now_ms = self._turn.now_ms
        self.started_ms = now_ms
        self._day = now_ms // _DAY_MS
        self._sample()
        self._turn.set_timer(TIMER, now_ms + SAMPLE_INTERVAL_MS)

    def on_timer(self) -> None:
        """Take the next sample and set the timer."""
        self._sample()
        self._turn.set_timer(TIMER, self._turn.now_ms + SAMPLE_INTERVAL_MS)

    def forget_topic(self, topic: str) -> None:
        """Remove the counters of a deleted topic."""
        self._topic_puts.pop(topic, None)
        self._group_gets = {key: counters for key, counters in self._group_gets.items() if key[1] != topic}
        self._named = {
            key: counter
            for key, counter in self._named.items()
            if key[1] != topic and not key[1].startswith(f"{topic}@")
        }

    def _sample(self) -> None:
        now_ms = self._turn.now_ms
        self._sampled_ms = now_ms
        for counter in (self.puts, self.gets, self.pulls_found, self.pulls_missed, *self._named.values()):
            counter.sample(now_ms)
        if now_ms // _DAY_MS != self._day:
            self._day = now_ms // _DAY_MS
            self._midnights = [self._midnights[1], (self.puts.value, self.gets.value)]
