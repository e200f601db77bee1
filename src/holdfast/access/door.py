"""The door of a role: every request passes it before its handler gets it.

    request ─> who sends it? ─┬─ not proven ──────────────────────────────┐
                              ├─ a server, or a Super user ─> admitted    ├─> refused, counted, logged
                              └─ a user ─> all permissions of its row? ─┬─ no
                                                                        └─ yes ─> admitted

The hot paths of sends, pulls and route queries ask for a whole run, and get "surely" or "not surely": one look-up for
each frame, in the session's cache of permissions. Frames that are not surely admitted are processed
one by one, so that a refused one does not affect the others.

With access control off the door is not asked, except who sends a request that is relayed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

import msgspec

from holdfast.access.authority import Authority
from holdfast.access.sessions import NAME_SIZE_MAX, NO_USER, Session, Sessions
from holdfast.machine.component import Component
from holdfast.machine.effects import AUDIT_KINDS, AuditKind
from holdfast.machine.events import ChannelId
from holdfast.machine.request import Refusal, Request
from holdfast.machine.sample import Sample
from holdfast.machine.turn import Turn
from holdfast.model.access.identity import ANONYMOUS, Identity, IdentityKind
from holdfast.model.access.resource import THIS_CLUSTER, Action, Permission, Permissions
from holdfast.wire.access.signature import ACCESS_KEY
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.frame import Frame
from holdfast.wire.requests.permissions import PUBLIC, PULL, SEND, Rule
from holdfast.wire.requests.pull import PullFields, PullHeader
from holdfast.wire.requests.send import SendHeader
from holdfast.wire.requests.table import NAME_SERVER_REQUESTS, RequestSpec

REFUSED: Final = "request refused"
"""The event of the log line for each refusal."""
KNOWN_MAX: Final = 10_000  # topics, or groups with topics, that a session remembers as permitted
TEXT_MAX: Final = 1_000  # of a reason, which may contain a name of any length
_MAY_CHANGE: Final = (Permission(THIS_CLUSTER, frozenset({Action.UPDATE})),)
_ROUTE_RULE: Final = NAME_SERVER_REQUESTS[105].rule


class Topics(Protocol):
    """The topics of a broker, as far as sends depend on them.

    Attributes:
        data_version: Another object after every change.
    """

    data_version: Any

    def find(self, name: str) -> object | None:
        """Return the topic *name*, or None if there is none."""


class _NoTopics:
    """The topics of a role that accepts no sends."""

    data_version: Any = None

    def find(self, name: str) -> object | None:
        """Return None."""


class Door(Component):
    """Admits or refuses the requests of a role.

    Args:
        role: The first word of the names of metrics.
        is_enabled: Whether access control is on.
        sessions: The senders on all channels.
        authority: What they may do.
        turn: The turn of the role.
        topics: The topics of a broker; None for a name server, which accepts no sends.

    Attributes:
        is_enabled: Whether access control is on. If it is off, callers ask nothing.
        refusals: How many requests were refused.
    """

    def __init__(
        self,
        role: str,
        *,
        is_enabled: bool,
        sessions: Sessions,
        authority: Authority,
        turn: Turn,
        topics: Topics | None = None,
    ) -> None:
        self._role = role
        self.is_enabled = is_enabled
        self._sessions = sessions
        self._authority = authority
        self._turn = turn
        self._topics: Topics = topics or _NoTopics()
        self.refusals = 0

    @property
    def audited(self) -> Counter[AuditKind]:
        """How many audit lines of each kind there were."""
        return self._turn.audited

    # Channels.

    def channel_opened(self, channel: ChannelId, peer: str) -> None:
        """Register a connection."""
        self._sessions.open(channel, peer)

    def channel_closed(self, channel: ChannelId) -> None:
        """Forget a connection."""
        self._sessions.close(channel)

    def trust(self, channel: ChannelId) -> None:
        """Let all requests on a channel be those of a server.

        This role opened the connection, and its peer has proven to know the secret of the cluster.
        """
        self._sessions.trust(channel)

    def note_proven(self, channel: ChannelId) -> None:
        """Record that the peer of *channel* is known by its address, and has to prove nothing."""
        self._sessions.note_proven(channel)

    # Requests.

    def admit(
        self,
        command: Command,
        spec: RequestSpec,
        header: msgspec.Struct,
        channel: ChannelId,
        further: Permissions = (),
    ) -> Identity | Refusal:
        """Return who sends a request, or why it is refused.

        Args:
            command: The request.
            spec: Its row in the table of requests.
            header: Its decoded fields.
            channel: Where it was read.
            further: Permissions that it needs besides those of its row.

        Raises:
            RemoteProtocolError: its body cannot be read.
        """
        sender = self._sessions.identify(channel, command)
        if spec.rule is PUBLIC:
            return ANONYMOUS if isinstance(sender, str) else sender
        if isinstance(sender, str):
            name = command.fields.get(ACCESS_KEY, "")[:NAME_SIZE_MAX]
            return self.refuse(
                sender, command.code, Identity(IdentityKind.ANONYMOUS, name, self._sessions.address_of(channel))
            )
        if sender.may_all:
            return sender
        reason = self._find_reason(sender, (*spec.rule.find(header, command.body), *further))
        return sender if reason is None else self.refuse(reason, command.code, sender)

    def identity_of(self, channel: ChannelId, command: Command) -> Identity:
        """Return who sends a request; anonymous if that is not proven. Does so with access control off, too."""
        sender = self._sessions.identify(channel, command)
        if isinstance(sender, str):
            return Identity(IdentityKind.ANONYMOUS, "", self._sessions.address_of(channel))
        return sender

    def guard_change(self, request: Request) -> Refusal | None:
        """Return why a change of users or rules is refused although access control is off, or None.

        Any client could otherwise prepare a user, or rules, for the time when it is on. Before there is an
        administrator, every client may: none could prove to be one.
        """
        if self.is_enabled or not self._authority.has_administrator:
            return None
        sender, code = self._sessions.identify(request.channel, request.command), request.command.code
        if isinstance(sender, str):
            return self.refuse(sender, code, request.sender)
        reason = self._find_reason(sender, _MAY_CHANGE)
        return None if reason is None else self.refuse(reason, code, sender)

    def find_refusal(
        self, sender: Identity, permissions: Iterable[Permission], code: int, channel: ChannelId | None = None
    ) -> Refusal | None:
        """Return why *sender* may not do something that only became clear while its request was handled, or None.

        Args:
            sender: Who sent the request.
            permissions: What it needs.
            code: The code of the request.
            channel: Where it waited; None if it did not.
        """
        if not self.is_enabled:
            return None
        if not isinstance(sender, Session):
            return self.refuse(NO_USER, code, sender)
        session = self._sessions.renew(sender) if channel is None else self._sessions.succeed(channel, sender)
        reason = session.fault if session.fault is not None else self._find_reason(session, permissions)
        return None if reason is None else self.refuse(reason, code, session)

    def permits(self, sender: Identity, permission: Permission) -> bool:
        """Return whether *sender* has a permission, without counting a refusal."""
        if not self.is_enabled:
            return True
        if not isinstance(sender, Session):
            return False
        session = self._sessions.renew(sender)
        return session.fault is None and self._find_reason(session, (permission,)) is None

    def _find_reason(self, session: Session, permissions: Iterable[Permission]) -> str | None:
        """Return why a valid session lacks one of *permissions*; None if it has them all."""
        if session.may_all:
            return None
        for permission in permissions:
            decision = self._authority.decide(session.user, permission, session.ip)
            if not decision.is_allowed:
                return decision.reason
        return None

    def refuse(self, reason: str, code: int, sender: Identity) -> Refusal:
        """Count and log a refusal, and return it."""
        self.refusals += 1
        reason = reason[:TEXT_MAX]
        self._turn.audit("refusal", REFUSED, user=sender.user, peer=sender.address, code=code, reason=reason)
        return Refusal(ResponseCode.NO_PERMISSION, reason)

    # Hot paths.

    def admits_sends(self, channel: ChannelId, headers: Sequence[SendHeader], frames: Sequence[Frame]) -> bool:
        """Return whether all sends of a read are surely admitted."""
        session = self._sessions.find_login(channel)
        if session is None:
            return self._admits_signed_sends(channel, headers, frames)
        if session.fault is not None:
            return False
        if session.topics_version is not self._topics.data_version:
            self._forget_sendable(session)
        known = session.sendable
        for header in headers:
            topic = header.fields.topic
            if topic not in known and not self._may_send(session, header):
                return False
        return True

    def _admits_signed_sends(self, channel: ChannelId, headers: Sequence[SendHeader], frames: Sequence[Frame]) -> bool:
        for header, frame in zip(headers, frames, strict=True):
            session = self._sessions.find_signer(channel, frame)
            if session is None or session.fault is not None:
                return False
            if session.topics_version is not self._topics.data_version:
                self._forget_sendable(session)
            if header.fields.topic not in session.sendable and not self._may_send(session, header):
                return False
        return True

    def _forget_sendable(self, session: Session) -> None:
        session.topics_version = self._topics.data_version
        session.sendable.clear()

    def _may_send(self, session: Session, header: SendHeader) -> bool:
        """Return whether a send is admitted without creating its topic: that may need another permission."""
        topic = header.fields.topic
        if self._topics.find(topic) is None or self._find_reason(session, SEND.find(header.fields, b"")) is not None:
            return False
        _remember(session.sendable, topic)
        return True

    def find_puller(self, channel: ChannelId, header: PullHeader, frame: Frame) -> Identity | None:
        """Return who sends a pull that is surely admitted, or None."""
        session = self._sessions.find_login(channel) or self._sessions.find_signer(channel, frame)
        if session is None or session.fault is not None or not self._may_pull(session, header.fields):
            return None
        return session

    def _may_pull(self, session: Session, fields: PullFields) -> bool:
        key = fields.consumer_group, fields.topic
        if key in session.pullable:
            return True
        if self._find_reason(session, PULL.find(fields, b"")) is not None:
            return False
        _remember(session.pullable, key)
        return True

    def may_pull(self, sender: Identity | None, header: PullHeader, channel: ChannelId) -> bool:
        """Return whether a proven sender, who waits on *channel*, may pull. Counts no refusal."""
        if not isinstance(sender, Session):
            return False
        session = self._sessions.succeed(channel, sender)
        return session.fault is None and self._may_pull(session, header.fields)

    def find_signer(self, channel: ChannelId) -> Identity | None:
        """Return who signs the requests on *channel*, as far as that was ever proven; None after a login."""
        is_logged_in = self._sessions.find_login(channel) is not None
        return None if is_logged_in else self._sessions.last_sender(channel)

    def recheck_pull(self, sender: Identity, header: PullHeader, channel: ChannelId) -> Refusal | None:
        """Return why a pull that has waited on *channel* since it was admitted is refused now, or None."""
        if self.may_pull(sender, header, channel):
            return None
        return self.find_refusal(sender, PULL.find(header.fields, b""), header.code, channel)

    def admits_route(self, channel: ChannelId, fields: Any, frame: Frame) -> bool:
        """Return whether a query for a route (105) is surely admitted; *fields* name its topic."""
        session = self._sessions.find_login(channel) or self._sessions.find_signer(channel, frame)
        if session is None or session.fault is not None:
            return False
        if fields.topic in session.visible:
            return True
        if self._find_reason(session, _ROUTE_RULE.find(fields, b"")) is not None:
            return False
        _remember(session.visible, fields.topic)
        return True

    # Frames that were not just read.

    def vouch(self, user: str, address: str) -> Identity:
        """Return the sender of requests that another server relays: *user* at *address*, by that server's word."""
        return self._sessions.vouch(user, address)

    def assuming(self, sender: Identity | None) -> AbstractContextManager[None]:
        """Let *sender* be who sends, while frames that it sent before are processed."""
        return self._sessions.assuming(sender)

    def metrics(self) -> Iterable[Sample]:
        """Return the present metrics of the door."""
        role, sessions, audited = self._role, self._sessions, self.audited
        about = "Audit lines: changes by administrators, failed logins, refused requests."
        return (
            *(Sample(f"{role}_audit_lines", "counter", about, audited[kind], {"kind": kind}) for kind in AUDIT_KINDS),
            Sample(f"{role}_requests_refused", "counter", "Requests that access control refused.", self.refusals),
            Sample(
                f"{role}_signatures_verified", "counter", "Signatures that were right.", sessions.signatures_verified
            ),
            Sample(f"{role}_signatures_refused", "counter", "Signatures that were wrong.", sessions.signatures_refused),
        )


def require_rules(handlers: Collection[int], table: Any) -> None:
    """Check that every request that a role handles has a row with a rule: without one it would pass unchecked.

    Raises:
        AssertionError: a row or a rule is missing. The role cannot be built.
    """
    for code in handlers:
        spec = table.get(code)
        assert spec is not None, f"code {code} has a handler, but no row in the table of requests"
        assert isinstance(spec.rule, Rule), f"the row of code {code} has no rule: which permissions does it need?"


def _remember(known: set[Any], key: Any) -> None:
    """Add *key* to what a session may do. A session that asks for everything that exists begins anew."""
    if len(known) >= KNOWN_MAX:
        known.clear()
    known.add(key)
