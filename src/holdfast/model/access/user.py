"""A user and its secrets."""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

import msgspec

from holdfast.model.access.refusal import INVALID, DirectoryRefused

CLUSTER_USER: Final = "holdfast.cluster"
"""The name under which servers prove their identity to each other. The directory has no such user."""

SECRET_LENGTH_MIN: Final = 7  # As in ACL 1.0. A shorter one can be guessed from one signed request.
SECRET_LENGTH_MAX: Final = 256
SECRETS_MAX: Final = 2
_NAME: Final = re.compile(r"[A-Za-z0-9_.@:+=%|#/-]{1,128}")


class UserKind(Enum):
    """Whether rules apply to a user. A Super user may do everything."""

    SUPER = "Super"
    NORMAL = "Normal"


class User(msgspec.Struct, frozen=True):
    """One user. The text form, which may reach a log or an error, hides the secrets.

    Attributes:
        name: The access key of the user's requests.
        secrets: One secret, or two while it is being replaced; the newest one first. Each of them is accepted.
        kind: Whether rules apply to the user.
        is_enabled: A disabled user is refused.
    """

    name: str
    secrets: tuple[str, ...]
    kind: UserKind = UserKind.NORMAL
    is_enabled: bool = True

    @property
    def is_super(self) -> bool:
        """Whether the user may do everything."""
        return self.kind is UserKind.SUPER

    def __repr__(self) -> str:
        return f"User({self.name!r}, {self.kind.value}, {'enabled' if self.is_enabled else 'disabled'})"

    __str__ = __repr__


def check_user_name(name: str) -> None:
    """Accept a name that a user can have.

    Raises:
        DirectoryRefused: the name is blank, too long, reserved, or contains other characters.
    """
    if not name.strip():
        raise DirectoryRefused("The username is blank", INVALID)
    if name == CLUSTER_USER:
        raise DirectoryRefused(f"the user name {CLUSTER_USER} is reserved for servers: choose another name")
    if not _NAME.fullmatch(name):
        raise DirectoryRefused(
            f"the user name {name[:40]!r} cannot be used: it may have up to 128 letters, digits and characters of "
            "'_.@:+=%|#/-'"
        )


def check_secret(secret: str) -> None:
    """Accept a text that can be a secret. No error contains it.

    Raises:
        DirectoryRefused: the secret is blank, too short, too long, or contains spaces or control characters.
    """
    if not secret.strip():
        raise DirectoryRefused("password can not be blank")
    if not SECRET_LENGTH_MIN <= len(secret) <= SECRET_LENGTH_MAX:
        raise DirectoryRefused(
            f"the password has {len(secret)} characters: choose one with {SECRET_LENGTH_MIN} to {SECRET_LENGTH_MAX}"
        )
    if not secret.isprintable() or " " in secret:
        raise DirectoryRefused("the password contains spaces or control characters: choose one without")


def check_user(user: User) -> None:
    """Accept a user that the directory can have.

    Raises:
        DirectoryRefused: its name or one of its secrets cannot be used, or there are too many secrets.
    """
    check_user_name(user.name)
    if not 1 <= len(user.secrets) <= SECRETS_MAX:
        raise DirectoryRefused(f"the user {user.name} has {len(user.secrets)} passwords: give 1 or {SECRETS_MAX}")
    for secret in user.secrets:
        check_secret(secret)
