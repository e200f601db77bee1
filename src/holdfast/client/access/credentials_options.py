"""What an application passes to prove its identity: an access key, the secret or its file, and the mode.

auto    log in; sign every request if the server knows no login
login   log in; refuse a server that knows no login or not the secret: nothing that could be replayed is ever sent
sign    sign every request, as RocketMQ's clients do
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, TypedDict, get_args

import msgspec

from holdfast.client.messages.arguments import check_text
from holdfast.model.access.credentials import Credentials
from holdfast.model.errors import ConfigError

AuthMode = Literal["auto", "login", "sign"]
AUTH_MODES: Final[tuple[str, ...]] = get_args(AuthMode)


ENVIRONMENT_NAMES: Final = ("HOLDFAST_ACCESS_KEY", "HOLDFAST_SECRET_KEY", "HOLDFAST_SECRET_FILE")
"""The environment variables with the access key, the secret and the secret file."""


class CredentialsArguments(TypedDict, total=False):
    """The arguments of producers and consumers that prove their identity.

    Attributes:
        access_key: The name of the user; None for no access control.
        secret_key: The user's secret.
        secret_file: A file with the secret and nothing else, readable by its owner only. It is re-read when it changes.
        security_token: A token that some installations of RocketMQ require.
        auth: `auto` logs in once per connection, and signs every request to servers that know no login; `login`
            refuses such servers; `sign` signs every request.
    """

    access_key: str | None
    secret_key: str | None
    secret_file: Path | str | None
    security_token: str | None
    auth: AuthMode


class CredentialsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Valid arguments of one client. The text form, which may reach a log or an error, hides the secret.

    Attributes:
        access_key: The name of the user.
        secret_key: The user's secret; None if it is in *secret_file*.
        secret_file: The file with the secret; None if there is none.
        security_token: A token that some installations of RocketMQ require.
        mode: Whether to log in or to sign.
    """

    access_key: str
    secret_key: str | None = None
    secret_file: str | None = None
    security_token: str | None = None
    mode: AuthMode = "auto"

    def __post_init__(self) -> None:
        if not self.access_key or not (self.secret_key is None) ^ (self.secret_file is None):
            raise ConfigError("credentials are an access key and either a secret or a secret file")
        if self.mode not in AUTH_MODES:
            raise ConfigError(f"the mode must be one of {', '.join(AUTH_MODES)}; it is {self.mode!r}")

    def __repr__(self) -> str:
        return f"CredentialsOptions({self.access_key!r}, mode={self.mode!r})"

    __str__ = __repr__

    @property
    def credentials(self) -> Credentials:
        """The credentials; their secret is empty if it is in a file."""
        return Credentials(self.access_key, self.secret_key or "", self.security_token)

    def to_arguments(self) -> CredentialsArguments:
        """Return the arguments of a client with the same credentials."""
        return {
            "access_key": self.access_key,
            "secret_key": self.secret_key,
            "secret_file": self.secret_file,
            "security_token": self.security_token,
            "auth": self.mode,
        }


def read_environment(environment: Mapping[str, str]) -> dict[str, str | None]:
    """Return access key, secret and secret file from the environment, by their names here; None if one is not set."""
    names = ("access_key", "secret_key", "secret_file")
    return {name: environment.get(variable) or None for name, variable in zip(names, ENVIRONMENT_NAMES, strict=True)}


def credentials_options(
    *,
    access_key: str | None = None,
    secret_key: str | None = None,
    secret_file: Path | str | None = None,
    security_token: str | None = None,
    auth: AuthMode = "auto",
    names: tuple[str, str, str] = ("access_key", "secret_key", "secret_file"),
) -> CredentialsOptions | None:
    """Return the credentials in the arguments of a client; None if it has none.

    Args:
        access_key: See `CredentialsArguments`.
        secret_key: See `CredentialsArguments`.
        secret_file: See `CredentialsArguments`.
        security_token: See `CredentialsArguments`.
        auth: See `CredentialsArguments`.
        names: What the caller calls the access key, the secret and the secret file, for the errors.

    Raises:
        ConfigError: an argument is missing, or contradicts another.
    """
    key_name, secret_name, file_name = names
    if auth not in AUTH_MODES:
        raise ConfigError(f"auth must be one of {', '.join(AUTH_MODES)}; it is {auth!r}")
    for name, value in ((key_name, access_key), (secret_name, secret_key), (file_name, secret_file)):
        if value == "":
            raise ConfigError(f"{name} is empty: set it, or leave it out")
    if access_key is None:
        if secret_key is None and secret_file is None:
            return None
        raise ConfigError(f"a secret is given, but not whose: set {key_name}, too")
    check_text(key_name, access_key)
    if (secret_key is None) == (secret_file is None):
        raise ConfigError(f"the user {access_key!r} needs either {secret_name} or {file_name}: set exactly one of them")
    if not isinstance(secret_key, str | None):
        raise TypeError(f"{secret_name} must be str, not {type(secret_key).__name__}")  # without its value
    return CredentialsOptions(
        access_key=access_key,
        secret_key=secret_key,
        secret_file=None if secret_file is None else str(secret_file),
        security_token=security_token,
        mode=auth,
    )
