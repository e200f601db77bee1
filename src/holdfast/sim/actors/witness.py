"""Receives what consumers see and do, and passes it to the checkers."""

from __future__ import annotations

from collections import Counter

from holdfast.client.consume.pull_plan import PullOutcome, PullStatus
from holdfast.model.message import ReceivedMessage
from holdfast.model.queue import MessageQueue
from holdfast.sim.checkers.ledger import Ledger
from holdfast.sim.checkers.offset_identity import LogPosition, OffsetIdentityChecker, QueueOffset
from holdfast.sim.checkers.order import OrderChecker
from holdfast.sim.checkers.progress import FinishInfo, ProgressChecker
from holdfast.sim.world.workload import RECONSUME_MAX, Kind, Workload, uid_of
from holdfast.sim.world.world import Violation
from holdfast.wire.frames.host import format_host
from holdfast.wire.records.inner_batch import is_inner_batch


class Witness:
    """The observer of all consumers.

    Attributes:
        delays_ms: How long messages of each delay level must wait; empty if clocks jump, as delays cannot be checked
            then.
        uses_inner_batches: Messages may belong to batches that are kept whole.
    """

    def __init__(
        self,
        workload: Workload,
        ledger: Ledger,
        offset_checker: OffsetIdentityChecker,
        progress_checker: ProgressChecker,
    ) -> None:
        self.delays_ms: tuple[int, ...] = ()
        self.uses_inner_batches = workload.uses_inner_batches
        self._workload = workload
        self._ledger = ledger
        self._offset_checker = offset_checker
        self._progress_checker = progress_checker
        self._order_checker = OrderChecker()
        self._failures: Counter[tuple[str, str]] = Counter()

    # Reads.

    def pulled(self, queue: MessageQueue, pull_offset: int, outcome: PullOutcome, requested_ms: int) -> None:
        """Record the answer to a pull sent at *requested_ms*: every offset in turn, with none left out."""
        if outcome.status is not PullStatus.NOTHING_NEW:
            requested = [message for message in outcome.messages if _is_requested(queue, pull_offset, message)]
            found = [(message.offset, uid_of(message.body), log_position_of(message)) for message in requested]
            empty = self._offset_checker.record_answer(
                queue, pull_offset, found, outcome.next_offset, requested_ms=requested_ms
            )
            self._progress_checker.skip(queue, empty)

    def moved(self, group: str, queue: MessageQueue, pull_offset: int, redirected_to: int) -> None:
        """Record that a pull was redirected: over empty offsets, or back to the end of a log that lost records."""
        if redirected_to > pull_offset and self._offset_checker.may_be_empty(queue, pull_offset, redirected_to):
            self._progress_checker.skip(
                queue, self._offset_checker.record_answer(queue, pull_offset, (), redirected_to)
            )
        elif queue.broker_name not in self._progress_checker.tainted:
            raise Violation(
                "a readable offset stays readable",
                f"{group} asked {queue.broker_name}/{queue.topic}/{queue.queue_id} for {pull_offset} and was sent to "
                f"{redirected_to}",
            )

    def committed(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Record an offset that a broker returned as committed. It may lie after a gap without messages."""
        start = self._progress_checker.find_frontier(group, queue)
        if offset > start and self._offset_checker.may_have_gap(queue, start, offset):
            self._progress_checker.skip(queue, [range(start, offset)])
        self._progress_checker.committed(group, queue, offset)

    # Consumption.

    def consume(self, group: str, uid: str, reconsume_times: int, now_ms: int) -> bool:
        """Consume a message in a concurrent group; return whether that succeeded."""
        planned = self._workload.messages.get(uid)
        if planned is None:
            raise Violation("nothing unexpected", f"{group} got {uid!r}, which was never sent")
        if planned.kind is Kind.ROLLED_BACK:
            raise Violation("rolled back is never seen", f"{group} got {uid}")
        waited_ms = now_ms - self._ledger.sent_ms[uid]
        if self.delays_ms and planned.delay_level and waited_ms < self.delays_ms[planned.delay_level - 1]:
            raise Violation(
                "delayed means later", f"{group} got {uid} of level {planned.delay_level} after {waited_ms} ms"
            )
        if planned.failures is None or reconsume_times < planned.failures:
            return False
        self._progress_checker.finished(group, uid)
        return True

    def consume_in_order(self, group: str, uid: str, broker: str) -> bool:
        """Consume a message in an ordered group; return whether that succeeded."""
        planned = self._workload.messages.get(uid)
        if planned is None:
            raise Violation("nothing unexpected", f"{group} got {uid!r}, which was never sent")
        if broker not in self._progress_checker.tainted:
            self._order_checker.consumed(group, planned)
        self._failures[group, uid] += 1
        if self._failures[group, uid] <= (planned.failures or 0):
            return False
        self._progress_checker.finished(group, uid)
        return True

    def finished(
        self, group: str, uid: str, queue_offset: QueueOffset, reconsume_times: int, finish: FinishInfo
    ) -> None:
        """Record that a member is done with the message at *queue_offset*, and may commit it."""
        self._progress_checker.consumed(group, uid, queue_offset, finish)
        if self._workload.messages[uid].failures is None and reconsume_times >= RECONSUME_MAX:
            # Sent back for the last time: it is a dead letter now, and the audit will look for it.
            self._progress_checker.finished(group, uid)


def _is_requested(queue: MessageQueue, pull_offset: int, message: ReceivedMessage) -> bool:
    """Return whether a message is at or after the requested offset.

    Only messages of a batch that was delivered whole may be before it.
    """
    if message.offset < pull_offset and not is_inner_batch(message.sys_flag):
        raise Violation(
            "a pull returns the requested offset", f"{queue} was asked for {pull_offset}, and gave {message.offset}"
        )
    return message.offset >= pull_offset


def log_position_of(message: ReceivedMessage) -> LogPosition:
    """Return the position of *message* on disk."""
    return LogPosition(format_host(message.store_host), message.position)
