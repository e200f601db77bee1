"""What happened when, as it is told at the end: events, who was up, and how the sums grew.

Numbers and texts only. Whoever has a clock says what time it is.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Event(msgspec.Struct, frozen=True):
    """Something that happened."""

    at_s: float
    text: str


class Sample(msgspec.Struct, frozen=True):
    """How things stood.

    Attributes:
        stored: How many messages each broker had acknowledged.
        arrived: How many had come out at the other end.
    """

    at_s: float
    stored: dict[str, int]
    arrived: int

    @property
    def sent(self) -> int:
        """How many messages were acknowledged by anybody."""
        return sum(self.stored.values())


class Span(msgspec.Struct):
    """A time during which something was up; the end is None while it is."""

    start_s: float
    end_s: float | None = None


class Timeline:
    """Everything that is drawn.

    Attributes:
        events: In the order in which they happened.
        lanes: By broker or query, when it was up.
        batches: By query, when each of its batches was done.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.samples: list[Sample] = []
        self.lanes: dict[str, list[Span]] = {}
        self.batches: dict[str, list[float]] = {}

    def tell(self, at_s: float, text: str) -> None:
        """Something happened."""
        self.events.append(Event(at_s, text))

    def sample(self, at_s: float, stored: Mapping[str, int], arrived: int) -> None:
        """Note how things stand."""
        self.samples.append(Sample(at_s, dict(stored), arrived))

    def begin(self, lane: str, at_s: float) -> None:
        """Note that somebody is up."""
        self.lanes.setdefault(lane, []).append(Span(at_s))

    def end(self, lane: str, at_s: float) -> None:
        """Note that somebody is not up any more; nothing when that was known."""
        spans = self.lanes.get(lane)
        if spans and spans[-1].end_s is None:
            spans[-1].end_s = at_s

    @property
    def end_s(self) -> float:
        """When the last thing happened."""
        times = [event.at_s for event in self.events] + [sample.at_s for sample in self.samples]
        return max(times, default=0.0)
