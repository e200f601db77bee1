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

from holdfast.broker.flow.awaitables import Procedure
from holdfast.broker.flow.turn import Errands
from holdfast.broker.options import BrokerOptions
from holdfast.machine.effects import CloseChannel, Effect, Log, Piece, SendBytes, SetTimer, WriteFile
from holdfast.machine.events import ChannelId
from holdfast.model.errors import RemoteProtocolError
from holdfast.store.base.cold_reads import FileRange
from holdfast.store.message_store import MessageStore
from holdfast.wire.cluster.ha import ReportReader, encode_head

TIMER: Final = "shipping"
PURPOSE: Final = "replication"
SEEN_PATH: Final = "holdfast/replicated"
"""Exists once this broker had a replica: groups may have committed there while the broker was away."""
TICK_MS: Final = 1_000
LIFE_MS: Final = 5_000
SILENCE_MAX_MS: Final = 20_000
STRETCH_MAX: Final = 256 * 1024
WINDOW: Final = 8 * 1024 * 1024
_MEMORY_PART: Final = 16
"""In-flight data counts against the memory limit: a larger share would throttle senders."""
_LOG_AGAIN_MS: Final = 60_000


class Follower(msgspec.Struct):
    """A connected replica.

    Attributes:
        sent: The log was sent up to here; -1 until the replica has reported its end.
        acked: The replica reported to have the log up to here.
        is_reading: A cold read for this replica is in progress.
        is_far: It was logged that the replica lacks more than `in_sync_limit`.
    """

    channel: ChannelId
    peer: str
    heard_ms: int
    told_ms: int
    reports: ReportReader = msgspec.field(default_factory=ReportReader)
    sent: int = -1
    acked: int = -1
    is_reading: bool = False
    is_far: bool = False


