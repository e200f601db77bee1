"""Watching routes: a client subscribes once, and is notified when the route of a topic changes.

    105  watch=true              client ─> name server   send the route, and notify me of changes on this connection
         watching=true                  <─               in the answer, whatever its code: accepted; absent: poll
    328  topics=A;B;C                   <─               oneway: these routes changed; query them
    329  topics=A;B;C                   ─>               stop watching these

To a Java broker 328 and 329 have other meanings: these are only used between name servers and their clients. Topic
names contain no semicolon. Names that would exceed `TEXT_MAX` are split over several requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

ROUTES_CHANGED: Final = 328
UNWATCH: Final = 329

WATCH_FIELD: Final = "watch"
WATCHING_FIELD: Final = "watching"
TOPICS_FIELD: Final = "topics"
TEXT_MAX: Final = 64 * 1024
"""Limit for the names in one request, in bytes; not every peer accepts a larger header."""


class WatchedTopicsFields(msgspec.Struct, frozen=True, kw_only=True):
    """Header of 328 and 329 between name servers and their clients."""

    topics: str = msgspec.field(default="", name=TOPICS_FIELD)


def join_topics(topics: Iterable[str]) -> Iterator[str]:
    """Yield texts that together name all *topics*, one for each request."""
    names: list[str] = []
    size = 0
    for topic in topics:
        grown = size + len(topic.encode()) + 1
        if names and grown > TEXT_MAX:
            yield ";".join(names)
            names, grown = [], len(topic.encode()) + 1
        names.append(topic)
        size = grown
    if names:
        yield ";".join(names)


def split_topics(text: str | None) -> list[str]:
    """Return the topics that a request names."""
    return [name for name in (text or "").split(";") if name]
