"""Check that a producer writes only to its own unit, and that all name servers agree on the openings at the end.

attempted: by a producer of west, to a queue of west        to any other queue: it was misdirected
audited:   a message in a queue of west was sent in west     any other message: a producer of another unit wrote it
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.model.dr_switch import DrSwitch
from holdfast.model.queue import MessageQueue
from holdfast.model.scope import is_mock_broker, mock_broker
from holdfast.sim.checkers.ledger import AuditedRecord
from holdfast.sim.world.world import Violation


class UnitIsolationChecker:
    """Records which unit each message was sent in."""

    def __init__(self) -> None:
        self._mock_brokers: dict[str, str] = {}

    def attempted(self, uid: str, unit: str, queue: MessageQueue) -> None:
        """Record that a producer of *unit* sends a message to *queue*."""
        if not unit:
            return
        expected_broker = self._mock_brokers[uid] = mock_broker(unit)
        if queue.broker_name != expected_broker:
            raise Violation("a producer writes in its own unit", f"{uid} of {unit} goes to {queue}")

    def audit(self, records: Iterable[AuditedRecord]) -> None:
        """Compare the recorded units with everything that is stored in static topics."""
        for record in records:
            expected_broker = self._mock_brokers.get(record.uid)
            if (
                expected_broker is not None
                and is_mock_broker(record.queue_offset.broker)
                and record.queue_offset.broker != expected_broker
            ):
                raise Violation(
                    "a unit holds its own messages",
                    f"{record.queue_offset} holds {record.uid}, sent to {expected_broker}",
                )


def find_difference(switches: dict[str, DrSwitch]) -> str | None:
    """Return how the name servers' records of the openings differ; None if they agree."""
    if len(set(switches.values())) < 2:
        return None
    return "; ".join(f"{name}: version {switch.version}" for name, switch in sorted(switches.items()))
