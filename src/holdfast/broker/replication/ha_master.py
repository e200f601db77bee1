"""The master's side of replication: ships its log to every replica that connects to the replication port.

    connected ─ admitted ─ reports the end of its log ─> shipping ─ nothing left ─> heartbeat every 5 s
                   │              └─ this log does not contain that end ─> notified, and closed
                   └─ with access control: after a login (`stream_login.py`)

Only confirmed data is shipped: a replica must not keep data that a crash could take back here. At most a window of
unacknowledged bytes is in flight to a replica; its reports of its end acknowledge them.

Invariant: a replica receives the log without a gap, from the end that it reported first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from holdfast.broker.flow.request import Timers
from holdfast.broker.options import BrokerOptions
from holdfast.broker.replication.stream_login import LOGIN_MAX_MS, StreamGate, StreamLogin
from holdfast.machine.component import Component
from holdfast.machine.effects import Piece
from holdfast.machine.events import ChannelId
from holdfast.machine.kept_file import KeptFile
from holdfast.machine.turn import Turn
from holdfast.model.errors import RemoteProtocolError
from holdfast.store.base.cold_reads import FileRange
from holdfast.store.base.disk import Disk
from holdfast.store.message_store import MessageStore
from holdfast.wire.cluster.ha import ReportReader, encode_head

TIMER: Final = "replicas"
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
        has_begun: The replica has reported its end, which fits the log, and gets what follows.
        sent: The log was sent up to here.
        acked: The replica reported to have the log up to here.
        login: Its login; None once it is admitted.
        opened_ms: When it connected.
        is_reading: A cold read for this replica is in progress.
        is_lag_logged: It was logged that the replica lacks more than `in_sync_limit`.
    """

    channel: ChannelId
    peer: str
    received_ms: int
    sent_ms: int
    reports: ReportReader = msgspec.field(default_factory=ReportReader)
    has_begun: bool = False
    sent: int = 0
    acked: int = 0
    login: StreamLogin | None = None
    opened_ms: int = 0
    is_reading: bool = False
    is_lag_logged: bool = False


