"""The broker as one machine: hands each event to the room it concerns, and writes the log once per event.

    FramesReceived ─> runs of like frames ─┬─ sends ──────> stage ┐
                                           ├─ pulls ──────> views ├─> one write ─> one answer per channel
                                           └─ everything else ────┘        │
                                                            async flush: at once; sync flush: after `LogSynced`

Invariant: nothing is staged between events. Whatever an event staged is written, or discarded, before `handle` returns.
Invariant: an answer that promises storage leaves after the record is confirmed: synced under sync flush.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, Final, cast

import msgspec

from holdfast.broker.durability import HeldAnswers
from holdfast.broker.holds import Hold
from holdfast.broker.options import BrokerOptions
from holdfast.broker.pull import Pulled, Puller
from holdfast.broker.request import Answer, FileRange, LogRange, Refusal, Request, Steps, not_supported
from holdfast.broker.rooms import Rooms
from holdfast.broker.send import Origin
from holdfast.machine.effects import CloseChannel, Effect, Log, Piece, ReadLog, SendBytes, SetTimer, SyncFiles, SyncLog
from holdfast.machine.events import (
    ChannelClosed,
    ChannelFailed,
    ChannelId,
    ChannelOpened,
    DiskFault,
    Event,
    FilesSynced,
    FileWritten,
    FramesReceived,
    LogRead,
    LogSynced,
    Started,
    Stopping,
    TimerFired,
)
from holdfast.model.errors import CorruptRecord, DiskFailed, LocalProtocolError, RecordRefused, RemoteProtocolError
from holdfast.store.consume_queue import QueueLog
from holdfast.store.disk import File
from holdfast.store.message_store import MessageStore
from holdfast.wire.codes import RequestCode, ResponseCode
from holdfast.wire.command import decode_command, encode_command, response
from holdfast.wire.fields import BadField
from holdfast.wire.frame import JSON, Frame
from holdfast.wire.host import pack_host
from holdfast.wire.pull import PullHeader, decode_pull, pull_header
from holdfast.wire.send import decode_send, send_header

_SEND_CODES: Final = frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE})
_PULL_CODES: Final = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})
# How a JSON header begins when it can be decoded without asking what it is. Other spellings take the general path.
_PEEK_SIZE: Final = 12
_HOT_SENDS: Final = frozenset({b'{"code":310,', b'{"code":320,'})
_HOT_SEND_CODES: Final = frozenset({RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE})
_HOT_PULLS: Final = frozenset({b'{"code":11,"', b'{"code":361,'})
_HANDED_OUT_MAX: Final = 32 * 1024 * 1024
_DECODE_ERRORS: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

_HOLDS_TIMER: Final = "holds"
_HOUSEKEEP_TIMER: Final = "housekeep"
_CLEAN_TIMER: Final = "clean"
_FLUSH_TIMER: Final = "flush"
_HOUSEKEEP_MS: Final = 1_000
_CLEAN_MS: Final = 10_000
_HOT_STEPS_MAX: Final = 256  # Then others have a turn, as if the bytes had been cold.

Finish = Callable[[Answer | list[Piece], list[Effect]], None]
"""Takes the result of steps that have ended."""


class _Waiting(msgspec.Struct):
    """Steps that wait for cold bytes."""

    steps: Steps[Any]
    finish: Finish
    read: LogRange | FileRange


class Broker:
    """A broker without a world around it."""

    def __init__(self, options: BrokerOptions, store: MessageStore, rooms: Rooms) -> None:
        self._options = options
        self._store = store
        self._rooms = rooms
        self._sync = options.flush == "sync"
        self._held = HeldAnswers()
        self._handlers = rooms.handlers()
        self._born_hosts: dict[ChannelId, bytes] = {}
        self._peers: dict[ChannelId, str] = {}
        self._waiting: dict[int, _Waiting] = {}
        self._token = 0
        self._warming = 0  # The token of what is read for the store's sake.
        self._holds_timer_ms: int | None = None
        self._told_fault = False
        self._handed_out = 0  # bytes that pulls of the read at hand were answered with
        self._on: dict[type, Callable[[Any], list[Effect]]] = {
            FramesReceived: self._frames_received,
            ChannelOpened: self._channel_opened,
            ChannelClosed: self._channel_closed,
            ChannelFailed: self._channel_failed,
            LogSynced: self._log_synced,
            LogRead: self._log_read,
            TimerFired: self._timer_fired,
            FilesSynced: self._files_synced,
            FileWritten: lambda _event: [],
            DiskFault: self._disk_fault,
            Started: self._started,
            Stopping: self._stopping,
        }

    def handle(self, event: Event) -> list[Effect]:
        """Take note of *event* and return what shall be done about it, in order."""
        try:
            return self._on[type(event)](event)
        except BaseException:
            # What half an event staged points into a receive buffer that the next read overwrites.
            self._store.discard()
            raise

    # Channels.

    def _channel_opened(self, event: ChannelOpened) -> list[Effect]:
        self._peers[event.channel] = event.peer
        try:
            self._born_hosts[event.channel] = pack_host(event.peer)
        except LocalProtocolError:  # a peer without a numeric address: a socket of the same machine
            self._born_hosts[event.channel] = pack_host("127.0.0.1:0")
        if event.dialed is None:
            return []
        return self._rooms.registration.channel_opened(event.channel, event.dialed, event.now_ms)

    def _channel_closed(self, event: ChannelClosed) -> list[Effect]:
        self._peers.pop(event.channel, None)
        self._born_hosts.pop(event.channel, None)
        return self._rooms.channel_closed(event.channel, event.now_ms)

    def _channel_failed(self, event: ChannelFailed) -> list[Effect]:
        return self._rooms.registration.channel_failed(event.dialed, event.reason, event.now_ms)

    # One read.

    def _frames_received(self, event: FramesReceived) -> list[Effect]:
        effects: list[Effect] = []
        answers: list[Piece] = []
        before = self._store.log.written
        self._handed_out = 0
        if not self._take_sends(event.frames, event, answers):
            for frame in event.frames:
                if not self._take_frame(frame, event, answers, effects):
                    break  # Nothing more is heard from such a peer: it does not get a line of log for every frame.
        self._write(event.channel, answers, effects, event.now_ms, before)
        if self._rooms.topics.changed:
            self._rooms.registration.announce_changes(effects)
        return effects

    def _take_sends(self, run: list[Frame], event: FramesReceived, answers: list[Piece]) -> bool:
        """Take a read of nothing but sends, as one run; do nothing and return False when there is something else."""
        if bytes(run[0].header[:_PEEK_SIZE]) not in _HOT_SENDS:
            return False
        try:
            headers = [decode_send(frame.header) for frame in run]
        except _DECODE_ERRORS:
            return False
        if not {header.code for header in headers} <= _HOT_SEND_CODES:
            return False
        origin = Origin(JSON, self._born_hosts[event.channel], event.now_ms)
        self._rooms.sends.take_run(headers, [frame.body for frame in run], origin, answers)
        return True

    def _take_frame(self, frame: Frame, event: FramesReceived, answers: list[Piece], effects: list[Effect]) -> bool:
        """Take one frame of a read that is not all sends; False when it cannot be understood."""
        if bytes(frame.header[:_PEEK_SIZE]) in _HOT_PULLS:
            return self._take_pull(frame, event, answers, effects)
        return self._take_sends([frame], event, answers) or self._take_general(frame, event, answers, effects)

    def _take_pull(self, frame: Frame, event: FramesReceived, answers: list[Piece], effects: list[Effect]) -> bool:
        try:
            header = decode_pull(frame.header)
        except _DECODE_ERRORS:
            return self._take_general(frame, event, answers, effects)
        self._answer_pull(header, JSON, event, answers, effects)
        return True

    def _answer_pull(
        self,
        header: PullHeader,
        serializer: int,
        event: FramesReceived,
        answers: list[Piece],
        effects: list[Effect],
    ) -> None:
        """Answer a pull; one read may hold thousands, each worth megabytes to a peer that perhaps never reads them."""
        if self._handed_out > _HANDED_OUT_MAX:
            answers.append(self._rooms.pulls.put_off(header, serializer))
            return
        pulled = self._rooms.pulls.take(header, Puller(event.channel, serializer, event.now_ms))
        if isinstance(pulled, list):
            self._handed_out += sum(map(len, pulled))
        elif pulled is not None:
            self._handed_out += self._options.pull_size_max  # Cold: how much it is shows when it has been read.
        self._pulled(pulled, event.channel, event.now_ms, answers, effects)

    def _pulled(
        self, pulled: Pulled, channel: ChannelId, now_ms: int, answers: list[Piece], effects: list[Effect]
    ) -> None:
        """Send what a pull gave, now or when its cold bytes are there."""
        if isinstance(pulled, list):
            answers += pulled
        elif pulled is None:
            self._set_holds_timer(effects, now_ms)
        else:

            def finish(result: Answer | list[Piece], later: list[Effect]) -> None:
                later.append(SendBytes(channel, cast("list[Piece]", result)))

            self._advance(pulled, finish, effects)

    def _take_general(self, frame: Frame, event: FramesReceived, answers: list[Piece], effects: list[Effect]) -> bool:
        """Take a request of any kind, or an answer to one of ours; False when it is neither."""
        try:
            command = decode_command(frame)
        except RemoteProtocolError as error:
            effects.append(Log("warning", "bad header", {"peer": self._peers[event.channel], "reason": str(error)}))
            effects.append(CloseChannel(event.channel))
            return False
        if command.is_response:
            effects += self._rooms.responded(event.channel, command)
            return True
        request = Request(
            command=command,
            channel=event.channel,
            peer=self._peers[event.channel],
            now_ms=event.now_ms,
            effects=effects,
        )
        try:
            if command.code in _SEND_CODES:
                origin = Origin(command.serializer, self._born_hosts[event.channel], event.now_ms)
                self._rooms.sends.take_run([send_header(command)], [command.body], origin, answers)
            elif command.code in _PULL_CODES:
                self._answer_pull(pull_header(command), command.serializer, event, answers, effects)
            else:
                self._dispatch(request, answers)
        except (BadField, RemoteProtocolError) as error:
            self._answer(request, Refusal(ResponseCode.INVALID_PARAMETER, str(error)), answers)
        except (RecordRefused, DiskFailed) as error:
            self._answer(request, Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, str(error)), answers)
        return True

    def _dispatch(self, request: Request, answers: list[Piece]) -> None:
        handler = self._handlers.get(cast("RequestCode", request.command.code))
        if handler is None:
            self._answer(request, not_supported(request.command.code), answers)
            return
        result = handler(request)
        if not isinstance(result, types.GeneratorType):
            self._answer(request, cast("Answer", result), answers)
            return

        def finish(ended: Answer | list[Piece], later: list[Effect]) -> None:
            pieces: list[Piece] = []
            self._answer(request, cast("Answer", ended), pieces)
            # What the handler asked for after it had waited belongs to this event, not to the one long answered.
            later += request.effects
            self._write(request.channel, pieces, later, request.now_ms)

        effects = request.effects
        request.effects = []
        self._advance(cast("Steps[Answer]", result), finish, effects)

    @staticmethod
    def _answer(request: Request, answer: Answer, answers: list[Piece]) -> None:
        """Append the answer to *request*, unless there is none or nobody wants it."""
        if answer is None or request.command.is_one_way:
            return
        if isinstance(answer, Refusal):
            answer = response(request.command, answer.code, answer.remark)
        answers.append(encode_command(answer))

    # Steps that need log bytes.

    def _advance(
        self, steps: Steps[Any], finish: Finish, effects: list[Effect], data: bytes | CorruptRecord | None = None
    ) -> None:
        """Run *steps* as far as hot bytes carry them. Steps that know what to do about a bad record catch it."""
        try:
            if isinstance(data, CorruptRecord):
                read = steps.throw(data)
            else:
                read = next(steps) if data is None else steps.send(data)
            left = _HOT_STEPS_MAX
            while isinstance(found := self._find(read, at_once=left > 0), bytes):
                read = steps.send(found)
                left -= 1
        except StopIteration as stop:
            finish(stop.value, effects)
            return
        except (CorruptRecord, RecordRefused, DiskFailed) as error:
            finish(Refusal(ResponseCode.SYSTEM_ERROR, str(error)), effects)
            return
        self._token += 1
        self._waiting[self._token] = _Waiting(steps, finish, read)
        file, start, end = found
        effects.append(ReadLog(file, start, end, self._token))

    def _find(self, read: LogRange | FileRange, *, at_once: bool) -> bytes | tuple[File, int, int]:
        """Return the bytes of *read*, or where they have to be read from when they may not be in memory."""
        if isinstance(read, FileRange):
            return read.file, read.start, read.end
        view = self._store.hot_view(read.position, read.size) if at_once else None
        if view is not None:
            return bytes(view)
        return self._store.cold_read(read.position, read.position + read.size) or b""

    def _log_read(self, event: LogRead) -> list[Effect]:
        if event.token == self._warming:
            self._store.warmed()
            return [SetTimer(_HOUSEKEEP_TIMER, event.now_ms)]
        waiting = self._waiting.pop(event.token, None)
        if waiting is None:
            return []
        effects: list[Effect] = []
        data: bytes | CorruptRecord = event.data
        try:
            if isinstance(waiting.read, LogRange):
                self._store.verify(waiting.read.position, event.data, is_guess=waiting.read.is_guess)
        except CorruptRecord as error:
            effects.append(Log("error", "corrupt record", {"position": error.position, "reason": str(error)}))
            data = error
        self._advance(waiting.steps, waiting.finish, effects, data)
        return effects

    # Writing, confirming, waking.

    def _write(
        self,
        channel: ChannelId | None,
        answers: list[Piece],
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
            if channel is not None:
                effects.append(CloseChannel(channel))
            return
        if store.log.written == before:
            if answers and channel is not None:
                effects.append(SendBytes(channel, answers))
        elif self._sync:
            if answers and channel is not None:
                self._held.hold(store.written, channel, answers)
            effects.append(SyncLog(store.files_to_sync(), store.written))
        else:
            if answers and channel is not None:
                effects.append(SendBytes(channel, answers))
            self._wake(store.confirm(store.written), effects, now_ms)
        if self._rooms.offsets.to_wake:
            reset, self._rooms.offsets.to_wake = self._rooms.offsets.to_wake, []
            self._wake([store.queue(topic, queue_id) for topic, queue_id in reset], effects, now_ms)

    def _log_synced(self, event: LogSynced) -> list[Effect]:
        effects: list[Effect] = []
        if self._sync:
            effects += self._held.release(event.position)
            self._wake(self._store.confirm(event.position), effects, event.now_ms)
        self._rooms.delays.on_synced(event.position, effects)
        return effects

    def _wake(self, queues: list[QueueLog], effects: list[Effect], now_ms: int) -> None:
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
        self._pulled(pulled, hold.channel, now_ms, answers, effects)
        if answers:
            effects.append(SendBytes(hold.channel, answers))

    def _set_holds_timer(self, effects: list[Effect], now_ms: int) -> None:
        deadline_ms = self._rooms.pulls.holds.next_deadline_ms()
        if deadline_ms is not None and (self._holds_timer_ms is None or deadline_ms < self._holds_timer_ms):
            self._holds_timer_ms = max(deadline_ms, now_ms)
            effects.append(SetTimer(_HOLDS_TIMER, self._holds_timer_ms))

    # Time.

    def _started(self, event: Started) -> list[Effect]:
        effects: list[Effect] = [
            SetTimer(_HOUSEKEEP_TIMER, event.now_ms + _HOUSEKEEP_MS),
            SetTimer(_CLEAN_TIMER, event.now_ms + _CLEAN_MS),
        ]
        if not self._sync:
            effects.append(SetTimer(_FLUSH_TIMER, event.now_ms + self._options.flush_interval_ms))
        return effects + self._rooms.started(event.now_ms)

    def _timer_fired(self, event: TimerFired) -> list[Effect]:
        effects: list[Effect] = []
        now_ms = event.now_ms
        if event.name == _HOLDS_TIMER:
            self._holds_timer_ms = None
            for queue, hold in self._rooms.pulls.holds.expire(now_ms):
                self._retry(queue, hold, now_ms, effects, final=True)
            self._set_holds_timer(effects, now_ms)
        elif event.name == _HOUSEKEEP_TIMER:
            self._housekeep(effects, now_ms)
        elif event.name == _CLEAN_TIMER:
            effects += [Log("info", "file removed", {"file": name}) for name in self._store.clean(now_ms)]
            effects.append(SetTimer(_CLEAN_TIMER, now_ms + _CLEAN_MS))
        elif event.name == _FLUSH_TIMER:
            files = self._store.files_to_sync()
            if files:
                effects.append(SyncLog(files, self._store.written))
            effects.append(SetTimer(_FLUSH_TIMER, now_ms + self._options.flush_interval_ms))
        else:
            self._room_timer(event, effects)
        return effects

    def _room_timer(self, event: TimerFired, effects: list[Effect]) -> None:
        """Let the room that set this timer do its work; it may need cold log bytes."""
        work = self._rooms.timer_fired(event.name, event.now_ms, effects)

        def finish(result: Any, later: list[Effect]) -> None:
            # Whatever a room wants after it had to wait belongs to this event, not to the one that fired its timer.
            later += result if isinstance(result, list) else []
            self._write(None, [], later, event.now_ms)

        if work is None:
            finish(None, effects)
        else:
            self._advance(work, finish, effects)

    def _housekeep(self, effects: list[Effect], now_ms: int) -> None:
        work = self._store.housekeep(now_ms)
        if work.files:
            self._token += 1
            effects.append(SyncFiles(work.files, self._token))
        if work.read is not None:
            self._token += 1
            self._warming = self._token
            effects.append(ReadLog(work.read.file, work.read.start, work.read.end, self._token))
        effects.append(SetTimer(_HOUSEKEEP_TIMER, now_ms + work.delay_ms))
        if not self._store.writable and not self._told_fault:
            self._told_fault = True
            effects.append(Log("error", "no more messages are taken until a restart", {"reason": self._store.fault}))

    def _files_synced(self, event: FilesSynced) -> list[Effect]:
        self._store.checkpoint(event.now_ms)
        return []

    def _disk_fault(self, event: DiskFault) -> list[Effect]:
        self._store.fail(event.reason)
        effects: list[Effect] = [Log("error", "disk failed", {"reason": event.reason})]
        return effects + [CloseChannel(channel) for channel in self._held.abandon()]

    def _stopping(self, event: Stopping) -> list[Effect]:
        try:
            return self._rooms.stopping(event.now_ms)
        except DiskFailed as error:  # Nothing more can be kept; the next start goes by what is there.
            return [Log("error", "disk failed", {"reason": str(error)})]
