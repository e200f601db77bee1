"""The broker as one state machine: passes each event to the component concerned.

frames ─────────────────────> intake ─> components ─> outflow ─> answers, records
channels, timers, the disk ─> components, suspended procedures ─┘
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from holdfast.broker.assembly import Rooms
from holdfast.broker.completion import HOLDS_TIMER, Outflow
from holdfast.broker.dispatch import Intake
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
_STEPPER_TIMERS: Final = frozenset({CALLS_TIMER, PAUSE_TIMER})
_HOUSEKEEP_MS: Final = 1_000
_CLEAN_MS: Final = 10_000


class Broker:
    """A broker without sockets, files or a clock."""

    def __init__(self, options: BrokerOptions, store: MessageStore, rooms: Rooms) -> None:
        self._options = options
        self._store = store
        self._rooms = rooms
        self._outflow = Outflow(options, store, rooms)
        self._intake = Intake(options, store, rooms, self._outflow)
        self._stepper = self._outflow.stepper
        rooms.replica_sync.entered = self._outflow.entered
        self._leases = rooms.leases if rooms.leases.is_on else None
        self._warming = 0  # Token of the read that warms the store's page cache.
        self._logged_fault = False
        self._logged_shortage = False
        self._on: dict[type, Callable[[Any], list[Effect]]] = {
            FramesReceived: self._intake.take_read,
            ReadsReceived: self._intake.take_reads,
            StreamReceived: self._stream_received,
            ChannelOpened: self._channel_opened,
            ChannelClosed: self._channel_closed,
            ChannelFailed: self._channel_failed,
            LogSynced: self._log_synced,
            LogRead: self._log_read,
            TimerFired: self._timer_fired,
            FilesSynced: self._files_synced,
            FileWritten: lambda event: self._rooms.unwritten.written(event.path),
            DiskFault: self._disk_fault,
            Started: self._started,
            Leaving: lambda _event: self._rooms.leaving(),
            Stopping: self._stopping,
        }

    def handle(self, event: Event) -> list[Effect]:
        """Process *event* and return its effects, in order."""
        errands = self._rooms.errands
        errands.now_ms = event.now_ms
        if self._leases is not None:
            self._leases.see(event.now_ms)
        try:
            effects = self._on[type(event)](event)
            # Checked on every event: written so that it calls nothing when there is no deferred work.
            if errands.effects or errands.work or errands.frames or self._rooms.guests.here:
                effects = self._run_errands(effects, event.now_ms)
        except BaseException:
            self._store.discard()
            self._rooms.sinks.roll_back()
            raise
        return effects

    def _run_errands(self, effects: list[Effect], now_ms: int) -> list[Effect]:
        """Run the deferred work of components, and return answers to relayed requests to the brokers that sent them."""
        errands, guests = self._rooms.errands, self._rooms.guests
        done: list[Effect] = []
        while True:
            done += guests.collect(effects)
            effects = errands.take_effects()
            for channel, peer in guests.take_opened():
                self._intake.open(channel, peer)
            for work in errands.take_work():
                self._stepper.run(work, _log_failure, effects, now_ms)
            if errands.frames:
                channel, data = errands.take_frames()
                effects += self._intake.take_again(channel, data, now_ms)
                guests.heard(channel)
            elif not effects and not errands:
                break
        for channel in guests.take_left():
            self._intake.close(channel)
        return done

    # Channels.

    def _channel_opened(self, event: ChannelOpened) -> list[Effect]:
        if event.purpose == REPLICATION:
            if event.dialed is None:
                return self._rooms.shipping.opened(event.channel, event.peer, event.now_ms)
            self._rooms.replica_sync.connected()
            return self._rooms.following.opened(event.channel, event.now_ms)
        self._intake.open(event.channel, event.peer)
        if event.dialed is None:
            return []
        if event.purpose == CALLS:
            return self._rooms.calls.opened(event.channel, event.dialed)
        return self._rooms.registration.channel_opened(event.channel, event.dialed, event.now_ms)

    def _channel_closed(self, event: ChannelClosed) -> list[Effect]:
        self._intake.close(event.channel)
        effects = self._rooms.channel_closed(event.channel, event.now_ms)
        self._stepper.called(self._rooms.calls.closed(event.channel), effects, event.now_ms)
        return effects

    def _stream_received(self, event: StreamReceived) -> list[Effect]:
        effects: list[Effect] = []
        if event.channel in self._rooms.shipping.followers:
            self._rooms.shipping.received(event.channel, event.data, event.now_ms, effects)
            self._rooms.replica_gate.acked(effects)
        else:
            self._rooms.following.received(event.channel, event.data, event.now_ms, effects)
            self._outflow.copied(effects, event.now_ms)
        return effects

    def _channel_failed(self, event: ChannelFailed) -> list[Effect]:
        if event.purpose == REPLICATION:
            return self._rooms.following.failed(event.reason, event.now_ms)
        if event.purpose == CALLS:
            effects: list[Effect] = []
            self._stepper.called(self._rooms.calls.failed(event.dialed, event.reason), effects, event.now_ms)
            return effects
        return self._rooms.registration.channel_failed(event.dialed, event.reason, event.now_ms)

    # Suspended procedures.

    def _log_read(self, event: LogRead) -> list[Effect]:
        if event.token == self._warming:
            self._store.warmed()
            return [SetTimer(_HOUSEKEEP_TIMER, event.now_ms)]
        return self._stepper.log_read(event)

    def _log_synced(self, event: LogSynced) -> list[Effect]:
        effects: list[Effect] = []
        self._outflow.synced(event.position, effects, event.now_ms)
        return effects

    # Time.

    def _started(self, event: Started) -> list[Effect]:
        effects: list[Effect] = [
            SetTimer(_HOUSEKEEP_TIMER, event.now_ms + _HOUSEKEEP_MS),
            SetTimer(_CLEAN_TIMER, event.now_ms + _CLEAN_MS),
        ]
        if self._options.flush != "sync":
            effects.append(SetTimer(_FLUSH_TIMER, event.now_ms + self._options.flush_interval_ms))
        return effects + self._rooms.started(event.now_ms)

    def _timer_fired(self, event: TimerFired) -> list[Effect]:
        effects: list[Effect] = []
        now_ms = event.now_ms
        if event.name == HOLDS_TIMER:
            self._outflow.on_holds_timer(effects, now_ms)
        elif event.name == _HOUSEKEEP_TIMER:
            self._housekeep(effects, now_ms)
        elif event.name == _CLEAN_TIMER:
            removed = self._store.clean(now_ms)
            effects += [Log("info", "file removed", {"file": name}) for name in removed]
            effects.append(SetTimer(_CLEAN_TIMER, now_ms + _CLEAN_MS))
            if removed:
                self._rooms.expiry.cleaned(now_ms, effects)
        elif event.name == _FLUSH_TIMER:
            files = self._store.files_to_sync()
            if files:
                effects.append(SyncLog(files, self._store.written))
            effects.append(SetTimer(_FLUSH_TIMER, now_ms + self._options.flush_interval_ms))
        elif event.name in _STEPPER_TIMERS:
            self._stepper.on_timer(event.name, now_ms, effects)
        else:
            self._component_timer(event, effects)
        return effects

    def _component_timer(self, event: TimerFired, effects: list[Effect]) -> None:
        """Run the component that set this timer; it may have to wait for cold log bytes."""
        work = self._rooms.timer_fired(event.name, event.now_ms, effects)

        def finish(result: Any, later: list[Effect]) -> None:
            # Effects that arise after a wait belong to the present event, not to the one that fired the timer.
            later += result if isinstance(result, list) else []
            self._outflow.write((), later, event.now_ms)

        if work is None:
            finish(None, effects)
        else:
            self._stepper.run(work, finish, effects, event.now_ms)

    def _housekeep(self, effects: list[Effect], now_ms: int) -> None:
        self._log_shortage(effects)  # Before the call as well: it may end a shortage that has not been logged yet.
        work = self._store.housekeep(now_ms)
        if work.files:
            effects.append(SyncFiles(work.files, self._stepper.next_token()))
        if work.read is not None:
            self._warming = self._stepper.next_token()
            effects.append(ReadLog(work.read.file, work.read.start, work.read.end, self._warming))
        effects.append(SetTimer(_HOUSEKEEP_TIMER, now_ms + work.delay_ms))
        if not self._store.writable and not self._logged_fault:
            self._logged_fault = True
            effects.append(Log("error", "no more messages are taken until a restart", {"reason": self._store.fault}))
        self._log_shortage(effects)

    def _log_shortage(self, effects: list[Effect]) -> None:
        """Log once when index writes begin to fail for lack of disk space, and once when all of them have succeeded."""
        shortage = self._store.shortage
        if (shortage is not None) == self._logged_shortage:
            return
        self._logged_shortage = shortage is not None
        if shortage is not None:
            hint = "free space, or shorten the retention; they are accepted again once the index is written"
            effects.append(
                Log("error", "no space for the index, messages are refused", {"reason": shortage, "hint": hint})
            )
        else:
            effects.append(Log("info", "the index is written again, messages are taken", {}))

    def _files_synced(self, event: FilesSynced) -> list[Effect]:
        self._store.checkpoint(event.now_ms)
        return []

    def _disk_fault(self, event: DiskFault) -> list[Effect]:
        if event.is_full and event.path is not None:
            return self._rooms.unwritten.failed(event.path, event.reason)
        self._store.fail(event.reason)
        effects: list[Effect] = [Log("error", "disk failed", {"reason": event.reason})]
        self._outflow.disk_failed(event.reason, event.token, effects, event.now_ms)
        return effects

    def _stopping(self, event: Stopping) -> list[Effect]:
        try:
            return self._rooms.stopping(event.now_ms)
        except DiskFailed as error:  # Nothing more can be persisted; the next start recovers from the files on disk.
            return [Log("error", "disk failed", {"reason": str(error)})]


def _log_failure(result: Any, effects: list[Effect]) -> None:
    """Log the failure of a procedure that has no caller."""
    if isinstance(result, Refusal):
        effects.append(Log("warning", "work given up", {"reason": result.remark}))
