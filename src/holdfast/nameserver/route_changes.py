"""Collects which routes changed while an event is handled, and why, until `push/publication.py` publishes them."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.nameserver.notices import ChangeCause


class RouteChanges:
    """The changes of one event.

    Attributes:
        topics: The topics whose routes may have changed.
        cause: Why they changed.
        are_all: Every route may have changed for some clients.
        is_urgent: An operator handles an outage and waits for the notices: they are sent whatever the load.
    """

    def __init__(self) -> None:
        self.topics: set[str] = set()
        self.cause = ChangeCause.TOPIC
        self.are_all = False
        self.is_urgent = False

    def add(self, topics: Iterable[str]) -> None:
        """Record that the routes of *topics* may have changed."""
        self.topics.update(topics)

    def add_all(self, *, is_urgent: bool = False) -> None:
        """Record that every route may have changed."""
        self.are_all = True
        self.is_urgent = self.is_urgent or is_urgent

    def clear(self) -> None:
        """Forget the changes: they are published."""
        self.topics = set()
        self.cause = ChangeCause.TOPIC
        self.are_all = self.is_urgent = False
