"""A run of logical offsets that lives in one physical queue of one broker.

    logical     first ............ last        last is exclusive, and None while it is not known
    physical    start ............ end         delta = first - start

What is not known is -1, as on the wire; `last` and the two conversions are the only ways from there into arithmetic,
and neither lets a -1 through.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from holdfast.model.errors import MappingRefused

UNKNOWN = -1
"""An offset or a time that is not decided or not recorded."""

UNKNOWN_GENERATION = -1
"""The generation of a home that a broker told without telling its history, as Java brokers do."""


class Status(StrEnum):
    """What may be done with a physical queue of a mapping, as people see it."""

    NORMAL = "Normal"
    READ_ONLY = "ReadOnly"
    EXPIRED = "Expired"


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """One home of a logical queue.

    Attributes:
        generation: The how-manieth home it is. Rises from home to home, not always by one.
        broker: The name of the broker that holds it.
        queue_id: The physical queue there.
        first: Its first logical offset; -1 while undecided: then it is prepared, and takes no writes.
        start: Its first physical offset.
        end: Its physical end, exclusive; -1 while open, and where nobody recorded it.
        first_ms: When its first record was stored; -1 when unknown.
        last_ms: No record in it was stored later; -1 when unknown.
        expired: All its records are gone; the physical queue waits to be used again.
        forced: The next home was opened without this one's word: a gap follows, and the end may be unknown.
        cut: The records right before it are gone, with the home that held them; older homes are out of reach.
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
    cut: bool = False

    @property
    def is_decided(self) -> bool:
        """Whether it is known where in the logical queue it begins."""
        return self.first >= 0

    @property
    def is_sealed(self) -> bool:
        """Whether its exact end is recorded."""
        return self.end >= 0

    @property
    def is_open(self) -> bool:
        """Whether it takes writes, as far as it says itself: only the newest decided one of a queue really does."""
        return self.is_decided and not (self.is_sealed or self.forced or self.expired)

    @property
    def is_empty(self) -> bool:
        """Whether it is sealed and never held a record."""
        return self.end == self.start

    @property
    def place(self) -> tuple[str, int]:
        """The physical queue, among those of the topic."""
        return self.broker, self.queue_id

    @property
    def delta(self) -> int:
        """What a client adds to the physical offset of a record. Refused while undecided."""
        return self._decided_first() - self.start

    @property
    def last(self) -> int | None:
        """Its logical end, exclusive; None while it is open, undecided, or nobody recorded it."""
        return self.first + self.end - self.start if self.is_decided and self.is_sealed else None

    @property
    def static_max(self) -> int:
        """The logical end as upstream reckons it: its first offset when the end is not recorded."""
        return self.first + self.end - self.start if self.end >= self.start else self.first

    def holds(self, logical: int) -> bool:
        """Return whether *logical* lies inside; an open or unrecorded end holds everything from the first on."""
        return self.is_decided and self.first <= logical and (self.last is None or logical < self.last)

    def to_logical(self, physical: int) -> int:
        """Return the logical offset of *physical*; what lies before the start counts as the start.

        Raises:
            MappingRefused: it is undecided where this segment begins.
        """
        return self._decided_first() + max(physical - self.start, 0)

    def to_logical_loosely(self, physical: int) -> int:
        """Return the logical offset of *physical*, kept inside the segment; -1 while undecided, as upstream answers."""
        if not self.is_decided:
            return UNKNOWN
        inside = min(physical, self.end) if self.end >= self.start else physical
        return self.to_logical(inside)

    def to_physical(self, logical: int) -> int:
        """Return the physical offset of *logical*, which may lie outside: the physical queue judges that.

        Raises:
            MappingRefused: it is undecided where this segment begins.
        """
        return logical - self._decided_first() + self.start

    def _decided_first(self) -> int:
        if not self.is_decided:
            raise MappingRefused(
                "undecided",
                f"queue {self.queue_id} on {self.broker} is prepared but not open: finish the move or roll it back",
            )
        return self.first
