"""Holds replies until the records that they acknowledge are as safe as the options demand.

    written ─┬─ async flush ─────────┬─ async replication ─────────────────────────────────────────────> sent
             └─ sync flush ─> synced ┴─ sync ─┬─ a replica is in sync ─ it has it ─────────────────────> sent
                                              │                       └ not in time ─> sent as FLUSH_SLAVE_TIMEOUT
                                              └─ none is ─────────────────────────────> sent as SLAVE_NOT_AVAILABLE

Which replies wait: all replies to the requests of one run of sends, or of one read of a channel, during which the log
grew; and the reply of a procedure whose last step wrote. Replies to other requests of the same read wait with them. A
read that wrote nothing is answered at once, also if earlier replies to its channel still wait. Under asynchronous
flush and replication nothing waits.

Two other waits look similar, but are not for this gate. `await Synced(position)` pauses a procedure whose next step
must not happen before the records are on disk, such as a message to another server. It forces a sync under
asynchronous flush, and does not wait for replicas. `Registrar` holds the reply to the creation of a topic until name
servers know it.

SLAVE_NOT_AVAILABLE and FLUSH_SLAVE_TIMEOUT mean the same as upstream: the message is stored and will reach a replica
that returns, but it may be lost with this broker's disk. A replica is in sync while it lacks no more than
`in_sync_limit` bytes. Only replies with a message id get one of the two codes. The others are sent unchanged: a client
that was notified of a failed send-back would repeat it every time.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

import msgspec

from holdfast.broker.flow.request import Timers
from holdfast.broker.options import BrokerOptions
from holdfast.machine.component import Component
from holdfast.machine.effects import Piece, SendBytes
from holdfast.machine.events import ChannelId
from holdfast.machine.turn import Turn
from holdfast.store.message_store import MessageStore
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.frames.command import decode_command, encode_command
from holdfast.wire.frames.frame import split_frames

REPLICA_TIMER: Final = "replica acks"
_REMARKS: Final = {
    ResponseCode.SLAVE_NOT_AVAILABLE: "stored here, but no replica is in sync: it may not outlive this broker's disk",
    ResponseCode.FLUSH_SLAVE_TIMEOUT: "stored here, but no replica has confirmed it in time",
}


class Replicas(Protocol):
    """What the gate needs to know of the replicas of this broker."""

    @property
    def in_sync_count(self) -> int:
        """How many replicas lack no more than `in_sync_limit` bytes."""

    @property
    def replicated_end(self) -> int:
        """Up to where at least one replica has the log."""


class _Unreplicated(msgspec.Struct, frozen=True):
    """Replies that wait until a replica has the log up to a position."""

    position: int
    deadline_ms: int
    sends: list[SendBytes]


class ReplyGate(Component):
    """Held replies, in the order of the log positions that they wait for.

    Attributes:
        awaits_replica: Replies wait for a replica.
        unreplicated_count: Number of messages stored that no replica had in time.
    """

    def __init__(self, options: BrokerOptions, store: MessageStore, replicas: Replicas, turn: Turn) -> None:
        self._turn = turn
        self.awaits_replica = options.replication == "sync"
        self._timeout_ms = options.replica_timeout_ms
        self._store = store
        self._replicas = replicas
        self._unsynced: deque[tuple[int, ChannelId, list[Piece]]] = deque()
        self._unreplicated: deque[_Unreplicated] = deque()
        self._released_end = 0  # The position of the newest replies that a replica released.
        self.unreplicated_count = 0

    # The local disk.

    def hold(self, position: int, channel: ChannelId, pieces: list[Piece]) -> None:
        """Hold *pieces* until the log before *position* is on disk, and then for a replica if replies await one."""
        assert not self._unsynced or self._unsynced[-1][0] <= position, "the log only grows"
        self._unsynced.append((position, channel, pieces))

    def release_synced(self, position: int) -> None:
        """Release the replies that waited for the log before *position* to be on disk."""
        synced = self._pop_synced(position)
        if self.awaits_replica:
            self.hold_for_replica(position, synced)
        else:
            self._turn.cause_all(synced)

    def _pop_synced(self, position: int) -> list[SendBytes]:
        """Remove the replies that waited for the log before *position*; return one write per channel."""
        ready: dict[ChannelId, list[Piece]] = {}
        unsynced = self._unsynced
        while unsynced and unsynced[0][0] <= position:
            _, channel, pieces = unsynced.popleft()
            if channel in ready:
                ready[channel] += pieces
            else:
                ready[channel] = pieces
        return [SendBytes(channel, pieces) for channel, pieces in ready.items()]

    def drop_unsynced(self) -> None:
        """Drop the replies that wait for a disk that has failed, and close their channels."""
        for channel in dict.fromkeys(channel for _, channel, _ in self._unsynced):
            self._turn.close(channel)
        self._unsynced.clear()

    # The replicas.

    def hold_for_replica(self, position: int, sends: list[SendBytes]) -> None:
        """Send *sends*, safe here, once a replica has the log up to *position*; or change them if none is in sync."""
        if not sends:
            return
        if not self._replicas.in_sync_count:
            for send in sends:
                self._turn.cause(self._replace_success(send, ResponseCode.SLAVE_NOT_AVAILABLE))
        elif self._replicas.replicated_end >= position:
            self._turn.cause_all(sends)
        else:
            deadline_ms = self._turn.now_ms + self._timeout_ms
            if not self._unreplicated:
                self._turn.set_timer(REPLICA_TIMER, deadline_ms)
            self._unreplicated.append(_Unreplicated(position, deadline_ms, sends))

    def acked(self) -> None:
        """Release the replies whose messages a replica has now."""
        replicated = self._replicas.replicated_end
        while self._unreplicated and self._unreplicated[0].position <= replicated:
            self._turn.cause_all(self._pop().sends)

    def timers(self) -> Timers:
        """Return the timers of this component, by name."""
        return {REPLICA_TIMER: self.on_timer}

    def on_timer(self) -> None:
        """Send the replies whose deadline has passed, as FLUSH_SLAVE_TIMEOUT."""
        while self._unreplicated and self._unreplicated[0].deadline_ms <= self._turn.now_ms:
            for send in self._pop().sends:
                self._turn.cause(self._replace_success(send, ResponseCode.FLUSH_SLAVE_TIMEOUT))
        if self._unreplicated:
            self._turn.set_timer(REPLICA_TIMER, self._unreplicated[0].deadline_ms)

    def is_acknowledged(self, position: int) -> bool:
        """Return whether the reply to the record at *position* was sent, so that a repeated reply may be, too."""
        is_held = bool(self._unreplicated) and self._released_end <= position < self._unreplicated[-1].position
        return position < self._store.confirmed and not is_held

    def _pop(self) -> _Unreplicated:
        held = self._unreplicated.popleft()
        self._released_end = held.position
        return held

    def _replace_success(self, send: SendBytes, code: ResponseCode) -> SendBytes:
        """Return the replies with *code* in place of each success that carries a message id."""
        frames, _ = split_frames(memoryview(b"".join(send.pieces)))
        commands = [decode_command(frame) for frame in frames]
        for command in commands:
            if command.is_response and command.code == ResponseCode.SUCCESS and "msgId" in command.fields:
                command.code, command.remark = code, _REMARKS[code]
                self.unreplicated_count += 1
        return SendBytes(send.channel, [encode_command(command) for command in commands])
