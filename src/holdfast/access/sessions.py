"""Who sends on each channel.

    a login on the channel ──────────> its session, for every frame
    no login, the frame is signed ───> the session of that user and secret on this channel
    a relayed or held frame ─────────> the session of its sender, even if another user logged in since
    none of these ───────────────────> anonymous

A session ends when its user is deleted or disabled, or no longer has the secret that was used. So everything that a
session remembers is valid for one version of the directory only. If the user has proven another secret on the channel
since, requests that wait there continue with it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from holdfast.access.authority import Authority
from holdfast.machine.events import ChannelId
from holdfast.model.access.identity import Identity, IdentityKind
from holdfast.model.access.user import CLUSTER_USER
from holdfast.wire.access.signature import ACCESS_KEY, verify, verify_fields
from holdfast.wire.frames.command import Command, decode_fields
from holdfast.wire.frames.frame import JSON, Frame

BAD_SIGNATURE: Final = "check signature failed."
NO_USER: Final = "username cannot be null."
SIGNERS_MAX: Final = 64  # users that are remembered for each channel
VOUCHED_MAX: Final = 4_096  # senders of relayed requests that are remembered
NAME_SIZE_MAX: Final = 255  # of a user name in an answer or a log line


class Session(Identity):
    """A sender that has proven who it is, with a cache of its permissions.

    Attributes:
        ip: The address of the client without its port; rules may name it.
        secret: The secret of its login or signature; None if another server vouched for it.
        may_all: It is a server or a Super user.
        version: The version of the directory that everything here is valid for; -1: none yet.
        fault: Why the session is not valid; None if it is.
        sendable: Topics that exist and that it may send to.
        pullable: Groups and topics that it may pull.
        visible: Topics whose routes it may see.
    """

    __slots__ = ("fault", "ip", "may_all", "pullable", "secret", "sendable", "topics_version", "version", "visible")

    def __init__(self, kind: IdentityKind, user: str, address: str, secret: str | None = None) -> None:
        super().__init__(kind, user, address)
        self.ip = ip_of(address)
        self.secret = secret
        self.may_all = False
        self.version = -1
        self.fault: str | None = None
        self.topics_version: object = None
        self.sendable: set[str] = set()
        self.pullable: set[tuple[str, str]] = set()
        self.visible: set[str] = set()

    def forget(self) -> None:
        """Clear the cache of its permissions."""
        self.sendable.clear()
        self.pullable.clear()
        self.visible.clear()


class _Channel:
    """One connection, and who uses it.

    Attributes:
        login: Who has logged in.
        signer: The user whose signature was verified last.
        signers: The users whose signatures were verified, by name.
        accepts_throttle: Whether the client that has logged in obeys throttles.
    """

    __slots__ = ("accepts_throttle", "address", "channel", "login", "signer", "signers")

    def __init__(self, channel: ChannelId, address: str) -> None:
        self.channel = channel
        self.address = address
        self.login: Session | None = None
        self.signer: Session | None = None
        self.signers: OrderedDict[str, Session] = OrderedDict()
        self.accepts_throttle = False


class Sessions:
    """The senders on all channels.

    Attributes:
        signatures_verified: How many signatures were right.
        signatures_refused: How many signatures were wrong, or of users that may not sign.
        unproven: The accepted channels whose peers have not proven their identity, with the time until which they may
            do so; ordered by that time. `LimitedRole` adds them.
    """

    def __init__(self, authority: Authority) -> None:
        self._authority = authority
        self._channels: dict[ChannelId, _Channel] = {}
        self._vouched: OrderedDict[tuple[str, str], Session] = OrderedDict()
        self._assumed: Session | None = None
        self.signatures_verified = 0
        self.signatures_refused = 0
        self.unproven: dict[ChannelId, int] = {}

    # Channels.

    def open(self, channel: ChannelId, address: str) -> None:
        """Register a connection from, or to, *address*."""
        self._channels[channel] = _Channel(channel, address)

    def close(self, channel: ChannelId) -> None:
        """Forget a connection."""
        self._channels.pop(channel, None)

    def log_in(self, channel: ChannelId, user: str, secret: str, *, accepts_throttle: bool = False) -> None:
        """Let all frames of *channel* be those of *user*, who has proven to know *secret*."""
        known = self._channels.get(channel)
        if known is not None:
            known.accepts_throttle = accepts_throttle
            known.login = self.renew(Session(IdentityKind.USER, user, known.address, secret))
            self.note_proven(channel)

    def trust(self, channel: ChannelId) -> None:
        """Let all frames of *channel* be those of a server, which has proven that it is one."""
        known = self._channels.get(channel)
        if known is not None:
            known.login = self.renew(Session(IdentityKind.CLUSTER, CLUSTER_USER, known.address))
            self.note_proven(channel)

    def note_proven(self, channel: ChannelId) -> None:
        """Record that the peer of a channel has proven its identity, or need not."""
        self.unproven.pop(channel, None)

    def accepts_throttle(self, channel: ChannelId) -> bool:
        """Return whether the client on *channel* has announced with its login that it obeys throttles."""
        known = self._channels.get(channel)
        return known is not None and known.accepts_throttle

    def address_of(self, channel: ChannelId) -> str:
        """Return `host:port` of the peer; empty if it has left."""
        known = self._channels.get(channel)
        return "" if known is None else known.address

    # Senders.

    def last_sender(self, channel: ChannelId) -> Session | None:
        """Return who sent on *channel* last, as far as that was proven; None if it was not."""
        known = self._channels.get(channel)
        return None if known is None else known.login or known.signer

    def find_login(self, channel: ChannelId) -> Session | None:
        """Return who sends on *channel* whatever its frames say, or None if that depends on each frame."""
        if self._assumed is not None:
            return self.succeed(channel, self._assumed)
        known = self._channels.get(channel)
        session = None if known is None else known.login
        return None if session is None else self.renew(session)

    def find_signer(self, channel: ChannelId, frame: Frame) -> Session | None:
        """Return who signed a frame; None if that is not sure without the general path, which says why."""
        fields = decode_fields(frame.header) if frame.serializer == JSON else None
        known = self._channels.get(channel)
        if fields is None or known is None:
            return None
        user = self._authority.find_user(fields.get(ACCESS_KEY, ""))
        if user is None or not user.is_enabled:
            return None
        for secret in user.secrets:
            if verify_fields(fields, frame.body, secret.encode()):
                self.signatures_verified += 1
                return self._signer(known, user.name, secret)
        return None

    def identify(self, channel: ChannelId, command: Command) -> Session | str:
        """Return who sends a request, or why that is not known: upstream's text."""
        session = self.find_login(channel)
        known = self._channels.get(channel)
        if session is None and known is not None:
            found = self._identify_frame(known, command)
            if isinstance(found, str):
                return found
            session = found
        if session is None:
            return NO_USER
        return session if session.fault is None else session.fault

    def _identify_frame(self, known: _Channel, command: Command) -> Session | str:
        authority, ip = self._authority, ip_of(known.address)
        name = command.fields.get(ACCESS_KEY, "")
        if authority.allows_everything(ip):
            self.note_proven(known.channel)
            return self.renew(Session(IdentityKind.ANONYMOUS, name[:NAME_SIZE_MAX], known.address))
        if not name:
            return NO_USER
        user = authority.find_user(name)
        if user is None or not user.is_enabled:
            self.signatures_refused += 1
            return _absence(name, is_known=user is not None)
        if authority.needs_no_signature(name, ip):
            return self._signer(known, name, user.secrets[0])
        for secret in user.secrets:
            if verify(command, (secret.encode(),)):
                self.signatures_verified += 1
                return self._signer(known, name, secret)
        self.signatures_refused += 1
        return BAD_SIGNATURE

    def _signer(self, known: _Channel, user: str, secret: str) -> Session:
        """Return the session of a user whose signature was verified: the one before, if the secret is the same."""
        session = known.signers.get(user)
        if session is None or session.secret != secret:
            session = known.signers[user] = Session(IdentityKind.USER, user, known.address, secret)
            if len(known.signers) > SIGNERS_MAX:
                known.signers.popitem(last=False)
            self.note_proven(known.channel)
        known.signer = session
        return self.renew(session)

    # Frames that were not just read.

    def vouch(self, user: str, address: str) -> Session:
        """Return the sender of requests that another server relays, and vouches for. An empty name is anonymous."""
        session = self._vouched.get((user, address))
        if session is None:
            kind = IdentityKind.CLUSTER if user == CLUSTER_USER else IdentityKind.USER
            session = self._vouched[user, address] = Session(kind if user else IdentityKind.ANONYMOUS, user, address)
            if len(self._vouched) > VOUCHED_MAX:
                self._vouched.popitem(last=False)
        else:
            self._vouched.move_to_end((user, address))
        return self.renew(session)

    @contextmanager
    def assuming(self, sender: Identity | None) -> Iterator[None]:
        """Let *sender* be who sends on every channel, while frames that it sent before are processed."""
        self._assumed = sender if isinstance(sender, Session) else None
        try:
            yield
        finally:
            self._assumed = None

    def succeed(self, channel: ChannelId, session: Session) -> Session:
        """Return *session*; if its secret has ended, the one with which its user has proven who it is there since.

        A client changes its secret while its requests wait.
        """
        known = self._channels.get(channel)
        if self.renew(session).fault is None or session.secret is None or known is None:
            return session
        for other in (known.login, known.signers.get(session.user)):
            if other is not None and other.user == session.user and self.renew(other).fault is None:
                return other
        return session

    def renew(self, session: Session) -> Session:
        """Return *session*, valid for the present version of the directory, or with the reason why it is not."""
        version = self._authority.version
        if session.version != version:
            session.version = version
            session.forget()
            session.fault, session.may_all = self._examine(session)
        return session

    def _examine(self, session: Session) -> tuple[str | None, bool]:
        """Return why a session is not valid, and whether it may do everything."""
        if session.kind is IdentityKind.CLUSTER:
            return None, True
        if session.kind is IdentityKind.ANONYMOUS:
            is_allowed = self._authority.allows_everything(session.ip)
            return None if is_allowed else NO_USER, is_allowed
        user = self._authority.find_user(session.user)
        if user is None or not user.is_enabled:
            return _absence(session.user, is_known=user is not None), False
        if session.secret is not None and session.secret not in user.secrets:
            return BAD_SIGNATURE, False
        return None, user.is_super


def ip_of(address: str) -> str:
    """Return the host of `host:port`, without the brackets of an IPv6 address."""
    return address.rpartition(":")[0].strip("[]")


def _absence(name: str, *, is_known: bool) -> str:
    return f"User:{name[:NAME_SIZE_MAX]} is {'disabled' if is_known else 'not found'}."
