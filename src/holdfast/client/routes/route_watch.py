"""Of which topics the name server in use was asked to tell us, and whether it does.

    nothing ── ask a ──> a: unsure ── answer: watching ──> a pushes ──┬─ connection lost ──> a: nothing watched; dial a
                            └─ answer without it ──> a is polled      └─ another is used ──> a: 329 with all topics

A question that was sent may have been taken also when no answer came. So a topic counts as watched from then on, and is
named when we leave. Knows no sockets; `name_server_link` performs what follows from it.
"""

from __future__ import annotations

from collections.abc import Iterable


class RouteWatch:
    """What one name server was asked to tell.

    Attributes:
        address: Which one; None before the first question.
        pushes: Whether it said, when it was last asked, that it tells of changes.
    """

    def __init__(self) -> None:
        self.address: str | None = None
        self.pushes = False
        self._has_answered = False  # on the connection that stands now
        self._topics: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._topics)

    def ask(self, address: str, topic: str) -> None:
        """Take note that *address* is about to be asked for *topic*."""
        if address != self.address:
            self.leave()
            self.address = address
        self._topics[topic] = None

    def answer(self, address: str, *, pushes: bool) -> bool:
        """Take note of an answer, and say whether it is the first on this connection.

        One that pushes may refuse to watch a topic too many: it pushes all the same.
        """
        if address != self.address:
            return False
        is_first = not self._has_answered
        self._has_answered = True
        self.pushes = pushes or (self.pushes and not is_first)
        return is_first

    def drop(self, topics: Iterable[str]) -> list[str]:
        """Take note that nobody wants to hear of *topics*, and return those that the name server has to be told."""
        known = [topic for topic in topics if topic in self._topics]
        for topic in known:
            del self._topics[topic]
        return known if self._may_push else []

    def lose(self, address: str) -> bool:
        """Take note that the connection to *address* is gone, and say whether it told of changes until now."""
        if address != self.address:
            return False
        self._topics.clear()
        self._has_answered = False
        return self.pushes

    def leave(self) -> list[str]:
        """Take note that another name server is used, and return what this one has to be told to watch no more."""
        topics = list(self._topics) if self._may_push else []
        self._topics.clear()
        self.address = None
        self.pushes = self._has_answered = False
        return topics

    @property
    def _may_push(self) -> bool:
        """Whether it pushes, or has not said yet."""
        return self.pushes or not self._has_answered
