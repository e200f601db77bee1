"""Holds answers under synchronous replication until a replica has the messages that they acknowledge.

    as safe here as `flush` wants it ─┬─ a replica is in sync ─ it has it ──────────────────────────> sent
                                      │                       └ not in time ─> sent as FLUSH_SLAVE_TIMEOUT
                                      └─ none is ───────────────────────────> sent as SLAVE_NOT_AVAILABLE

The two codes mean the same as upstream: the message is stored and will reach a replica that returns, but it may be lost
with this broker's disk. A replica is in sync while it lacks no more than `in_sync_limit` bytes.

All answers of an event that wrote something wait here: to a send, a message sent back, the end of a transaction, or a
message that another broker forwards. Without a replica, only answers with a message id get one of the two codes. The
others are sent unchanged: a client that was notified of a failed send-back would repeat it every time.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

from holdfast.broker.options import BrokerOptions
from holdfast.broker.replication.ha_master import HaMaster
from holdfast.machine.effects import Effect, SendBytes, SetTimer
from holdfast.store.message_store import MessageStore
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.frames.command import decode_command, encode_command
from holdfast.wire.frames.frame import split_frames

TIMER: Final = "replica gate"
_REMARKS: Final = {
    ResponseCode.SLAVE_NOT_AVAILABLE: "stored here, but no replica is in sync: it may not outlive this broker's disk",
    ResponseCode.FLUSH_SLAVE_TIMEOUT: "stored here, but no replica has confirmed it in time",
}


class _Held(msgspec.Struct, frozen=True):
    """Answers that wait until a replica has the log up to a position."""

    position: int
    deadline_ms: int
    sends: list[SendBytes]


class AckGate:
    """Holds answers in log order.

    Attributes:
        unreplicated: Number of messages stored that no replica had in time.
    """

    def __init__(self, options: BrokerOptions, store: MessageStore, ha_master: HaMaster) -> None:
        self._timeout_ms = options.replica_timeout_ms
        self._store = store
        self._ha_master = ha_master
        self._held: deque[_Held] = deque()
        self._released_end = 0  # The position of the newest answers that were released.
        self.unreplicated = 0

    def hold(self, position: int, sends: list[SendBytes], effects: list[Effect], now_ms: int) -> None:
        """Send *sends*, safe here, once a replica has the log up to *position*; or change them if none is in sync."""
        if not sends:
            return
        if not self._ha_master.in_sync_count:
            effects += [self._replace_success(send, ResponseCode.SLAVE_NOT_AVAILABLE) for send in sends]
        elif self._ha_master.replicated_end >= position:
            effects += sends
        else:
            if not self._held:
                effects.append(SetTimer(TIMER, now_ms + self._timeout_ms))
            self._held.append(_Held(position, now_ms + self._timeout_ms, sends))

    def acked(self, effects: list[Effect]) -> None:
        """Release the answers whose messages a replica has now."""
        replicated = self._ha_master.replicated_end
        while self._held and self._held[0].position <= replicated:
            effects += self._pop().sends

    def on_timer(self, name: str, now_ms: int, effects: list[Effect]) -> None:
        """Send the answers whose deadline has passed, as FLUSH_SLAVE_TIMEOUT."""
        assert name == TIMER
        while self._held and self._held[0].deadline_ms <= now_ms:
            effects += [self._replace_success(send, ResponseCode.FLUSH_SLAVE_TIMEOUT) for send in self._pop().sends]
        if self._held:
            effects.append(SetTimer(TIMER, self._held[0].deadline_ms))

    def is_acknowledged(self, position: int) -> bool:
        """Return whether the answers to the record at *position* were sent, so that a repeated answer may be, too."""
        is_held = bool(self._held) and self._released_end <= position < self._held[-1].position
        return position < self._store.confirmed and not is_held

    def _pop(self) -> _Held:
        held = self._held.popleft()
        self._released_end = held.position
        return held

    def _replace_success(self, send: SendBytes, code: ResponseCode) -> SendBytes:
        """Return the answers with *code* in place of each success that carries a message id."""
        frames, _ = split_frames(memoryview(b"".join(send.pieces)))
        commands = [decode_command(frame) for frame in frames]
        for command in commands:
            if command.is_response and command.code == ResponseCode.SUCCESS and "msgId" in command.fields:
                command.code, command.remark = code, _REMARKS[code]
                self.unreplicated += 1
        return SendBytes(send.channel, [encode_command(command) for command in commands])
