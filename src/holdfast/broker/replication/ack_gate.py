"""Under synchronous replication: answers that wait until a replica has what they promise.

    as safe here as `flush` wants it ─┬─ a replica is in sync ─ it has it ──────────────────────────> sent
                                      │                       └ not in time ─> sent as FLUSH_SLAVE_TIMEOUT
                                      └─ none is ───────────────────────────> sent as SLAVE_NOT_AVAILABLE

As upstream says it: the message is stored in both bad cases, and will reach a replica that comes back; only nobody can
promise that it outlives this broker's disk. A replica is in sync while it lacks no more than `in_sync_limit` bytes.

Everything that leaves an event in which something was written waits here, whatever it answers: a send, a message that
is given back, the end of a transaction, what another broker forwards. In the bad cases only answers with the id of a
message can say so. The others are sent unchanged: whoever was told that giving back failed would do it twice, and every
time again.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

from holdfast.broker.options import BrokerOptions
from holdfast.broker.replication.ha_master import Shipping
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
    """Answers that wait for a replica to have everything before a position."""

    position: int
    deadline_ms: int
    sends: list[SendBytes]


class ReplicaGate:
    """Answers in the order of what they wait for.

    Attributes:
        unsafe: How many messages were stored that no replica had in time.
    """

    def __init__(self, options: BrokerOptions, store: MessageStore, shipping: Shipping) -> None:
        self._timeout_ms = options.replica_timeout_ms
        self._store = store
        self._shipping = shipping
        self._held: deque[_Held] = deque()
        self._passed = 0  # What the last answer waited for that does not wait any more.
        self.unsafe = 0

    def hold(self, position: int, sends: list[SendBytes], effects: list[Effect], now_ms: int) -> None:
        """Send *sends*, safe here, when a replica has everything before *position*; or say that none has."""
        if not sends:
            return
        if not self._shipping.in_sync:
            effects += [self._retell(send, ResponseCode.SLAVE_NOT_AVAILABLE) for send in sends]
        elif self._shipping.replicated >= position:
            effects += sends
        else:
            if not self._held:
                effects.append(SetTimer(TIMER, now_ms + self._timeout_ms))
            self._held.append(_Held(position, now_ms + self._timeout_ms, sends))

    def acked(self, effects: list[Effect]) -> None:
        """Let go of what a replica has now."""
        replicated = self._shipping.replicated
        while self._held and self._held[0].position <= replicated:
            effects += self._pop().sends

    def on_timer(self, name: str, now_ms: int, effects: list[Effect]) -> None:
        """Tell those who have waited long enough."""
        assert name == TIMER
        while self._held and self._held[0].deadline_ms <= now_ms:
            effects += [self._retell(send, ResponseCode.FLUSH_SLAVE_TIMEOUT) for send in self._pop().sends]
        if self._held:
            effects.append(SetTimer(TIMER, self._held[0].deadline_ms))

    def is_settled(self, position: int) -> bool:
        """Say whether what was answered to whoever brought the record at *position* has left: it may be told again."""
        is_held = bool(self._held) and self._passed <= position < self._held[-1].position
        return position < self._store.confirmed and not is_held

    def _pop(self) -> _Held:
        held = self._held.popleft()
        self._passed = held.position
        return held

    def _retell(self, send: SendBytes, code: ResponseCode) -> SendBytes:
        """Return answers that promise less."""
        frames, _ = split_frames(memoryview(b"".join(send.pieces)))
        commands = [decode_command(frame) for frame in frames]
        for command in commands:
            if command.is_response and command.code == ResponseCode.SUCCESS and "msgId" in command.fields:
                command.code, command.remark = code, _REMARKS[code]
                self.unsafe += 1
        return SendBytes(send.channel, [encode_command(command) for command in commands])
