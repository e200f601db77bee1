"""Check that a producer writes only to its own unit, and that all name servers agree on the openings at the end.

attempted: by a producer of west, to a queue of west        to any other queue: it was misdirected
audited:   a message in a queue of west was sent in west     any other message: a producer of another unit wrote it
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.model.dr_switch import Switch
from holdfast.model.queue import MessageQueue
from holdfast.model.scope import is_mock_broker, mock_broker
from holdfast.sim.checkers.ledger import Audited
from holdfast.sim.world.world import Violation


class Borders:
    """Records which unit each message was sent in."""

    def __init__(self) -> None:
        self._homes: dict[str, str] = {}

    def attempted(self, uid: str, unit: str, queue: MessageQueue) -> None:
        """Record that a producer of *unit* sends a message to *queue*."""
        if not unit:
            return
        home = self._homes[uid] = mock_broker(unit)
        if queue.broker_name != home:
            raise Violation("a producer writes in its own unit", f"{uid} of {unit} goes to {queue}")

    def audit(self, records: Iterable[Audited]) -> None:
        """Compare the recorded units with everything that is stored in static topics."""
        for record in records:
            home = self._homes.get(record.uid)
            if home is not None and is_mock_broker(record.place.broker) and record.place.broker != home:
                raise Violation("a unit holds its own messages", f"{record.place} holds {record.uid}, sent to {home}")


def find_difference(switches: dict[str, Switch]) -> str | None:
    """Return how the name servers' records of the openings differ; None if they agree."""
    if len(set(switches.values())) < 2:
        return None
    return "; ".join(f"{name}: version {switch.version}" for name, switch in sorted(switches.items()))
