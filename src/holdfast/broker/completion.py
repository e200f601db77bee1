"""Completes an event: writes staged records, then releases the replies that depend on them and wakes parked pulls.

    staged ─> written ─┬─ async flush ───────────────┬─> confirmed ─> pulls are woken
                       └─ sync flush ─> LogSynced ───┘      └─ replies that promise storage are sent

Invariant: a reply that promises storage is sent after its record is confirmed; under sync flush, a confirmed record is
on disk. Under synchronous replication the reply then waits for a replica. `flow/reply_gate.py` holds both kinds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from holdfast.broker.assembly import Components
from holdfast.broker.consume.long_poll import ParkedPull
from holdfast.broker.consume.pull import PullResult
from holdfast.broker.flow.request import Answer
from holdfast.broker.flow.scheduler import Scheduler
from holdfast.broker.options import BrokerOptions
from holdfast.machine.effects import CloseChannel, Piece, SendBytes
from holdfast.machine.events import ChannelId
from holdfast.model.errors import DiskFailed
from holdfast.model.topic import MAPPING_TOPIC
from holdfast.store.message_store import MessageStore
from holdfast.store.queues.queue_index import QueueIndex

PARKED_PULLS_TIMER: Final = "parked pulls"


class EventCompletion:
    """Writes the records and sends the replies of each event.

    Attributes:
        scheduler: Runs procedures that have to wait.
    """

    def __init__(self, options: BrokerOptions, store: MessageStore, components: Components) -> None:
        self._turn = components.turn
        self._store = store
        self._components = components
        self._sync = options.flush == "sync"
        self._is_replica = options.is_replica
        self._replicas = components.ha_master.replicas
        self._gate = components.reply_gate
        self._awaits_replica = self._gate.awaits_replica
        self._sync_listeners = [*components.listeners("on_synced"), components.kept_files.on_synced]
        self._timer_ms: int | None = None
        self._processed_end = store.log.written  # Log end up to which writes were confirmed or passed to a sync.
        self.scheduler = Scheduler(store, components.rpc, lambda: self.write(()), components.turn)

    def write(
        self,
        answers: Sequence[tuple[ChannelId, list[Piece]]],
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
            self._turn.log("error", "disk failed", reason=str(error))
            self._turn.cause_all(CloseChannel(channel) for channel, _ in answers)
            return
        # Components whose decisions are irreversible write at once: before this call, or before the event ends.
        is_written = store.log.written != min(before, self._processed_end)
        self._processed_end = store.log.written
        if is_written and self._sync:
            for channel, pieces in answers:
                if pieces:
                    self._gate.hold(store.written, channel, pieces)
            self._turn.sync_log(store.files_to_sync(), store.written)
        else:
            sends = [SendBytes(channel, pieces) for channel, pieces in answers if pieces]
            if is_written:
                self._confirm(sends)
            else:
                self._turn.effects += sends  # Not `cause_all`: a call less for each read.
        offsets, pulls = self._components.offsets, self._components.pull_handler
        if offsets.to_wake or pulls.to_wake:
            self._wake_reset()
        if self._is_replica and self._components.ha_replica.pop_resumed():
            self._confirm_resumed()

    def _wake_reset(self) -> None:
        """Retry the pulls of queues whose consumers were reset."""
        pulls = self._components.pull_handler
        for queue_key in self._components.offsets.drain_to_wake():
            pulls.wake_queue(*queue_key)
        woken, pulls.to_wake = pulls.to_wake, []
        self.wake(woken)

    def _confirm(self, sends: list[SendBytes]) -> None:
        """Make written records readable, and send *sends*, which promise them."""
        written = self._store.log.written
        if self._awaits_replica:
            self._gate.hold_for_replica(written, sends)
        else:
            self._turn.effects += sends
        grown = self._store.confirm(written)
        self.wake(grown)
        if self._replicas or self._is_replica:
            self._replicate(grown)

    def _replicate(self, grown: list[QueueIndex]) -> None:
        """Ship confirmed records to replicas. On a replica, notify the table sync of new mapping records."""
        if self._replicas:
            self._components.ha_master.send_confirmed()
        if self._is_replica and any(queue.topic == MAPPING_TOPIC for queue in grown):
            self._components.table_sync.apply_mapping_changes()

    def on_replicated(self) -> None:
        """Sync the records that a replica has copied, or confirm them at once under async flush.

        The log may have been truncated and have grown again.
        """
        self._processed_end = self._store.log.written
        if not self._sync:
            self._confirm([])
        elif files := self._store.files_to_sync():
            self._turn.sync_log(files, self._store.written)

    def _confirm_resumed(self) -> None:
        """Confirm records of a replica that waited until their topics existed."""
        grown = self._store.confirm(self._components.ha_replica.durable)
        self.wake(grown)
        self._replicate(grown)

    def wake(self, queues: list[QueueIndex]) -> None:
        """Retry the pulls that are parked on *queues*, which grew or were reset."""
        parked_pulls = self._components.pull_handler.parked_pulls
        if not parked_pulls:
            return
        for queue in queues:
            for parked in parked_pulls.wake(queue):
                self._retry(parked, final=False)

    def _retry(self, parked: ParkedPull, *, final: bool) -> None:
        answers: list[Piece] = []
        pulled = self._components.pull_handler.retry(parked, final=final)
        if parked.header.fields.unit is not None:
            pulled = self._components.local_reads.suggest(parked.header, parked.serializer, pulled)
        self.deliver(pulled, parked.channel, answers)
        if answers:
            self._turn.send(parked.channel, answers)

    def _set_timer(self) -> None:
        deadline_ms = self._components.pull_handler.parked_pulls.next_deadline_ms()
        if deadline_ms is not None and (self._timer_ms is None or deadline_ms < self._timer_ms):
            self._timer_ms = max(deadline_ms, self._turn.now_ms)
            self._turn.set_timer(PARKED_PULLS_TIMER, self._timer_ms)

    def deliver(self, pulled: PullResult, channel: ChannelId, answers: list[Piece]) -> None:
        """Send the result of a pull, at once or when its cold bytes have been read."""
        if isinstance(pulled, list):
            answers += pulled
        elif pulled is None:
            self._set_timer()
        else:

            def finish(result: Answer | list[Piece]) -> None:
                self._turn.send(channel, cast("list[Piece]", result))

            self.scheduler.run(pulled, finish)

    def on_synced(self, position: int) -> None:
        """Release everything that waited for the log before *position* to be on disk."""
        mark = self._turn.mark()
        if self._sync:
            self._gate.release_synced(position)
            grown = self._store.confirm(position)
            self.wake(grown)
            if self._replicas or self._is_replica:
                self._replicate(grown)
            if self._is_replica:
                self._components.ha_replica.synced(position)
        for continue_synced in self._sync_listeners:
            continue_synced(position)
        if self._components.topics.changed:
            self._components.registration.announce_changes(mark)
        self.scheduler.log_synced(position)

    def disk_failed(self, reason: str, token: int | None) -> None:
        """Drop the held replies and close their channels; fail the procedures that wait for the disk.

        These wait for a sync, or for the bytes of read *token*.
        """
        self._gate.drop_unsynced()
        error = DiskFailed(reason)
        self.scheduler.disk_failed(error)
        if token is not None:
            self.scheduler.read_failed(token, error)

    def on_parked_pulls_timer(self) -> None:
        """Answer the parked pulls whose deadline has passed."""
        self._timer_ms = None
        for _, parked in self._components.pull_handler.parked_pulls.expire(self._turn.now_ms):
            self._retry(parked, final=True)
        self._set_timer()
