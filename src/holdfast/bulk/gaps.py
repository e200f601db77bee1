"""Finds the ranges in which a logical queue can hold messages. A forced move leaves a gap without messages.

Pure functions of a queue's mapping.
"""

from __future__ import annotations

from holdfast.model.mapping import LogicalQueue, Segment


def parts_outside_gaps(queue: LogicalQueue, start: int, end: int, *, skips_unknown: bool) -> list[tuple[int, int]]:
    """Return the parts of a range that can hold messages.

    No part after a segment of unknown end is returned, because the segment's broker may return with more messages.

    Args:
        queue: The queue.
        start: Where the range begins.
        end: Where it ends.
        skips_unknown: Assume that such a broker has no more messages.
    """
    parts: list[tuple[int, int]] = []
    for segment in queue.readable:
        if segment.is_decided:
            if _has_unknown_end(queue, segment) and start < _next_start(queue, segment) and not skips_unknown:
                break
            last = _end_of(queue, segment, end)
            if max(segment.first, start) < min(last, end):
                parts.append((max(segment.first, start), min(last, end)))
    oldest = next((segment.first for segment in queue.readable if segment.is_decided), end)
    # Retention removed the offsets before the oldest segment: the reader decides whether that is lost data.
    return [(start, min(oldest, end)), *parts] if start < min(oldest, end) else parts


def find_unknown_end(queue: LogicalQueue, start: int, end: int) -> str | None:
    """Return the unreachable broker that may still have messages of a range; None if there is none."""
    for segment in queue.readable:
        if _has_unknown_end(queue, segment) and start < _next_start(queue, segment) and segment.first < end:
            return segment.broker
    return None


def _has_unknown_end(queue: LogicalQueue, segment: Segment) -> bool:
    """Return whether a forced move closed a segment whose end its broker has not reported yet."""
    return segment.forced and segment.logical_end is None and queue.segment_after(segment) is not None


def _next_start(queue: LogicalQueue, segment: Segment) -> int:
    following = queue.segment_after(segment)
    assert following is not None, "a closed segment has a successor"
    return following.first


def _end_of(queue: LogicalQueue, segment: Segment, end: int) -> int:
    """Return the end of a segment. If unknown, that is *end* for the newest segment, else the start of the next one.

    After a forced move it is the static maximum of the segment.
    """
    if segment.logical_end is not None:
        return segment.logical_end
    following = queue.segment_after(segment)
    if following is None:
        return end
    return segment.static_max if segment.forced else following.first
