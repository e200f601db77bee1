"""Watching routes: a client asks once, and is told when the route of a topic changed.

    105  watch=true              client ─> name server   tell me the route, and of its changes, on this connection
         watching=true                  <─               in the answer, whatever its code: I will; absent: poll
    328  topics=A;B;C                   <─               oneway: these routes changed; ask for them
    329  topics=A;B;C                   ─>               tell me of these no more

To a Java broker 328 and 329 mean other things: these are spoken between name servers and their clients only. Names of
topics hold no semicolon. What would be longer than `TEXT_MAX` goes in several requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

ROUTES_CHANGED: Final = 328
UNWATCH: Final = 329

WATCH_FIELD: Final = "watch"
WATCHING_FIELD: Final = "watching"
TOPICS_FIELD: Final = "topics"
TEXT_MAX: Final = 64 * 1024
"""What the names of one request may take, in bytes; a header with more would not be taken by everybody."""


def join_topics(topics: Iterable[str]) -> Iterator[str]:
    """Return the texts, one for each request, that name all *topics*."""
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