class Shipping:
    """Ships the log to all replicas.

    Attributes:
        followers: By channel.
    """

    def __init__(self, options: BrokerOptions, store: MessageStore, errands: Errands) -> None:
        self._options = options
        self._store = store
        self._errands = errands
        self.followers: dict[ChannelId, Follower] = {}
        self._is_seen = False
        self._logged_ms: dict[tuple[str, str], int] = {}  # when a host's fault was last logged as an error

    @property
    def replicated(self) -> int:
        """Up to where at least one replica has the log."""
        return max((follower.acked for follower in self.followers.values()), default=-1)

    @property
    def in_sync(self) -> int:
        """How many replicas lack no more than `in_sync_limit` bytes."""
        least = self._store.confirmed - self._options.in_sync_limit
        return sum(follower.sent >= 0 and follower.acked >= least for follower in self.followers.values())

    @property
    def _window(self) -> int:
        """How many bytes may be in flight to each replica, so that senders keep memory however many catch up."""
        share = self._options.memory_limit // _MEMORY_PART // max(1, len(self.followers))
        return max(STRETCH_MAX, min(WINDOW, share))

    # Channels.

    def opened(self, channel: ChannelId, peer: str, now_ms: int) -> list[Effect]:
        """Accept a connection to the replication port."""
        is_first = not self.followers
        self.followers[channel] = Follower(channel, peer, now_ms, now_ms)
        return [SetTimer(TIMER, now_ms + TICK_MS)] if is_first else []

    def received(self, channel: ChannelId, data: bytes | memoryview, now_ms: int, effects: list[Effect]) -> None:
        """Handle reports of a replica: check them, and ship more."""
        follower = self.followers[channel]
        follower.heard_ms = now_ms
        try:
            ends = follower.reports.feed(data)
        except RemoteProtocolError as error:
            effects += [self._complain(follower, "bad replica", str(error), now_ms), CloseChannel(channel)]
            return
        if not ends:
            return
        if follower.sent < 0:
            self._begin(follower, ends[0], effects, now_ms)
            if follower.sent < 0:
                return  # Refused: its log does not fit this one.
        if ends[-1] > follower.sent:
            reason = f"it reports to have the log up to {ends[-1]}, but was sent it only up to {follower.sent}"
            effects += [self._complain(follower, "bad replica", reason, now_ms), CloseChannel(channel)]
            return
        follower.acked = max(follower.acked, ends[-1])
        self._ship_to(follower, effects, now_ms)

    def closed(self, channel: ChannelId) -> list[Effect]:
        """Forget a replica; do nothing if the channel is not a replica's."""
        follower = self.followers.pop(channel, None)
        if follower is None:
            return []
        return [Log("info", "replica left", {"peer": follower.peer, "acknowledged": follower.acked})]

    def _begin(self, follower: Follower, end: int, effects: list[Effect], now_ms: int) -> None:
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
            effects.append(self._complain(follower, "replica refused", reason, now_ms))
            # A Holdfast replica derives the problem from it; a Java one notices the mismatch and leaves.
            effects += [SendBytes(follower.channel, [encode_head(own_end, 0)]), CloseChannel(follower.channel)]
            return
        follower.sent = follower.acked = end
        if not self._is_seen:
            self._is_seen = True
            effects.append(WriteFile(SEEN_PATH, b"", is_retried=True))
        effects.append(Log("info", "replica follows", {"peer": follower.peer, "from": end, "behind": confirmed - end}))

    def _complain(self, follower: Follower, event: str, reason: str, now_ms: int) -> Log:
        """Return a log line about a fault of a replica. An error once a minute, as it reconnects again and again."""
        key = (follower.peer.rpartition(":")[0], event)
        is_new = now_ms - self._logged_ms.get(key, -_LOG_AGAIN_MS) >= _LOG_AGAIN_MS
        if is_new:
            self._logged_ms[key] = now_ms
        return Log("error" if is_new else "debug", event, {"peer": follower.peer, "reason": reason})

    # Shipping.

    def ship(self, effects: list[Effect], now_ms: int) -> None:
        """Send all replicas the data confirmed since the last time."""
        for follower in tuple(self.followers.values()):
            self._ship_to(follower, effects, now_ms)

    def _ship_to(self, follower: Follower, effects: list[Effect], now_ms: int) -> None:
        """Send pending data, as much as the window of the replica allows."""
        store = self._store
        if follower.sent < 0 or follower.is_reading or follower.sent >= store.confirmed:
            return
        hot_start = store.confirmed - store.options.hot_window
        until = min(store.confirmed, follower.acked + self._window)
        pieces: list[Piece] = []
        while follower.sent < until:
            position, size = follower.sent, min(STRETCH_MAX, until - follower.sent)
            size = min(size, store.log_file_size - position % store.log_file_size)
            if position < hot_start:
                follower.is_reading = True
                self._errands.work.append(self._read_cold(follower, position, size))
                break
            view = store.view(position, size)
            if view is None:
                effects += self._outrun(follower, now_ms)
                break
            pieces += (encode_head(position, size), view)
            follower.sent += size
        if pieces:
            follower.told_ms = now_ms
            effects.append(SendBytes(follower.channel, pieces))

    def _read_cold(self, follower: Follower, position: int, size: int) -> Procedure[None]:
        """Send a range that may not be in memory, then continue after it."""
        place = self._store.cold_read(position, position + size)
        if place is None:
            self._errands.effects += self._outrun(follower, self._errands.now_ms)
            return
        try:
            data = yield FileRange(*place)
        finally:
            follower.is_reading = False  # After a failed read, too: the next report of the replica repeats it.
        if follower.channel not in self.followers:
            return
        effects, now_ms = self._errands.effects, self._errands.now_ms
        follower.sent += len(data)
        follower.told_ms = now_ms
        effects.append(SendBytes(follower.channel, [encode_head(position, len(data)), data]))
        self._ship_to(follower, effects, now_ms)

    def _outrun(self, follower: Follower, now_ms: int) -> list[Effect]:
        reason = f"the messages from {follower.sent} on are deleted here. Start the replica with an empty folder"
        return [self._complain(follower, "replica too slow", reason, now_ms), CloseChannel(follower.channel)]

    # Time.

    def on_timer(self, name: str, now_ms: int, effects: list[Effect]) -> None:
        """Send heartbeats, and disconnect replicas that send none."""
        assert name == TIMER
        for follower in tuple(self.followers.values()):
            self._log_lag(follower, effects)
            if now_ms - follower.heard_ms >= SILENCE_MAX_MS:
                effects.append(
                    Log("warning", "replica silent", {"peer": follower.peer, "for": now_ms - follower.heard_ms})
                )
                effects.append(CloseChannel(follower.channel))
            elif follower.sent >= 0 and now_ms - follower.told_ms >= LIFE_MS:
                follower.told_ms = now_ms
                effects.append(SendBytes(follower.channel, [encode_head(follower.sent, 0)]))
        if self.followers:
            effects.append(SetTimer(TIMER, now_ms + TICK_MS))

    def _log_lag(self, follower: Follower, effects: list[Effect]) -> None:
        """Log when a replica falls far back, and when it has caught up."""
        behind = self._store.confirmed - follower.acked
        is_far = follower.sent >= 0 and behind > self._options.in_sync_limit
        if is_far == follower.is_far:
            return
        follower.is_far = is_far
        fields: dict[str, object] = {"peer": follower.peer, "behind": behind}
        if is_far:
            reason = (
                "it lacks more than in_sync_limit. Check its disk and the network between: it can never copy messages"
                " that are deleted here first"
            )
            effects.append(Log("warning", "replica far behind", fields | {"reason": reason}))
        else:
            effects.append(Log("info", "replica caught up", fields))
