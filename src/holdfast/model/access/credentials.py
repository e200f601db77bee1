"""The name and the secret with which a client or a server proves its identity."""

from __future__ import annotations

import msgspec


class Credentials(msgspec.Struct, frozen=True):
    """An access key and its secret. The text form, which may reach a log or an error, hides the secret.

    Attributes:
        access_key: The name of the user.
        secret_key: Known to the user and to the servers only.
        security_token: A token that some installations of RocketMQ require; sent with every signed request.
    """

    access_key: str
    secret_key: str
    security_token: str | None = None

    def __repr__(self) -> str:
        return f"Credentials({self.access_key!r})"

    __str__ = __repr__
