"""Which parts of the log have been found good since this process began.

    |  ?  |== read and checked ==|  ?  |=====|  ?  |== checked at recovery, or written by us ==>
                                                    ^ tail_start

A record is checked before it is first served: disks rot in silence. Ranges are remembered up to a number; what is
forgotten is merely checked again.
"""

from __future__ import annotations

from bisect import bisect_right

RANGES_MAX = 4096


class Verified:
    """A set of positions, as ranges that begin and end between records.

    Invariant: the ranges are sorted, apart from each other, and end at or before `tail_start`.
    """

    def __init__(self, tail_start: int) -> None:
        self.tail_start = tail_start
        self._starts: list[int] = []
        self._ends: list[int] = []

    def find_end(self, position: int) -> int | None:
        """Return how far the log is good from *position* on; None when that is not known of *position* itself.

        Behind `tail_start` everything is good: the answer there is *position* itself.
        """
        if position >= self.tail_start:
            return position
        at = bisect_right(self._starts, position) - 1
        return self._ends[at] if at >= 0 and position < self._ends[at] else None

    def add(self, start: int, end: int) -> None:
        """Remember that [start, end) is good."""
        end = min(end, self.tail_start)
        if start >= end:
            return
        first = bisect_right(self._starts, start)
        if first and self._ends[first - 1] >= start:
            first -= 1
            start = self._starts[first]
        last = bisect_right(self._starts, end)
        if last:
            end = max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]
        if end >= self.tail_start:
            self.tail_start = self._starts.pop()
            self._ends.pop()
        elif len(self._starts) > RANGES_MAX:
            # The oldest part of the log is the least likely to be asked for again.
            del self._starts[0], self._ends[0]
