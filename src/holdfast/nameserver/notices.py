"""What has to be told to whom, and when.

    a change of topics     due at the next tick
    a broker comes, goes   every client gets a tick of its own, by chance, within the spread: it concerns all topics of
                           the broker at once, and whoever is told comes back with a question for each

    tick            1         2         3         4
    client A     changes ─> told
    client B     broker ──────────────> told                        one notice, with all that it is owed by then
    client C     broker ──────────────────────> told
                       change of a topic ─> told, and of the broker too

What a client is owed is a set of topics. It goes whole at the soonest of its moments, and it is never dropped, but with
the client's connection or at its own wish. At most so many frames leave a second; those over wait for the next tick,
and go first then.

A moment is counted in ticks, not in milliseconds: clocks are set back. Knows neither sockets nor what makes a client
watch a topic.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from enum import Enum, auto
from random import Random
from typing import Final, Literal

from holdfast.machine.events import ChannelId
from holdfast.wire.cluster.watch import join_topics, split_topics

TICK_MS: Final = 1_000
_NAMES_PER_CLIENT: Final = 64  # So many names take as long as one more client.
BrokerEvents = Literal["spread", "off"]


class Occasion(Enum):
    """Why routes changed."""

    CHANGE = auto()  # somebody changed topics or permissions
    BROKER = auto()  # a broker came or went, with all that it has


def judge_registration(broker_events: BrokerEvents, *, is_first: bool, topic_count: int) -> Occasion:
    """Return what a registration is: the arrival of a broker, or a change of its topics.

    Where nobody is told of arrivals, they are told apart as the proposal does it: by more than one topic.
    """
    is_arrival = topic_count > 1 if broker_events == "off" else is_first
    return Occasion.BROKER if is_arrival else Occasion.CHANGE


class _Owed:
    """What one client is still to be told, and at which tick."""

    __slots__ = ("tick", "topics")

    def __init__(self, tick: int) -> None:
        self.tick = tick
        self.topics: set[str] = set()


class Notices:
    """Every client that is owed a notice.

    Args:
        random: Chooses the moments.
        broker_events: Whether clients are told that brokers came and went.
        spread_ms: Within which time all clients are told of such an event.
        rate_max: How many frames may leave a second.

    Attributes:
        sent: How many frames have left so far.
    """

    def __init__(self, random: Random, *, broker_events: BrokerEvents, spread_ms: int, rate_max: int) -> None:
        self._random = random
        self._broker_events = broker_events
        # The k-th tick from now comes within k seconds. One less than fit: the frames of a tick take their time.
        self._spread_ticks = max(1, (spread_ms - 1) // TICK_MS)
        self._rate_max = rate_max
        self._owed: dict[ChannelId, _Owed] = {}
        self._tick = 0
        self._due: list[ChannelId] = []  # of the round under way, the last one first
        self._room = 0  # how many frames may leave in it
        self.sent = 0

    def __len__(self) -> int:
        """Return how many clients are owed something."""
        return len(self._owed)

    @property
    def is_sending(self) -> bool:
        """Whether the round under way has not ended."""
        return bool(self._due) and self._room > 0

    def add(self, changes: Iterable[tuple[str, Collection[ChannelId]]], occasion: Occasion) -> None:
        """Owe every change, a topic with its watchers, to all of them."""
        if occasion is Occasion.BROKER and self._broker_events == "off":
            # Not even inspected: the routes still differ from those that clients know when a change of them comes.
            return
        owed, next_tick = self._owed, self._tick + 1
        for topic, channels in changes:
            for channel in channels:
                debt = owed.get(channel)
                if debt is None:
                    debt = owed[channel] = _Owed(next_tick)
                    if occasion is Occasion.BROKER:
                        debt.tick += self._random.randrange(self._spread_ticks)
                elif occasion is Occasion.CHANGE and debt.tick > next_tick:
                    debt.tick = next_tick
                debt.topics.add(topic)

    def forget(self, channel: ChannelId, topics: Iterable[str]) -> None:
        """Owe *topics* to *channel* no more: it does not want to hear of them."""
        debt = self._owed.get(channel)
        if debt is not None:
            debt.topics.difference_update(topics)
            if not debt.topics:
                self.closed(channel)

    def closed(self, channel: ChannelId) -> None:
        """Owe nothing to a connection that is gone."""
        if self._owed.pop(channel, None) is not None and not self._owed:
            self._due.clear()  # Nobody is left to end the round for.

    # Telling.

    def tick(self) -> None:
        """Let a tick pass in which nothing is sent."""
        self._tick += 1

    def begin(self) -> None:
        """Begin the round of this tick: whose moment has come, the oldest first. Follow with `take`."""
        due = [(debt.tick, channel) for channel, debt in self._owed.items() if debt.tick <= self._tick]
        due.sort(reverse=True)
        self._due = [channel for _, channel in due]
        self._room = self._rate_max

    def take(self, count: int) -> Iterator[tuple[ChannelId, list[str]]]:
        """Return the next *count* clients of the round, or fewer where they are owed much, each with its texts."""
        while count > 0 and self.is_sending:
            count -= 1
            channel = self._due.pop()
            debt = self._owed.get(channel)
            if debt is None or debt.tick > self._tick:
                continue  # It left meanwhile, or came back as another debt.
            count -= len(debt.topics) // _NAMES_PER_CLIENT
            texts = list(join_topics(sorted(debt.topics)))
            told, rest = texts[: self._room], texts[self._room :]
            self._room -= len(told)
            self.sent += len(told)
            debt.topics = {topic for text in rest for topic in split_topics(text)}
            if not rest:
                del self._owed[channel]
            yield channel, told
