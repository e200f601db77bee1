"""The ranges of the log that this process has verified.

    |  ?  |== read and verified ==|  ?  |=====|  ?  |== verified at recovery, or written by us ==>
                                                     ^ tail_start

A record is verified before it is first served, because disks corrupt data silently. The number of ranges is bounded;
a forgotten range is verified again.
"""

from __future__ import annotations

from bisect import bisect_right

RANGES_MAX = 4096


class VerifiedRanges:
    """A set of positions, as ranges that begin and end between records.

    Invariant: the ranges are sorted, do not touch, and end at or before `tail_start`.
    """

    def __init__(self, tail_start: int) -> None:
        self.tail_start = tail_start
        self._starts: list[int] = []
        self._ends: list[int] = []

    def find_end(self, position: int) -> int | None:
        """Return the end of the verified range around *position*; None if *position* itself is not verified.

        From `tail_start` on everything is verified: there the result is *position* itself.
        """
        if position >= self.tail_start:
            return position
        at = bisect_right(self._starts, position) - 1
        return self._ends[at] if at >= 0 and position < self._ends[at] else None

    def add(self, start: int, end: int) -> None:
        """Remember that [start, end) is verified."""
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
            # The oldest part of the log is the least likely to be read again.
            del self._starts[0], self._ends[0]
