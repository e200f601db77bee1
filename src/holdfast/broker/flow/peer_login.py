"""The login of this broker at a server that it has dialed: both prove that they know the cluster secret.

    7060, our nonce ─┬─ its nonce ─> 7061, our proof ─┬─ its proof ──> trusted
                     │                                ├─ refused ────> again with the older secret, if there is one
                     │                                └─ otherwise ──> unproven
                     └─ it knows no login ──> unproven, or requests are signed

The address of a peer may come from anyone who may register a broker. So the proof names the address, unless the
operator has configured it: the peer cannot pass the proof on to another server.

With access control, an unproven peer is not used: it may be a foreign process at the address of a server. A
server of RocketMQ knows no login; if `java_peers` is `sign`, each request to it is signed instead. Without access
control the connection is used in any case, so that a cluster can get its secret server by server.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.access.role_secrets import RoleSecrets
from holdfast.machine.security_options import SecurityOptions
from holdfast.model.access.credentials import Credentials
from holdfast.model.access.user import CLUSTER_USER
from holdfast.wire.access.login import NONCE_SIZE
from holdfast.wire.access.login_attempt import LoginAttempt
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.frames.command import Command


class LoginSettings(msgspec.Struct, frozen=True):
    """How this broker logs in at other servers.

    Attributes:
        secrets: The secrets of the cluster.
        is_required: Peers that cannot prove the cluster secret are not used.
        inner_credentials: With these, requests to servers that know no login are signed; None: they are not used.
        configured: The addresses of servers that the operator has configured.
    """

    secrets: RoleSecrets
    is_required: bool = False
    inner_credentials: Credentials | None = None
    configured: frozenset[str] = frozenset()


class LoginResult(msgspec.Struct, frozen=True):
    """How a login has ended.

    Attributes:
        is_usable: Requests may be sent on the connection.
        is_trusted: The peer has proven the cluster secret.
        signer: Signs each request; None: they are not signed.
        problem: Why the peer is not trusted, and what to do about it.
    """

    is_usable: bool
    is_trusted: bool = False
    signer: Credentials | None = None
    problem: str = ""


class PeerLogin:
    """The login at one connection, from the first request to its result.

    Args:
        settings: How this broker logs in.
        address: The address that was dialed.
    """

    def __init__(self, settings: LoginSettings, address: str) -> None:
        self._settings = settings
        self._target = "" if address in settings.configured else address
        self._untried = list(settings.secrets.cluster)
        self._attempt = self._next_attempt()
        self._has_proven = False  # whether the second request of the attempt was sent

    def _next_attempt(self) -> LoginAttempt:
        nonce = self._settings.secrets.new_nonce(NONCE_SIZE)
        return LoginAttempt(CLUSTER_USER, self._untried.pop(0), nonce, self._target)

    def begin(self) -> Command:
        """Return the first request to send."""
        return self._attempt.first_request()

    def advance(self, answer: Command) -> Command | LoginResult:
        """Return the next request to send after *answer*, or the result."""
        return self._on_proof(answer) if self._has_proven else self._on_challenge(answer)

    def _on_challenge(self, answer: Command) -> Command | LoginResult:
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return self._on_java_peer()
        if answer.code != ResponseCode.SUCCESS:
            return self._unproven(f"it refused the login with code {answer.code}: {answer.remark}")
        proof = self._attempt.prove(answer)
        if proof is None:
            return self._unproven("its answer to the login is not one of a Holdfast server")
        self._has_proven = True
        return proof

    def _on_proof(self, answer: Command) -> Command | LoginResult:
        if answer.code != ResponseCode.SUCCESS:
            if self._untried:  # The secret is being changed, and the peer has only the older one.
                self._attempt, self._has_proven = self._next_attempt(), False
                return self._attempt.first_request()
            reason = f"it refused our proof with code {answer.code}: {answer.remark}"
            return self._unproven(f"{reason}. The cluster secret must be the same on all servers")
        if not self._attempt.is_proven_by(answer):
            return self._unproven("its proof is wrong: it does not know the cluster secret")
        return LoginResult(is_usable=True, is_trusted=True)

    def _on_java_peer(self) -> LoginResult:
        credentials = self._settings.inner_credentials
        if credentials is not None:
            return LoginResult(is_usable=True, signer=credentials)
        return self._unproven(
            "it knows no login: it is a server of RocketMQ, or an older one of Holdfast. Set java_peers to sign, with"
            " inner_credentials, to send it signed requests"
        )

    def _unproven(self, problem: str) -> LoginResult:
        return LoginResult(is_usable=not self._settings.is_required, problem=problem)


def login_settings(
    options: SecurityOptions, secrets: RoleSecrets, configured: Iterable[str] = ()
) -> LoginSettings | None:
    """Return how a broker logs in at other servers; None if it has no cluster secret.

    Args:
        options: Settings of the operator.
        secrets: Those of the broker.
        configured: The addresses of servers that the operator has configured.
    """
    if not secrets.cluster:
        return None
    inner = secrets.inner if options.java_peers == "sign" else None
    return LoginSettings(secrets, options.auth, inner, frozenset(configured))
