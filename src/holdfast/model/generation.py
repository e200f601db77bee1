"""The generation of a segment: its ordinal number in a logical queue. The newest generation leads.

A broker without a history of its segments, as Java brokers are, reports none. Such a generation is None, and older than
all others. Use these functions to compare generations of which one may be unknown.
"""

from __future__ import annotations

from collections.abc import Iterable


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
