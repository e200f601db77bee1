"""What only this role and its cluster know."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Self

import msgspec

from holdfast.model.access.credentials import Credentials


class RoleSecrets(msgspec.Struct, frozen=True):
    """The secrets of a role. The text form, which may reach a log or an error, hides them.

    Attributes:
        new_nonce: Returns so many random bytes, which no other party can predict.
        cluster: The secrets of the cluster, newest first; two while they are changed. Empty: this role has none.
        inner: The credentials with which requests to Java servers are signed; None: they are not.
    """

    new_nonce: Callable[[int], bytes]
    cluster: tuple[str, ...] = ()
    inner: Credentials | None = None

    @classmethod
    def none(cls, random: Random) -> Self:
        """Return those of a role without a cluster secret: for tests and simulations."""
        return cls(random.randbytes)

    def __repr__(self) -> str:
        return f"RoleSecrets({len(self.cluster)} of the cluster)"

    __str__ = __repr__
