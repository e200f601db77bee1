"""The floor of a logical queue: the lowest offset at which its next segment may begin.

    unset      every broker that recorded the queue keeps a floor: the end of the queue as far as it knows it
    set        the next segment begins at the highest floor that any broker, name server or committed offset gives,
               in a later generation; a forced gap above it if a broker that held the queue cannot be asked

Without a floor, a queue that gets a new mapping would reuse its offsets, and groups that consumed them would skip new
messages. A floor only rises. It is deleted with its topic.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from holdfast.model.logical_queue import FORCED_GAP, LogicalQueue
from holdfast.model.queue import LogicalOffset
from holdfast.model.segment import newest_generation, next_generation

OFFSET_MAX: Final = 2**62
"""Floors above this are refused: offsets are 64-bit numbers, and a gap must fit above."""


class Floor(msgspec.Struct, frozen=True, kw_only=True):
    """The known used offsets of a logical queue.

    Attributes:
        offset: No offset at or above it was ever used.
        generation: The newest known segment's generation; None if the queue never had a segment.
        brokers: The brokers that held the queue in that generation.
    """

    offset: LogicalOffset = LogicalOffset(0)
    generation: int | None = None
    brokers: tuple[str, ...] = ()

    def next_start(self, *, is_certain: bool) -> LogicalOffset:
        """Return the start of the next segment; *is_certain* if every broker that held the queue answered."""
        return self.offset if is_certain else LogicalOffset(self.offset + FORCED_GAP)

    def next_generation(self, *, is_certain: bool) -> int:
        """Return the generation of the next segment. A forced one skips a generation, as a forced move does."""
        return next_generation(self.generation, skipped=0 if is_certain else 1)


NO_FLOOR: Final = Floor()


def floor_of(queue: LogicalQueue, end: LogicalOffset | None = None) -> Floor:
    """Return the floor of a recorded queue.

    Args:
        queue: The recorded queue.
        end: The logical end of the leader's segment, if the caller knows it better than the record.
    """
    ends = [segment.static_max for segment in queue.segments if segment.is_decided]
    return Floor(
        offset=max([LogicalOffset(0), *ends, *([] if end is None else [end])]),
        generation=queue.segments[-1].generation,
        brokers=tuple(sorted({segment.broker for segment in queue.readable})),
    )


def highest_floor(floors: Iterable[Floor]) -> Floor:
    """Return the highest of *floors*; its brokers are those of the newest generation."""
    known = list(floors)
    generation = newest_generation(floor.generation for floor in known)
    holders = {broker for floor in known if floor.generation == generation for broker in floor.brokers}
    return Floor(
        offset=max((floor.offset for floor in known), default=LogicalOffset(0)),
        generation=generation,
        brokers=tuple(sorted(holders)),
    )
