"""Check that no acknowledged message is missing, none is unexpected, and none is stored more often than it was sent.

    attempted ... acknowledged: (place, spot) ... audited: every record of every log

An acknowledged message must be stored at the place that its sender was given. A message may be stored once for every
attempt, because a sender that gets no answer sends again. Consumers must never find a message of a transaction that was
rolled back. A committed one may be stored twice if power was lost just between the message and the note that it was
delivered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from holdfast.model.topic import RETRY_PREFIX
from holdfast.sim.checkers.offset_identity import Place, Places, Spot
from holdfast.sim.world.workload import TRANSACTIONAL, Job, Kind
from holdfast.sim.world.world import Violation


class Ack(msgspec.Struct, frozen=True):
    """The place and spot that a sender was given for its message."""

    place: Place
    spot: Spot


class Audited(msgspec.Struct, frozen=True):
    """One record, as found by the audit at the end of a run."""

    place: Place
    spot: Spot
    uid: str


class Ledger:
    """The record of all messages.

    Attributes:
        attempts: How often each was sent.
        sent_ms: When each was first sent.
        acks: Every acknowledgement that its sender received.
        forgiven: Messages that may be lost, as their operator allowed.
        is_undisturbed: No fault is active, so no send has a reason to fail.
        may_repeat: A fault occurred, so messages that a broker forwards may be stored twice.
    """

    def __init__(self, places: Places) -> None:
        self.attempts: Counter[str] = Counter()
        self.sent_ms: dict[str, int] = {}
        self.acks: dict[str, list[Ack]] = {}
        self.forgiven: set[str] = set()
        self.is_undisturbed = False
        self.may_repeat = False
        self._jobs: dict[str, Job] = {}
        self._places = places

    def attempted(self, job: Job, now_ms: int) -> None:
        """Record that *job* is being sent, perhaps again."""
        self.sent_ms.setdefault(job.uid, now_ms)
        self._jobs[job.uid] = job
        self.attempts[job.uid] += 1

    def failed(self, job: Job, reason: str) -> None:
        """Record that an attempt to send *job* was refused or got no answer."""
        if self.is_undisturbed:
            raise Violation("no send fails without a reason", f"{job.uid}: {reason}")

    def acknowledged(self, job: Job, ack: Ack, asked_ms: int) -> None:
        """Record the acknowledgement of *job*, which was sent at *asked_ms*."""
        if self._places.may_be_lost(ack.spot, asked_ms):
            # It was true when the leader answered; the relaying broker did not know that the log lost its end since.
            self.forgiven.add(job.uid)
            return
        self.acks.setdefault(job.uid, []).append(ack)
        if len(self.acks[job.uid]) > self.attempts[job.uid]:
            raise Violation("one attempt, one answer", f"{job.uid} was acknowledged {len(self.acks[job.uid])} times")
        if job.kind in {Kind.PLAIN, Kind.KEYED}:
            self._places.see(ack.place, job.uid, ack.spot)

    def forgive(self, home: str, position: int, now_ms: int) -> None:
        """Record that the log at *home* may have lost all records from *position* on, as its operator allowed."""
        self._places.forgive(home, position, now_ms)
        for uid, acks in self.acks.items():
            kept = [ack for ack in acks if ack.spot.home != home or ack.spot.position < position]
            if len(kept) < len(acks):
                self.acks[uid] = kept
                self.forgiven.add(uid)

    def expected(self) -> list[Job]:
        """Return the messages that every group must receive."""
        return [
            self._jobs[uid]
            for uid, acks in self.acks.items()
            if acks and uid not in self.forgiven and self._jobs[uid].kind is not Kind.ROLLED_BACK
        ]

    def audit(self, records: Iterable[Audited], visible_topics: Iterable[str]) -> None:
        """Compare the recorded messages with everything that is stored in all brokers' queues."""
        found: dict[tuple[Spot, str], Audited] = {}
        copies: Counter[str] = Counter()
        visible: set[str] = set()
        topics = set(visible_topics)
        for record in records:
            found[record.spot, record.uid] = record
            if record.place.topic in topics:
                visible.add(record.uid)
                job = self._judge(record)
                is_excused = job.kind in TRANSACTIONAL and self._places.has_holes(record.place.broker)
                # The queue may have another leader when it is due: the broker sends again if it gets no answer.
                is_own = job.kind in TRANSACTIONAL or job.kind is Kind.DELAYED
                is_excused |= is_own and self.may_repeat and record.place.broker in self._places.logical
                copies[record.uid] += not is_excused
            elif record.place.topic.startswith(RETRY_PREFIX):
                self._judge(record)
        self._find_missing(found)
        for job in self.expected():
            if job.kind is Kind.DELAYED and job.uid not in visible:
                raise Violation("a delayed message arrives", f"{job.uid} was accepted, and is in no queue of its topic")
        for uid, count in copies.items():
            if count > self.attempts[uid]:
                raise Violation(
                    "stored as often as sent", f"{uid} is stored {count} times and was sent {self.attempts[uid]} times"
                )

    def _judge(self, record: Audited) -> Job:
        job = self._jobs.get(record.uid)
        if job is None:
            raise Violation("nothing unexpected", f"{record.place} holds {record.uid!r}, which was never sent")
        if job.kind is Kind.ROLLED_BACK:
            raise Violation("rolled back is never seen", f"{record.place} holds {record.uid}")
        return job

    def _find_missing(self, found: dict[tuple[Spot, str], Audited]) -> None:
        for uid, acks in self.acks.items():
            for ack in acks:
                record = found.get((ack.spot, uid))
                if record is None:
                    others = [other for spot, other in found if spot == ack.spot]
                    there = f"holds {', '.join(others) or 'nothing'}"
                    raise Violation("an acknowledged message is stored", f"{uid}: {ack.place}, {ack.spot}, {there}")
                is_elsewhere = self._jobs[uid].kind in TRANSACTIONAL or self._jobs[uid].kind is Kind.DELAYED
                if not is_elsewhere and record.place != ack.place:
                    raise Violation(
                        "an acknowledged message is stored", f"{uid}: acknowledged at {ack.place}, is at {record.place}"
                    )
