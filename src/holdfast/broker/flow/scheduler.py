"""Runs procedures: work that waits in the middle for cold bytes, the disk, another server, or time.

A procedure is a coroutine that awaits conditions. So one of many steps reads from top to bottom, while the event loop
serves other events:

    answer = await PeerCall(address, command)      -> Command; raises PeerFailed if there is no response
    answers = await call_all(calls)                -> Command or PeerFailed of each, when all have ended
    data = await LogRange(position, size)          -> bytes; raises CorruptRecord if they are damaged
    await Synced(store.staged_end)                 -> continues when everything before is on disk
    await Pause(1_000)                             -> continues when that time has passed

There is no asyncio in a role: the scheduler alone drives procedures, with `send` and `throw`.

Records staged by a procedure are written before it waits. When a procedure ends, its `finish` receives the result.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, Final

import msgspec

from holdfast.broker.flow.awaitables import ParallelCalls, Pause, PeerCall, Procedure, Synced, Wait
from holdfast.broker.flow.peer_calls import TIMER as CALLS_TIMER
from holdfast.broker.flow.peer_calls import CallOutcome, PeerCalls
from holdfast.broker.flow.request import Answer, Refusal
from holdfast.machine.effects import Effect, Log, Piece, ReadLog, SetTimer, SyncLog
from holdfast.machine.events import LogRead
from holdfast.model.errors import CorruptRecord, DiskFailed, HoldfastError, PeerFailed, RecordRefused
from holdfast.store.base.cold_reads import FileRange, LogRange
from holdfast.store.base.disk import File
from holdfast.store.message_store import MessageStore
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.frames.command import Command

PAUSE_TIMER: Final = "pauses"
# After so many reads from memory in a row, yield to other events as if the bytes were cold.
_HOT_READS_MAX: Final = 256


Finish = Callable[[Answer | list[Piece], list[Effect]], None]
"""Receives the result of a procedure that has ended."""


class _Suspended(msgspec.Struct):
    """A suspended procedure and its condition."""

    procedure: Procedure[Any]
    finish: Finish
    wait: Wait


class _CallGroup(msgspec.Struct):
    """A procedure that waits for several servers.

    Attributes:
        results: The outcome of each call; None while it is in flight.
        remaining: The number of calls in flight.
    """

    suspended: _Suspended
    results: list[Command | PeerFailed | None]
    remaining: int


class _GroupCall(msgspec.Struct, frozen=True):
    """One call of a `_CallGroup`."""

    group: _CallGroup
    index: int


class Scheduler:
    """Suspended procedures, by their condition.

    Args:
        store: Serves bytes that are in the page cache, and locates those that are not.
        calls: Sends requests to other servers.
        write: Writes staged records.
    """

    def __init__(self, store: MessageStore, calls: PeerCalls, write: Callable[[list[Effect], int], None]) -> None:
        self._store = store
        self._calls = calls
        self._write = write
        self._token = 0
        self._reading: dict[int, _Suspended] = {}
        self._syncing: list[tuple[int, int, _Suspended]] = []  # a heap, by position
        self._pausing: list[tuple[int, int, _Suspended]] = []  # a heap, by time

    def next_token(self) -> int:
        """Return a token that is unique among the reads and syncs of this broker."""
        self._token += 1
        return self._token

    def run(self, procedure: Procedure[Any], finish: Finish, effects: list[Effect], now_ms: int) -> None:
        """Start a procedure and run it until it has to wait."""
        self._resume(_Suspended(procedure, finish, Pause(0)), None, effects, now_ms)

    # Events that resume procedures.

    def log_read(self, event: LogRead) -> list[Effect]:
        """Resume the procedure that waits for these bytes."""
        suspended = self._reading.pop(event.token, None)
        if suspended is None:
            return []
        effects: list[Effect] = []
        result: bytes | CorruptRecord = event.data
        try:
            if isinstance(suspended.wait, LogRange):
                self._store.verify(suspended.wait.position, event.data, is_guess=suspended.wait.is_guess)
        except CorruptRecord as error:
            effects.append(Log("error", "corrupt record", {"position": error.position, "reason": str(error)}))
            result = error
        self._resume(suspended, result, effects, event.now_ms)
        return effects

    def read_failed(self, token: int, error: DiskFailed, now_ms: int) -> list[Effect]:
        """Fail the procedure whose read *token* failed."""
        suspended = self._reading.pop(token, None)
        effects: list[Effect] = []
        if suspended is not None:
            self._resume(suspended, error, effects, now_ms)
        return effects

    def disk_failed(self, error: DiskFailed, effects: list[Effect], now_ms: int) -> None:
        """Fail every procedure that waits for a sync."""
        syncing, self._syncing = self._syncing, []
        for _, _, suspended in syncing:
            self._resume(suspended, error, effects, now_ms)

    def log_synced(self, position: int, effects: list[Effect], now_ms: int) -> None:
        """Resume the procedures that wait for the log before *position* to be synced."""
        while self._syncing and self._syncing[0][0] <= position:
            self._resume(heapq.heappop(self._syncing)[2], b"", effects, now_ms)

    def complete_calls(self, outcomes: list[CallOutcome], effects: list[Effect], now_ms: int) -> None:
        """Resume the procedures whose calls have ended."""
        for outcome in outcomes:
            result = (
                PeerFailed(outcome.reason, is_unsent=outcome.is_unsent) if outcome.answer is None else outcome.answer
            )
            self._complete_call(outcome.waiter, result, effects, now_ms)

    def on_timer(self, name: str, now_ms: int, effects: list[Effect]) -> None:
        """Resume the procedures whose pause or call deadline has passed."""
        if name == CALLS_TIMER:
            self.complete_calls(self._calls.on_timer(now_ms, effects), effects, now_ms)
            return
        while self._pausing and self._pausing[0][0] <= now_ms:
            self._resume(heapq.heappop(self._pausing)[2], b"", effects, now_ms)
        if self._pausing:
            effects.append(SetTimer(PAUSE_TIMER, self._pausing[0][0]))

    # Running.

    def _resume(self, suspended: _Suspended, result: object, effects: list[Effect], now_ms: int) -> None:
        """Run a procedure until it waits again or ends."""
        try:
            found = self._run_hot(suspended, result)
        except StopIteration as stop:
            suspended.finish(stop.value, effects)
            return
        except (CorruptRecord, RecordRefused, DiskFailed, PeerFailed) as error:
            suspended.finish(Refusal(ResponseCode.SYSTEM_ERROR, str(error)), effects)
            return
        self._write(effects, now_ms)
        match suspended.wait:
            case PeerCall() as call:
                self._call(call, suspended, effects, now_ms)
            case ParallelCalls(calls):
                self._call_all(calls, suspended, effects, now_ms)
            case Synced(position):
                heapq.heappush(self._syncing, (position, self.next_token(), suspended))
                effects.append(SyncLog(self._store.files_to_sync(), self._store.written))
            case Pause(ms):
                heapq.heappush(self._pausing, (now_ms + ms, self.next_token(), suspended))
                effects.append(SetTimer(PAUSE_TIMER, self._pausing[0][0]))
            case _:
                assert found is not None, "bytes that are not in memory are somewhere"
                token = self.next_token()
                self._reading[token] = suspended
                effects.append(ReadLog(*found, token))

    def _call_all(self, calls: tuple[PeerCall, ...], suspended: _Suspended, effects: list[Effect], now_ms: int) -> None:
        group = _CallGroup(suspended, [None] * len(calls), len(calls))
        for index, call in enumerate(calls):
            self._call(call, _GroupCall(group, index), effects, now_ms)

    def _call(self, call: PeerCall, waiter: _Suspended | _GroupCall, effects: list[Effect], now_ms: int) -> None:
        if not self._calls.call(call.address, call.command, waiter, now_ms + call.timeout_ms, effects):
            failure = PeerFailed(f"too many requests wait for {call.address}", is_unsent=True)
            self._complete_call(waiter, failure, effects, now_ms)

    def _complete_call(
        self, waiter: _Suspended | _GroupCall, result: Command | PeerFailed, effects: list[Effect], now_ms: int
    ) -> None:
        """Record the outcome of a call, and resume its procedure unless other calls of the same round are in flight."""
        if isinstance(waiter, _Suspended):
            self._resume(waiter, result, effects, now_ms)
            return
        group = waiter.group
        group.results[waiter.index] = result
        group.remaining -= 1
        if not group.remaining:
            self._resume(group.suspended, group.results, effects, now_ms)

    def _run_hot(self, suspended: _Suspended, result: object) -> tuple[File, int, int] | None:
        """Run a procedure while the bytes it reads are in memory; return the file range of the first cold read.

        Failures are raised inside the procedure, which may catch them and continue.
        """
        if isinstance(result, HoldfastError):
            wait = suspended.procedure.throw(result)
        else:
            wait = suspended.procedure.send(result)
        remaining = _HOT_READS_MAX
        while isinstance(wait, LogRange | FileRange):
            found = self._read_or_locate(wait, is_hot_allowed=remaining > 0)
            if not isinstance(found, bytes):
                suspended.wait = wait
                return found
            wait = suspended.procedure.send(found)
            remaining -= 1
        suspended.wait = wait
        return None

    def _read_or_locate(self, read: LogRange | FileRange, *, is_hot_allowed: bool) -> bytes | tuple[File, int, int]:
        """Return the bytes of *read*, or the file range to read them from if they may be cold."""
        if isinstance(read, FileRange):
            return read.file, read.start, read.end
        view = self._store.hot_view(read.position, read.size) if is_hot_allowed else None
        if view is not None:
            return bytes(view)
        return self._store.cold_read(read.position, read.position + read.size) or b""
