"""What a name server believes of a broker's logical queues never becomes older, and in the end it is whole.

Registrations overtake each other where connections break. One that is older than what is known is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from holdfast.nameserver.core import NameServer
from holdfast.sim.world.world import Violation


class Reports:
    """What every name server knew last.

    Args:
        find: Returns every name server that is up.
    """

    def __init__(self, find: Callable[[], Mapping[str, NameServer]]) -> None:
        self._find = find
        self._known: dict[str, tuple[NameServer, dict[tuple[str, str], int]]] = {}

    def check(self) -> None:
        """Look at all of them, and compare with the last time. One that was started again begins anew."""
        for name, server in self._find().items():
            known = self._known.get(name)
            before = known[1] if known is not None and known[0] is server else {}
            epochs = {
                (topic, broker): report.mapping.epoch
                for topic, static in server.routes.static.topics.items()
                for broker, report in static.reports.items()
            }
            for (topic, broker), epoch in epochs.items():
                if epoch < before.get((topic, broker), epoch):
                    raise Violation(
                        "what is registered never goes back",
                        f"{name} knew {broker} at epoch {before[topic, broker]} of {topic}, and now at {epoch}",
                    )
            self._known[name] = (server, epochs)

    def find_unfinished(self) -> list[str]:
        """Return which topics are not served as they are, and why, in words."""
        return [
            f"{name}: {topic.name}: {'; '.join(topic.reasons) or 'not served'}"
            for name, server in self._find().items()
            for topic in server.routes.static.topics.values()
            if topic.reasons or topic.served is None
        ]
