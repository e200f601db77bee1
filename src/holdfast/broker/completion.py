"""Completes an event: writes staged records, then releases the replies that depend on them and wakes parked pulls.

    staged ─> written ─┬─ async flush ───────────────┬─> confirmed ─> pulls are woken
                       └─ sync flush ─> LogSynced ───┘      └─ replies that promise storage are sent

Invariant: a reply that promises storage is sent after its record is confirmed; under sync flush, a confirmed record is
on disk. Under synchronous replication the reply then waits for a replica (`replication/ack_gate.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from holdfast.broker.assembly import Components
from holdfast.broker.consume.long_poll import ParkedPull
from holdfast.broker.consume.pull import PullResult
from holdfast.broker.flow.held_replies import HeldReplies
from holdfast.broker.flow.request import Answer
from holdfast.broker.flow.scheduler import Scheduler
from holdfast.broker.options import BrokerOptions
from holdfast.machine.effects import CloseChannel, Effect, Log, Piece, SendBytes, SetTimer, SyncLog
from holdfast.machine.events import ChannelId
from holdfast.model.errors import DiskFailed
from holdfast.model.topic import MAPPING_TOPIC
from holdfast.store.message_store import MessageStore
from holdfast.store.queues.queue_log import QueueIndex

PARKED_PULLS_TIMER: Final = "holds"


class EventCompletion:
    """Writes the records and sends the replies of each event.

    Attributes:
        scheduler: Runs procedures that have to wait.
    """

    def __init__(self, options: BrokerOptions, store: MessageStore, components: Components) -> None:
        self._store = store
        self._components = components
        self._sync = options.flush == "sync"
        self._is_replica = options.is_replica
        self._replicas = components.ha_master.replicas
        self._ack_gate = components.ack_gate if options.replication == "sync" else None
        self._held_replies = HeldReplies()
        self._timer_ms: int | None = None
        self._processed_end = store.log.written  # Log end up to which writes were confirmed or passed to a sync.
        self.scheduler = Scheduler(
            store, components.peer_calls, lambda effects, now_ms: self.write((), effects, now_ms)
        )

    def write(
        self,
        answers: Sequence[tuple[ChannelId, list[Piece]]],
        effects: list[Effect],
        now_ms: int,
        before: int | None = None,
    ) -> None:
        """Write the records that the event staged. Send its answers, or hold them until the records are on disk.

        *before* is the log end when the event began. A handler may have written during the event;
        the other answers promise those records, too.
        """
        store = self._store
        if before is None:
            before = store.log.written
        try:
            store.write()
        except DiskFailed as error:
            # The answers claim a success that did not happen. Close the channels: for the senders, the outcome is
            # unknown.
            effects.append(Log("error", "disk failed", {"reason": str(error)}))
            effects += [CloseChannel(channel) for channel, _ in answers]
            return
        # Components whose decisions are irreversible write at once: before this call, or before the event ends.
        is_written = store.log.written != min(before, self._processed_end)
        self._processed_end = store.log.written
        if is_written and self._sync:
            for channel, pieces in answers:
                if pieces:
                    self._held_replies.hold(store.written, channel, pieces)
            effects.append(SyncLog(store.files_to_sync(), store.written))
        else:
            sends = [SendBytes(channel, pieces) for channel, pieces in answers if pieces]
            if is_written:
                self._confirm(sends, effects, now_ms)
            else:
                effects += sends
        offsets, pulls = self._components.offsets, self._components.pull_handler
        if offsets.to_wake:
            for queue_key in offsets.drain_to_wake():
                pulls.wake_queue(*queue_key)
        if pulls.to_wake:
            woken, pulls.to_wake = pulls.to_wake, []
            self.wake(woken, effects, now_ms)

    def _confirm(self, sends: list[SendBytes], effects: list[Effect], now_ms: int) -> None:
        """Make written records readable, and send *sends*, which promise them."""
        written = self._store.log.written
        if self._ack_gate is None:
            effects += sends
        else:
            self._ack_gate.hold(written, sends, effects, now_ms)
        grown = self._store.confirm(written)
        self.wake(grown, effects, now_ms)
        if self._replicas or self._is_replica:
            self._replicate(grown, effects, now_ms)

    def _replicate(self, grown: list[QueueIndex], effects: list[Effect], now_ms: int) -> None:
        """Ship confirmed records to replicas. On a replica, notify the table sync of new mapping records."""
        if self._replicas:
            self._components.ha_master.send_confirmed(effects, now_ms)
        if self._is_replica and any(queue.topic == MAPPING_TOPIC for queue in grown):
            self._components.table_sync.apply_mapping_changes()

    def on_replicated(self, effects: list[Effect], now_ms: int) -> None:
        """Sync the records that a replica has copied, or confirm them at once under async flush.

        The log may have been truncated and have grown again.
        """
        self._processed_end = self._store.log.written
        if not self._sync:
            self._confirm([], effects, now_ms)
        elif files := self._store.files_to_sync():
            effects.append(SyncLog(files, self._store.written))

    def confirm_waiting(self, effects: list[Effect], now_ms: int) -> None:
        """Confirm records of a replica that waited until their topics existed."""
        grown = self._store.confirm(self._components.ha_replica.durable)
        self.wake(grown, effects, now_ms)
        self._replicate(grown, effects, now_ms)

    def wake(self, queues: list[QueueIndex], effects: list[Effect], now_ms: int) -> None:
        """Retry the pulls that are parked on *queues*, which grew or were reset."""
        parked_pulls = self._components.pull_handler.parked_pulls
        if not parked_pulls:
            return
        for queue in queues:
            for parked in parked_pulls.wake(queue):
                self._retry(queue, parked, now_ms, effects, final=False)

    def _retry(self, queue: QueueIndex, parked: ParkedPull, now_ms: int, effects: list[Effect], *, final: bool) -> None:
        answers: list[Piece] = []
        pulled = self._components.pull_handler.retry(queue, parked, now_ms, final=final)
        if parked.header.fields.unit is not None:
            pulled = self._components.local_reads.suggest(parked.header, parked.serializer, pulled)
        self.deliver(pulled, parked.channel, now_ms, answers, effects)
        if answers:
            effects.append(SendBytes(parked.channel, answers))

    def _set_timer(self, effects: list[Effect], now_ms: int) -> None:
        deadline_ms = self._components.pull_handler.parked_pulls.next_deadline_ms()
        if deadline_ms is not None and (self._timer_ms is None or deadline_ms < self._timer_ms):
            self._timer_ms = max(deadline_ms, now_ms)
            effects.append(SetTimer(PARKED_PULLS_TIMER, self._timer_ms))

    def deliver(
        self, pulled: PullResult, channel: ChannelId, now_ms: int, answers: list[Piece], effects: list[Effect]
    ) -> None:
        """Send the result of a pull, at once or when its cold bytes have been read."""
        if isinstance(pulled, list):
            answers += pulled
        elif pulled is None:
            self._set_timer(effects, now_ms)
        else:

            def finish(result: Answer | list[Piece], later: list[Effect]) -> None:
                later.append(SendBytes(channel, cast("list[Piece]", result)))

            self.scheduler.run(pulled, finish, effects, now_ms)

    def on_synced(self, position: int, effects: list[Effect], now_ms: int) -> None:
        """Release everything that waited for the log before *position* to be on disk."""
        if self._sync:
            released = self._held_replies.release(position)
            if self._ack_gate is None:
                effects += released
            else:
                self._ack_gate.hold(position, released, effects, now_ms)
            grown = self._store.confirm(position)
            self.wake(grown, effects, now_ms)
            if self._replicas or self._is_replica:
                self._replicate(grown, effects, now_ms)
            if self._is_replica:
                self._components.ha_replica.synced(position, effects, now_ms)
        self._components.delayed_delivery.on_synced(position, effects)
        self._components.mappings.on_synced(position, effects, now_ms)
        if self._components.topics.changed:
            self._components.registration.announce_changes(effects)
        self.scheduler.log_synced(position, effects, now_ms)

    def disk_failed(self, reason: str, token: int | None, effects: list[Effect], now_ms: int) -> None:
        """Drop the held replies and close their channels; fail the procedures that wait for the disk.

        These wait for a sync, or for the bytes of read *token*.
        """
        effects += [CloseChannel(channel) for channel in self._held_replies.drop_all()]
        error = DiskFailed(reason)
        self.scheduler.disk_failed(error, effects, now_ms)
        if token is not None:
            effects += self.scheduler.read_failed(token, error, now_ms)

    def on_parked_pulls_timer(self, effects: list[Effect], now_ms: int) -> None:
        """Answer the parked pulls whose deadline has passed."""
        self._timer_ms = None
        for queue, parked in self._components.pull_handler.parked_pulls.expire(now_ms):
            self._retry(queue, parked, now_ms, effects, final=True)
        self._set_timer(effects, now_ms)
