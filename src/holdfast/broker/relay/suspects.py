"""Topics of which another broker may lead queues that this broker regards as its own. `failover/` checks them."""

from __future__ import annotations

from typing import Final

from holdfast.machine.turn import Turn

TIMER: Final = "suspects"


class SuspectTopics:
    """Topics to check when the event ends."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._topics: dict[str, None] = {}

    def add(self, topic: str) -> None:
        """Let *topic* be checked."""
        self._topics[topic] = None
        self._turn.fire(TIMER)

    def drain(self) -> list[str]:
        """Return the topics to check, and clear the list."""
        drained, self._topics = list(self._topics), {}
        return drained
