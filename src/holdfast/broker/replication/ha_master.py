"""The master's side of replication: ships its log to every replica that connects to the replication port.

    connected ─ reports the end of its log ─> shipping ─ nothing left ─> heartbeat every 5 s
                       └─ this log does not contain that end ─> notified, and closed

Only confirmed data is shipped: a replica must not keep data that a crash could take back here. At most a window of
unacknowledged bytes is in flight to a replica; its reports of its end acknowledge them.

Invariant: a replica receives the log without a gap, from the end that it reported first.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.broker.flow.turn import Turn
from holdfast.broker.options import BrokerOptions
from holdfast.machine.effects import CloseChannel, Effect, Log, Piece, SendBytes, SetTimer, WriteFile
from holdfast.machine.events import ChannelId
from holdfast.model.errors import RemoteProtocolError
from holdfast.store.base.cold_reads import FileRange
from holdfast.store.message_store import MessageStore
from holdfast.wire.cluster.ha import ReportReader, encode_head

TIMER: Final = "shipping"
PURPOSE: Final = "replication"
HAD_REPLICA_PATH: Final = "holdfast/replicated"
"""Exists once this broker had a replica: groups may have committed there while the broker was away."""
TICK_MS: Final = 1_000
HEARTBEAT_MS: Final = 5_000
SILENCE_MAX_MS: Final = 20_000
CHUNK_SIZE_MAX: Final = 256 * 1024
WINDOW: Final = 8 * 1024 * 1024
_MEMORY_PART: Final = 16
"""In-flight data counts against the memory limit: a larger share would throttle senders."""
_LOG_AGAIN_MS: Final = 60_000


class ReplicaConnection(msgspec.Struct):
    """A connected replica.

    Attributes:
        sent: The log was sent up to here; -1 until the replica has reported its end.
        acked: The replica reported to have the log up to here.
        is_reading: A cold read for this replica is in progress.
        is_lag_logged: It was logged that the replica lacks more than `in_sync_limit`.
    """

    channel: ChannelId
    peer: str
    received_ms: int
    sent_ms: int
    reports: ReportReader = msgspec.field(default_factory=ReportReader)
    sent: int = -1
    acked: int = -1
    is_reading: bool = False
    is_lag_logged: bool = False


class HaMaster:
    """Ships the log to all replicas.

    Attributes:
        replicas: By channel.
    """

    def __init__(self, options: BrokerOptions, store: MessageStore, turn: Turn) -> None:
        self._options = options
        self._store = store
        self._turn = turn
        self.replicas: dict[ChannelId, ReplicaConnection] = {}
        self._had_replica = False
        self._logged_ms: dict[tuple[str, str], int] = {}  # when a host's fault was last logged as an error

    @property
    def replicated_end(self) -> int:
        """Up to where at least one replica has the log."""
        return max((replica.acked for replica in self.replicas.values()), default=-1)

    @property
    def in_sync_count(self) -> int:
        """How many replicas lack no more than `in_sync_limit` bytes."""
        acked_min = self._store.confirmed - self._options.in_sync_limit
        return sum(replica.sent >= 0 and replica.acked >= acked_min for replica in self.replicas.values())

    @property
    def _window(self) -> int:
        """How many bytes may be in flight to each replica, so that senders keep memory however many catch up."""
        share = self._options.memory_limit // _MEMORY_PART // max(1, len(self.replicas))
        return max(CHUNK_SIZE_MAX, min(WINDOW, share))

    # Channels.

    def opened(self, channel: ChannelId, peer: str, now_ms: int) -> list[Effect]:
        """Accept a connection to the replication port."""
        is_first = not self.replicas
        self.replicas[channel] = ReplicaConnection(channel, peer, now_ms, now_ms)
        return [SetTimer(TIMER, now_ms + TICK_MS)] if is_first else []

    def received(self, channel: ChannelId, data: bytes | memoryview, now_ms: int, effects: list[Effect]) -> None:
        """Handle reports of a replica: check them, and ship more."""
        replica = self.replicas[channel]
        replica.received_ms = now_ms
        try:
            ends = replica.reports.feed(data)
        except RemoteProtocolError as error:
            effects += [self._log_fault(replica, "bad replica", str(error), now_ms), CloseChannel(channel)]
            return
        if not ends:
            return
        if replica.sent < 0:
            self._begin(replica, ends[0], effects, now_ms)
            if replica.sent < 0:
                return  # Refused: its log does not fit this one.
        if ends[-1] > replica.sent:
            reason = f"it reports to have the log up to {ends[-1]}, but was sent it only up to {replica.sent}"
            effects += [self._log_fault(replica, "bad replica", reason, now_ms), CloseChannel(channel)]
            return
        replica.acked = max(replica.acked, ends[-1])
        self._send_pending(replica, effects, now_ms)

    def closed(self, channel: ChannelId) -> list[Effect]:
        """Forget a replica; do nothing if the channel is not a replica's."""
        replica = self.replicas.pop(channel, None)
        if replica is None:
            return []
        return [Log("info", "replica left", {"peer": replica.peer, "acknowledged": replica.acked})]

    def _begin(self, replica: ReplicaConnection, end: int, effects: list[Effect], now_ms: int) -> None:
        """Decide where the stream begins; an empty replica gets the whole log."""
        start, confirmed = int(self._store.start), self._store.confirmed
        if end == 0:
            end = start
        if not start <= end <= confirmed:
            if end > confirmed:
                reason = (
                    f"its log is {end - confirmed} bytes ahead of this one: it copied another log, or this one lost its"
                    " end. If this log is right, start the replica with an empty folder; if the replica's log is right,"
                    " move its queues by force"
                )
                own_end = confirmed
            else:
                reason = (
                    f"its log ends {start - end} bytes before this one begins: the messages between are deleted"
                    " here. Start the replica with an empty folder"
                )
                own_end = start
            effects.append(self._log_fault(replica, "replica refused", reason, now_ms))
            # A Holdfast replica derives the problem from it; a Java one notices the mismatch and leaves.
            effects += [SendBytes(replica.channel, [encode_head(own_end, 0)]), CloseChannel(replica.channel)]
            return
        replica.sent = replica.acked = end
        if not self._had_replica:
            self._had_replica = True
            effects.append(WriteFile(HAD_REPLICA_PATH, b"", is_retried=True))
        effects.append(Log("info", "replica follows", {"peer": replica.peer, "from": end, "behind": confirmed - end}))

    def _log_fault(self, replica: ReplicaConnection, event: str, reason: str, now_ms: int) -> Log:
        """Return a log line about a fault of a replica. An error once a minute, as it reconnects again and again."""
        key = (replica.peer.rpartition(":")[0], event)
        is_new = now_ms - self._logged_ms.get(key, -_LOG_AGAIN_MS) >= _LOG_AGAIN_MS
        if is_new:
            self._logged_ms[key] = now_ms
        return Log("error" if is_new else "debug", event, {"peer": replica.peer, "reason": reason})

    # Shipping.

    def send_confirmed(self, effects: list[Effect], now_ms: int) -> None:
        """Send all replicas the data confirmed since the last time."""
        for replica in tuple(self.replicas.values()):
            self._send_pending(replica, effects, now_ms)

    def _send_pending(self, replica: ReplicaConnection, effects: list[Effect], now_ms: int) -> None:
        """Send pending data, as much as the window of the replica allows."""
        store = self._store
        if replica.sent < 0 or replica.is_reading or replica.sent >= store.confirmed:
            return
        hot_start = store.confirmed - store.options.hot_window
        until = min(store.confirmed, replica.acked + self._window)
        pieces: list[Piece] = []
        while replica.sent < until:
            position, size = replica.sent, min(CHUNK_SIZE_MAX, until - replica.sent)
            size = min(size, store.log_file_size - position % store.log_file_size)
            if position < hot_start:
                replica.is_reading = True
                self._turn.procedures.append(self._read_cold(replica, position, size))
                break
            view = store.view(position, size)
            if view is None:
                effects += self._disconnect_slow(replica, now_ms)
                break
            pieces += (encode_head(position, size), view)
            replica.sent += size
        if pieces:
            replica.sent_ms = now_ms
            effects.append(SendBytes(replica.channel, pieces))

    async def _read_cold(self, replica: ReplicaConnection, position: int, size: int) -> None:
        """Send a range that may not be in memory, then continue after it."""
        file_range = self._store.cold_read(position, position + size)
        if file_range is None:
            self._turn.effects += self._disconnect_slow(replica, self._turn.now_ms)
            return
        try:
            data = await FileRange(*file_range)
        finally:
            replica.is_reading = False  # After a failed read, too: the next report of the replica repeats it.
        if replica.channel not in self.replicas:
            return
        effects, now_ms = self._turn.effects, self._turn.now_ms
        replica.sent += len(data)
        replica.sent_ms = now_ms
        effects.append(SendBytes(replica.channel, [encode_head(position, len(data)), data]))
        self._send_pending(replica, effects, now_ms)

    def _disconnect_slow(self, replica: ReplicaConnection, now_ms: int) -> list[Effect]:
        reason = f"the messages from {replica.sent} on are deleted here. Start the replica with an empty folder"
        return [self._log_fault(replica, "replica too slow", reason, now_ms), CloseChannel(replica.channel)]

    # Time.

    def on_timer(self, name: str, now_ms: int, effects: list[Effect]) -> None:
        """Send heartbeats, and disconnect replicas that send none."""
        assert name == TIMER
        for replica in tuple(self.replicas.values()):
            self._log_lag(replica, effects)
            if now_ms - replica.received_ms >= SILENCE_MAX_MS:
                effects.append(
                    Log("warning", "replica silent", {"peer": replica.peer, "for": now_ms - replica.received_ms})
                )
                effects.append(CloseChannel(replica.channel))
            elif replica.sent >= 0 and now_ms - replica.sent_ms >= HEARTBEAT_MS:
                replica.sent_ms = now_ms
                effects.append(SendBytes(replica.channel, [encode_head(replica.sent, 0)]))
        if self.replicas:
            effects.append(SetTimer(TIMER, now_ms + TICK_MS))

    def _log_lag(self, replica: ReplicaConnection, effects: list[Effect]) -> None:
        """Log when a replica falls far back, and when it has caught up."""
        lag = self._store.confirmed - replica.acked
        is_lagging = replica.sent >= 0 and lag > self._options.in_sync_limit
        if is_lagging == replica.is_lag_logged:
            return
        replica.is_lag_logged = is_lagging
        fields: dict[str, object] = {"peer": replica.peer, "behind": lag}
        if is_lagging:
            reason = (
                "it lacks more than in_sync_limit. Check its disk and the network between: it can never copy messages"
                " that are deleted here first"
            )
            effects.append(Log("warning", "replica far behind", fields | {"reason": reason}))
        else:
            effects.append(Log("info", "replica caught up", fields))
