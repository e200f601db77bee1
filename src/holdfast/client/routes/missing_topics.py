"""The topics of which it is known that they do not exist, and no more of them than there is room for.

A program that asks for names that it makes up must not fill the memory: the oldest name goes when a new one comes.
Knows names only; when they are asked for again is up to `route_table`.
"""

from __future__ import annotations

from typing import Final

MISSING_MAX: Final = 10_000


class MissingTopics:
    """Names, the oldest first.

    Args:
        limit: How many; None for all.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._names: dict[str, None] = {}

    def __contains__(self, topic: str) -> bool:
        return topic in self._names

    def __len__(self) -> int:
        return len(self._names)

    def add(self, topic: str) -> list[str]:
        """Remember *topic* and return who had to go. One that is here already keeps its age."""
        self._names[topic] = None
        gone = []
        while self._limit is not None and len(self._names) > self._limit:
            oldest = next(iter(self._names))
            del self._names[oldest]
            gone.append(oldest)
        return gone

    def discard(self, topic: str) -> None:
        """Forget *topic*: it is there, or nobody asks for it any more."""
        self._names.pop(topic, None)
