"""The dialing side of one attempt to log in, with one secret, on one connection.

Clients and servers that dial others use the same steps. What a refusal means differs, so that they handle it.
"""

from __future__ import annotations

from typing import Final

from holdfast.wire.access.login import (
    METHOD,
    LoginFields,
    LoginProofFields,
    client_proof,
    encode_nonce,
    is_nonce,
    is_server_proof,
)
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import to_fields

NONCE_FIELD: Final = "serverNonce"
"""In the answer to LOGIN."""


class LoginAttempt:
    """One attempt.

    Args:
        user: Who logs in.
        secret: The user's secret.
        nonce: `NONCE_SIZE` random bytes that were never used before.
        target: The address for which the login is meant; empty if the operator has configured it.
    """

    def __init__(self, user: str, secret: str, nonce: bytes, target: str = "") -> None:
        self._user = user
        self._secret = secret
        self._nonce = encode_nonce(nonce)
        self._target = target
        self._server_nonce = ""

    def first_request(self) -> Command:
        """Return the first request."""
        fields = LoginFields(user=self._user, client_nonce=self._nonce, target=self._target or None)
        return Command(code=RequestCode.LOGIN, fields=to_fields(fields))

    def prove(self, answer: Command, *, accepts_throttle: bool = False) -> Command | None:
        """Return the second request, which follows the success *answer*.

        Return None if *answer* asks for another kind of proof: then nothing may be proven.

        Args:
            answer: The answer to the first request.
            accepts_throttle: Whether the dialing side obeys throttles on this connection.
        """
        self._server_nonce = answer.fields.get(NONCE_FIELD, "")
        if not is_nonce(self._server_nonce) or answer.fields.get("method", METHOD) != METHOD:
            return None
        proof = client_proof(self._secret, self._user, self._nonce, self._server_nonce, self._target)
        fields = LoginProofFields(self._user, proof, accepts_throttle)
        return Command(code=RequestCode.LOGIN_PROOF, fields=to_fields(fields))

    def is_proven_by(self, answer: Command) -> bool:
        """Return whether the success *answer* to the second request proves that the server knows the secret."""
        proof = answer.fields.get("proof", "")
        return is_server_proof(self._secret, self._user, self._nonce, self._server_nonce, proof, self._target)
