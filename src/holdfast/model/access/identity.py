"""Who sends a request: an unknown client, a user, or another server of the cluster."""

from __future__ import annotations

from enum import Enum
from typing import Final


class IdentityKind(Enum):
    """What is known about a sender."""

    ANONYMOUS = "anonymous"
    USER = "user"
    CLUSTER = "cluster"


class Identity:
    """The sender of a request, as far as it has proven who it is. Compared by identity.

    Attributes:
        kind: What is known about it.
        user: Its user name. That of an anonymous sender is empty, or what it claims to be: for the log only.
        address: `host:port` of the client, also when another broker relayed the request.
    """

    __slots__ = ("address", "kind", "user")

    def __init__(self, kind: IdentityKind, user: str = "", address: str = "") -> None:
        self.kind = kind
        self.user = user
        self.address = address

    @property
    def proven_user(self) -> str:
        """Its user name; empty if nothing proves it: a client that is admitted by its address may name any user."""
        return "" if self.kind is IdentityKind.ANONYMOUS else self.user

    def __repr__(self) -> str:
        return f"Identity({self.kind.value}, {self.user!r}, {self.address!r})"


ANONYMOUS: Final = Identity(IdentityKind.ANONYMOUS)
"""A sender of which nothing is known. All senders are anonymous while access control is off."""
