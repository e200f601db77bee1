"""Login: a client proves once per connection that it knows a secret, and the server proves it, too.

    client ─7060 user, clientNonce, target─────> server
           <─ serverNonce, server, method ─────
           ─7061 user, proof = f("client")────>
           <─ proof = f("server") ─────────────

    f(side) = base64(HMAC-SHA256(secret, "holdfast login " side NUL user NUL clientNonce NUL serverNonce [NUL target]))

A broker that dials an address which it has learned from others names it as the *target*. A server refuses the proof
that is meant for another one: a process at such an address cannot pass the login on, and use what it opens.

The secret is never sent. A server's nonce is valid for one attempt, on one channel, for a short time, so that no
recorded proof is accepted again. The client checks the server's proof: a server that does not know the secret cannot
pretend to. Nonces are base64 texts, and are hashed as texts.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Iterable
from typing import Final

import msgspec

NONCE_SIZE: Final = 32
NONCE_VALID_MS: Final = 10_000
"""How long a server's nonce is valid."""
METHOD: Final = "HMAC-SHA256"
"""The only method. A client refuses an answer that names a different one."""


class LoginFields(msgspec.Struct, frozen=True, rename="camel"):
    """Header of 7060.

    Attributes:
        target: The address for which the login is meant; None if the operator has configured it.
    """

    user: str
    client_nonce: str
    target: str | None = None


class LoginAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """Header of the answer to 7060.

    Attributes:
        server_nonce: 32 random bytes in base64.
        server: The name or address of the server, for readers.
        method: How proofs are made.
    """

    server_nonce: str
    server: str
    method: str = METHOD


class LoginProofFields(msgspec.Struct, frozen=True, rename="camel"):
    """Header of 7061. The text form hides the proof.

    Attributes:
        accepts_throttle: Whether the client obeys throttles on this connection.
    """

    user: str
    proof: str
    accepts_throttle: bool = False

    def __repr__(self) -> str:
        return f"LoginProofFields({self.user!r})"


class LoginProofAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """Header of the answer to 7061: the server's proof."""

    proof: str


class Challenge(msgspec.Struct, frozen=True):
    """The answer to 7060 that a server remembers for one channel until 7061 arrives, or until it expires.

    Attributes:
        user: Who wants to log in.
        client_nonce: As the client sent it.
        server_nonce: As the server sent it.
        expires_ms: From this time on it is no longer valid.
        target: As the client sent it.
    """

    user: str
    client_nonce: str
    server_nonce: str
    expires_ms: int
    target: str = ""

    def find_secret(self, fields: LoginProofFields, secrets: Iterable[str], now_ms: int) -> str | None:
        """Return the secret with which the client made its proof; None if the login is refused.

        The caller forgets the challenge whatever the result is.
        """
        if fields.user != self.user or now_ms >= self.expires_ms:
            return None
        return find_proven_secret(secrets, self.user, self.client_nonce, self.server_nonce, fields.proof, self.target)

    def prove(self, secret: str) -> str:
        """Return the server's own proof."""
        return server_proof(secret, self.user, self.client_nonce, self.server_nonce, self.target)


def encode_nonce(random: bytes) -> str:
    """Return the text of a nonce of 32 random bytes."""
    assert len(random) == NONCE_SIZE
    return base64.b64encode(random).decode()


def is_nonce(text: str) -> bool:
    """Return whether a peer's nonce has the right form."""
    try:
        return len(text) <= 64 and len(base64.b64decode(text, validate=True)) == NONCE_SIZE
    except (binascii.Error, ValueError):
        return False


def client_proof(secret: str, user: str, client_nonce: str, server_nonce: str, target: str = "") -> str:
    """Return the proof that a client sends."""
    return _prove("client", secret, user, client_nonce, server_nonce, target)


def server_proof(secret: str, user: str, client_nonce: str, server_nonce: str, target: str = "") -> str:
    """Return the proof that a server sends."""
    return _prove("server", secret, user, client_nonce, server_nonce, target)


def find_proven_secret(
    secrets: Iterable[str], user: str, client_nonce: str, server_nonce: str, proof: str, target: str = ""
) -> str | None:
    """Return the secret with which a client made *proof*, or None. Compares in constant time."""
    for secret in secrets:
        if secret and _is_equal(client_proof(secret, user, client_nonce, server_nonce, target), proof):
            return secret
    return None


def is_server_proof(secret: str, user: str, client_nonce: str, server_nonce: str, proof: str, target: str = "") -> bool:
    """Return whether a server that knows *secret* made *proof*. Compares in constant time."""
    return _is_equal(server_proof(secret, user, client_nonce, server_nonce, target), proof)


def _prove(side: str, secret: str, user: str, client_nonce: str, server_nonce: str, target: str) -> str:
    text = "\0".join((f"holdfast login {side}", user, client_nonce, server_nonce, *filter(None, (target,))))
    digest = hmac.digest(secret.encode("utf-8", "replace"), text.encode("utf-8", "replace"), "sha256")
    return base64.b64encode(digest).decode()


def _is_equal(expected: str, given: str) -> bool:
    return hmac.compare_digest(expected.encode(), given.encode("utf-8", "replace"))
