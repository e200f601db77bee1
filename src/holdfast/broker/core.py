"""The broker as one state machine: passes each event to the component concerned.

frames ─────────────────────> dispatch ─> components ─> completion ─> answers, records
channels, timers, the disk ─> components, suspended procedures ──┘
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from holdfast.broker.assembly import Components
from holdfast.broker.completion import PARKED_PULLS_TIMER, EventCompletion
from holdfast.broker.dispatch import Dispatcher
from holdfast.broker.flow.request import Refusal, Timers
from holdfast.broker.options import BrokerOptions
from holdfast.broker.replication.ha_master import PURPOSE as REPLICATION
from holdfast.machine.effects import Effect, ReadLog, SyncFiles
from holdfast.machine.events import (
    ChannelClosed,
    ChannelFailed,
    ChannelOpened,
    DiskFault,
    Event,
    FilesSynced,
    FileWritten,
    FramesReceived,
    Leaving,
    LogRead,
    LogSynced,
    ReadsReceived,
    Started,
    Stopping,
    StreamReceived,
    TimerFired,
)
from holdfast.model.errors import DiskFailed
from holdfast.store.message_store import MessageStore

_HOUSEKEEP_TIMER: Final = "housekeep"
_CLEAN_TIMER: Final = "clean"
_FLUSH_TIMER: Final = "flush"
_HOUSEKEEP_MS: Final = 1_000
_CLEAN_MS: Final = 10_000


class Broker:
    """A broker without sockets, files or a clock."""

    def __init__(self, options: BrokerOptions, store: MessageStore, components: Components) -> None:
        self._turn = components.turn
        self._options = options
        self._store = store
        self._components = components
        self._completion = EventCompletion(options, store, components)
        self._dispatcher = Dispatcher(options, store, components, self._completion)
        self._scheduler = self._completion.scheduler
        self._lease_renewal = components.lease_renewal if components.lease_renewal.is_enabled else None
        self._warming_token = 0  # Token of the read that warms the store's page cache.
        self._is_fault_logged = False
        self._is_shortage_logged = False
        self._channel_closings = components.listeners("channel_closed")
        self._component_timers = components.timers()
        self._timers: Timers = {
            **self._scheduler.timers(),
            PARKED_PULLS_TIMER: self._completion.on_parked_pulls_timer,
            _HOUSEKEEP_TIMER: self._housekeep,
            _CLEAN_TIMER: self._clean,
            _FLUSH_TIMER: self._flush,
        }
        self._handlers: dict[type, Callable[[Any], None]] = {
            FramesReceived: self._dispatcher.handle_read,
            ReadsReceived: self._dispatcher.handle_reads,
            StreamReceived: self._stream_received,
            ChannelOpened: self._channel_opened,
            ChannelClosed: self._channel_closed,
            ChannelFailed: self._channel_failed,
            LogSynced: lambda event: self._completion.on_synced(event.position),
            LogRead: self._log_read,
            TimerFired: self._timer_fired,
            FilesSynced: lambda _event: self._store.checkpoint(self._turn.now_ms),
            FileWritten: lambda event: self._components.kept_files.written(event.path),
            DiskFault: self._disk_fault,
            Started: lambda _event: self._started(),
            Leaving: lambda _event: self._components.registration.leave(),
            Stopping: lambda _event: self._stop(),
        }

    def handle(self, event: Event) -> list[Effect]:
        """Process *event* and return its effects, in order."""
        turn = self._turn
        turn.now_ms = event.now_ms
        if self._lease_renewal is not None:
            self._lease_renewal.advance_time()
        try:
            self._handlers[type(event)](event)
            # Checked on every event: written so that it calls nothing when there is no deferred work.
            if turn.procedures or turn.frames or turn.fired or self._components.relayed_clients.unanswered:
                return self._run_deferred()
        except BaseException:
            turn.discard_effects()
            self._store.discard()
            self._components.sink_progress.roll_back()
            raise
        effects, turn.effects = turn.effects, []  # Not `drain_effects`: a call less for each event.
        return effects

    def _run_deferred(self) -> list[Effect]:
        """Run the deferred work of components, and return answers to relayed requests to the brokers that sent them."""
        turn, relayed_clients = self._turn, self._components.relayed_clients
        effects: list[Effect] = []
        try:
            while True:
                effects += relayed_clients.drain_effects()
                for channel, peer in relayed_clients.drain_opened():
                    self._dispatcher.open(channel, peer)
                for name in turn.drain_fired():
                    self._run_component_timers(name)
                for procedure in turn.drain_procedures():
                    self._scheduler.run(procedure, self._finish_deferred)
                if turn.frames:
                    channel, data, sender = turn.pop_frames()
                    self._dispatcher.replay(channel, data, sender)
                    relayed_clients.finish_if_answered(channel)
                elif not turn:
                    break
        except BaseException:
            turn.cause_all(effects)  # `handle` discards them, except for file writes.
            raise
        for channel in relayed_clients.drain_closed():
            self._dispatcher.close(channel)
        return effects

    def _finish_deferred(self, result: Any) -> None:
        """Write what a procedure without a caller has staged, or log why it failed."""
        if isinstance(result, Refusal):
            self._turn.log("warning", "background work failed", reason=result.remark)
        self._completion.write(())

    # Channels.

    def _channel_opened(self, event: ChannelOpened) -> None:
        if event.purpose == REPLICATION:
            if event.dialed is None:
                self._components.ha_master.opened(event.channel, event.peer)
            else:
                self._components.table_sync.sync_soon()
                self._components.ha_replica.opened(event.channel)
            return
        self._dispatcher.open(event.channel, event.peer)
        if event.dialed is not None:
            self._components.rpc.channel_opened(event.channel, event.dialed, event.purpose)

    def _channel_closed(self, event: ChannelClosed) -> None:
        self._dispatcher.close(event.channel)
        lost = self._components.rpc.channel_closed(event.channel)
        for close in self._channel_closings:
            close(event.channel)
        self._scheduler.complete_calls(lost)

    def _stream_received(self, event: StreamReceived) -> None:
        if event.channel in self._components.ha_master.replicas:
            self._components.ha_master.received(event.channel, event.data)
            self._components.reply_gate.acked()
        else:
            self._components.ha_replica.received(event.channel, event.data)
            self._completion.on_replicated()

    def _channel_failed(self, event: ChannelFailed) -> None:
        if event.purpose == REPLICATION:
            self._components.ha_replica.failed(event.reason)
        else:
            self._scheduler.complete_calls(
                self._components.rpc.channel_failed(event.dialed, event.reason, event.purpose)
            )

    # Suspended procedures.

    def _log_read(self, event: LogRead) -> None:
        if event.token == self._warming_token:
            self._store.note_warmed()
            self._turn.set_timer(_HOUSEKEEP_TIMER, self._turn.now_ms)
        else:
            self._scheduler.log_read(event)

    # Time.

    def _started(self) -> None:
        now_ms = self._turn.now_ms
        self._turn.set_timer(_HOUSEKEEP_TIMER, now_ms + _HOUSEKEEP_MS)
        self._turn.set_timer(_CLEAN_TIMER, now_ms + _CLEAN_MS)
        if self._options.flush != "sync":
            self._turn.set_timer(_FLUSH_TIMER, now_ms + self._options.flush_interval_ms)
        self._components.start()

    def _timer_fired(self, event: TimerFired) -> None:
        if event.name in self._timers:
            self._timers[event.name]()
        else:
            self._run_component_timers(event.name)

    def _run_component_timers(self, name: str) -> None:
        for run in self._component_timers[name]:
            run()
        self._completion.write(())

    def _clean(self) -> None:
        removed = self._store.clean(self._turn.now_ms)
        for name in removed:
            self._turn.log("info", "file removed", file=name)
        self._turn.set_timer(_CLEAN_TIMER, self._turn.now_ms + _CLEAN_MS)
        if removed:
            self._components.segment_expiry.on_files_removed()

    def _flush(self) -> None:
        files = self._store.files_to_sync()
        if files:
            self._turn.sync_log(files, self._store.written)
        self._turn.set_timer(_FLUSH_TIMER, self._turn.now_ms + self._options.flush_interval_ms)

    def _housekeep(self) -> None:
        self._log_shortage()  # Before the call as well: it may end a shortage that has not been logged yet.
        work = self._store.housekeep(self._turn.now_ms)
        if work.files:
            self._turn.cause(SyncFiles(work.files, self._scheduler.next_token()))
        if work.read is not None:
            self._warming_token = self._scheduler.next_token()
            self._turn.cause(ReadLog(work.read.file, work.read.start, work.read.end, self._warming_token))
        self._turn.set_timer(_HOUSEKEEP_TIMER, self._turn.now_ms + work.delay_ms)
        if not self._store.is_writable and not self._is_fault_logged:
            self._is_fault_logged = True
            self._turn.log("error", "no more messages are accepted until a restart", reason=self._store.fault)
        self._log_shortage()

    def _log_shortage(self) -> None:
        """Log once when index writes begin to fail for lack of disk space, and once when all of them have succeeded."""
        shortage = self._store.shortage
        if (shortage is not None) == self._is_shortage_logged:
            return
        self._is_shortage_logged = shortage is not None
        if shortage is not None:
            hint = "free space, or shorten the retention; they are accepted again once the index is written"
            self._turn.log("error", "no space for the index, messages are refused", reason=shortage, hint=hint)
        else:
            self._turn.log("info", "the index is written again, messages are accepted")

    def _disk_fault(self, event: DiskFault) -> None:
        if event.path is not None:
            self._components.kept_files.failed(event.path, event.reason, is_full=event.is_full)
            if event.is_full:
                return
        self._store.fail(event.reason)
        self._turn.log("error", "disk failed", reason=event.reason)
        self._completion.disk_failed(event.reason, event.token)

    def _stop(self) -> None:
        try:
            self._components.stop()
        except DiskFailed as error:  # Nothing more can be persisted; the next start recovers from the files on disk.
            self._turn.log("error", "disk failed", reason=str(error))
