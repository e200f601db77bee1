"""A range of logical offsets in one physical queue of one broker.

    logical     first ............ last        last is exclusive, and None while it is unknown
    physical    start ............ end         delta = first - start

The newest generation leads. Java brokers report none: an unknown generation is older than all others, and functions of
this module compare generations of which one may be unknown.

Unknown values are None; the codecs convert them from -1 and back.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from holdfast.model.errors import MappingRefused
from holdfast.model.queue import LogicalOffset, PhysicalOffset, PhysicalQueueId


def generation_order(generation: int | None) -> int:
    """Return a sort key: an unknown generation comes before all others."""
    return -1 if generation is None else generation


def is_newer(generation: int | None, than: int | None) -> bool:
    """Return whether *generation* is newer than the other one."""
    return generation_order(generation) > generation_order(than)


def newest_generation(generations: Iterable[int | None]) -> int | None:
    """Return the newest of *generations*; None if there are none, or none is known."""
    return max(generations, key=generation_order, default=None)


def next_generation(generation: int | None, *, skipped: int = 0) -> int:
    """Return the generation after *generation*, or a later one if some are skipped."""
    return generation_order(generation) + 1 + skipped


class Status(StrEnum):
    """The use of a physical queue in a mapping, as people see it."""

    NORMAL = "Normal"
    READ_ONLY = "ReadOnly"
    EXPIRED = "Expired"


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """One segment of a logical queue.

    Attributes:
        generation: The segment's ordinal number. Rises from segment to segment, not always by one. None if its broker
            reported it without a history, as Java brokers do; then it is the only segment of its queue.
        broker: The name of the broker that holds it.
        queue_id: The physical queue there.
        first: Its first logical offset; None while undecided: then it is prepared, and accepts no writes.
        start: Its first physical offset.
        end: Its physical end, exclusive; None while it is open, or if the end was not recorded.
        first_ms: When its first record was stored; None if unknown.
        last_ms: No record in it was stored later; None if unknown.
        expired: All its records are gone; the physical queue can be reused.
        forced: The next segment was opened without this broker: a gap follows, and the end may be unknown.
        is_detached: The records right before it are gone with their segment; older segments are unreachable.
    """

    generation: int | None
    broker: str
    queue_id: PhysicalQueueId
    first: LogicalOffset | None = None
    start: PhysicalOffset = PhysicalOffset(0)
    end: PhysicalOffset | None = None
    first_ms: int | None = None
    last_ms: int | None = None
    expired: bool = False
    forced: bool = False
    is_detached: bool = msgspec.field(default=False, name="cut")  # as `--json` prints it

    @property
    def is_decided(self) -> bool:
        """Whether its start in the logical queue is known."""
        return self.first is not None

    @property
    def is_sealed(self) -> bool:
        """Whether its exact end is recorded."""
        return self.end is not None

    @property
    def is_open(self) -> bool:
        """Whether it accepts writes, as far as it shows; only the newest decided segment of a queue really does."""
        return self.is_decided and not (self.is_sealed or self.forced or self.expired)

    @property
    def is_empty(self) -> bool:
        """Whether it is sealed and never held a record."""
        return self.end == self.start

    @property
    def shows_offsets(self) -> bool:
        """Whether its offsets show where its neighbours met: not if it is expired, empty and without a gap."""
        return not self.expired or self.forced or not self.is_empty

    @property
    def physical_queue(self) -> tuple[str, PhysicalQueueId]:
        """The broker and its physical queue."""
        return self.broker, self.queue_id

    @property
    def decided_first(self) -> LogicalOffset:
        """Its first logical offset. Raises an error while undecided."""
        if self.first is None:
            raise MappingRefused(
                "undecided",
                f"queue {self.queue_id} on {self.broker} is prepared but not open: finish the move or roll it back",
            )
        return self.first

    @property
    def delta(self) -> int:
        """The number that a client adds to the physical offset of a record. Raises an error while undecided."""
        return self.decided_first - self.start

    @property
    def recorded_count(self) -> int | None:
        """How many offsets it has; None if its end is not recorded."""
        return None if self.end is None else self.end - self.start

    @property
    def logical_end(self) -> LogicalOffset | None:
        """Its logical end, exclusive; None while it is open or undecided, or if the end was not recorded."""
        if self.first is None or self.end is None:
            return None
        return LogicalOffset(self.first + self.end - self.start)

    @property
    def static_max(self) -> LogicalOffset:
        """The logical end as upstream computes it: the first offset if the end was not recorded.

        Raises:
            MappingRefused: the segment's first logical offset is undecided.
        """
        return LogicalOffset(self.decided_first + max(self.recorded_count or 0, 0))

    def clamp(self, physical: PhysicalOffset) -> PhysicalOffset:
        """Return *physical*, or the recorded end if that is lower."""
        return physical if self.end is None or physical < self.end else self.end

    def to_logical(self, physical: PhysicalOffset) -> LogicalOffset:
        """Return the logical offset of *physical*; an offset before the start counts as the start.

        Raises:
            MappingRefused: the segment's first logical offset is undecided.
        """
        return LogicalOffset(self.decided_first + max(physical - self.start, 0))

    def to_physical(self, logical: LogicalOffset) -> PhysicalOffset:
        """Return the physical offset of *logical*, which may lie outside: the physical queue checks that.

        Raises:
            MappingRefused: the segment's first logical offset is undecided.
        """
        return PhysicalOffset(logical - self.decided_first + self.start)
