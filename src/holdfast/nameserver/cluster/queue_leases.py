"""Leases of logical queues (7040): a name server confirms each queue to one broker at a time.

    free ──claimed──> held ──renewed──> held ...
                       │ ──no longer claimed by its holder──────────────────────────────> free
                       │ ──claimed in a newer generation, handed over by the holder─────> held by another
                       └ ──its holder silent for two leases: lapsed──claimed by another─> held by another

A broker relies on an answer for one lease, counted from its request; the name server waits for two, counted from when
it received the request. A claim that changes a holder is on disk before it is answered, so that a restart forgets no
promise. A name server without that file may have made promises: it confirms nothing for as long as a lease may last.

Time is counted in whole intervals of our own timer, not read from a clock. So a clock that jumps changes nothing, and a
suspended process counts too little, which only makes it wait longer.

Does not know majorities: brokers count them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from holdfast.machine.component import Component
from holdfast.machine.kept_file import KeptFile
from holdfast.machine.request import Answer, Handlers, Refusal, Request, answer_later
from holdfast.machine.turn import Turn
from holdfast.model.numbers import Int64
from holdfast.model.queue import LogicalQueueId, QueueKey
from holdfast.model.scope import GLOBAL
from holdfast.model.segment import is_newer
from holdfast.nameserver.routes.static_topics import StaticTopics, name_of
from holdfast.store.base.disk import Disk
from holdfast.wire.cluster.leases import UNKNOWN_HOLDER, Claim, LeaseAnswer, LeaseRequest, QueueLease
from holdfast.wire.cluster.mapping import QueueNumber
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.requests.moves import decode_body, encode_body

FILE: Final = "queueLeases.json"
QUARANTINE_MS: Final = 60_000
_LEASES_TO_PASS: Final = 2
_LEASE_MS_MAX: Final = 600_000

_Refused = dict[str, dict[LogicalQueueId, QueueLease]]


class KeptLeases(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file: the lease duration of each broker, and the holders."""

    lease_ms: dict[str, Int64] = {}
    held: dict[str, dict[QueueNumber, QueueLease]] = {}


class _BrokerSession(msgspec.Struct):
    """A broker that requested leases.

    Attributes:
        silent_ms: For how long it has been silent, at least.
        is_fresh: It sent a request since the last interval ended, so that this interval does not count.
    """

    lease_ms: int
    silent_ms: int = 0
    is_fresh: bool = False
    boot: int = -1
    number: int = -1


