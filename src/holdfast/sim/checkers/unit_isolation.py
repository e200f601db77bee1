"""Whoever belongs to a unit writes there and nowhere else, whatever is open; in the end all name servers say the same.

attempted: by a producer of west, to a queue of west        to any other: it was led astray
audited:   what a queue of west holds was sent in west      anything else: somebody wrote it there for others
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.model.dr_switch import Switch
from holdfast.model.queue import MessageQueue
from holdfast.model.scope import is_mock_broker, mock_broker
from holdfast.sim.checkers.ledger import Audited
from holdfast.sim.world.world import Violation


class Borders:
    """Who sent what."""

    def __init__(self) -> None:
        self._homes: dict[str, str] = {}

    def attempted(self, uid: str, unit: str, queue: MessageQueue) -> None:
        """Take note that a producer of *unit* sends a message to *queue*."""
        if not unit:
            return
        home = self._homes[uid] = mock_broker(unit)
        if queue.broker_name != home:
            raise Violation("a producer writes in its own unit", f"{uid} of {unit} goes to {queue}")

    def audit(self, records: Iterable[Audited]) -> None:
        """Compare with everything that is stored in static topics."""
        for record in records:
            home = self._homes.get(record.uid)
            if home is not None and is_mock_broker(record.place.broker) and record.place.broker != home:
                raise Violation("a unit holds its own messages", f"{record.place} holds {record.uid}, sent to {home}")


def find_difference(switches: dict[str, Switch]) -> str | None:
    """Return how name servers differ about what is open; None when they do not."""
    if len(set(switches.values())) < 2:
        return None
    return "; ".join(f"{name}: version {switch.version}" for name, switch in sorted(switches.items()))
