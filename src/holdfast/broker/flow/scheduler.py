"""Runs procedures: work that waits in the middle for cold bytes, the disk, another server, or time.

A procedure is a generator. It yields a condition and is sent the result. So a procedure of many steps reads from top to
bottom, while the event loop serves other events:

    answer = yield PeerCall(address, command)      -> Command; raises PeerFailed if there is no response
    answers = yield from ask_all(calls)            -> Command or PeerFailed of each, when all have ended
    bytes = yield LogRange(position, size)         -> bytes; raises CorruptRecord if they are damaged
    yield Synced(store.staged_end)                 -> continues when everything before is on disk
    yield Pause(1_000)                             -> continues when that time has passed

Records staged by a procedure are written before it waits. When a procedure ends, its `finish` receives the result.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, Final

import msgspec

from holdfast.broker.flow.awaitables import Pause, PeerCall, PeerCalls, Procedure, Synced, Wait
from holdfast.broker.flow.peer_calls import TIMER as CALLS_TIMER
from holdfast.broker.flow.peer_calls import Called, Calls
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
_HOT_STEPS_MAX: Final = (
    256  # After so many reads from memory in a row, yield to other events as if the bytes were cold.
)


Finish = Callable[[Answer | list[Piece], list[Effect]], None]
"""Receives the result of a procedure that has ended."""


class _Work(msgspec.Struct):
    """A suspended procedure and its condition."""

    steps: Procedure[Any]
    finish: Finish
    wait: Wait


class _Round(msgspec.Struct):
    """A procedure that waits for several servers.

    Attributes:
        results: The outcome of each call; None while it is in flight.
        left: The number of calls in flight.
    """

    work: _Work
    results: list[Command | PeerFailed | None]
    left: int


class _Call(msgspec.Struct, frozen=True):
    """One call of a `_Round`."""

    round: _Round
    place: int


class Stepper:
    """Suspended procedures, by their condition.

    Args:
        store: Serves bytes that are in the page cache, and locates those that are not.
        calls: Sends requests to other servers.
        write: Writes staged records.
    """

    def __init__(self, store: MessageStore, calls: Calls, write: Callable[[list[Effect], int], None]) -> None:
        self._store = store
        self._calls = calls
        self._write = write
        self._token = 0
        self._reading: dict[int, _Work] = {}
        self._syncing: list[tuple[int, int, _Work]] = []  # a heap, by position
        self._pausing: list[tuple[int, int, _Work]] = []  # a heap, by time

    def next_token(self) -> int:
        """Return a token that is unique among the reads and syncs of this broker."""
        self._token += 1
        return self._token

    def run(self, steps: Procedure[Any], finish: Finish, effects: list[Effect], now_ms: int) -> None:
        """Start a procedure and run it until it has to wait."""
        self._resume(_Work(steps, finish, Pause(0)), None, effects, now_ms)

    # Events that resume procedures.

    def log_read(self, event: LogRead) -> list[Effect]:
        """Resume the procedure that waits for these bytes."""
        work = self._reading.pop(event.token, None)
        if work is None:
            return []
        effects: list[Effect] = []
        result: bytes | CorruptRecord = event.data
        try:
            if isinstance(work.wait, LogRange):
                self._store.verify(work.wait.position, event.data, is_guess=work.wait.is_guess)
        except CorruptRecord as error:
            effects.append(Log("error", "corrupt record", {"position": error.position, "reason": str(error)}))
            result = error
        self._resume(work, result, effects, event.now_ms)
        return effects

    def read_failed(self, token: int, error: DiskFailed, now_ms: int) -> list[Effect]:
        """Fail the procedure whose read *token* failed."""
        work = self._reading.pop(token, None)
        effects: list[Effect] = []
        if work is not None:
            self._resume(work, error, effects, now_ms)
        return effects

    def disk_failed(self, error: DiskFailed, effects: list[Effect], now_ms: int) -> None:
        """Fail every procedure that waits for a sync."""
        syncing, self._syncing = self._syncing, []
        for _, _, work in syncing:
            self._resume(work, error, effects, now_ms)

    def log_synced(self, position: int, effects: list[Effect], now_ms: int) -> None:
        """Resume the procedures that wait for the log before *position* to be synced."""
        while self._syncing and self._syncing[0][0] <= position:
            self._resume(heapq.heappop(self._syncing)[2], b"", effects, now_ms)

    def called(self, ended: list[Called], effects: list[Effect], now_ms: int) -> None:
        """Resume the procedures whose calls have ended."""
        for call in ended:
            result = PeerFailed(call.reason, is_unsent=call.is_unsent) if call.answer is None else call.answer
            self._end_call(call.waiter, result, effects, now_ms)

    def on_timer(self, name: str, now_ms: int, effects: list[Effect]) -> None:
        """Resume the procedures whose pause or call deadline has passed."""
        if name == CALLS_TIMER:
            self.called(self._calls.on_timer(now_ms, effects), effects, now_ms)
            return
        while self._pausing and self._pausing[0][0] <= now_ms:
            self._resume(heapq.heappop(self._pausing)[2], b"", effects, now_ms)
        if self._pausing:
            effects.append(SetTimer(PAUSE_TIMER, self._pausing[0][0]))

    # Running.

    def _resume(self, work: _Work, result: object, effects: list[Effect], now_ms: int) -> None:
        """Run a procedure until it waits again or ends."""
        try:
            found = self._run_hot(work, result)
        except StopIteration as stop:
            work.finish(stop.value, effects)
            return
        except (CorruptRecord, RecordRefused, DiskFailed, PeerFailed) as error:
            work.finish(Refusal(ResponseCode.SYSTEM_ERROR, str(error)), effects)
            return
        self._write(effects, now_ms)
        match work.wait:
            case PeerCall() as call:
                self._call(call, work, effects, now_ms)
            case PeerCalls(calls):
                self._call_all(calls, work, effects, now_ms)
            case Synced(position):
                heapq.heappush(self._syncing, (position, self.next_token(), work))
                effects.append(SyncLog(self._store.files_to_sync(), self._store.written))
            case Pause(ms):
                heapq.heappush(self._pausing, (now_ms + ms, self.next_token(), work))
                effects.append(SetTimer(PAUSE_TIMER, self._pausing[0][0]))
            case _:
                assert found is not None, "bytes that are not in memory are somewhere"
                token = self.next_token()
                self._reading[token] = work
                effects.append(ReadLog(*found, token))

    def _call_all(self, calls: tuple[PeerCall, ...], work: _Work, effects: list[Effect], now_ms: int) -> None:
        waiting = _Round(work, [None] * len(calls), len(calls))
        for place, call in enumerate(calls):
            self._call(call, _Call(waiting, place), effects, now_ms)

    def _call(self, call: PeerCall, waiter: _Work | _Call, effects: list[Effect], now_ms: int) -> None:
        if not self._calls.call(call.address, call.command, waiter, now_ms + call.timeout_ms, effects):
            failure = PeerFailed(f"too many requests wait for {call.address}", is_unsent=True)
            self._end_call(waiter, failure, effects, now_ms)

    def _end_call(
        self, waiter: _Work | _Call, result: Command | PeerFailed, effects: list[Effect], now_ms: int
    ) -> None:
        """Record the outcome of a call, and resume its procedure unless other calls of the same round are in flight."""
        if isinstance(waiter, _Work):
            self._resume(waiter, result, effects, now_ms)
            return
        waiting = waiter.round
        waiting.results[waiter.place] = result
        waiting.left -= 1
        if not waiting.left:
            self._resume(waiting.work, waiting.results, effects, now_ms)

    def _run_hot(self, work: _Work, result: object) -> tuple[File, int, int] | None:
        """Run a procedure while the bytes it reads are in memory; return the file range of the first cold read.

        Failures are raised inside the procedure, which may catch them and continue.
        """
        if isinstance(result, HoldfastError):
            wait = work.steps.throw(result)
        else:
            wait = next(work.steps) if result is None else work.steps.send(result)
        left = _HOT_STEPS_MAX
        while isinstance(wait, LogRange | FileRange):
            found = self._find(wait, at_once=left > 0)
            if not isinstance(found, bytes):
                work.wait = wait
                return found
            wait = work.steps.send(found)
            left -= 1
        work.wait = wait
        return None

    def _find(self, read: LogRange | FileRange, *, at_once: bool) -> bytes | tuple[File, int, int]:
        """Return the bytes of *read*, or the file range to read them from if they may be cold."""
        if isinstance(read, FileRange):
            return read.file, read.start, read.end
        view = self._store.hot_view(read.position, read.size) if at_once else None
        if view is not None:
            return bytes(view)
        return self._store.cold_read(read.position, read.position + read.size) or b""
