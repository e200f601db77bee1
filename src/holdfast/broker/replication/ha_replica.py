"""The replica's side of replication: copies the master's log, and verifies that both logs are the same.

    waiting ─ the name server reports the master ─> dialing ─> comparing ─ the same ─> following
       ^                                               │             │                      │
       ├── dialed again after a second ────────────────┴─────────────┴──────────────────────┘
       └── dialed again after half a minute ── ahead, behind, diverged, broken, full: an operator has to act

With a cluster secret, the replica logs in before it reports anything (`stream_login.py`).

The protocol cannot ask whether two logs are the same. So a replica reports an end a little before the real one: it has
the data that it then receives, and compares. A log is append-only, and every record has its position and store time, so
logs that agree there agree before it, too. This works with masters of every kind. After a crash the replica compares
everything that was not known to be on disk; a difference there means torn data, which is copied again.

Invariant: data is only appended, and only once the end of the log was found to be the master's.
Invariant: an end reported to the master is on disk, or, under asynchronous flush, in the log.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from holdfast.access.sessions import ip_of
from holdfast.broker.flow.peer_login import LoginSettings
from holdfast.broker.flow.request import Timers
from holdfast.broker.options import BrokerOptions
from holdfast.broker.replication.ha_master import HEARTBEAT_MS, PURPOSE, SILENCE_MAX_MS
from holdfast.broker.replication.replica_topics import ReplicaTopics
from holdfast.broker.replication.stream_login import LOGIN_MAX_MS, MasterLogin, is_trusted, parse_trusted
from holdfast.machine.component import Component
from holdfast.machine.events import ChannelId
from holdfast.machine.turn import Turn
from holdfast.model.errors import CorruptRecord, DiskFailed, RemoteProtocolError, StoreError
from holdfast.store.base.cold_reads import FileRange
from holdfast.store.log.log_scanner import WalkedRecord, validate_record_at
from holdfast.store.message_store import MessageStore
from holdfast.wire.cluster.ha import LogChunk, LogReader, encode_report

TIMER: Final = "master"
TICK_MS: Final = 1_000
STUCK_RETRY_MS: Final = 30_000
_UNKNOWN_MASTER_MS: Final = 10_000
"""How long a name server may know no master before this is logged."""
OVERLAP: Final = 64 * 1024
# The end of a file may be blank, as long as the record that did not fit. Blanks do not distinguish two logs.
_OVERLAP_FILE_END: Final = 8 * 1024 * 1024
_WARM_SIZE: Final = 4 * 1024 * 1024
_HEARTBEATS_MAX: Final = 2
_POSITION_MAX: Final = 1 << 62

ReplicaState = Literal["waiting", "dialing", "comparing", "following", "ahead", "behind", "diverged", "broken", "full"]

STUCK: Final = frozenset({"ahead", "behind", "diverged", "broken", "full"})
"""States that an operator has to resolve."""

FOREIGN: Final = frozenset({"ahead", "diverged"})
"""States in which this log is not a copy of the master's."""


