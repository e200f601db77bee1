"""The timeline of a demo: its events, when each broker was up, and how the message counts grew.

Contains numbers and texts only, and no clock: the caller passes the time.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Event(msgspec.Struct, frozen=True):
    """One event."""

    at_s: float
    text: str


class Sample(msgspec.Struct, frozen=True):
    """The counts at one moment.

    Attributes:
        stored: How many messages each broker had acknowledged.
        arrived: How many messages had reached the consumer.
    """

    at_s: float
    stored: dict[str, int]
    arrived: int

    @property
    def sent(self) -> int:
        """The number of messages that any broker had acknowledged."""
        return sum(self.stored.values())


class Span(msgspec.Struct):
    """A period in which a broker or query was up; the end is None while it is up."""

    start_s: float
    end_s: float | None = None


class Timeline:
    """Everything that the picture shows.

    Attributes:
        events: All events in order of time.
        lanes: By broker or query, the periods in which it was up.
        batches: By query, the completion time of each batch.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.samples: list[Sample] = []
        self.lanes: dict[str, list[Span]] = {}
        self.batches: dict[str, list[float]] = {}

    def record_event(self, at_s: float, text: str) -> None:
        """Record an event."""
        self.events.append(Event(at_s, text))

    def sample(self, at_s: float, stored: Mapping[str, int], arrived: int) -> None:
        """Record the current counts."""
        self.samples.append(Sample(at_s, dict(stored), arrived))

    def begin(self, lane: str, at_s: float) -> None:
        """Record that a broker or query is up."""
        self.lanes.setdefault(lane, []).append(Span(at_s))

    def end(self, lane: str, at_s: float) -> None:
        """Record that a broker or query is down; do nothing if it already was."""
        spans = self.lanes.get(lane)
        if spans and spans[-1].end_s is None:
            spans[-1].end_s = at_s

    @property
    def end_s(self) -> float:
        """The time of the last event or sample."""
        times = [event.at_s for event in self.events] + [sample.at_s for sample in self.samples]
        return max(times, default=0.0)
