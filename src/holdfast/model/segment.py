"""A range of logical offsets in one physical queue of one broker.

    logical     first ............ last        last is exclusive, and None while it is unknown
    physical    start ............ end         delta = first - start

Unknown values are -1, as on the wire. Arithmetic uses only `last` and the two conversions, and none of them lets a -1
through.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from holdfast.model.errors import MappingRefused

UNKNOWN = -1
"""An offset or a time that is not decided or not recorded."""

UNKNOWN_GENERATION = -1
"""The generation of a segment that a broker reported without a history, as Java brokers do."""


class Status(StrEnum):
    """The use of a physical queue in a mapping, as people see it."""

    NORMAL = "Normal"
    READ_ONLY = "ReadOnly"
    EXPIRED = "Expired"


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """One segment of a logical queue.

    Attributes:
        generation: The segment's ordinal number. Rises from segment to segment, not always by one.
        broker: The name of the broker that holds it.
        queue_id: The physical queue there.
        first: Its first logical offset; -1 while undecided: then it is prepared, and accepts no writes.
        start: Its first physical offset.
        end: Its physical end, exclusive; -1 while it is open, or if the end was not recorded.
        first_ms: When its first record was stored; -1 if unknown.
        last_ms: No record in it was stored later; -1 if unknown.
        expired: All its records are gone; the physical queue can be reused.
        forced: The next segment was opened without this broker: a gap follows, and the end may be unknown.
        is_detached: The records right before it are gone with their segment; older segments are unreachable.
    """

    generation: int
    broker: str
    queue_id: int
    first: int = UNKNOWN
    start: int = 0
    end: int = UNKNOWN
    first_ms: int = UNKNOWN
    last_ms: int = UNKNOWN
    expired: bool = False
    forced: bool = False
    is_detached: bool = msgspec.field(default=False, name="cut")  # as `--json` prints it

    @property
    def is_decided(self) -> bool:
        """Whether its start in the logical queue is known."""
        return self.first >= 0

    @property
    def is_sealed(self) -> bool:
        """Whether its exact end is recorded."""
        return self.end >= 0

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
    def physical_queue(self) -> tuple[str, int]:
        """The broker and its physical queue."""
        return self.broker, self.queue_id

    @property
    def delta(self) -> int:
        """The number that a client adds to the physical offset of a record. Raises an error while undecided."""
        return self._decided_first() - self.start

    @property
    def logical_end(self) -> int | None:
        """Its logical end, exclusive; None while it is open or undecided, or if the end was not recorded."""
        return self.first + self.end - self.start if self.is_decided and self.is_sealed else None

    @property
    def static_max(self) -> int:
        """The logical end as upstream computes it: the first offset if the end was not recorded."""
        return self.first + self.end - self.start if self.end >= self.start else self.first

    def contains(self, logical: int) -> bool:
        """Return whether *logical* lies inside; an open or unrecorded end includes everything from the first on."""
        return self.is_decided and self.first <= logical and (self.logical_end is None or logical < self.logical_end)

    def to_logical(self, physical: int) -> int:
        """Return the logical offset of *physical*; an offset before the start counts as the start.

        Raises:
            MappingRefused: the segment's first logical offset is undecided.
        """
        return self._decided_first() + max(physical - self.start, 0)

    def to_logical_loosely(self, physical: int) -> int:
        """Return the logical offset of *physical*, clamped to the segment; -1 while undecided, as upstream answers."""
        if not self.is_decided:
            return UNKNOWN
        clamped = min(physical, self.end) if self.end >= self.start else physical
        return self.to_logical(clamped)

    def to_physical(self, logical: int) -> int:
        """Return the physical offset of *logical*, which may lie outside: the physical queue checks that.

        Raises:
            MappingRefused: the segment's first logical offset is undecided.
        """
        return logical - self._decided_first() + self.start

    def _decided_first(self) -> int:
        if not self.is_decided:
            raise MappingRefused(
                "undecided",
                f"queue {self.queue_id} on {self.broker} is prepared but not open: finish the move or roll it back",
            )
        return self.first
