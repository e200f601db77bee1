"""Check that no acknowledged message is missing, none is unexpected, and none is stored more often than it was sent.

    attempted ... acknowledged: queue offset, log position ... audited: every record of every log

An acknowledged message must be stored at the queue offset that its sender received. A message may be stored once for
every attempt, because a sender that gets no answer sends again. Consumers must never find a message of a transaction
that was rolled back. A committed one may be stored twice if power was lost just between the message and the note that
it was delivered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from holdfast.model.topic import RETRY_PREFIX
from holdfast.sim.checkers.offset_identity import LogPosition, OffsetIdentityChecker, QueueOffset
from holdfast.sim.world.workload import TRANSACTIONAL, Kind, PlannedMessage
from holdfast.sim.world.world import Violation


class Ack(msgspec.Struct, frozen=True):
    """The queue offset and the log position that a sender received for its message."""

    queue_offset: QueueOffset
    log_position: LogPosition


class AuditedRecord(msgspec.Struct, frozen=True):
    """One record, as found by the audit at the end of a run."""

    queue_offset: QueueOffset
    log_position: LogPosition
    uid: str


class Ledger:
    """The record of all messages.

    Attributes:
        attempts: How often each was sent.
        sent_ms: When each was first sent.
        acks: Every acknowledgement that its sender received.
        allowed_losses: Messages that may be lost, as their operator allowed.
        is_undisturbed: No fault is active, so no send has a reason to fail.
        may_repeat: A fault occurred, so messages that a broker forwards may be stored twice.
    """

    def __init__(self, offset_checker: OffsetIdentityChecker) -> None:
        self.attempts: Counter[str] = Counter()
        self.sent_ms: dict[str, int] = {}
        self.acks: dict[str, list[Ack]] = {}
        self.allowed_losses: set[str] = set()
        self.is_undisturbed = False
        self.may_repeat = False
        self._messages: dict[str, PlannedMessage] = {}
        self._offset_checker = offset_checker

    def attempted(self, planned: PlannedMessage, now_ms: int) -> None:
        """Record that *planned* is being sent, perhaps again."""
        self.sent_ms.setdefault(planned.uid, now_ms)
        self._messages[planned.uid] = planned
        self.attempts[planned.uid] += 1

    def failed(self, planned: PlannedMessage, reason: str) -> None:
        """Record that an attempt to send *planned* was refused or got no answer."""
        if self.is_undisturbed:
            raise Violation("no send fails without a reason", f"{planned.uid}: {reason}")

    def acknowledged(self, planned: PlannedMessage, ack: Ack, requested_ms: int) -> None:
        """Record the acknowledgement of *planned*, which was sent at *requested_ms*."""
        if self._offset_checker.may_be_lost(ack.log_position, requested_ms):
            # It was true when the leader answered; the relaying broker did not know that the log lost its end since.
            self.allowed_losses.add(planned.uid)
            return
        self.acks.setdefault(planned.uid, []).append(ack)
        if len(self.acks[planned.uid]) > self.attempts[planned.uid]:
            raise Violation(
                "one attempt, one answer", f"{planned.uid} was acknowledged {len(self.acks[planned.uid])} times"
            )
        if planned.kind in {Kind.PLAIN, Kind.KEYED}:
            self._offset_checker.record(ack.queue_offset, planned.uid, ack.log_position)

    def allow_loss(self, address: str, position: int, now_ms: int) -> None:
        """Record that the log at *address* may have lost all records from *position* on, as its operator allowed."""
        self._offset_checker.allow_loss(address, position, now_ms)
        for uid, acks in self.acks.items():
            kept = [ack for ack in acks if ack.log_position.address != address or ack.log_position.position < position]
            if len(kept) < len(acks):
                self.acks[uid] = kept
                self.allowed_losses.add(uid)

    def expected(self) -> list[PlannedMessage]:
        """Return the messages that every group must receive."""
        return [
            self._messages[uid]
            for uid, acks in self.acks.items()
            if acks and uid not in self.allowed_losses and self._messages[uid].kind is not Kind.ROLLED_BACK
        ]

    def audit(self, records: Iterable[AuditedRecord], visible_topics: Iterable[str]) -> None:
        """Compare the recorded messages with everything that is stored in all brokers' queues."""
        found: dict[tuple[LogPosition, str], AuditedRecord] = {}
        stored_counts: Counter[str] = Counter()
        visible: set[str] = set()
        topics = set(visible_topics)
        for record in records:
            found[record.log_position, record.uid] = record
            if record.queue_offset.topic in topics:
                visible.add(record.uid)
                planned = self._validate(record)
                is_excused = planned.kind in TRANSACTIONAL and self._offset_checker.may_be_torn(
                    record.queue_offset.broker
                )
                # The queue may have another leader when it is due: the broker sends again if it gets no answer.
                is_forwarded = planned.kind in TRANSACTIONAL or planned.kind is Kind.DELAYED
                is_excused |= (
                    is_forwarded and self.may_repeat and record.queue_offset.broker in self._offset_checker.logical
                )
                stored_counts[record.uid] += not is_excused
            elif record.queue_offset.topic.startswith(RETRY_PREFIX):
                self._validate(record)
        self._find_missing(found)
        for planned in self.expected():
            if planned.kind is Kind.DELAYED and planned.uid not in visible:
                raise Violation(
                    "a delayed message arrives", f"{planned.uid} was accepted, and is in no queue of its topic"
                )
        for uid, count in stored_counts.items():
            if count > self.attempts[uid]:
                raise Violation(
                    "stored as often as sent", f"{uid} is stored {count} times and was sent {self.attempts[uid]} times"
                )

    def _validate(self, record: AuditedRecord) -> PlannedMessage:
        planned = self._messages.get(record.uid)
        if planned is None:
            raise Violation("nothing unexpected", f"{record.queue_offset} holds {record.uid!r}, which was never sent")
        if planned.kind is Kind.ROLLED_BACK:
            raise Violation("rolled back is never seen", f"{record.queue_offset} holds {record.uid}")
        return planned

    def _find_missing(self, found: dict[tuple[LogPosition, str], AuditedRecord]) -> None:
        for uid, acks in self.acks.items():
            for ack in acks:
                record = found.get((ack.log_position, uid))
                if record is None:
                    other_uids = [uid_found for log_position, uid_found in found if log_position == ack.log_position]
                    content = f"holds {', '.join(other_uids) or 'nothing'}"
                    raise Violation(
                        "an acknowledged message is stored", f"{uid}: {ack.queue_offset}, {ack.log_position}, {content}"
                    )
                is_rewritten = self._messages[uid].kind in TRANSACTIONAL or self._messages[uid].kind is Kind.DELAYED
                if not is_rewritten and record.queue_offset != ack.queue_offset:
                    raise Violation(
                        "an acknowledged message is stored",
                        f"{uid}: acknowledged at {ack.queue_offset}, is at {record.queue_offset}",
                    )