class HaMaster(Component):
    """Ships the log to all replicas.

    Args:
        options: The settings of the broker.
        store: The log.
        disk: The store's folder.
        turn: The turn of the broker.
        gate: Admits replicas; None: all are admitted.

    Attributes:
        replicas: By channel.
        had_replica: This broker has or had a replica, also in an earlier process.
    """

    def __init__(
        self, options: BrokerOptions, store: MessageStore, disk: Disk, turn: Turn, gate: StreamGate | None = None
    ) -> None:
        self._options = options
        self._gate = gate
        self._store = store
        self._turn = turn
        self.replicas: dict[ChannelId, ReplicaConnection] = {}
        self._marker = KeptFile(
            turn, disk, HAD_REPLICA_PATH, lambda: True, encode=lambda _: b"", decode=lambda _: True, has_backup=False
        )
        self.had_replica = self._marker.load() is not None
        self._logged_ms: dict[tuple[str, str], int] = {}  # when a host's fault was last logged as an error

    @property
    def replicated_end(self) -> int:
        """Up to where at least one replica has the log."""
        return max((replica.acked for replica in self.replicas.values()), default=0)

    @property
    def in_sync_count(self) -> int:
        """How many replicas lack no more than `in_sync_limit` bytes."""
        acked_min = self._store.confirmed - self._options.in_sync_limit
        return sum(replica.has_begun and replica.acked >= acked_min for replica in self.replicas.values())

    @property
    def _window(self) -> int:
        """How many bytes may be in flight to each replica, so that senders keep memory however many catch up."""
        followers = sum(replica.login is None for replica in self.replicas.values())
        share = self._options.memory_limit // _MEMORY_PART // max(1, followers)
        return max(CHUNK_SIZE_MAX, min(WINDOW, share))

    def files(self) -> Sequence[KeptFile[Any]]:
        """Return the files of this component."""
        return (self._marker,)

    # Channels.

    def opened(self, channel: ChannelId, peer: str) -> None:
        """Accept a connection to the replication port."""
        now_ms = self._turn.now_ms
        is_first = not self.replicas
        login = None
        if self._gate is not None:
            self._gate.opened(channel, peer)
            login = StreamLogin()
        self.replicas[channel] = ReplicaConnection(channel, peer, now_ms, now_ms, login=login, opened_ms=now_ms)
        if is_first:
            self._turn.set_timer(TIMER, now_ms + TICK_MS)

    def received(self, channel: ChannelId, data: bytes | memoryview) -> None:
        """Handle reports of a replica: check them, and ship more."""
        replica = self.replicas[channel]
        replica.received_ms = self._turn.now_ms
        try:
            if replica.login is not None:
                assert self._gate is not None
                following = self._gate.advance(replica.login, channel, replica.peer, data)
                if following is None:
                    return
                data, replica.login = following, None
            ends = replica.reports.feed(data)
        except RemoteProtocolError as error:
            self._log_fault(replica, "bad replica", str(error))
            self._turn.close(channel)
            return
        if not ends:
            return
        if not replica.has_begun:
            self._begin(replica, ends[0])
            if not replica.has_begun:
                return  # Refused: its log does not fit this one.
        if ends[-1] > replica.sent:
            reason = f"it reports to have the log up to {ends[-1]}, but was sent it only up to {replica.sent}"
            self._log_fault(replica, "bad replica", reason)
            self._turn.close(channel)
            return
        replica.acked = max(replica.acked, ends[-1])
        self._send_pending(replica)

    def channel_closed(self, channel: ChannelId) -> None:
        """Forget a replica; do nothing if the channel is not a replica's."""
        replica = self.replicas.pop(channel, None)
        if replica is None:
            return
        self._turn.log("info", "replica left", peer=replica.peer, acknowledged=replica.acked)

    def _begin(self, replica: ReplicaConnection, end: int) -> None:
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
            self._log_fault(replica, "replica refused", reason)
            # A Holdfast replica derives the problem from it; a Java one notices the mismatch and leaves.
            self._turn.send(replica.channel, [encode_head(own_end, 0)])
            self._turn.close(replica.channel)
            return
        replica.has_begun, replica.sent, replica.acked = True, end, end
        if not self.had_replica:
            self.had_replica = True
            self._marker.save_change()
        self._turn.log("info", "replica follows", peer=replica.peer, **{"from": end}, behind=confirmed - end)

    def _log_fault(self, replica: ReplicaConnection, event: str, reason: str) -> None:
        """Log a fault of a replica. An error once a minute, as it reconnects again and again."""
        now_ms = self._turn.now_ms
        key = (replica.peer.rpartition(":")[0], event)
        is_new = now_ms - self._logged_ms.get(key, -_LOG_AGAIN_MS) >= _LOG_AGAIN_MS
        if is_new:
            self._logged_ms[key] = now_ms
        self._turn.log("error" if is_new else "debug", event, peer=replica.peer, reason=reason)

    # Shipping.

    def send_confirmed(self) -> None:
        """Send all replicas the data confirmed since the last time."""
        for replica in tuple(self.replicas.values()):
            self._send_pending(replica)

    def _send_pending(self, replica: ReplicaConnection) -> None:
        """Send pending data, as much as the window of the replica allows."""
        store = self._store
        if not replica.has_begun or replica.is_reading or replica.sent >= store.confirmed:
            return
        hot_start = store.confirmed - store.options.hot_window
        until = min(store.confirmed, replica.acked + self._window)
        pieces: list[Piece] = []
        while replica.sent < until:
            position, size = replica.sent, min(CHUNK_SIZE_MAX, until - replica.sent)
            size = min(size, store.log_file_size - position % store.log_file_size)
            if position < hot_start:
                replica.is_reading = True
                self._turn.spawn(self._read_cold(replica, position, size))
                break
            view = store.view(position, size)
            if view is None:
                self._disconnect_slow(replica)
                break
            pieces += (encode_head(position, size), view)
            replica.sent += size
        if pieces:
            replica.sent_ms = self._turn.now_ms
            self._turn.send(replica.channel, pieces)

    async def _read_cold(self, replica: ReplicaConnection, position: int, size: int) -> None:
        """Send a range that may not be in memory, then continue after it."""
        file_range = self._store.cold_read(position, position + size)
        if file_range is None:
            self._disconnect_slow(replica)
            return
        try:
            data = await FileRange(*file_range)
        finally:
            replica.is_reading = False  # After a failed read, too: the next report of the replica repeats it.
        if replica.channel not in self.replicas:
            return
        replica.sent += len(data)
        replica.sent_ms = self._turn.now_ms
        self._turn.send(replica.channel, [encode_head(position, len(data)), data])
        self._send_pending(replica)

    def _disconnect_slow(self, replica: ReplicaConnection) -> None:
        reason = f"the messages from {replica.sent} on are deleted here. Start the replica with an empty folder"
        self._log_fault(replica, "replica too slow", reason)
        self._turn.close(replica.channel)

    # Time.

    def timers(self) -> Timers:
        """Return the timers of this component, by name."""
        return {TIMER: self.on_timer}

    def on_timer(self) -> None:
        """Send heartbeats, and disconnect replicas that send none."""
        now_ms = self._turn.now_ms
        for replica in tuple(self.replicas.values()):
            self._log_lag(replica)
            if now_ms - replica.received_ms >= SILENCE_MAX_MS:
                self._turn.log("warning", "replica silent", peer=replica.peer, **{"for": now_ms - replica.received_ms})
                self._turn.close(replica.channel)
            elif replica.login is not None and now_ms - replica.opened_ms >= LOGIN_MAX_MS:
                self._log_fault(replica, "bad replica", f"its login took longer than {LOGIN_MAX_MS // 1000} s")
                self._turn.close(replica.channel)
            elif replica.has_begun and now_ms - replica.sent_ms >= HEARTBEAT_MS:
                replica.sent_ms = now_ms
                self._turn.send(replica.channel, [encode_head(replica.sent, 0)])
        if self.replicas:
            self._turn.set_timer(TIMER, now_ms + TICK_MS)

    def _log_lag(self, replica: ReplicaConnection) -> None:
        """Log when a replica falls far back, and when it has caught up."""
        lag = self._store.confirmed - replica.acked
        is_lagging = replica.has_begun and lag > self._options.in_sync_limit
        if is_lagging == replica.is_lag_logged:
            return
        replica.is_lag_logged = is_lagging
        fields: dict[str, object] = {"peer": replica.peer, "behind": lag}
        if is_lagging:
            reason = (
                "it lacks more than in_sync_limit. Check its disk and the network between: it can never copy messages"
                " that are deleted here first"
            )
            self._turn.log("warning", "replica far behind", **fields, reason=reason)
        else:
            self._turn.log("info", "replica caught up", **fields)
