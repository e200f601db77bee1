"""Receives what consumers see and do, and passes it to the checkers."""

from __future__ import annotations

from collections import Counter

from holdfast.client.consume.pull_plan import PullOutcome, PullStatus
from holdfast.model.message import ReceivedMessage
from holdfast.model.queue import MessageQueue
from holdfast.sim.checkers.ledger import Ledger
from holdfast.sim.checkers.offset_identity import Place, Places, Spot
from holdfast.sim.checkers.order import Order
from holdfast.sim.checkers.progress import Doing, Progress
from holdfast.sim.world.workload import RECONSUME_MAX, Kind, Orders, uid_of
from holdfast.sim.world.world import Violation
from holdfast.wire.frames.host import format_host
from holdfast.wire.records.inner_batch import is_inner_batch


class Witness:
    """The observer of all consumers.

    Attributes:
        delays_ms: How long messages of each delay level must wait; empty if clocks jump, as delays cannot be checked
            then.
        keeps_batches: Messages may belong to batches that are kept whole.
    """

    def __init__(self, orders: Orders, ledger: Ledger, places: Places, progress: Progress) -> None:
        self.delays_ms: tuple[int, ...] = ()
        self.keeps_batches = orders.keeps_batches
        self._orders = orders
        self._ledger = ledger
        self._places = places
        self._progress = progress
        self._order = Order()
        self._failures: Counter[tuple[str, str]] = Counter()

    # Reads.

    def pulled(self, queue: MessageQueue, asked: int, outcome: PullOutcome, asked_ms: int) -> None:
        """Record the answer to a pull of *asked_ms*: every offset in turn, with none left out."""
        if outcome.status is not PullStatus.NOTHING_NEW:
            asked_for = [message for message in outcome.messages if _is_asked_for(queue, asked, message)]
            row = [(message.offset, uid_of(message.body), spot_of(message)) for message in asked_for]
            empty = self._places.see_row(queue, asked, row, outcome.next_offset, asked_ms=asked_ms)
            self._progress.skip(queue, empty)

    def moved(self, group: str, queue: MessageQueue, asked: int, told: int) -> None:
        """Record that a pull was redirected: over empty offsets, or back to the end of a log that lost records."""
        if told > asked and self._places.may_lack(queue, asked, told):
            self._progress.skip(queue, self._places.see_row(queue, asked, (), told))
        elif queue.broker_name not in self._progress.tainted:
            raise Violation(
                "a readable offset stays readable",
                f"{group} asked {queue.broker_name}/{queue.topic}/{queue.queue_id} for {asked} and was sent to {told}",
            )

    def committed(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Record an offset that a broker returned as committed. It may lie after a gap without messages."""
        start = self._progress.find_frontier(group, queue)
        if offset > start and self._places.find_gaps(queue, start, offset):
            self._progress.skip(queue, [range(start, offset)])
        self._progress.committed(group, queue, offset)

    # Consumption.

    def consume(self, group: str, uid: str, reconsume_times: int, now_ms: int) -> bool:
        """Consume a message in a concurrent group; return whether that succeeded."""
        job = self._orders.jobs.get(uid)
        if job is None:
            raise Violation("nothing unexpected", f"{group} got {uid!r}, which was never sent")
        if job.kind is Kind.ROLLED_BACK:
            raise Violation("rolled back is never seen", f"{group} got {uid}")
        waited_ms = now_ms - self._ledger.sent_ms[uid]
        if self.delays_ms and job.delay_level and waited_ms < self.delays_ms[job.delay_level - 1]:
            raise Violation("delayed means later", f"{group} got {uid} of level {job.delay_level} after {waited_ms} ms")
        if job.failures is None or reconsume_times < job.failures:
            return False
        self._progress.finished(group, uid)
        return True

    def consume_in_order(self, group: str, uid: str, broker: str) -> bool:
        """Consume a message in an ordered group; return whether that succeeded."""
        job = self._orders.jobs.get(uid)
        if job is None:
            raise Violation("nothing unexpected", f"{group} got {uid!r}, which was never sent")
        if broker not in self._progress.tainted:
            self._order.consumed(group, job)
        self._failures[group, uid] += 1
        if self._failures[group, uid] <= (job.failures or 0):
            return False
        self._progress.finished(group, uid)
        return True

    def done(self, group: str, uid: str, place: Place, reconsume_times: int, doing: Doing) -> None:
        """Record that a member is done with the message at *place*, and may commit it."""
        self._progress.consumed(group, uid, place, doing)
        if self._orders.jobs[uid].failures is None and reconsume_times >= RECONSUME_MAX:
            # Sent back for the last time: it is a dead letter now, and the audit will look for it.
            self._progress.finished(group, uid)


def _is_asked_for(queue: MessageQueue, asked: int, message: ReceivedMessage) -> bool:
    """Return whether a message is at or after the requested offset.

    Only messages of a batch that was delivered whole may be before it.
    """
    if message.offset < asked and not is_inner_batch(message.sys_flag):
        raise Violation(
            "a pull returns the requested offset", f"{queue} was asked for {asked}, and gave {message.offset}"
        )
    return message.offset >= asked


def spot_of(message: ReceivedMessage) -> Spot:
    """Return the position of *message* on disk."""
    return Spot(format_host(message.store_host), message.position)
