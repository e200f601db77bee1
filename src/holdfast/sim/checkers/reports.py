"""Check that a name server's record of a broker's logical queues never becomes older, and is complete at the end.

Registrations overtake each other when connections break. A name server refuses one that is older than its record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from holdfast.nameserver.core import NameServer
from holdfast.sim.world.world import Violation


class ReportChecker:
    """The last known records of every name server.

    Args:
        find_running: Returns every name server that is up.
    """

    def __init__(self, find_running: Callable[[], Mapping[str, NameServer]]) -> None:
        self._find_running = find_running
        self._previous: dict[str, tuple[NameServer, dict[tuple[str, str], int]]] = {}

    def check(self) -> None:
        """Compare the records of all name servers with the last check. A restarted name server starts afresh."""
        for name, server in self._find_running().items():
            known = self._previous.get(name)
            before = known[1] if known is not None and known[0] is server else {}
            epochs = {
                (topic, broker): report.mapping.epoch
                for topic, static in server.routes.static.topics.items()
                for broker, report in static.reports.items()
            }
            for (topic, broker), epoch in epochs.items():
                if epoch < before.get((topic, broker), epoch):
                    raise Violation(
                        "a registration never goes back",
                        f"{name} knew {broker} at epoch {before[topic, broker]} of {topic}, and now at {epoch}",
                    )
            self._previous[name] = (server, epochs)

    def find_unfinished(self) -> list[str]:
        """Return the topics that are not fully served, each with the reasons."""
        return [
            f"{name}: {topic.name}: {'; '.join(topic.reasons) or 'not served'}"
            for name, server in self._find_running().items()
            for topic in server.routes.static.topics.values()
            if topic.reasons or topic.served is None
        ]
