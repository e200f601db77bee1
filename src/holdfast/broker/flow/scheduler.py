"""Runs procedures: work that waits in the middle for cold bytes, the disk, another server, or time.

A procedure is a coroutine that awaits conditions. So one of many steps reads from top to bottom, while the event loop
serves other events:

    answer = await PeerCall(address, command)      -> Command; raises PeerFailed if there is no response
    answer = await ClientCall(channel, command)    -> the same, from a client on its own connection
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

from holdfast.broker.flow.awaitables import Call, ClientCall, ParallelCalls, Pause, PeerCall, Procedure, Synced, Wait
from holdfast.broker.flow.request import Answer, Refusal, Timers
from holdfast.broker.flow.rpc import TIMER as CALLS_TIMER
from holdfast.broker.flow.rpc import CallOutcome, Rpc
from holdfast.machine.effects import Piece, ReadLog
from holdfast.machine.events import LogRead
from holdfast.machine.turn import Turn
from holdfast.model.errors import CorruptRecord, DiskFailed, HoldfastError, PeerFailed, RecordRefused
from holdfast.store.base.cold_reads import FileRange, LogRange
from holdfast.store.base.disk import File
from holdfast.store.message_store import MessageStore
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.frames.command import Command

PAUSE_TIMER: Final = "pauses"
# After so many reads from memory in a row, yield to other events as if the bytes were cold.
_HOT_READS_MAX: Final = 256


Finish = Callable[[Answer | list[Piece]], None]
"""Receives the result of a procedure that has ended."""


class _Suspended(msgspec.Struct):
    """A suspended procedure and its condition."""

    procedure: Procedure[Any]
    finish: Finish
    wait: Wait


class _CallGroup(msgspec.Struct):
    """A procedure that waits for several calls.

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
        rpc: Sends requests to other servers and to clients.
        write: Writes staged records.
    """

    def __init__(self, store: MessageStore, rpc: Rpc, write: Callable[[], None], turn: Turn) -> None:
        self._turn = turn
        self._store = store
        self._rpc = rpc
        self._write = write
        self._token = 0
        self._reading: dict[int, _Suspended] = {}
        self._syncing: list[tuple[int, int, _Suspended]] = []  # a heap, by position
        self._pausing: list[tuple[int, int, _Suspended]] = []  # a heap, by time

    def next_token(self) -> int:
        """Return a token that is unique among the reads and syncs of this broker."""
        self._token += 1
        return self._token

    def run(self, procedure: Procedure[Any], finish: Finish) -> None:
        """Start a procedure and run it until it has to wait."""
        self._resume(_Suspended(procedure, finish, Pause(0)), None)

    # Events that resume procedures.

    def log_read(self, event: LogRead) -> None:
        """Resume the procedure that waits for these bytes."""
        suspended = self._reading.pop(event.token, None)
        if suspended is None:
            return
        result: bytes | CorruptRecord = event.data
        try:
            if isinstance(suspended.wait, LogRange):
                self._store.verify(suspended.wait.position, event.data, is_guess=suspended.wait.is_guess)
        except CorruptRecord as error:
            self._turn.log("error", "corrupt record", position=error.position, reason=str(error))
            result = error
        self._resume(suspended, result)

    def read_failed(self, token: int, error: DiskFailed) -> None:
        """Fail the procedure whose read *token* failed."""
        suspended = self._reading.pop(token, None)
        if suspended is not None:
            self._resume(suspended, error)

    def disk_failed(self, error: DiskFailed) -> None:
        """Fail every procedure that waits for a sync."""
        syncing, self._syncing = self._syncing, []
        for _, _, suspended in syncing:
            self._resume(suspended, error)

    def log_synced(self, position: int) -> None:
        """Resume the procedures that wait for the log before *position* to be synced."""
        while self._syncing and self._syncing[0][0] <= position:
            self._resume(heapq.heappop(self._syncing)[2], b"")

    def complete_calls(self, outcomes: list[CallOutcome]) -> None:
        """Resume the procedures whose calls have ended."""
        for outcome in outcomes:
            self._complete_call(outcome.waiter, outcome.result)

    def timers(self) -> Timers:
        """Return the timers of suspended procedures, by name."""
        return {CALLS_TIMER: lambda: self.complete_calls(self._rpc.on_timer()), PAUSE_TIMER: self._resume_paused}

    def _resume_paused(self) -> None:
        """Resume the procedures whose pause has ended."""
        while self._pausing and self._pausing[0][0] <= self._turn.now_ms:
            self._resume(heapq.heappop(self._pausing)[2], b"")
        if self._pausing:
            self._turn.set_timer(PAUSE_TIMER, self._pausing[0][0])

    # Running.

    def _resume(self, suspended: _Suspended, result: object) -> None:
        """Run a procedure until it waits again or ends."""
        try:
            found = self._run_hot(suspended, result)
        except StopIteration as stop:
            suspended.finish(stop.value)
            return
        except (CorruptRecord, RecordRefused, DiskFailed, PeerFailed) as error:
            suspended.finish(Refusal(ResponseCode.SYSTEM_ERROR, str(error)))
            return
        self._write()
        match suspended.wait:
            case (PeerCall() | ClientCall()) as call:
                self._call(call, suspended)
            case ParallelCalls(calls):
                self._call_all(calls, suspended)
            case Synced(position):
                heapq.heappush(self._syncing, (position, self.next_token(), suspended))
                self._turn.sync_log(self._store.files_to_sync(), self._store.written)
            case Pause(ms):
                heapq.heappush(self._pausing, (self._turn.now_ms + ms, self.next_token(), suspended))
                self._turn.set_timer(PAUSE_TIMER, self._pausing[0][0])
            case _:
                assert found is not None, "bytes that are not in memory are somewhere"
                token = self.next_token()
                self._reading[token] = suspended
                self._turn.cause(ReadLog(*found, token))

    def _call_all(self, calls: tuple[Call, ...], suspended: _Suspended) -> None:
        group = _CallGroup(suspended, [None] * len(calls), len(calls))
        for index, call in enumerate(calls):
            self._call(call, _GroupCall(group, index))

    def _call(self, call: Call, waiter: _Suspended | _GroupCall) -> None:
        deadline_ms = self._turn.now_ms + call.timeout_ms
        if isinstance(call, ClientCall):
            given_up = self._rpc.call_client(call.channel, call.command, waiter, deadline_ms)
            if given_up is not None:
                self.complete_calls([given_up])
        elif not self._rpc.call_peer(call.address, call.command, waiter, deadline_ms, call.purpose):
            failure = PeerFailed(f"too many requests wait for {call.address}", is_unsent=True)
            self._complete_call(waiter, failure)

    def _complete_call(self, waiter: _Suspended | _GroupCall, result: Command | PeerFailed) -> None:
        """Record the outcome of a call, and resume its procedure unless other calls of the same round are in flight."""
        if isinstance(waiter, _Suspended):
            self._resume(waiter, result)
            return
        group = waiter.group
        group.results[waiter.index] = result
        group.remaining -= 1
        if not group.remaining:
            self._resume(group.suspended, group.results)

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
