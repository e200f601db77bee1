"""What leaves the broker: records to the log, answers to those who wait for them, messages to pulls that wait.

    staged ─> written ─┬─ async flush ───────────────┬─> confirmed ─> pulls are woken
                       └─ sync flush ─> LogSynced ───┘      └─ answers that promise storage leave

Invariant: an answer that promises storage leaves after the record is confirmed: synced under sync flush. Under
synchronous replication it then waits for a replica (`replica_gate.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from holdfast.broker.assembly import Rooms
from holdfast.broker.consume.long_poll import Hold
from holdfast.broker.consume.pull import Pulled
from holdfast.broker.flow.held_replies import HeldAnswers
from holdfast.broker.flow.request import Answer
from holdfast.broker.flow.scheduler import Stepper
from holdfast.broker.options import BrokerOptions
from holdfast.machine.effects import CloseChannel, Effect, Log, Piece, SendBytes, SetTimer, SyncLog
from holdfast.machine.events import ChannelId
from holdfast.model.errors import DiskFailed
from holdfast.model.topic import MAPPING_TOPIC
from holdfast.store.message_store import MessageStore
from holdfast.store.queues.queue_log import QueueLog

HOLDS_TIMER: Final = "holds"


class Outflow:
    """The way out.

    Attributes:
        stepper: Work that has to wait before something of it can leave.
    """

    def __init__(self, options: BrokerOptions, store: MessageStore, rooms: Rooms) -> None:
        self._store = store
        self._rooms = rooms
        self._sync = options.flush == "sync"
        self._is_replica = options.is_replica
        self._followers = rooms.shipping.followers
        self._gate = rooms.replica_gate if options.replication == "sync" else None
        self._held = HeldAnswers()
        self._timer_ms: int | None = None
        self._noted = store.log.written  # What is written behind it has neither been confirmed nor sent to be synced.
        self.stepper = Stepper(store, rooms.calls, lambda effects, now_ms: self.write((), effects, now_ms))

    def write(
        self,
        answers: Sequence[tuple[ChannelId, list[Piece]]],
        effects: list[Effect],
        now_ms: int,
        before: int | None = None,
    ) -> None:
        """Write what the event staged, then send its answers, or hold them until the disk has it.

        *before* is where the log ended when the event began: a handler in it may have written already, and the other
        answers of the event promise what that write contained.
        """
        store = self._store
        if before is None:
            before = store.log.written
        try:
            store.write()
        except DiskFailed as error:
            # The answers claim what is not true. The channel closes instead: the senders know that they do not know.
            effects.append(Log("error", "disk failed", {"reason": str(error)}))
            effects += [CloseChannel(channel) for channel, _ in answers]
            return
        # A room that cannot take back what it decided writes by itself: before this call, and before the event's end.
        is_written = store.log.written != min(before, self._noted)
        self._noted = store.log.written
        if is_written and self._sync:
            for channel, pieces in answers:
                if pieces:
                    self._held.hold(store.written, channel, pieces)
            effects.append(SyncLog(store.files_to_sync(), store.written))
        else:
            sends = [SendBytes(channel, pieces) for channel, pieces in answers if pieces]
            if is_written:
                self._confirm(sends, effects, now_ms)
            else:
                effects += sends
        offsets, pulls = self._rooms.offsets, self._rooms.pulls
        if offsets.to_wake:
            for place in offsets.take_to_wake():
                pulls.wake_queue(*place)
        if pulls.to_wake:
            woken, pulls.to_wake = pulls.to_wake, []
            self.wake(woken, effects, now_ms)

    def _confirm(self, sends: list[SendBytes], effects: list[Effect], now_ms: int) -> None:
        """Let what was written be read, and the answers that promise it leave."""
        written = self._store.log.written
        if self._gate is None:
            effects += sends
        else:
            self._gate.hold(written, sends, effects, now_ms)
        grown = self._store.confirm(written)
        self.wake(grown, effects, now_ms)
        if self._followers or self._is_replica:
            self._replicate(grown, effects, now_ms)

    def _replicate(self, grown: list[QueueLog], effects: list[Effect], now_ms: int) -> None:
        """Let replicas have what was confirmed; or, in a replica, let it count what it says of logical queues."""
        if self._followers:
            self._rooms.shipping.ship(effects, now_ms)
        if self._is_replica and any(queue.topic == MAPPING_TOPIC for queue in grown):
            self._rooms.replica_sync.grown()

    def copied(self, effects: list[Effect], now_ms: int) -> None:
        """Bring what a replica copied to disk, or let it be read. Its log may have got shorter, and longer again."""
        self._noted = self._store.log.written
        if not self._sync:
            self._confirm([], effects, now_ms)
        elif files := self._store.files_to_sync():
            effects.append(SyncLog(files, self._store.written))

    def entered(self, effects: list[Effect], now_ms: int) -> None:
        """Make records of a replica readable that waited for their topics."""
        grown = self._store.confirm(self._rooms.following.durable)
        self.wake(grown, effects, now_ms)
        self._replicate(grown, effects, now_ms)

    def wake(self, queues: list[QueueLog], effects: list[Effect], now_ms: int) -> None:
        """Look again for the pulls that wait for one of these queues: they grew, or were reset."""
        holds = self._rooms.pulls.holds
        if not holds:
            return
        for queue in queues:
            for hold in holds.wake(queue):
                self._retry(queue, hold, now_ms, effects, final=False)

    def _retry(self, queue: QueueLog, hold: Hold, now_ms: int, effects: list[Effect], *, final: bool) -> None:
        answers: list[Piece] = []
        pulled = self._rooms.pulls.retry(queue, hold, final=final)
        if hold.header.fields.unit is not None:
            pulled = self._rooms.local_reads.guide(hold.header, hold.serializer, pulled)
        self.hand_out(pulled, hold.channel, now_ms, answers, effects)
        if answers:
            effects.append(SendBytes(hold.channel, answers))

    def _set_timer(self, effects: list[Effect], now_ms: int) -> None:
        deadline_ms = self._rooms.pulls.holds.next_deadline_ms()
        if deadline_ms is not None and (self._timer_ms is None or deadline_ms < self._timer_ms):
            self._timer_ms = max(deadline_ms, now_ms)
            effects.append(SetTimer(HOLDS_TIMER, self._timer_ms))

    def hand_out(
        self, pulled: Pulled, channel: ChannelId, now_ms: int, answers: list[Piece], effects: list[Effect]
    ) -> None:
        """Send what a pull gave, now or when its cold bytes are there."""
        if isinstance(pulled, list):
            answers += pulled
        elif pulled is None:
            self._set_timer(effects, now_ms)
        else:

            def finish(result: Answer | list[Piece], later: list[Effect]) -> None:
                later.append(SendBytes(channel, cast("list[Piece]", result)))

            self.stepper.run(pulled, finish, effects, now_ms)

    def synced(self, position: int, effects: list[Effect], now_ms: int) -> None:
        """Let go of what waited for everything before *position* to be on disk."""
        if self._sync:
            released = self._held.release(position)
            if self._gate is None:
                effects += released
            else:
                self._gate.hold(position, released, effects, now_ms)
            grown = self._store.confirm(position)
            self.wake(grown, effects, now_ms)
            if self._followers or self._is_replica:
                self._replicate(grown, effects, now_ms)
            if self._is_replica:
                self._rooms.following.synced(position, effects, now_ms)
        self._rooms.delays.on_synced(position, effects)
        self._rooms.mappings.on_synced(position, effects, now_ms)
        if self._rooms.topics.changed:
            self._rooms.registration.announce_changes(effects)
        self.stepper.log_synced(position, effects, now_ms)

    def disk_failed(self, reason: str, token: int | None, effects: list[Effect], now_ms: int) -> None:
        """Promise nothing any more; whoever waits for the disk, or for the bytes of read *token*, waits in vain."""
        effects += [CloseChannel(channel) for channel in self._held.abandon()]
        error = DiskFailed(reason)
        self.stepper.disk_failed(error, effects, now_ms)
        if token is not None:
            effects += self.stepper.read_failed(token, error, now_ms)

    def on_holds_timer(self, effects: list[Effect], now_ms: int) -> None:
        """Answer the pulls that have waited long enough."""
        self._timer_ms = None
        for queue, hold in self._rooms.pulls.holds.expire(now_ms):
            self._retry(queue, hold, now_ms, effects, final=True)
        self._set_timer(effects, now_ms)
