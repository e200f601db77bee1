"""The user that a command acts as, and where its secret is.

The first of these sources that names a user is used:

    1. --access-key
    2. the profile that --profile names
    3. HOLDFAST_ACCESS_KEY
    4. another profile, if it gives the name server

The secret is in --secret-file, HOLDFAST_SECRET_KEY, HOLDFAST_SECRET_FILE, or in the file that a profile names; there is
no option for the secret itself, because every user of the machine can see the arguments of a process. A secret is used
only for the user of the same source, or for any user if that source names none.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import cast

import msgspec
import typer

from holdfast.cli.profiles import load_profiles
from holdfast.cli.shared_options import flag_of
from holdfast.client.access.credentials_options import (
    AuthMode,
    CredentialsOptions,
    credentials_options,
    read_environment,
)


class AccessFlags(msgspec.Struct, frozen=True):
    """What the command line says about the user: the values of the flags, None for those that it does not give."""

    access_key: str | None = None
    secret_file: str | None = None
    auth_mode: str | None = None


def find_credentials(
    flags: AccessFlags, namesrv: str | None, profile: str | None, environment: Mapping[str, str]
) -> CredentialsOptions | None:
    """Return the user to act as, and where the secret is; None if there is no user.

    Args:
        flags: The flags about the user.
        namesrv: The value of `--namesrv`, as for `find_namesrv`.
        profile: The value of `--profile`, as for `find_namesrv`.
        environment: Usually `os.environ`.

    Raises:
        ConfigError: the user has no secret or two, or a secret has no user.
    """
    by_flag = _AccessSource(flags.access_key, None, flags.secret_file, flags.auth_mode)
    of_environment = _AccessSource(
        **read_environment(environment), auth_mode=environment.get("HOLDFAST_AUTH_MODE") or None
    )
    chosen, is_explicit = _profile_in_use(namesrv, profile, environment)
    saved = load_profiles(environment).profiles.get(chosen) if chosen else None
    of_profile = (
        _AccessSource() if saved is None else _AccessSource(saved.access_key, None, saved.secret_file, saved.auth)
    )
    others = (of_profile, of_environment) if is_explicit else (of_environment, of_profile)
    sources = (by_flag, *others)
    access_key = next((source.access_key for source in sources if source.access_key), None)
    own = [source for source in sources if source.access_key in {None, access_key}]
    secret = next((source for source in own if source.secret_key or source.secret_file), _AccessSource())
    mode = next((source.auth_mode for source in sources if source.auth_mode), "auto")
    return credentials_options(
        access_key=access_key,
        secret_key=secret.secret_key,
        secret_file=secret.secret_file,
        auth=cast("AuthMode", mode),
        names=("--access-key or HOLDFAST_ACCESS_KEY", "HOLDFAST_SECRET_KEY", "--secret-file or HOLDFAST_SECRET_FILE"),
    )


def credentials_of(context: typer.Context) -> CredentialsOptions | None:
    """Return the user that the command of *context* acts as; None if there is no user.

    Raises:
        ConfigError: the user has no secret or two, or a secret has no user.
    """
    flags = AccessFlags(*(flag_of(context, name) for name in AccessFlags.__struct_fields__))
    return find_credentials(flags, flag_of(context, "namesrv"), flag_of(context, "profile"), os.environ)


class _AccessSource(msgspec.Struct, frozen=True):
    """What one source says about the user. The text form hides the secret."""

    access_key: str | None = None
    secret_key: str | None = None
    secret_file: str | None = None
    auth_mode: str | None = None

    def __repr__(self) -> str:
        return f"_AccessSource({self.access_key!r})"


def _profile_in_use(
    namesrv: str | None, profile: str | None, environment: Mapping[str, str]
) -> tuple[str | None, bool]:
    """Return the profile that gives the name server, or None; and whether the command line names it."""
    if profile is not None:
        return profile, True
    if namesrv is not None or environment.get("HOLDFAST_NAMESRV"):
        return None, False
    return environment.get("HOLDFAST_PROFILE") or load_profiles(environment).default, False
