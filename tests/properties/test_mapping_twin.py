"""Logical queues against their plainest twin: a list that says of every record where it is and whether it is gone."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.model.mapping import (
    FORCED_GAP,
    LogicalQueue,
    Segment,
    TopicMapping,
    check_queue,
    new_logical_queue,
)
from holdfast.wire.cluster import mapping as wire

BROKERS = ["a", "b", "c"]
brokers = st.sampled_from(BROKERS)


@dataclass
class Record:
    """One record, wherever it is."""

    logical: int
    broker: str
    queue_id: int
    physical: int
    is_gone: bool = False


@dataclass
class Home:
    """A physical queue in the time in which it was one home."""

    segment: Segment
    records: list[Record] = field(default_factory=list)

    @property
    def max(self) -> int:
        """Its physical maximum."""
        return len(self.records)


class QueueAndList(RuleBasedStateMachine):
    """Whatever is done in whatever order, every record that is not gone is found where it is, under its one offset."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = {name: count() for name in BROKERS}
        self.queue = new_logical_queue(7, "a", next(self.numbers["a"]))
        self.homes: dict[int, Home] = {0: Home(self.queue.leader)}
        self.minimums: dict[int, int] = {}

    @property
    def records(self) -> list[Record]:
        return [record for generation in sorted(self.homes) for record in self.homes[generation].records]

    def home(self, segment: Segment) -> Home:
        return self.homes[segment.generation]

    @rule(number=st.integers(1, 5))
    def append(self, number: int) -> None:
        """Only an open leader takes records."""
        leader = self.queue.leader
        if leader.is_open:
            home = self.home(leader)
            for _ in range(number):
                home.records.append(Record(leader.first + home.max, *leader.physical_queue, home.max))

    @precondition(lambda self: self.queue.prepared is None and self.queue.leader.is_open)
    @rule(other=brokers)
    def prepare(self, other: str) -> None:
        """Onto an expired physical queue where there is one."""
        if other != self.queue.leader.broker:
            expired, new = self.queue.reusable_queue_id(other), next(self.numbers[other])
            self.queue = self.queue.prepare(other, new if expired is None else expired)

    @precondition(lambda self: self.queue.prepared is not None and self.queue.leader.is_open)
    @rule()
    def seal(self) -> None:
        """At what the physical queue holds."""
        self.queue = self.queue.seal(self.home(self.queue.leader).max)

    @precondition(lambda self: self.queue.prepared is not None or self.queue.leader.is_sealed)
    @rule()
    def rollback(self) -> None:
        """The leader goes on as if nothing had been."""
        self.queue = self.queue.rollback()
        assert self.queue.leader.is_open

    @precondition(lambda self: self.queue.prepared is not None and self.queue.leader.is_sealed)
    @rule()
    def open_next(self) -> None:
        """Exactly where the old one ended."""
        end = self.queue.leader.first + self.home(self.queue.leader).max
        self.queue = self.queue.open_next()
        assert self.queue.leader.first == end
        self.homes[self.queue.generation] = Home(self.queue.leader)

    @rule(other=brokers, unseen=st.integers(0, 3))
    def force(self, other: str, unseen: int) -> None:
        """The old leader may have taken records that nobody saw, and a prepared one may have been opened."""
        old, prepared = self.queue.leader, self.queue.prepared
        if other == old.broker or (prepared is not None and other == prepared.broker):
            return
        seen = old.first + self.home(old).max
        self.queue = self.queue.force(other, next(self.numbers[other]), known_end=seen)
        assert self.queue.leader.first == seen + FORCED_GAP
        self.homes[self.queue.generation] = Home(self.queue.leader)
        closed = self.queue.segments[-2]
        home = self.homes.setdefault(closed.generation, Home(closed))
        if not closed.is_sealed:
            for _ in range(unseen):
                home.records.append(Record(closed.first + home.max, *closed.physical_queue, home.max))

    @precondition(lambda self: self.queue.unresolved is not None)
    @rule()
    def return_of_the_dead(self) -> None:
        """It tells its end."""
        unresolved = self.queue.unresolved
        assert unresolved is not None
        self.queue = self.queue.fix_end(self.home(unresolved).max)

    @rule(pick=st.integers(0, 10))
    def expire(self, pick: int) -> None:
        """Any closed home whose end is known, not only the oldest."""
        old = [item for item in self.queue.readable if item.is_sealed and item.generation < self.queue.generation]
        if old:
            segment = old[pick % len(old)]
            self.queue = self.queue.expire(segment.generation, segment.queue_id)
            for record in self.home(segment).records:
                record.is_gone = True

    @rule(pick=st.integers(0, 10), number=st.integers(1, 4))
    def clean(self, pick: int, number: int) -> None:
        """The oldest records of a home."""
        segment = self.queue.readable[pick % len(self.queue.readable)]
        if segment.is_decided:
            home = self.home(segment)
            kept = min(self.minimums.get(segment.generation, 0) + number, home.max)
            self.minimums[segment.generation] = kept
            for record in home.records[:kept]:
                record.is_gone = True

    @rule(name=brokers)
    def prune(self, name: str) -> None:
        """Only of a broker that holds nothing."""
        if all(segment.broker != name for segment in self.queue.readable):
            self.queue = self.queue.prune({name})
            assert all(segment.broker != name for segment in self.queue.segments)

    @invariant()
    def keeps_every_rule(self) -> None:
        """Ends are all known, or forced, or the leader's."""
        check_queue(self.queue, exact=True)

    @invariant()
    def finds_every_record(self) -> None:
        """And none of them under two offsets."""
        assert len({record.logical for record in self.records}) == len(self.records)
        for record in self.records:
            if not record.is_gone:
                segment = self.queue.locate(record.logical)
                assert segment is not None
                assert segment.physical_queue == (record.broker, record.queue_id)
                assert segment.to_physical(record.logical) == record.physical
                assert segment.to_logical(record.physical) == record.logical
                assert segment.first <= record.logical
                assert segment.logical_end is None or record.logical < segment.logical_end

    @invariant()
    def begins_behind_the_last_loss(self) -> None:
        """From the minimum on nothing is gone, and the record before it is."""
        minimum = self.queue.logical_min(self.minimums)
        assert minimum is not None
        assert not any(record.is_gone for record in self.records if record.logical >= minimum)
        before = [record for record in self.records if record.logical < minimum]
        assert not before or before[-1].is_gone

    @invariant()
    def leads_through_all_records(self) -> None:
        """From one home to the next nothing is passed over."""
        readable = [segment for segment in self.queue.readable if segment.is_decided]
        walked = [readable[0]]
        while (following := self.queue.segment_after(walked[-1])) is not None:
            walked.append(following)
        assert walked == readable

    @invariant()
    def survives_the_wire(self) -> None:
        """In both of upstream's forms, with what upstream has no place for."""
        mapping = TopicMapping(topic="t", broker=self.queue.leader.broker, total=8, queues={7: self.queue})
        assert wire.from_info(wire.decode(wire.encode(wire.to_info(mapping)), wire.MappingInfo)) == mapping
        assert wire.from_detail(wire.decode(wire.encode(wire.to_detail(mapping)), wire.MappingDetail)) == mapping


TestQueueAndList = QueueAndList.TestCase
TestQueueAndList.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_queue_is_a_value() -> None:
    """No operation changes the queue it is asked of."""
    before = new_logical_queue(0, "a", 0)
    copy = LogicalQueue(before.queue, before.segments)

    before.prepare("b", 0).seal(3).open_next().force("c", 1)

    assert before == copy
