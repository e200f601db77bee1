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
from holdfast.broker.flow.peer_calls import PURPOSE as CALLS
from holdfast.broker.flow.peer_calls import TIMER as CALLS_TIMER
from holdfast.broker.flow.request import Refusal
from holdfast.broker.flow.scheduler import PAUSE_TIMER
from holdfast.broker.options import BrokerOptions
from holdfast.broker.replication.ha_master import PURPOSE as REPLICATION
from holdfast.machine.effects import Effect, Log, ReadLog, SetTimer, SyncFiles, SyncLog
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
_SCHEDULER_TIMERS: Final = frozenset({CALLS_TIMER, PAUSE_TIMER})
_HOUSEKEEP_MS: Final = 1_000
_CLEAN_MS: Final = 10_000


class Broker:
    """A broker without sockets, files or a clock."""

    def __init__(self, options: BrokerOptions, store: MessageStore, components: Components) -> None:
        self._options = options
        self._store = store
        self._components = components
        self._completion = EventCompletion(options, store, components)
        self._dispatcher = Dispatcher(options, store, components, self._completion)
        self._scheduler = self._completion.scheduler
        components.table_sync.on_resumed = self._completion.confirm_waiting
        self._lease_renewal = components.lease_renewal if components.lease_renewal.is_enabled else None
        self._warming_token = 0  # Token of the read that warms the store's page cache.
        self._is_fault_logged = False
        self._is_shortage_logged = False
        self._handlers: dict[type, Callable[[Any], list[Effect]]] = {
            FramesReceived: self._dispatcher.handle_read,
            ReadsReceived: self._dispatcher.handle_reads,
            StreamReceived: self._stream_received,
            ChannelOpened: self._channel_opened,
            ChannelClosed: self._channel_closed,
            ChannelFailed: self._channel_failed,
            LogSynced: self._log_synced,
            LogRead: self._log_read,
            TimerFired: self._timer_fired,
            FilesSynced: self._files_synced,
            FileWritten: lambda event: self._components.unwritten_files.write_succeeded(event.path),
            DiskFault: self._disk_fault,
            Started: self._started,
            Leaving: lambda _event: self._components.leaving(),
            Stopping: self._stopping,
        }

    def handle(self, event: Event) -> list[Effect]:
        """Process *event* and return its effects, in order."""
        turn = self._components.turn
        turn.now_ms = event.now_ms
        if self._lease_renewal is not None:
            self._lease_renewal.advance_time(event.now_ms)
        try:
            effects = self._handlers[type(event)](event)
            # Checked on every event: written so that it calls nothing when there is no deferred work.
            if turn.effects or turn.procedures or turn.frames or self._components.relayed_clients.unanswered:
                effects = self._run_deferred(effects, event.now_ms)
        except BaseException:
            self._store.discard()
            self._components.sink_progress.roll_back()
            raise
        return effects

    def _run_deferred(self, effects: list[Effect], now_ms: int) -> list[Effect]:
        """Run the deferred work of components, and return answers to relayed requests to the brokers that sent them."""
        turn, relayed_clients = self._components.turn, self._components.relayed_clients
        done: list[Effect] = []
        while True:
            done += relayed_clients.collect_answers(effects)
            effects = turn.drain_effects()
            for channel, peer in relayed_clients.drain_opened():
                self._dispatcher.open(channel, peer)
            for procedure in turn.drain_procedures():
                self._scheduler.run(procedure, _log_failure, effects, now_ms)
            if turn.frames:
                channel, data = turn.pop_frames()
                effects += self._dispatcher.replay(channel, data, now_ms)
                relayed_clients.finish_if_answered(channel)
            elif not effects and not turn:
                break
        for channel in relayed_clients.drain_closed():
            self._dispatcher.close(channel)
        return done

    # Channels.

    def _channel_opened(self, event: ChannelOpened) -> list[Effect]:
        if event.purpose == REPLICATION:
            if event.dialed is None:
                return self._components.ha_master.opened(event.channel, event.peer, event.now_ms)
            self._components.table_sync.sync_soon()
            return self._components.ha_replica.opened(event.channel, event.now_ms)
        self._dispatcher.open(event.channel, event.peer)
        if event.dialed is None:
            return []
        if event.purpose == CALLS:
            return self._components.peer_calls.channel_opened(event.channel, event.dialed)
        return self._components.registration.channel_opened(event.channel, event.dialed, event.now_ms)

    def _channel_closed(self, event: ChannelClosed) -> list[Effect]:
        self._dispatcher.close(event.channel)
        effects = self._components.channel_closed(event.channel, event.now_ms)
        self._scheduler.complete_calls(self._components.peer_calls.channel_closed(event.channel), effects, event.now_ms)
        return effects

    def _stream_received(self, event: StreamReceived) -> list[Effect]:
        effects: list[Effect] = []
        if event.channel in self._components.ha_master.replicas:
            self._components.ha_master.received(event.channel, event.data, event.now_ms, effects)
            self._components.ack_gate.acked(effects)
        else:
            self._components.ha_replica.received(event.channel, event.data, event.now_ms, effects)
            self._completion.on_replicated(effects, event.now_ms)
        return effects

    def _channel_failed(self, event: ChannelFailed) -> list[Effect]:
        if event.purpose == REPLICATION:
            return self._components.ha_replica.failed(event.reason, event.now_ms)
        if event.purpose == CALLS:
            effects: list[Effect] = []
            self._scheduler.complete_calls(
                self._components.peer_calls.channel_failed(event.dialed, event.reason), effects, event.now_ms
            )
            return effects
        return self._components.registration.channel_failed(event.dialed, event.reason, event.now_ms)

    # Suspended procedures.

    def _log_read(self, event: LogRead) -> list[Effect]:
        if event.token == self._warming_token:
            self._store.note_warmed()
            return [SetTimer(_HOUSEKEEP_TIMER, event.now_ms)]
        return self._scheduler.log_read(event)

    def _log_synced(self, event: LogSynced) -> list[Effect]:
        effects: list[Effect] = []
        self._completion.on_synced(event.position, effects, event.now_ms)
        return effects

    # Time.

    def _started(self, event: Started) -> list[Effect]:
        effects: list[Effect] = [
            SetTimer(_HOUSEKEEP_TIMER, event.now_ms + _HOUSEKEEP_MS),
            SetTimer(_CLEAN_TIMER, event.now_ms + _CLEAN_MS),
        ]
        if self._options.flush != "sync":
            effects.append(SetTimer(_FLUSH_TIMER, event.now_ms + self._options.flush_interval_ms))
        return effects + self._components.started(event.now_ms)

    def _timer_fired(self, event: TimerFired) -> list[Effect]:
        effects: list[Effect] = []
        now_ms = event.now_ms
        if event.name == PARKED_PULLS_TIMER:
            self._completion.on_parked_pulls_timer(effects, now_ms)
        elif event.name == _HOUSEKEEP_TIMER:
            self._housekeep(effects, now_ms)
        elif event.name == _CLEAN_TIMER:
            removed = self._store.clean(now_ms)
            effects += [Log("info", "file removed", {"file": name}) for name in removed]
            effects.append(SetTimer(_CLEAN_TIMER, now_ms + _CLEAN_MS))
            if removed:
                self._components.segment_expiry.on_files_removed(now_ms, effects)
        elif event.name == _FLUSH_TIMER:
            files = self._store.files_to_sync()
            if files:
                effects.append(SyncLog(files, self._store.written))
            effects.append(SetTimer(_FLUSH_TIMER, now_ms + self._options.flush_interval_ms))
        elif event.name in _SCHEDULER_TIMERS:
            self._scheduler.on_timer(event.name, now_ms, effects)
        else:
            self._component_timer(event, effects)
        return effects

    def _component_timer(self, event: TimerFired, effects: list[Effect]) -> None:
        """Run the component that set this timer; it may have to wait for cold log bytes."""
        procedure = self._components.timer_fired(event.name, event.now_ms, effects)

        def finish(result: Any, later: list[Effect]) -> None:
            # Effects that arise after a wait belong to the present event, not to the one that fired the timer.
            later += result if isinstance(result, list) else []
            self._completion.write((), later, event.now_ms)

        if procedure is None:
            finish(None, effects)
        else:
            self._scheduler.run(procedure, finish, effects, event.now_ms)

    def _housekeep(self, effects: list[Effect], now_ms: int) -> None:
        self._log_shortage(effects)  # Before the call as well: it may end a shortage that has not been logged yet.
        work = self._store.housekeep(now_ms)
        if work.files:
            effects.append(SyncFiles(work.files, self._scheduler.next_token()))
        if work.read is not None:
            self._warming_token = self._scheduler.next_token()
            effects.append(ReadLog(work.read.file, work.read.start, work.read.end, self._warming_token))
        effects.append(SetTimer(_HOUSEKEEP_TIMER, now_ms + work.delay_ms))
        if not self._store.is_writable and not self._is_fault_logged:
            self._is_fault_logged = True
            effects.append(Log("error", "no more messages are accepted until a restart", {"reason": self._store.fault}))
        self._log_shortage(effects)

    def _log_shortage(self, effects: list[Effect]) -> None:
        """Log once when index writes begin to fail for lack of disk space, and once when all of them have succeeded."""
        shortage = self._store.shortage
        if (shortage is not None) == self._is_shortage_logged:
            return
        self._is_shortage_logged = shortage is not None
        if shortage is not None:
            hint = "free space, or shorten the retention; they are accepted again once the index is written"
            effects.append(
                Log("error", "no space for the index, messages are refused", {"reason": shortage, "hint": hint})
            )
        else:
            effects.append(Log("info", "the index is written again, messages are accepted", {}))

    def _files_synced(self, event: FilesSynced) -> list[Effect]:
        self._store.checkpoint(event.now_ms)
        return []

    def _disk_fault(self, event: DiskFault) -> list[Effect]:
        if event.is_full and event.path is not None:
            return self._components.unwritten_files.write_failed(event.path, event.reason)
        self._store.fail(event.reason)
        effects: list[Effect] = [Log("error", "disk failed", {"reason": event.reason})]
        self._completion.disk_failed(event.reason, event.token, effects, event.now_ms)
        return effects

    def _stopping(self, event: Stopping) -> list[Effect]:
        try:
            return self._components.stopping(event.now_ms)
        except DiskFailed as error:  # Nothing more can be persisted; the next start recovers from the files on disk.
            return [Log("error", "disk failed", {"reason": str(error)})]


def _log_failure(result: Any, effects: list[Effect]) -> None:
    """Log the failure of a procedure that has no caller."""
    if isinstance(result, Refusal):
        effects.append(Log("warning", "background work failed", {"reason": result.remark}))
