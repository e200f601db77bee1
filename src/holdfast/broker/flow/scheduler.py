"""Work that has to wait in the middle: for cold bytes, for the disk, for another server, for time to pass.

Such work is a generator. It yields what it waits for and is sent what came of it, so that a procedure of many steps
reads from top to bottom, while the event loop does other things:

    answer = yield PeerCall(address, command)      -> Command; PeerFailed is thrown when there is none
    answers = yield from ask_all(calls)            -> Command or PeerFailed of each, when all have ended
    bytes = yield LogRange(position, size)         -> bytes; CorruptRecord is thrown when they are damaged
    yield Synced(store.staged_end)                 -> when everything before is on disk
    yield Pause(1_000)                             -> when that time has passed

What the work staged before it waits is written before it waits. Work that ends is handed to its `finish`.
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
_HOT_STEPS_MAX: Final = 256  # Then others have a turn, as if the bytes had been cold.


Finish = Callable[[Answer | list[Piece], list[Effect]], None]
"""Takes the result of work that has ended."""


class _Work(msgspec.Struct):
    """Work that waits."""

    steps: Procedure[Any]
    finish: Finish
    wait: Wait


class _Round(msgspec.Struct):
    """Work that waits for several servers.

    Attributes:
        results: What came of each call; None while nothing did.
        left: How many have not ended.
    """

    work: _Work
    results: list[Command | PeerFailed | None]
    left: int


class _Call(msgspec.Struct, frozen=True):
    """One call of several."""

    round: _Round
    place: int


class Stepper:
    """All work that waits, by what it waits for.

    Args:
        store: Where hot bytes are found.
        calls: The way to other servers.
        write: Writes what was staged.
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
        """Return a number that no other read or sync of this broker has."""
        self._token += 1
        return self._token

    def run(self, steps: Procedure[Any], finish: Finish, effects: list[Effect], now_ms: int) -> None:
        """Begin *steps* and run them as far as they go without waiting."""
        self._resume(_Work(steps, finish, Pause(0)), None, effects, now_ms)

    # What work waits for.

    def log_read(self, event: LogRead) -> list[Effect]:
        """Go on where bytes were wanted that are there now."""
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
        """Let work that wanted bytes know that the disk does not give them."""
        work = self._reading.pop(token, None)
        effects: list[Effect] = []
        if work is not None:
            self._resume(work, error, effects, now_ms)
        return effects

    def disk_failed(self, error: DiskFailed, effects: list[Effect], now_ms: int) -> None:
        """Let everybody who waits for the disk know that they wait in vain."""
        syncing, self._syncing = self._syncing, []
        for _, _, work in syncing:
            self._resume(work, error, effects, now_ms)

    def log_synced(self, position: int, effects: list[Effect], now_ms: int) -> None:
        """Go on where the disk was waited for."""
        while self._syncing and self._syncing[0][0] <= position:
            self._resume(heapq.heappop(self._syncing)[2], b"", effects, now_ms)

    def called(self, ended: list[Called], effects: list[Effect], now_ms: int) -> None:
        """Go on where other servers were asked."""
        for call in ended:
            result = PeerFailed(call.reason, is_unsent=call.is_unsent) if call.answer is None else call.answer
            self._end_call(call.waiter, result, effects, now_ms)

    def on_timer(self, name: str, now_ms: int, effects: list[Effect]) -> None:
        """Go on where time had to pass."""
        if name == CALLS_TIMER:
            self.called(self._calls.on_timer(now_ms, effects), effects, now_ms)
            return
        while self._pausing and self._pausing[0][0] <= now_ms:
            self._resume(heapq.heappop(self._pausing)[2], b"", effects, now_ms)
        if self._pausing:
            effects.append(SetTimer(PAUSE_TIMER, self._pausing[0][0]))

    # Running.

    def _resume(self, work: _Work, result: object, effects: list[Effect], now_ms: int) -> None:
        """Run work until it waits again, or ends."""
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
        """Go on with work whose call has ended, if it waits for no others."""
        if isinstance(waiter, _Work):
            self._resume(waiter, result, effects, now_ms)
            return
        waiting = waiter.round
        waiting.results[waiter.place] = result
        waiting.left -= 1
        if not waiting.left:
            self._resume(waiting.work, waiting.results, effects, now_ms)

    def _run_hot(self, work: _Work, result: object) -> tuple[File, int, int] | None:
        """Run work as long as the bytes it wants are in memory. Return where those are that are not.

        Work that knows what to do about a bad record, or a peer that does not answer, catches it.
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
        """Return the bytes of *read*, or where they have to be read from when they may not be in memory."""
        if isinstance(read, FileRange):
            return read.file, read.start, read.end
        view = self._store.hot_view(read.position, read.size) if at_once else None
        if view is not None:
            return bytes(view)
        return self._store.cold_read(read.position, read.position + read.size) or b""
