"""The client's side of a login: what to send next, and what an answer means.

    LOGIN (user, our nonce) ──> nonce of the server ──> LOGIN_PROOF (our proof) ──> the server's own proof ──> LOGGED_IN
                            ├─> required=false, no nonce: the server has no access control ─────────────────> OPEN
                            └─> an error of a server that knows no login: sign every request ───────────────> SIGNED

A server without access control may offer a nonce, too: then it can vouch for the client when it relays a request to a
server with access control. If it does not know the user, the login ends as OPEN.

A strict login accepts LOGGED_IN only. Otherwise, an attacker between client and server could answer as a server without
access control, or as one that knows no login, and would get signed requests, which it could replay.

Contains no sockets: asyncio and blocking clients use the same steps.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from holdfast.model.access.credentials import Credentials
from holdfast.model.errors import ConnectionLost, LoginFailed
from holdfast.wire.access.login_attempt import NONCE_FIELD, LoginAttempt
from holdfast.wire.frames.codes import OUR_LANGUAGE, ResponseCode
from holdfast.wire.frames.command import Command

REQUIRED_FIELD: Final = "required"
"""In the answer to LOGIN; "false": the server has no access control, so that nothing has to be proven."""


class Outcome(Enum):
    """How a login ended."""

    LOGGED_IN = "logged in"
    OPEN = "no access control"
    SIGNED = "requests are signed"


class ClientLogin:
    """One login on one connection.

    Args:
        credentials: Who logs in.
        address: The server, for errors.
        nonce: `NONCE_SIZE` random bytes that were never used before.
        is_strict: Whether the server must prove that it knows the secret.

    Attributes:
        outcome: How the login ended; None before.
    """

    def __init__(self, credentials: Credentials, address: str, *, nonce: bytes, is_strict: bool) -> None:
        self.outcome: Outcome | None = None
        self._credentials = credentials
        self._address = address
        self._attempt = LoginAttempt(credentials.access_key, credentials.secret_key, nonce)
        self._is_strict = is_strict
        self._is_required = True  # whether the server has access control

    def first_request(self) -> Command:
        """Return the first request."""
        return self._attempt.first_request()

    def second_request(self, answer: Command) -> Command | None:
        """Return the request that follows *answer*, the answer to the first; None if the login has ended.

        Raises:
            LoginFailed: the server refused the login, or cannot prove that it knows the secret.
            ConnectionLost: the server cannot handle a login now.
        """
        if answer.code != ResponseCode.SUCCESS:
            self._handle_error(answer)
            return None
        self._is_required = answer.fields.get(REQUIRED_FIELD) != "false"
        if not self._is_required and not answer.fields.get(NONCE_FIELD):
            self._end_as_open("the server has no access control")
            return None
        proof = self._attempt.prove(answer, accepts_throttle=True)
        if proof is None:
            raise self._failed("the server asks for a login of another kind; this client may be too old for it")
        return proof

    def finish(self, answer: Command) -> None:
        """End the login with *answer*, the answer to the second request.

        Raises:
            LoginFailed: the server refused our proof, or its own is wrong.
            ConnectionLost: the server cannot handle a login now.
        """
        if answer.code == ResponseCode.NO_PERMISSION and not self._is_required:
            self._end_as_open("the server has no access control, and does not know the user or another secret")
            return
        if answer.code != ResponseCode.SUCCESS:
            raise self._refused(answer)
        if not self._attempt.is_proven_by(answer):
            raise self._failed("the server does not know the secret: it may not be the server that it claims to be")
        self.outcome = Outcome.LOGGED_IN

    def _end_as_open(self, reason: str) -> None:
        if self._is_strict:
            raise self._failed(
                f"{reason}, so it cannot prove that it knows the secret: check the address, or allow this with "
                "auth='auto'"
            )
        self.outcome = Outcome.OPEN

    def _handle_error(self, answer: Command) -> None:
        """Handle a refusal of the first request: only our servers know it."""
        if answer.language == OUR_LANGUAGE and answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise self._refused(answer)
        if self._is_strict:
            raise self._failed(
                f"the server knows no login (code {answer.code}: {answer.remark or 'no reason given'}), and "
                "auth='login' does not sign requests instead: use auth='auto' or 'sign' for servers other than Holdfast"
            )
        self.outcome = Outcome.SIGNED

    def _refused(self, answer: Command) -> LoginFailed | ConnectionLost:
        text = answer.remark or "no reason given"
        if answer.code == ResponseCode.NO_PERMISSION:
            return self._failed(f"{text} (check the access key, the secret, and `holdfast user list`)", answer.code)
        return ConnectionLost(f"{self._address} could not check the login (code {answer.code}: {text})")

    def _failed(self, text: str, code: int = ResponseCode.NO_PERMISSION) -> LoginFailed:
        return LoginFailed(code, text, user=self._credentials.access_key, address=self._address)
