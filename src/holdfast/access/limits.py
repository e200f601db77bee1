"""Limits for the clients of a role, around the role.

    event ─> role ─> effects ─┬─ a channel was opened: too many of its address, or unproven? ─> close it, or the oldest
                              ├─ frames were read, answers sent: charged to the user ─┬─ within its rate
                              │                                                       └─ above ─> throttle it, or
                              │                                                                   pause reading
                              └─ the time of an unproven channel is over ─> close it

A channel is *unproven* until its peer has proven its identity: by a login, a signature, or a trusted address. With
access control there is a limit for such channels, and for their time.

The rates of a user count for all its channels together. Servers of the cluster are not charged. So a relayed request
is charged once, by the broker to which the client is connected. With access control, clients without a user are
charged by their address; without it they might be servers, and are not charged.

A client that has announced it with its login is *throttled*: asked to send nothing more for a time (7063). Its
connection is read on, because the requests that are on their way would otherwise time out. All other clients are
paused: their connections are read later. So is a client that still sends long after it was asked not to.

The role knows nothing of this. Where no limit is set, nothing is around it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final

from holdfast.access.sessions import Session, Sessions, ip_of
from holdfast.machine.effects import CloseChannel, Effect, Log, PauseReading, SendBytes, SetTimer
from holdfast.machine.events import (
    ChannelClosed,
    ChannelId,
    ChannelOpened,
    Event,
    FramesReceived,
    ReadsReceived,
    TimerFired,
)
from holdfast.machine.machine import Machine
from holdfast.machine.sample import Sample
from holdfast.machine.security_options import SecurityOptions
from holdfast.model.access.identity import IdentityKind
from holdfast.wire.access.throttle import WAIT_MS_MAX, encode_throttle

UNPROVEN_TIMER: Final = "unproven channels"
CONNECTION_REFUSED: Final = "connection refused"
"""The event of the log line for each connection that a limit closed."""
BURST_MS: Final = 1_000  # A user may use the rate of this time at once.
PAUSE_MAX_MS: Final = WAIT_MS_MAX  # Longer, and peers would regard the connection as lost.
THROTTLE_GRACE_MS: Final = 2_000  # What a throttled client sends in this time may have been on its way.
BUCKETS_MAX: Final = 10_000
_FRAME_OVERHEAD: Final = 8


class Bucket:
    """What a user has used.

    Each unit pushes a time into the future. The distance of that time from now is what the user owes.

    Attributes:
        requests_ms: When the requests of the user are paid.
        bytes_ms: When its bytes are paid.
    """

    __slots__ = ("bytes_ms", "requests_ms")

    def __init__(self) -> None:
        self.requests_ms = 0.0
        self.bytes_ms = 0.0


class _Account:
    """Who pays for a channel, as far as known.

    Attributes:
        ip: The address of the peer.
        session: The sender that `bucket` belongs to.
        bucket: None if the channel is not charged.
        throttled_ms: When the client was first throttled, of the throttles without a pause between them.
        until_ms: The end of the last throttle.
        is_disobedient: Whether the client sent something long after it was throttled.
    """

    __slots__ = ("bucket", "ip", "is_disobedient", "session", "throttled_ms", "until_ms")

    def __init__(self, ip: str, bucket: Bucket | None) -> None:
        self.ip = ip
        self.session: Session | None = None
        self.bucket = bucket
        self.throttled_ms = 0
        self.until_ms = 0
        self.is_disobedient = False

    def note_read(self, now_ms: int) -> None:
        """Record that the client has sent something."""
        self.is_disobedient = self.throttled_ms + THROTTLE_GRACE_MS < now_ms < self.until_ms

    def note_throttle(self, now_ms: int, until_ms: int) -> None:
        """Record that the client is asked to wait."""
        if now_ms >= self.until_ms:
            self.throttled_ms = now_ms
        self.until_ms = until_ms


class LimitedRole:
    """A role whose clients are limited.

    Args:
        role: The role.
        options: Its limits.
        sessions: The senders on its channels.
    """

    def __init__(self, role: Machine, options: SecurityOptions, sessions: Sessions) -> None:
        self._role = role
        self._options = options
        self._sessions = sessions
        self._accounts: dict[ChannelId, _Account] = {}
        self._channels_of: Counter[str] = Counter()  # by address
        self._buckets: dict[str, Bucket] = {}  # of users by name, of others by a space and their address
        self._is_charging = bool(options.user_requests_max or options.user_bytes_max)
        self._request_ms = 1000 / options.user_requests_max if options.user_requests_max else 0.0
        self._byte_ms = 1000 / options.user_bytes_max if options.user_bytes_max else 0.0
        self._is_timer_set = False
        self._closed: Counter[str] = Counter()
        self._waits_ms: dict[ChannelId, int] = {}  # of this event: the channels of users above their rate
        self._pauses = 0
        self._paused_ms = 0
        self._throttles = 0
        self._throttled_ms = 0
        self._handlers: dict[type, Callable[[Any, list[Effect]], None]] = {
            ChannelOpened: self._opened,
            ChannelClosed: self._forget,
        }
        if self._is_charging:
            self._handlers[FramesReceived] = self._charge_read
            self._handlers[ReadsReceived] = self._charge_reads

    @staticmethod
    def is_needed(options: SecurityOptions) -> bool:
        """Return whether any limit is set."""
        return bool(
            options.auth or options.connections_per_address_max or options.user_requests_max or options.user_bytes_max
        )

    def handle(self, event: Event) -> list[Effect]:
        """Let the role process *event*, and apply the limits."""
        kind = type(event)
        if kind is TimerFired and event.name == UNPROVEN_TIMER:  # type: ignore[union-attr]
            return self._close_expired(event.now_ms)
        effects = self._role.handle(event)
        if self._is_charging and effects:
            self._charge_answers(event.now_ms, effects)
        handler = self._handlers.get(kind)
        if handler is not None:
            handler(event, effects)
        if self._waits_ms:
            self._impose_waits(event.now_ms, effects)
        return effects

    def samples(self) -> Iterable[Sample]:
        """Yield the present metrics of the limits."""
        for reason in ("address", "crowded", "slow"):
            about = "connections that a limit closed"
            yield Sample("connections_limited", "counter", about, self._closed[reason], {"reason": reason})
        about = "connections without a proven identity, with access control"
        yield Sample("connections_unproven", "gauge", about, len(self._sessions.unproven))
        yield Sample("user_pauses", "counter", "pauses in reading from users above their rate", self._pauses)
        yield Sample("user_paused_ms", "counter", "milliseconds of these pauses", self._paused_ms)
        about = "throttles: clients of users above their rate were asked to wait"
        yield Sample("user_throttles", "counter", about, self._throttles)
        yield Sample("user_throttled_ms", "counter", "milliseconds of these throttles", self._throttled_ms)

    # Connections.

    def _opened(self, event: ChannelOpened, effects: list[Effect]) -> None:
        if event.dialed is not None:
            return
        channel, options, ip = event.channel, self._options, ip_of(event.peer)
        self._channels_of[ip] += 1
        self._accounts[channel] = _Account(ip, None if event.purpose else self._find_bucket(ip, None))
        if 0 < options.connections_per_address_max < self._channels_of[ip]:
            self._close(channel, "address", f"its address has {options.connections_per_address_max} already", effects)
        elif options.auth:
            unproven = self._sessions.unproven
            if len(unproven) >= options.unproven_connections_max:
                reason = f"{len(unproven)} connections had no proven identity, and this one began first"
                self._close(next(iter(unproven)), "crowded", reason, effects)
            unproven[channel] = event.now_ms + options.unproven_timeout_ms
            if not self._is_timer_set:
                self._is_timer_set = True
                effects.append(SetTimer(UNPROVEN_TIMER, unproven[channel]))

    def _close_expired(self, now_ms: int) -> list[Effect]:
        """Close the channels that have been unproven for too long."""
        effects: list[Effect] = []
        unproven = self._sessions.unproven
        for channel, end_ms in list(unproven.items()):
            if end_ms > now_ms:
                break
            reason = f"its peer had not proven its identity after {self._options.unproven_timeout_ms} ms"
            self._close(channel, "slow", reason, effects)
        self._is_timer_set = bool(unproven)
        if unproven:
            effects.append(SetTimer(UNPROVEN_TIMER, next(iter(unproven.values()))))
        return effects

    def _close(self, channel: ChannelId, kind: str, reason: str, effects: list[Effect]) -> None:
        self._sessions.unproven.pop(channel, None)
        self._closed[kind] += 1
        peer = self._sessions.address_of(channel)
        effects += (Log("warning", CONNECTION_REFUSED, {"peer": peer, "reason": reason}), CloseChannel(channel))

    def _forget(self, event: ChannelClosed, _effects: list[Effect]) -> None:
        account = self._accounts.pop(event.channel, None)
        if account is None:
            return
        self._sessions.unproven.pop(event.channel, None)
        self._channels_of[account.ip] -= 1
        if not self._channels_of[account.ip]:
            del self._channels_of[account.ip]

    # Rates.

    def _charge_reads(self, event: ReadsReceived, effects: list[Effect]) -> None:
        for read in event.reads:
            self._charge_read(read, effects)

    def _charge_read(self, read: FramesReceived, _effects: list[Effect]) -> None:
        frames = read.frames
        account = self._accounts.get(read.channel)
        if account is not None:
            account.note_read(read.now_ms)
        size = 0
        if self._byte_ms:
            size = sum([len(frame.header) + len(frame.body) for frame in frames]) + _FRAME_OVERHEAD * len(frames)
        self._charge(read.channel, len(frames), size, read.now_ms)

    def _charge_answers(self, now_ms: int, effects: list[Effect]) -> None:
        """Charge the bytes that are sent to users."""
        if not self._byte_ms:
            return
        for effect in effects:
            if type(effect) is SendBytes:
                self._charge(effect.channel, 0, sum(map(len, effect.pieces)), now_ms)

    def _charge(self, channel: ChannelId, requests: int, size: int, now_ms: int) -> None:
        """Charge what was read from a channel or sent to it; note its wait if its user is above the rate."""
        account = self._accounts.get(channel)
        if account is None:
            return  # This role opened it, or it has closed.
        session = self._sessions.last_sender(channel)
        if session is not account.session:
            account.session, account.bucket = session, self._find_bucket(account.ip, session)
        bucket = account.bucket
        if bucket is None:
            return
        allowed, most = now_ms + BURST_MS, now_ms + BURST_MS + PAUSE_MAX_MS
        bucket.requests_ms = min(max(bucket.requests_ms, now_ms) + requests * self._request_ms, most)
        bucket.bytes_ms = min(max(bucket.bytes_ms, now_ms) + size * self._byte_ms, most)
        wait_ms = int(max(bucket.requests_ms, bucket.bytes_ms)) - allowed
        if wait_ms > 0:
            self._waits_ms[channel] = wait_ms

    def _impose_waits(self, now_ms: int, effects: list[Effect]) -> None:
        """Throttle or pause the channels of this event whose users are above their rate."""
        throttles: list[Effect] = []
        for channel, wait_ms in self._waits_ms.items():
            account = self._accounts[channel]
            if self._sessions.accepts_throttle(channel) and not account.is_disobedient:
                self._throttles += 1
                self._throttled_ms += wait_ms
                account.note_throttle(now_ms, now_ms + wait_ms)
                throttles.append(SendBytes(channel, (encode_throttle(wait_ms),)))
            else:
                self._pauses += 1
                self._paused_ms += wait_ms
                effects.append(PauseReading(channel, now_ms + wait_ms))
        self._waits_ms.clear()
        # Before the answers: a client that has an answer may send its next request at once.
        effects[:0] = throttles

    def _find_bucket(self, ip: str, session: Session | None) -> Bucket | None:
        """Return what *session* has used, or a client without one at *ip*; None if it is not charged."""
        if not self._is_charging or (session is not None and session.kind is IdentityKind.CLUSTER):
            return None
        if session is None and not self._options.auth:
            return None
        key = f" {ip}" if session is None else session.user
        bucket = self._buckets.pop(key, None) or Bucket()
        self._buckets[key] = bucket  # The one that was looked up last is the last.
        if len(self._buckets) > BUCKETS_MAX:
            del self._buckets[next(iter(self._buckets))]
        return bucket
