"""Logins at this role: 7060 and 7061.

    7060 user, nonce ─> a nonce of our own, remembered for this channel ─> answered
    7061 proof ──────> forgotten; is the proof right? ─┬─ yes ─> the channel is the user's; our own proof
                                                       └─ no ──> refused, counted, logged

A later login replaces the earlier one: so a client changes its secret on an open connection. A refused login does
not change the earlier one.

An unknown user gets a nonce, too, and learns nothing before it tried to prove something. A role without access control
completes logins of the users that it knows: then it can vouch for them when it relays their requests.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from holdfast.access.authority import Authority
from holdfast.access.role_secrets import RoleSecrets
from holdfast.access.sessions import BAD_SIGNATURE, NAME_SIZE_MAX, Sessions
from holdfast.machine.component import Component
from holdfast.machine.events import ChannelId
from holdfast.machine.request import Answer, Handlers, Refusal, Request
from holdfast.machine.sample import Sample
from holdfast.machine.turn import Turn
from holdfast.model.access.user import CLUSTER_USER
from holdfast.wire.access.client_login import REQUIRED_FIELD
from holdfast.wire.access.login import (
    NONCE_SIZE,
    NONCE_VALID_MS,
    Challenge,
    LoginAnswer,
    LoginFields,
    LoginProofAnswer,
    LoginProofFields,
    encode_nonce,
    is_nonce,
)
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.fields import to_fields

LOGIN_FAILED: Final = "login refused"
"""The event of the log line for each refused login."""


class LoginServer(Component):
    """Lets clients and other servers log in.

    Args:
        role: The first word of the names of metrics.
        server: The name of this server, for readers.
        is_required: Whether access control is on.
        sessions: The senders on all channels.
        authority: The users and their secrets.
        secrets: Those of this role.
        turn: The turn of the role.
        addresses: Where other servers find this role without having been configured.
    """

    def __init__(
        self,
        role: str,
        server: str,
        *,
        is_required: bool,
        sessions: Sessions,
        authority: Authority,
        secrets: RoleSecrets,
        turn: Turn,
        addresses: Collection[str] = (),
    ) -> None:
        self._role = role
        self._server = server
        self._is_required = is_required
        self._sessions = sessions
        self._authority = authority
        self._secrets = secrets
        self._turn = turn
        self._addresses = addresses
        self._challenges: dict[ChannelId, Challenge] = {}
        self._logins = 0
        self._failures = 0

    def handlers(self) -> Handlers:
        """Return the request handlers of this component."""
        return {RequestCode.LOGIN: self.begin, RequestCode.LOGIN_PROOF: self.complete}

    def channel_closed(self, channel: ChannelId) -> None:
        """Forget the login that was begun on a channel."""
        self._challenges.pop(channel, None)

    def begin(self, request: Request) -> Answer:
        """Answer 7060 with a nonce."""
        fields = request.header_as(LoginFields)
        if not is_nonce(fields.client_nonce) or len(fields.user) > NAME_SIZE_MAX:
            return Refusal(
                ResponseCode.INVALID_PARAMETER, f"a login needs a user and {NONCE_SIZE} random bytes in base64"
            )
        nonce = encode_nonce(self._secrets.new_nonce(NONCE_SIZE))
        self._challenges[request.channel] = Challenge(
            user=fields.user,
            client_nonce=fields.client_nonce,
            server_nonce=nonce,
            expires_ms=self._turn.now_ms + NONCE_VALID_MS,
            target=fields.target or "",
        )
        answer = to_fields(LoginAnswer(server_nonce=nonce, server=self._server))
        return request.answer(fields=answer | {REQUIRED_FIELD: "true" if self._is_required else "false"})

    def complete(self, request: Request) -> Answer:
        """Answer 7061: if the proof is right, the channel belongs to the user from now on."""
        fields = request.header_as(LoginProofFields)
        challenge = self._challenges.pop(request.channel, None)
        secret = None
        if challenge is not None and self._is_meant(challenge):
            secret = challenge.find_secret(fields, self._secrets_of(challenge.user), self._turn.now_ms)
        if challenge is None or secret is None:
            return self._refuse(request, fields.user, challenge)
        if challenge.user == CLUSTER_USER:
            self._sessions.trust(request.channel)
        else:
            accepts_throttle = fields.accepts_throttle
            self._sessions.log_in(request.channel, challenge.user, secret, accepts_throttle=accepts_throttle)
        self._logins += 1
        return request.answer(fields=to_fields(LoginProofAnswer(challenge.prove(secret))))

    def _is_meant(self, challenge: Challenge) -> bool:
        """Return whether a login is meant for this server, and not passed on by another one."""
        return not challenge.target or challenge.target in self._addresses

    def _secrets_of(self, name: str) -> tuple[str, ...]:
        """Return the secrets with which a user may log in now."""
        if name == CLUSTER_USER:
            return self._secrets.cluster
        user = self._authority.find_user(name)
        return user.secrets if user is not None and user.is_enabled else ()

    def _refuse(self, request: Request, name: str, challenge: Challenge | None) -> Refusal:
        """Refuse a login. The answer does not reveal whether the user exists; the log does."""
        self._failures += 1
        user = self._authority.find_user(name)
        if challenge is None:
            reason = "no login was begun on this connection"
        elif not self._is_meant(challenge):
            reason = f"meant for {challenge.target[:NAME_SIZE_MAX]}, which is not an address of this server"
        elif self._turn.now_ms >= challenge.expires_ms:
            reason = f"the login took longer than {NONCE_VALID_MS // 1000} s"
        elif name == CLUSTER_USER:
            reason = "another cluster secret, or none here" if self._secrets.cluster else "no cluster secret here"
        elif user is None:
            reason = "unknown user"
        else:
            reason = "wrong secret" if user.is_enabled else "disabled user"
        self._turn.audit("login", LOGIN_FAILED, user=name[:NAME_SIZE_MAX], peer=request.peer, reason=reason)
        return Refusal(ResponseCode.NO_PERMISSION, BAD_SIGNATURE)

    def metrics(self) -> Iterable[Sample]:
        """Return the present metrics of this component."""
        role = self._role
        return (
            Sample(f"{role}_logins", "counter", "Logins of clients and servers.", self._logins),
            Sample(f"{role}_login_failures", "counter", "Refused logins.", self._failures),
        )
