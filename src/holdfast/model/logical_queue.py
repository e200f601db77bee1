"""The segments of one logical queue, oldest first, and the steps of a move.

    logical    0 ......... 1000 ......... 1500 ......>
    segment    gen 0       gen 1          gen 2, the leader
    physical   a/3 [0,1000) b/0 [0,500)   a/4 [0, open

A move consists of prepare, seal and open. Each step returns a new value; the old one is unchanged.

    [A open]  --prepare-->  [A open, B undecided]  --seal-->  [A sealed, B undecided]  --open_next-->  [A, B open]
                  <------------------ rollback ----------------------

Our moves leave no hole. Mappings from other tools may have holes, unrecorded ends and undecided starts: they are
readable all the same. A forced move leaves a gap on purpose, wide enough that no offset is used twice.

Pure arithmetic: no clock, no disk, no knowledge of which brokers are alive.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import msgspec

from holdfast.model.errors import MappingRefused
from holdfast.model.queue import LogicalOffset, LogicalQueueId, PhysicalOffset, PhysicalQueueId
from holdfast.model.segment import Segment, Status, generation_order, is_newer, next_generation

FORCED_GAP: Final = 2**40
"""How far above the last known end a forced move opens: more than a fenced leader could still write."""


class MappingRow(msgspec.Struct, frozen=True, order=True):
    """A row of the table for people: a physical queue and its use. Sorts by broker and physical queue."""

    broker: str
    queue_id: PhysicalQueueId
    queue: LogicalQueueId
    label: str
    status: Status


class LogicalQueue(msgspec.Struct, frozen=True):
    """A logical queue of a topic.

    Attributes:
        queue: Its number in the topic.
        segments: Oldest first; expired ones are listed until they are reused or pruned.
    """

    queue: LogicalQueueId
    segments: tuple[Segment, ...]

    # Its state.

    @property
    def readable(self) -> tuple[Segment, ...]:
        """The segments that clients may read: all but the expired ones."""
        return tuple(segment for segment in self.segments if not segment.expired)

    @property
    def prepared(self) -> Segment | None:
        """The next segment while a move is in progress; None otherwise."""
        newest = self.segments[-1]
        return None if newest.is_decided else newest

    @property
    def without_prepared(self) -> LogicalQueue:
        """The queue without a next segment that is only prepared."""
        return self if self.prepared is None else LogicalQueue(self.queue, self.segments[:-1])

    @property
    def leader(self) -> Segment:
        """The newest segment that was ever opened: it accepts the writes, unless it is sealed.

        If no segment is decided, as Java brokers may report it, the newest segment leads.
        """
        for segment in reversed(self.segments):
            if segment.first is not None and not segment.expired:
                return segment
        return self.segments[-1]

    @property
    def generation(self) -> int | None:
        """The leader's generation; None if its broker reported none."""
        return self.leader.generation

    @property
    def minimum(self) -> LogicalOffset | None:
        """The first logical offset of the oldest segment that clients may read; None if none is decided."""
        return next((segment.first for segment in self.readable if segment.first is not None), None)

    @property
    def forced_generation(self) -> int:
        """The generation of the next segment if it is opened by force.

        One generation is skipped: the leader may have handed the queue over unnoticed. That segment then has the
        skipped generation, and its broker can see that it was passed over.
        """
        return next_generation(self.segments[-1].generation, skipped=1)

    @property
    def unresolved(self) -> Segment | None:
        """The oldest segment that a forced move closed and whose end is still unknown; readers wait there."""
        return next((segment for segment in self.readable if segment.forced and not segment.is_sealed), None)

    def is_before_leader(self, segment: Segment) -> bool:
        """Return whether *segment*, of this queue or of another record of it, is older than the leader."""
        return is_newer(self.generation, segment.generation)

    def find(self, generation: int | None) -> Segment | None:
        """Return the segment of *generation*, or None."""
        return next((segment for segment in self.segments if segment.generation == generation), None)

    def locate(self, offset: LogicalOffset) -> Segment | None:
        """Return the newest segment that begins at or before *offset*.

        An offset older than all segments maps to the oldest: its physical queue then answers with the true bounds,
        which a lagging consumer needs. An offset in a hole maps to the segment before the hole. Return None if no
        segment is decided.
        """
        oldest = None
        for segment in reversed(self.segments):  # Most readers are near the end.
            if segment.first is not None and not segment.expired:
                if segment.first <= offset:
                    return segment
                oldest = segment
        return oldest

    def segment_after(self, segment: Segment, *, must_be_decided: bool = True) -> Segment | None:
        """Return the segment where reading continues after *segment*; None if there is none or it is undecided."""
        newer = (other for other in self.readable if is_newer(other.generation, segment.generation))
        following = next(newer, None)
        return None if following is None or (must_be_decided and not following.is_decided) else following

    def logical_min(self, minimums: Mapping[int | None, PhysicalOffset] | None = None) -> LogicalOffset | None:
        """Return the start of the newest suffix in which no record is missing.

        Holes that never held a record, from other tools or a forced move, do not end the suffix. Neither does a broker
        that is down: its recorded segments count.

        Args:
            minimums: Generation to the smallest physical offset that still exists; an absent one had no cleanup.
        """
        known = minimums or {}
        found: LogicalOffset | None = None
        for segment in reversed(self.segments):
            # An empty segment holds no records that could be missing.
            if segment.is_decided and not (segment.is_empty and (segment.expired or found is not None)):
                kept = known.get(segment.generation, segment.start)
                if segment.expired or (found is not None and segment.end is not None and kept >= segment.end):
                    break
                found = segment.to_logical(segment.clamp(kept))
                if kept > segment.start:
                    break
            if segment.is_detached:
                break
        return found

    def status_of(self, segment: Segment) -> Status:
        """Return the status of *segment*, which must belong to this queue."""
        if segment.expired:
            return Status.EXPIRED
        return Status.NORMAL if segment == self.leader and segment.is_open else Status.READ_ONLY

    def rows(self) -> list[MappingRow]:
        """Return a row for each physical queue, in the form of the proposal's tables: both ends inclusive."""
        is_plain = len(self.segments) == 1 and self.segments[0].first == 0 and self.segments[0].is_open
        return [
            MappingRow(
                segment.broker,
                segment.queue_id,
                self.queue,
                str(self.queue) if is_plain else f"{self.queue}({self._span(segment)})",
                self.status_of(segment),
            )
            for segment in self.segments
        ]

    def _span(self, segment: Segment) -> str:
        if segment.expired:
            return "-"
        if segment.first is None:
            return "prepared"
        if segment.logical_end is not None:
            return f"{segment.first}-{segment.logical_end - 1}" if segment.logical_end > segment.first else "empty"
        return f"{segment.first}-" if segment == self.leader and not segment.forced else f"{segment.first}-?"

    # Gaps. A forced move leaves offsets without records, and perhaps a segment whose end is unknown.

    def readable_ranges(
        self, start: LogicalOffset, end: LogicalOffset, *, skips_unknown: bool = False
    ) -> list[tuple[int, int]]:
        """Return the parts of the range from *start* to *end* that can hold records.

        No part after a segment of unknown end is returned, because the segment's broker may return with more records.
        Offsets before the oldest segment are returned: retention removed them, and the reader decides whether that is
        lost data.

        Args:
            start: Where the range begins.
            end: Where it ends.
            skips_unknown: Assume that such a broker has no more records.
        """
        oldest = end if self.minimum is None else min(self.minimum, end)
        parts: list[tuple[int, int]] = [(start, oldest)] if start < oldest else []
        for segment in self.readable:
            if segment.first is not None:
                if not skips_unknown and self._may_hold_more(segment, start):
                    break
                part = max(segment.first, start), min(self._end_within(segment, end), end)
                if part[0] < part[1]:
                    parts.append(part)
        return parts

    def find_unknown_end(self, start: LogicalOffset, end: LogicalOffset) -> Segment | None:
        """Return the oldest segment of unknown end whose broker may still have records of a range; None if none."""
        waiting = (segment for segment in self.readable if self._may_hold_more(segment, start))
        return next((segment for segment in waiting if segment.decided_first < end), None)

    def count_usable_offsets(self, start: LogicalOffset, end: LogicalOffset) -> int:
        """Return how many offsets from *start* to *end* can hold a record: not those of gaps and expired segments.

        A segment that was closed by force, with an unknown end, counts as empty.
        """
        return sum(
            max(0, min(self._end_within(segment, end), end) - max(segment.first, start))
            for segment in self.readable
            if segment.first is not None
        )

    def _may_hold_more(self, segment: Segment, start: LogicalOffset) -> bool:
        """Return whether *segment* may hold unknown records from *start* on: a forced move closed it."""
        following = self.segment_after(segment)
        if following is None or not segment.forced or segment.logical_end is not None:
            return False
        return start < following.decided_first

    def _end_within(self, segment: Segment, end: LogicalOffset) -> LogicalOffset:
        """Return the logical end of *segment*, or its best estimate for a reader of the offsets up to *end*."""
        if segment.logical_end is not None:
            return segment.logical_end
        following = self.segment_after(segment)
        if following is None:
            return end
        return segment.static_max if segment.forced else following.decided_first

    # Moving.

    def prepare(self, broker: str, queue_id: PhysicalQueueId, *, generation: int | None = None) -> LogicalQueue:
        """Return the queue with its next segment added, which accepts no writes yet.

        The physical queue may be an expired one of this logical queue: it is reused from 0, with its old index erased,
        and its old segment disappears when the new one opens. Preparing the same segment twice changes nothing.

        Args:
            broker: The next leader.
            queue_id: The physical queue there.
            generation: By default one above all others; a caller that skips generations passes a higher one.
        """
        number = next_generation(self.segments[-1].generation) if generation is None else generation
        target = Segment(generation=number, broker=broker, queue_id=queue_id)
        if self.prepared is not None:
            if self.prepared.physical_queue == target.physical_queue and generation in {None, self.prepared.generation}:
                return self
            raise self._refuse(
                "one move at a time",
                f"is already being moved to {self.prepared.broker}: wait for that move, or roll it back",
            )
        if not is_newer(number, self.segments[-1].generation):
            raise self._refuse(
                "rising generations",
                f"has had generation {self.segments[-1].generation}, and {number} is not newer: read the mapping again",
            )
        if broker == self.leader.broker:
            raise self._refuse("move elsewhere", f"is led by {broker} already: there is nothing to move")
        self._require_free(target.physical_queue, self.segments)
        if not self.leader.is_open:
            raise self._refuse("open leader", f"is not open on {self.leader.broker}: finish or roll back its last move")
        return LogicalQueue(self.queue, (*self.segments, target))

    def reusable_queue_id(self, broker: str) -> PhysicalQueueId | None:
        """Return the oldest expired physical queue on *broker*, or None."""
        expired = (segment for segment in self.segments if segment.expired and segment.broker == broker)
        return next((segment.queue_id for segment in expired), None)

    def seal(self, end: PhysicalOffset, last_ms: int | None = None) -> LogicalQueue:
        """Return the queue with its leader sealed at the physical offset *end*. Idempotent for the same end."""
        leader = self.leader
        if leader.end == end and leader.is_decided:
            return self
        if not leader.is_open:
            raise self._refuse(
                "seal once", f"is not open on {leader.broker}, its end cannot become {end}: read the mapping again"
            )
        if end < leader.start:
            raise self._refuse("ends fit", f"starts at {leader.start} on {leader.broker} and cannot end at {end}")
        return self._with(leader, end=end, last_ms=last_ms)

    def open_next(self, first_ms: int | None = None) -> LogicalQueue:
        """Return the queue led by its prepared segment, which begins exactly where the old leader ended."""
        old, prepared = self.leader, self.prepared
        if prepared is None:
            raise self._refuse("prepare first", "has no next segment: prepare one before opening it")
        if old.logical_end is None:
            raise self._refuse("seal first", f"is still open on {old.broker}: seal it there before opening elsewhere")
        return self._opened(old, prepared, old.logical_end, first_ms)

    def _opened(self, old: Segment, prepared: Segment, first: LogicalOffset, first_ms: int | None) -> LogicalQueue:
        leader = msgspec.structs.replace(prepared, first=first, first_ms=first_ms)
        kept = (_expire_if_empty(segment) if segment == old else segment for segment in self.segments[:-1])
        return self._without_expired([*kept, leader], {leader.physical_queue})

    def rollback(self) -> LogicalQueue:
        """Return the queue as before prepare and seal: its leader open, without a next segment."""
        leader = self.leader
        if self.prepared is None and not leader.is_sealed:
            raise self._refuse("nothing to roll back", f"is open on {leader.broker} and no move is under way")
        kept = self.segments if self.prepared is None else self.segments[:-1]
        if not kept:
            raise self._refuse("nothing to roll back to", "has no segment but the prepared one: open it")
        before = LogicalQueue(self.queue, kept)
        return before._with(leader, end=None, last_ms=None) if leader.is_sealed else before

    # Replacing a dead leader.

    def force(self, broker: str, queue_id: PhysicalQueueId, *, known_end: LogicalOffset | None = None) -> LogicalQueue:
        """Return the queue opened elsewhere without its leader, far above every offset that may exist.

        A segment that was prepared after a sealed leader may have been opened unnoticed: it is kept with an unknown
        end, so that its records become readable when its broker returns.

        Args:
            broker: The new leader.
            queue_id: A physical queue there, new or expired.
            known_end: The highest logical end that any server saw; by default, the end in the mapping.
        """
        old, prepared, target = self.leader, self.prepared, (broker, queue_id)
        if broker == old.broker:
            raise self._refuse("move elsewhere", f"is led by {broker} itself: a forced move goes to another broker")
        if prepared is not None and prepared.physical_queue == target:
            prepared = None  # The target is alive and reports that it never opened the segment.
        known = [segment for segment in self.segments if segment.is_decided]
        self._require_free(target, known if prepared is None else [*known, prepared])
        end = max(old.static_max if old.is_decided else 0, 0 if known_end is None else known_end)
        if old.logical_end is None or prepared is None:
            closed = [msgspec.structs.replace(segment, forced=True) if segment == old else segment for segment in known]
        else:
            maybe_opened = msgspec.structs.replace(prepared, first=old.logical_end, forced=True)
            closed = [*(_expire_if_empty(segment) if segment == old else segment for segment in known), maybe_opened]
        first = LogicalOffset(end + FORCED_GAP)
        leader = Segment(generation=self.forced_generation, broker=broker, queue_id=queue_id, first=first)
        return self._without_expired([*closed, leader], {segment.physical_queue for segment in (*closed[-1:], leader)})

    def fix_end(
        self, end: PhysicalOffset, *, generation: int | None = None, last_ms: int | None = None
    ) -> LogicalQueue:
        """Return the queue with the physical end of a closed segment, as its broker reported after it returned.

        Args:
            end: The physical end, exclusive.
            generation: The segment's generation; by default, the segment at which readers wait.
            last_ms: When its last record was stored.
        """
        segment = self.unresolved if generation is None else self.find(generation)
        if segment is None or not self.is_before_leader(segment) or not segment.is_decided:
            raise self._refuse("known ends", "has no closed segment whose end is unknown: there is nothing to fix")
        if segment.end == end:
            return self
        if segment.is_sealed:
            raise self._refuse(
                "ends stay", f"ended at {segment.end} on {segment.broker}, recorded before; {end} comes too late"
            )
        following = self.segment_after(segment)
        limit = None if following is None else segment.to_physical(following.decided_first)
        if end < segment.start or (limit is not None and end > limit):
            raise self._refuse(
                "ends fit", f"has {segment.start} to {limit} in queue {segment.queue_id} of {segment.broker}, not {end}"
            )
        return self._with(segment, end=end, last_ms=last_ms, forced=True)

    def shorten(self, end: PhysicalOffset, *, generation: int | None) -> LogicalQueue:
        """Return the queue with its newest segment, or one before a gap, shortened to the physical offset *end*.

        Only the broker of that segment may do this, and only if no other server knows of the end.
        """
        segment = self.find(generation)
        following = next((newer for newer in self.segments if is_newer(newer.generation, generation)), None)
        is_free = segment is not None and (segment.forced or following is None or not following.is_decided)
        if segment is None or not is_free or segment.end is None or not segment.start <= end < segment.end:
            raise self._refuse("ends fit", f"has no end in generation {generation} that could be shortened to {end}")
        return self._with(segment, end=end, last_ms=segment.last_ms if end > segment.start else None)

    def abandon(self, *, generation: int | None = None, known_end: LogicalOffset | None = None) -> LogicalQueue:
        """Return the queue whose readers no longer wait for a dead broker: the segment ends at its known end.

        Args:
            generation: The segment's generation; by default, the segment at which readers wait.
            known_end: The highest logical end that any server saw; by default, the whole segment is given up.
        """
        segment = self.unresolved if generation is None else self.find(generation)
        if segment is None or segment.is_sealed or not segment.forced:
            raise self._refuse("known ends", "waits for no dead broker: there is nothing to abandon")
        end = segment.start if known_end is None else max(segment.to_physical(known_end), segment.start)
        return self.fix_end(end, generation=segment.generation)

    def reconcile(self, witness: LogicalQueue) -> LogicalQueue:
        """Return the queue with a returned broker's knowledge of segments that a forced move passed over.

        Only facts older than the leader and unknown here are accepted: ends, also of segments that are expired there,
        and segments in a gap.
        """
        merged = self
        for segment in witness.segments:
            own = merged.find(segment.generation)
            if not self.is_before_leader(segment) or not segment.is_decided:
                continue
            if own is None and (
                segment.expired or any(segment.physical_queue == other.physical_queue for other in merged.segments)
            ):
                continue
            if own is None and merged._is_in_gap(segment):
                segments = sorted((*merged.segments, msgspec.structs.replace(segment, forced=True)), key=_by_generation)
                merged = LogicalQueue(self.queue, tuple(segments))
            elif (
                own is not None
                and own.physical_queue == segment.physical_queue
                and segment.end is not None
                and not own.is_sealed
            ):
                merged = merged.fix_end(segment.end, generation=own.generation, last_ms=segment.last_ms)
        return merged

    def _is_in_gap(self, segment: Segment) -> bool:
        first = segment.decided_first
        older = [
            other for other in self.readable if other.is_decided and is_newer(segment.generation, other.generation)
        ]
        newer = [
            other for other in self.readable if other.is_decided and is_newer(other.generation, segment.generation)
        ]
        begins = not older or (older[-1].forced and older[-1].decided_first < first)
        return begins and bool(newer) and max(segment.static_max, first + 1) <= newer[0].decided_first

    # Cleanup.

    def expire(self, generation: int | None, queue_id: PhysicalQueueId) -> LogicalQueue:
        """Return the queue with a segment marked as expired: clients no longer read it."""
        segment = self.find(generation)
        if segment is None or segment.queue_id != queue_id:
            raise self._refuse("expire existing segments", f"has no generation {generation} in a queue {queue_id}")
        if segment.expired:
            return self
        if not self.is_before_leader(segment):
            raise self._refuse("leaders stay", f"is led by queue {queue_id} of {segment.broker}: move it away first")
        if segment.forced and not segment.is_sealed:
            raise self._refuse(
                "known ends", f"has an unknown end on {segment.broker}: wait for its return, or abandon the segment"
            )
        return self._with(segment, expired=True)

    def prune(self, removed: Collection[str]) -> LogicalQueue:
        """Return the queue without the expired segments of *removed* brokers."""
        holders = sorted({segment.broker for segment in self.readable if segment.broker in removed})
        if holders:
            raise self._refuse(
                "records first", f"still needs {', '.join(holders)}: move it, and let its records expire"
            )
        expired = {segment.physical_queue for segment in self.segments if segment.broker in removed}
        return self._without_expired(self.segments, expired)

    def reduce_to(self, broker: str) -> LogicalQueue:
        """Return the part that *broker* must remember after all its segments expired: these, and the leader.

        Older segments of other brokers are left to the leader, which alone is notified when they expire.
        """
        kept: list[Segment] = []
        is_lost = False
        for segment in self.segments:
            if segment.broker != broker and self.is_before_leader(segment):
                is_lost = True
                continue
            kept.append(msgspec.structs.replace(segment, is_detached=True) if is_lost and kept else segment)
            is_lost = is_lost and not segment.shows_offsets
        return LogicalQueue(self.queue, tuple(kept))

    def _without_expired(
        self, segments: Iterable[Segment], physical_queues: Collection[tuple[str, PhysicalQueueId]]
    ) -> LogicalQueue:
        """Return the queue of *segments*, without the expired ones in *physical_queues*.

        A segment after a dropped one that held records is marked as cut off from older ones. A gap after a dropped
        segment moves to the segment before it.
        """
        kept: list[Segment] = []
        is_lost = False
        for segment in segments:
            if segment.expired and segment.physical_queue in physical_queues:
                is_lost = is_lost or segment.is_detached or not segment.is_empty
                if segment.forced and kept:
                    kept[-1] = msgspec.structs.replace(kept[-1], forced=True)
                continue
            kept.append(msgspec.structs.replace(segment, is_detached=True) if is_lost and kept else segment)
            is_lost = is_lost and not segment.shows_offsets
        return LogicalQueue(self.queue, tuple(kept))

    def _require_free(self, physical_queue: tuple[str, PhysicalQueueId], segments: Collection[Segment]) -> None:
        if any(segment.physical_queue == physical_queue and not segment.expired for segment in segments):
            raise self._refuse(
                "one queue, one segment",
                f"still has records in queue {physical_queue[1]} of {physical_queue[0]}: give it a new physical "
                "queue there",
            )

    def _with(self, changed: Segment, **fields: object) -> LogicalQueue:
        new = msgspec.structs.replace(changed, **fields)
        return LogicalQueue(self.queue, tuple(new if segment == changed else segment for segment in self.segments))

    def _refuse(self, rule: str, text: str) -> MappingRefused:
        return MappingRefused(rule, f"logical queue {self.queue} {text}")


def new_logical_queue(queue: LogicalQueueId, broker: str, queue_id: PhysicalQueueId, *, start: int = 0) -> LogicalQueue:
    """Return a logical queue with one segment: new, or an existing physical queue, whose offsets stay the same."""
    first, physical = LogicalOffset(start), PhysicalOffset(start)
    segment = Segment(generation=0, broker=broker, queue_id=queue_id, first=first, start=physical)
    return LogicalQueue(queue, (segment,))


def _expire_if_empty(old: Segment) -> Segment:
    """Return a closed segment in the form in which it stays listed.

    An empty one becomes expired, so that clients do not read it: upstream's tools refuse two segments with the same
    first offset. Its physical queue is empty and may be reused, which is the meaning of Expired.
    """
    return msgspec.structs.replace(old, expired=True) if old.is_decided and old.is_empty else old


def _by_generation(segment: Segment) -> int:
    return generation_order(segment.generation)
