"""What the store asks of the index of one queue, whatever its entries look like.

`consume_queue.QueueLog` has 20-byte entries, one per message. An index with one entry per batch joins behind this.
"""

from __future__ import annotations

from typing import Protocol


class QueueIndex(Protocol):
    """Where the messages of one physical queue lie in the log.

    Invariant: offset_min <= offset_max <= next_offset.
    """

    topic: str
    queue_id: int
    offset_min: int
    """First offset whose record is still in the log; equal to `offset_max` when there is none."""
    offset_max: int
    """Behind the last confirmed message: what readers see."""
    next_offset: int
    """What the next message gets: ahead of `offset_max` while records wait to be confirmed."""

    def raw_entries(self, start: int, count: int) -> bytes | bytearray:
        """Return up to *count* whole entries from *start* on; empty when *start* is outside [min, max)."""
        ...

    def settle(self) -> None:
        """Make entries that were added readable."""
        ...

    def flush(self) -> None:
        """Write what is only in memory to the files."""
        ...