class QueueLeases(Component):
    """The holders of logical queues.

    Args:
        turn: The turn of the name server.
        disk: Where the file is; None: leases are only in memory.
        static: The known static topics.

    Attributes:
        leases: By topic key and queue.
    """

    def __init__(self, turn: Turn, disk: Disk | None, static: StaticTopics) -> None:
        self.leases: dict[QueueKey, QueueLease] = {}
        self._turn = turn
        self._static = static
        self._file = KeptFile(
            turn,
            disk,
            FILE,
            self._describe,
            encode=msgspec.json.encode,
            decode=lambda content: msgspec.json.decode(content, type=KeptLeases),
            has_backup=False,
        )
        self._sessions: dict[str, _BrokerSession] = {}
        self._quarantine_ms = QUARANTINE_MS
        self._restore()

    def _restore(self) -> None:
        kept = self._file.load_or_forget("leases forgotten: their file cannot be read")
        if kept is None:
            return
        self._quarantine_ms = 0
        self._sessions = {
            name: _BrokerSession(min(lease_ms, _LEASE_MS_MAX)) for name, lease_ms in kept.lease_ms.items()
        }
        self.leases = {
            (topic, number): lease
            for topic, queues in kept.held.items()
            for number, lease in queues.items()
            if lease.broker in self._sessions
        }

    def _describe(self) -> KeptLeases:
        leases: dict[str, dict[LogicalQueueId, QueueLease]] = {}
        for (topic, number), lease in self.leases.items():
            leases.setdefault(topic, {})[number] = lease
        return KeptLeases(lease_ms={name: session.lease_ms for name, session in self._sessions.items()}, held=leases)

    def files(self) -> Sequence[KeptFile[Any]]:
        """Return the file."""
        return (self._file,)

    def handlers(self) -> Handlers:
        """Return the request handlers by code."""
        return {RequestCode.RENEW_LEASES: self._renew}

    # Time.

    def advance_time(self, span_ms: int) -> None:
        """Count an interval of *span_ms* as passed; it may really have been longer."""
        self._quarantine_ms = max(0, self._quarantine_ms - span_ms)
        for session in self._sessions.values():
            session.silent_ms = 0 if session.is_fresh else session.silent_ms + span_ms
            session.is_fresh = False
        forgotten = [queue_key for queue_key, lease in self.leases.items() if self._is_forgotten(queue_key[0], lease)]
        for queue_key in forgotten:
            del self.leases[queue_key]
            self._file.mark_changed()

    def mark_alive(self, broker: str) -> None:
        """Record that *broker* is alive, even if it stopped requesting leases."""
        session = self._sessions.get(broker)
        if session is not None:
            session.silent_ms, session.is_fresh = 0, True

    def _is_lapsed(self, broker: str) -> bool:
        session = self._sessions[broker]
        return session.silent_ms >= _LEASES_TO_PASS * session.lease_ms

    def _is_forgotten(self, key: str, lease: QueueLease) -> bool:
        return key not in self._static.topics and self._is_lapsed(lease.broker)

    # Claims.

    def _renew(self, request: Request) -> Answer:
        lease_request = decode_body(request.command.body, LeaseRequest)
        if not 1 <= lease_request.lease_ms <= _LEASE_MS_MAX:
            return Refusal(
                ResponseCode.INVALID_PARAMETER, f"a lease of {lease_request.lease_ms} ms is outside 1..{_LEASE_MS_MAX}"
            )
        is_known = lease_request.broker in self._sessions or any(
            self._static.find_reported(lease_request.broker, topic) is not None for topic in lease_request.topics
        )
        if not is_known:
            # Keep nothing for a broker that has registered nothing: its claims would be unbounded.
            refused: _Refused | None = {
                topic: dict.fromkeys(claims, UNKNOWN_HOLDER) for topic, claims in lease_request.topics.items()
            }
        else:
            refused = self._apply_claims(lease_request)
        if refused is None:
            return Refusal(ResponseCode.ILLEGAL_OPERATION, "outdated: a later request was handled before")
        body = encode_body(LeaseAnswer(refused=refused, lapsed=self._find_lapsed(lease_request.broker)))
        if not self._file.is_durable or not (self._file.is_changed or self._file.is_being_written):
            return request.answer(body=body)
        self._file.save_soon(lambda failure: self._finish(request, body, failure))
        return None

    def _finish(self, request: Request, body: bytes, failure: str | None) -> None:
        """Answer a request whose claims are on disk, or refuse it: nothing is promised that is not."""
        if failure is None:
            answer = request.answer(body=body)
        else:
            answer = request.answer(ResponseCode.SERVICE_NOT_AVAILABLE, failure)
        answer_later(self._turn, request, answer)

    def _apply_claims(self, lease_request: LeaseRequest) -> _Refused | None:
        """Grant the claims that can be granted; return the refused ones, or None if the request is outdated."""
        session = self._sessions.get(lease_request.broker)
        if session is not None and (lease_request.boot, lease_request.number) <= (session.boot, session.number):
            return None  # Also a late request of an earlier process: its successor claims other queues.
        if session is None or session.lease_ms != lease_request.lease_ms:
            session = self._sessions[lease_request.broker] = _BrokerSession(lease_request.lease_ms)
            self._file.mark_changed()
        session.boot, session.number = lease_request.boot, lease_request.number
        self.mark_alive(lease_request.broker)
        self._release(lease_request)
        refused: _Refused = {}
        for name, claims in lease_request.topics.items():
            topic = self._static.find_reported(lease_request.broker, name)
            for number, claim in claims.items():
                queue_key = (name if topic is None else topic.key, number)
                is_known = topic is not None and 0 <= number < topic.reports[lease_request.broker].mapping.total
                if not is_known or not self._grant(lease_request.broker, queue_key, claim):
                    refused.setdefault(name, {})[number] = self.leases.get(queue_key, UNKNOWN_HOLDER)
        return refused

    def _release(self, lease_request: LeaseRequest) -> None:
        for queue_key in [
            queue_key for queue_key, lease in self.leases.items() if lease.broker == lease_request.broker
        ]:
            if queue_key[1] not in lease_request.topics.get(name_of(queue_key[0]), ()):
                del self.leases[queue_key]
                self._file.mark_changed()

    def _grant(self, broker: str, queue_key: QueueKey, claim: Claim) -> bool:
        lease = self.leases.get(queue_key)
        if lease is None:
            is_granted = not self._quarantine_ms
        elif lease.broker == broker:
            # A broker may claim a newer generation, and be handed the queue before it has opened that one. Then it
            # leads in the older generation.
            is_granted = claim.generation >= lease.generation or not self._was_opened(queue_key, lease)
        elif self._is_lapsed(lease.broker):
            is_granted = claim.generation >= lease.generation
        else:
            is_granted = claim.generation > lease.generation and claim.previous_leader == lease.broker
        granted = QueueLease(broker, claim.generation)
        if is_granted and granted != lease:
            self.leases[queue_key] = granted
            self._file.mark_changed()
        return is_granted

    def _was_opened(self, queue_key: QueueKey, lease: QueueLease) -> bool:
        """Return whether the holder has reported to lead the queue in the generation that it holds."""
        key, number = queue_key
        known = self._static.topics.get(key)
        report = None if known is None else known.reports.get(lease.broker)
        queue = None if report is None else report.mapping.queues.get(number)
        return (
            queue is not None
            and queue.leader.broker == lease.broker
            and not is_newer(lease.generation, queue.generation)
        )

    def _find_lapsed(self, requester: str) -> dict[str, dict[LogicalQueueId, QueueLease]]:
        """Return the lapsed queues of topics that *requester* may lead."""
        lapsed = {broker for broker in self._sessions if self._is_lapsed(broker)}
        found: dict[str, dict[LogicalQueueId, QueueLease]] = {}
        for (key, number), lease in self.leases.items() if lapsed else ():
            topic = self._static.topics.get(key)
            is_foreign = topic is not None and topic.scope != GLOBAL and requester not in topic.reports
            if lease.broker in lapsed and not is_foreign:
                found.setdefault(name_of(key), {})[number] = lease
        return found
