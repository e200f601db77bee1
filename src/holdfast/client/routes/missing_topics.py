"""Remembers a bounded number of topics that do not exist.

A program that asks for made-up names must not fill the memory: when the limit is reached, a new name evicts the oldest.
Knows names only; `route_table` decides when to ask for them again.
"""

from __future__ import annotations

from typing import Final

MISSING_MAX: Final = 10_000


class MissingTopics:
    """Topic names, oldest first.

    Args:
        limit: The maximum number of names; None for no limit.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._names: dict[str, None] = {}

    def __contains__(self, topic: str) -> bool:
        return topic in self._names

    def __len__(self) -> int:
        return len(self._names)

    def add(self, topic: str) -> list[str]:
        """Remember *topic* and return the evicted names. A name that is present already keeps its age."""
        self._names[topic] = None
        evicted = []
        while self._limit is not None and len(self._names) > self._limit:
            oldest = next(iter(self._names))
            del self._names[oldest]
            evicted.append(oldest)
        return evicted

    def discard(self, topic: str) -> None:
        """Forget *topic*: it exists now, or is no longer used."""
        self._names.pop(topic, None)
