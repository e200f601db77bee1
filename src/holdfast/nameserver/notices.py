"""Schedules notices of changed routes: which client is owed a notice about which topics, and when it is due.

    a topic changes            due at the next tick
    a broker comes or leaves   every client gets a random tick within the spread: the event affects all topics of the
                               broker at once, and a notified client queries the route of each

    tick            1         2         3         4
    client A     changes ─> notified
    client B     broker ──────────────> notified                    one notice, with all topics owed by then
    client C     broker ──────────────────────> notified
                       a topic changes ─> notified of it, and of the broker, too

A client is owed a set of topics. All of it is sent when the first of them is due. It is dropped only when the client
disconnects or stops watching. The number of frames per second is limited; the rest waits for the next tick and goes
first then.

Due times are counted in ticks, not milliseconds, because clocks are set back. Knows neither sockets nor watches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from enum import Enum, auto
from random import Random
from typing import Final, Literal

from holdfast.machine.events import ChannelId
from holdfast.wire.cluster.watch import join_topics, split_topics

TICK_MS: Final = 1_000
_NAMES_PER_CLIENT: Final = 64  # This many names take as much time as one more client.
BrokerEvents = Literal["spread", "off"]


class ChangeCause(Enum):
    """Why routes changed."""

    TOPIC = auto()  # topics or permissions were changed
    BROKER = auto()  # a broker came or left, with all its topics


def classify_registration(broker_events: BrokerEvents, *, is_first: bool, topic_count: int) -> ChangeCause:
    """Return whether a registration is the arrival of a broker or a change of its topics.

    If broker events are off, a registration of more than one topic counts as an arrival, as upstream's proposal does.
    """
    is_arrival = topic_count > 1 if broker_events == "off" else is_first
    return ChangeCause.BROKER if is_arrival else ChangeCause.TOPIC


class _PendingNotice:
    """The topics that one client is owed, and the tick at which they are due."""

    __slots__ = ("tick", "topics")

    def __init__(self, tick: int) -> None:
        self.tick = tick
        self.topics: set[str] = set()


class NoticeSchedule:
    """All clients that are owed a notice.

    Args:
        random: Chooses the due times.
        broker_events: Whether clients are notified when brokers come and leave.
        spread_ms: The time within which all clients are notified of such an event.
        rate_max: Frames per second.

    Attributes:
        sent: Number of frames sent so far.
    """

    def __init__(self, random: Random, *, broker_events: BrokerEvents, spread_ms: int, rate_max: int) -> None:
        self._random = random
        self._broker_events = broker_events
        # The k-th tick from now comes within k seconds. One less than fits: sending the frames of a tick takes time.
        self._spread_ticks = max(1, (spread_ms - 1) // TICK_MS)
        self._rate_max = rate_max
        self._pending: dict[ChannelId, _PendingNotice] = {}
        self._tick = 0
        self._due: list[ChannelId] = []  # clients of the current round, the last one first
        self._quota = 0  # frames that may still be sent in this round
        self.sent = 0

    def __len__(self) -> int:
        """Return the number of clients that are owed a notice."""
        return len(self._pending)

    @property
    def is_sending(self) -> bool:
        """Whether the current round is unfinished."""
        return bool(self._due) and self._quota > 0

    def add(self, changes: Iterable[tuple[str, Collection[ChannelId]]], cause: ChangeCause) -> None:
        """Schedule a notice of each changed topic for each of its watchers."""
        if cause is ChangeCause.BROKER and self._broker_events == "off":
            # Do not even compare routes: so the next change of such a topic still differs from what clients know.
            return
        pending, next_tick = self._pending, self._tick + 1
        for topic, channels in changes:
            for channel in channels:
                notice = pending.get(channel)
                if notice is None:
                    notice = pending[channel] = _PendingNotice(next_tick)
                    if cause is ChangeCause.BROKER:
                        notice.tick += self._random.randrange(self._spread_ticks)
                elif cause is ChangeCause.TOPIC and notice.tick > next_tick:
                    notice.tick = next_tick
                notice.topics.add(topic)

    def cancel(self, channel: ChannelId, topics: Iterable[str]) -> None:
        """Cancel the notices of *topics* to *channel*, which stopped watching them."""
        notice = self._pending.get(channel)
        if notice is not None:
            notice.topics.difference_update(topics)
            if not notice.topics:
                self.channel_closed(channel)

    def channel_closed(self, channel: ChannelId) -> None:
        """Cancel all notices to a closed connection."""
        if self._pending.pop(channel, None) is not None and not self._pending:
            self._due.clear()  # No client is left in this round.

    # Sending.

    def tick(self) -> None:
        """Advance to the next tick without sending."""
        self._tick += 1

    def begin_round(self) -> None:
        """Begin the round of this tick with all clients that are due, the oldest first. Follow with `next_batch`."""
        due = [(notice.tick, channel) for channel, notice in self._pending.items() if notice.tick <= self._tick]
        due.sort(reverse=True)
        self._due = [channel for _, channel in due]
        self._quota = self._rate_max

    def next_batch(self, count: int) -> Iterator[tuple[ChannelId, list[str]]]:
        """Yield the next *count* clients of the round with their texts; fewer if they are owed many topics."""
        while count > 0 and self.is_sending:
            count -= 1
            channel = self._due.pop()
            notice = self._pending.get(channel)
            if notice is None or notice.tick > self._tick:
                continue  # It disconnected meanwhile, or is owed something new that is not due.
            count -= len(notice.topics) // _NAMES_PER_CLIENT
            texts = list(join_topics(sorted(notice.topics)))
            batch, remaining = texts[: self._quota], texts[self._quota :]
            self._quota -= len(batch)
            self.sent += len(batch)
            notice.topics = {topic for text in remaining for topic in split_topics(text)}
            if not remaining:
                del self._pending[channel]
            yield channel, batch