class HaReplica(Component):
    """Follows the log stream of the master.

    Args:
        options: The settings of the broker.
        store: The copy of the log.
        turn: The turn of the broker.
        login: How to log in at the master; None: the stream begins at once.

    Attributes:
        state: The current state.
        problem: Why it is stuck and what to do about it; empty while it is not.
        master: Address of the master's replication port; None while unknown.
        received_ms: When the master last sent data; None if never.
        needs_tables: The tables of the master, without which its records cannot be interpreted, are not copied yet.
    """

    def __init__(
        self,
        options: BrokerOptions,
        store: MessageStore,
        topics: ReplicaTopics,
        turn: Turn,
        login: LoginSettings | None = None,
    ) -> None:
        self._options = options
        self._login_settings = login
        self._trusted = parse_trusted(options.trusted_brokers)
        self._login: MasterLogin | None = None  # The login in progress.
        self._login_fault = ""  # Why the last login failed.
        self._skips_login = False  # Access control is off here, and the last login failed.
        self._opened_ms = 0
        self._store = store
        self._topics = topics
        self._turn = turn
        self.state: ReplicaState = "waiting"
        self.problem = ""
        self.master: str | None = options.ha_master
        self.received_ms: int | None = None
        self.needs_tables = False
        self._has_resumed = False
        self._channel: ChannelId | None = None
        self._is_dialing = False
        self._is_ignoring = False  # Ignores further data on the channel.
        self._reader = LogReader()
        self._next = 0  # The position of the next data.
        self._compared_end = 0  # Data before it is here already, and is compared; 0 when there is none.
        # Data after it may be torn: written before a crash. Data received since is right.
        self._intact_end = _POSITION_MAX if store.recovered.is_clean else store.recovered.start
        self._heartbeats = 0  # Heartbeats received instead of the data to compare.
        self._durable = int(store.written)
        self._reported = 0
        self._reported_ms = 0
        self._retry_ms = 0
        self._is_missing_logged = False  # A missing master was logged, and it has not been followed since.
        self._began_ms = 0

    # Timer.

    def timers(self) -> Timers:
        """Return the timers of this component, by name."""
        return {TIMER: self.on_timer}

    def start(self) -> None:
        """Start to follow, if this broker is a replica."""
        now_ms = self._turn.now_ms
        self._began_ms = now_ms
        if self._options.is_replica:
            self._turn.set_timer(TIMER, now_ms)

    def on_timer(self) -> None:
        """Dial, send a heartbeat, or disconnect from a silent master."""
        now_ms = self._turn.now_ms
        if self._channel is None:
            if self.master is None and now_ms - self._began_ms >= _UNKNOWN_MASTER_MS:
                reason = (
                    f"no name server knows a master named {self._options.replica_of}: start it, or correct --replica-of"
                )
                self._log_missing("master unknown", {"reason": reason})
            if self.master is not None and not self._is_dialing and now_ms >= self._retry_ms and not self.needs_tables:
                self._is_dialing = True
                self._turn.spawn(self._dial(self.master))
        elif self.received_ms is not None and now_ms - self.received_ms >= SILENCE_MAX_MS:
            self._turn.log("warning", "master silent", master=self.master, **{"for": now_ms - self.received_ms})
            self._turn.close(self._channel)
        elif self._login is not None:
            if now_ms - self._opened_ms >= LOGIN_MAX_MS:
                self._refuse_master("it did not answer the login in time")
        elif now_ms - self._reported_ms >= HEARTBEAT_MS:
            self._report(is_due=True)
        self._turn.set_timer(TIMER, now_ms + TICK_MS)

    def set_master(self, address: str) -> None:
        """Record the address of the master's replication port, as reported by a name server."""
        if self._options.ha_master is None and address and address != self.master:
            self.master = address
            self._retry_ms = 0

    async def _dial(self, address: str) -> None:
        """Read the data to compare, so that it is in memory, then connect."""
        log = self._store.log
        size, start, end = self._store.log_file_size, int(self._store.start), log.written
        intact_end = min(self._intact_end, end)
        begin = max(start, intact_end - (OVERLAP if intact_end % size else _OVERLAP_FILE_END))
        if begin == 0 and end:
            begin = 1  # 0 would mean that the log is empty.
        at = begin
        try:
            while at < end:
                found = log.files.find(at)
                assert found is not None, "the log has no gaps"
                until = min(end, found.start + size, at + _WARM_SIZE)
                await FileRange(found.file, at - found.start, until - found.start)
                at = until
        except DiskFailed as error:
            self._is_dialing = False
            self._mark_stuck("broken", f"the end of the log cannot be read: {error}")
            return
        self._next, self._compared_end = begin, end
        if self.state not in STUCK:
            self.state = "dialing"
        self._turn.open_channel(address, PURPOSE, is_stream=True)

    @property
    def is_following(self) -> bool:
        """Whether this log was compared with the master's, and is a copy of it."""
        return self.state == "following"

    # The channel.

    def opened(self, channel: ChannelId) -> None:
        """Log in, or report where the stream shall begin."""
        self._channel, self._is_dialing = channel, False
        self._reader, self._heartbeats, self._reported, self._is_ignoring = LogReader(), 0, self._next, False
        self.received_ms = self._opened_ms = self._turn.now_ms
        settings, self._login_fault = self._login_settings, ""
        if settings is None or self._skips_login or is_trusted(ip_of(self.master or ""), self._trusted):
            self._skips_login = False
            self._begin(channel)
        else:
            self._login = MasterLogin(settings, self.master or "")
            self._turn.send(channel, self._login.begin())

    def _begin(self, channel: ChannelId) -> None:
        """Report where the stream shall begin."""
        self._reported_ms = self._turn.now_ms
        if self.state not in STUCK:
            self.state = "comparing"
        self._turn.send(channel, [encode_report(self._next)])

    def _continue_login(self, channel: ChannelId, login: MasterLogin, data: bytes | memoryview) -> bytes:
        """Process the master's answer to the login; return what follows it, if it is complete."""
        try:
            outgoing, following = login.advance(data)
        except RemoteProtocolError as error:
            self._refuse_master(str(error))
            return b""
        if outgoing:
            self._turn.send(channel, outgoing)
        if following is None:
            return b""
        self._login = None
        self._begin(channel)
        return following

    def _refuse_master(self, reason: str) -> None:
        """Close the connection to a master that has not proven to be one."""
        assert self._channel is not None
        self._login_fault, self._is_ignoring = f"the login failed: {reason}", True
        self._turn.close(self._channel)

    def failed(self, reason: str) -> None:
        """Record that the master cannot be reached."""
        self._is_dialing = False
        self._retry_ms = self._turn.now_ms + TICK_MS
        self._lose(reason)

    def channel_closed(self, channel: ChannelId) -> None:
        """Record that the stream has ended; do nothing for any other channel."""
        if channel != self._channel:
            return
        reason = self._login_fault or "the connection was closed"
        if self._login is not None:
            self._login = None
            reason = self._login_fault or "it closed the connection during the login"
            self._skips_login = self._login_settings is not None and not self._login_settings.is_required
        self._channel = None
        self._retry_ms = max(self._retry_ms, self._turn.now_ms + TICK_MS)
        self._lose(reason)

    def _lose(self, reason: str) -> None:
        was, self.state = self.state, self.state if self.state in STUCK else "waiting"
        if was in STUCK:
            return
        fields: dict[str, object] = {"master": self.master, "reason": reason, "end": self._store.written}
        if was == "following":
            self._is_missing_logged = False
            self._log_missing("master lost", fields)
            return
        hint = "retrying every second. Check that the master is up, and that this is its replication port (ha_port)"
        self._log_missing("master not reached", fields | {"hint": hint})

    def _log_missing(self, event: str, fields: dict[str, object]) -> None:
        """Log that the master is missing, once until it is followed again."""
        if self._is_missing_logged:
            return
        self._is_missing_logged = True
        self._turn.log("warning", event, **fields)

    def received(self, channel: ChannelId, data: bytes | memoryview) -> None:
        """Compare data with the log, then append the new part; at first, complete the login."""
        if channel != self._channel or self._is_ignoring:
            return
        self.received_ms = self._turn.now_ms
        if self._login is None:
            self._follow(channel, data)
        elif following := self._continue_login(channel, self._login, data):
            self._follow(channel, following)

    def _follow(self, channel: ChannelId, data: bytes | memoryview) -> None:
        was = self.state
        try:
            for chunk in self._reader.feed(data):
                if not self._process(chunk):
                    break
        except RemoteProtocolError as error:
            self._mark_stuck("broken", str(error))
        except CorruptRecord as error:
            self._mark_stuck("broken", _no_record(error))
        except (StoreError, DiskFailed) as error:
            self._mark_stuck("broken", str(error))
        self._log_damages()
        if self._is_ignoring:
            self._turn.close(channel)
        elif self.state != was and self.state == "following":
            self._turn.log("info", "following", master=self.master, **{"from": self._next})
        if self._options.flush != "sync":
            self._durable = self._store.log.written
        self._report()

    def _log_damages(self) -> None:
        damages, self._store.replica.damages = self._store.replica.damages, []
        for damage in damages:
            self._turn.log("error", "log damaged", **msgspec.structs.asdict(damage))

    def synced(self, position: int) -> None:
        """Report to the master how far the log is on disk now."""
        self._durable = min(max(self._durable, position), self._store.log.written)
        self._report()

    def _report(self, *, is_due: bool = False) -> None:
        if self._channel is None or self._is_ignoring or self._login is not None:
            return
        end = min(self._durable, self._next)
        if is_due or end > self._reported:
            self._reported, self._reported_ms = end, self._turn.now_ms
            self._turn.send(self._channel, [encode_report(end)])

    @property
    def durable(self) -> int:
        """Up to where the copy is as safe as `flush` requires."""
        return self._durable

    def pop_resumed(self) -> bool:
        """Return whether records that waited for their topics continued since the last call."""
        has_resumed, self._has_resumed = self._has_resumed, False
        return has_resumed

    def resume_waiting(self) -> None:
        """Continue with records that waited for their topics. They are confirmed when the event writes its records."""
        self._has_resumed = True
        try:
            self._store.index_copied(self._topics.is_known)
        except CorruptRecord as error:
            self._mark_stuck("broken", _no_record(error))
        except StoreError as error:
            self._mark_stuck("broken", str(error))

    # Received data.

    def _process(self, chunk: LogChunk) -> bool:
        """Process one chunk. Return False if the rest must be ignored."""
        position, data = chunk.position, chunk.data
        if not data and position == self._next:
            self._heartbeats += 1
            if self._next < self._compared_end and self._heartbeats >= _HEARTBEATS_MAX:
                return self._handle_mismatch(position)
            self._follow_if_compared()
            return True
        if position != self._next:
            if self._store.log.written != self._store.start or not data:
                return self._handle_mismatch(position)
            self._store.begin_at(position)
            self._next = self._durable = position
        if not self._store.reserve_space():
            self._mark_stuck("full", "the disk is nearly full: free disk space, and the copy continues")
            return False
        known = min(len(data), max(0, self._compared_end - position))
        if known and (differs := self._compare(position, data[:known])) is not None:
            if not self._is_torn(differs):
                self._mark_stuck("diverged", _diverged(differs))
                return False
            self._store.truncate(differs)
            self._durable, self._compared_end = min(self._durable, differs), differs
            fields = {"from": differs, "reason": "a crash tore the end of this copy: it is copied again"}
            self._turn.log("warning", "end of the log copy discarded", **fields)
            known = differs - position
        self._next += len(data)
        self._follow_if_compared()
        if len(data) > known:
            self._store.append_copied(position + known, data[known:], self._topics.is_known)
        return True

    def _compare(self, position: int, data: memoryview) -> int | None:
        """Return the first position where *data* differs from the log; None if all of it is the same."""
        size, at = self._store.log_file_size, 0
        while at < len(data):
            start = (position + at) % size
            received = data[at : at + size - start]
            own = self._store.log.files.files[(position + at) // size].view(start, start + len(received))
            if own != received:
                return position + at + next(n for n in range(len(received)) if own[n] != received[n])
            at += len(received)
        return None

    def _is_torn(self, position: int) -> bool:
        """Return whether the data at *position* may not have been on disk when this broker last ended.

        Something before it must be the same: otherwise this is another log that happens to be torn.
        """
        if position < self._intact_end:
            return False
        start = int(self._store.start)
        first = validate_record_at(self._store.log.files, start)
        return self._intact_end > start or (isinstance(first, WalkedRecord) and position >= start + first.size)

    def _follow_if_compared(self) -> None:
        """Follow, once everything was compared: this log is a copy of the master's."""
        if self._next >= self._compared_end:
            self._intact_end, self._compared_end = _POSITION_MAX, 0
            self.state, self.problem, self._is_missing_logged = "following", "", False

    def _handle_mismatch(self, position: int) -> bool:
        """Handle a master that continues at another position than this log."""
        end = self._store.log.written
        if position > self._next:
            self._mark_stuck(
                "behind",
                f"this log ends at {end}, and the master has nothing before {position}: the messages between are"
                " deleted there. Stop this replica, put its folder away, and start it with an empty one",
            )
        else:
            self._mark_stuck(
                "ahead",
                f"this log ends at {end}, and the master's at {position}: it is another log, or the master lost its"
                " end. If the master is right, stop this replica, put its folder away, and start it with an empty one;"
                " if this copy is right, stop the master and move its queues by force",
            )
        return False

    def _mark_stuck(self, state: ReplicaState, problem: str) -> None:
        """Stop following until an operator has acted, and log the problem."""
        if (self.state, self.problem) != (state, problem):
            self._turn.log("error", "not following", master=self.master, reason=problem)
        self.state, self.problem, self._is_ignoring = state, problem, True
        self._retry_ms = self._turn.now_ms + STUCK_RETRY_MS


def _no_record(error: CorruptRecord) -> str:
    return (
        f"the data that the master sent from {error.position} on is no record ({error.reason}). Check the master's"
        " disk, and that its log_file_size is the same as here"
    )


def _diverged(position: int) -> str:
    return (
        f"this log is not a copy of the master's: they differ at position {position}. It was copied from elsewhere, or"
        " one of the two was restored from a backup. Stop this replica, put its folder away, and start it with an"
        " empty one"
    )
