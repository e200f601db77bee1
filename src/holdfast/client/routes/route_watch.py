"""Tracks which topics the name server in use watches for us, and whether it supports route push.

    nothing ── ask a ──> a: unsure ── answer: watching ──> a pushes ──┬─ connection lost ──> a: nothing watched; dial a
                            └─ answer without it ──> a is polled      └─ another is used ──> a: 329 with all topics

A request may have taken effect although no answer came. So a topic counts as watched from the moment of the request,
and is included when we unwatch. Performs no I/O; `name_server_session` acts on the results.
"""

from __future__ import annotations

from collections.abc import Iterable


class RouteWatch:
    """The topics that one name server watches for us.

    Attributes:
        address: The name server; None before the first request.
        pushes: Whether its last answer said that it notifies us of changes.
    """

    def __init__(self) -> None:
        self.address: str | None = None
        self.pushes = False
        self._has_answered = False  # on the current connection
        self._topics: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._topics)

    def record_request(self, address: str, topic: str) -> None:
        """Record that *address* is about to be asked to watch *topic*. A change of address resets the state."""
        if address != self.address:
            self.record_switch()
            self.address = address
        self._topics[topic] = None

    def record_answer(self, address: str, *, pushes: bool) -> bool:
        """Record an answer, and return whether it is the first on this connection.

        A name server that supports push may refuse to watch one topic too many; it still pushes the others.
        """
        if address != self.address:
            return False
        is_first = not self._has_answered
        self._has_answered = True
        self.pushes = pushes or (self.pushes and not is_first)
        return is_first

    def drop(self, topics: Iterable[str]) -> list[str]:
        """Record that *topics* are no longer needed, and return those that the name server must be asked to unwatch."""
        known = [topic for topic in topics if topic in self._topics]
        for topic in known:
            del self._topics[topic]
        return known if self._may_push else []

    def record_loss(self, address: str) -> bool:
        """Record that the connection to *address* is gone, and return whether that server pushed changes until now."""
        if address != self.address:
            return False
        self._topics.clear()
        self._has_answered = False
        return self.pushes

    def record_switch(self) -> list[str]:
        """Record that another name server is used now, and return the topics that this one must unwatch."""
        topics = list(self._topics) if self._may_push else []
        self._topics.clear()
        self.address = None
        self.pushes = self._has_answered = False
        return topics

    @property
    def _may_push(self) -> bool:
        """Whether it pushes, or has not answered yet."""
        return self.pushes or not self._has_answered
