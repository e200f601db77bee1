"""Users and secrets of `holdfast up --auth`.

    holdfast-data/
      admin.secret      the secret of the administrator, and nothing else
      cluster.secret    the secret by which the roles know each other
      namesrv/          where the administrator is created before the first start; brokers learn it from there

Both files are created once and never changed, so the same command on the same folder keeps all users. Only their owner
can read them. A profile of the command line names the first one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from holdfast.cli.profiles import Profile, save_profile
from holdfast.cli.secret_files import new_secret, saved_secret
from holdfast.model.access.client_tls import ClientTls
from holdfast.model.access.refusal import DirectoryRefused
from holdfast.model.access.user import CLUSTER_USER, User, UserKind
from holdfast.model.errors import ConfigError
from holdfast.runtime.access.credentials_source import read_secret
from holdfast.runtime.access.first_administrator import create_first_administrator

ADMINISTRATOR: Final = "admin"
ADMINISTRATOR_FILE: Final = "admin.secret"
CLUSTER_FILE: Final = "cluster.secret"
PROFILE: Final = "up"
COMMAND: Final = "holdfast up --auth"


class LocalAccess(msgspec.Struct, frozen=True):
    """Who may use a local cluster.

    Attributes:
        access_key: The name of the administrator.
        secret_file: The file with its secret.
        cluster_secret: The file with the secret of the servers.
    """

    access_key: str
    secret_file: Path
    cluster_secret: Path


def prepare_access(folder: Path, now_ms: int) -> LocalAccess:
    """Create the secrets and the administrator of a cluster that does not run, unless they exist.

    Args:
        folder: The data folder.
        now_ms: The time.

    Raises:
        ConfigError: a file cannot be used, or the administrator's secret is lost.
        StoreError: the folder of the name server cannot be used.
    """
    cluster_secret, secret_file = folder / CLUSTER_FILE, folder / ADMINISTRATOR_FILE
    if not cluster_secret.exists():
        with saved_secret(cluster_secret, new_secret()):
            pass
    if secret_file.exists():
        _create(folder, read_secret(secret_file), now_ms, is_new=False)
    else:
        secret = new_secret()
        with saved_secret(secret_file, secret):
            pass
        # The file comes first: a crash before the next line leaves a secret without a user, and the next start adds it.
        try:
            _create(folder, secret, now_ms, is_new=True)
        except ConfigError:
            secret_file.unlink()
            raise
    return LocalAccess(ADMINISTRATOR, secret_file, cluster_secret)


def _create(folder: Path, secret: str, now_ms: int, *, is_new: bool) -> None:
    user, file = User(ADMINISTRATOR, (secret,), UserKind.SUPER), folder / ADMINISTRATOR_FILE
    try:
        create_first_administrator(folder / "namesrv", user, now_ms)
    except DirectoryRefused as refused:
        # An administrator who has another secret by now, or another name, is what the user wanted.
        if is_new:
            raise ConfigError(
                f"this cluster has users, but the file {file} with the administrator's secret is missing ({refused})."
                f" Restore it; or write a new secret to it, start again, and run `holdfast user update {ADMINISTRATOR}"
                f" --secret-from {file} --access-key {CLUSTER_USER} --secret-file {folder / CLUSTER_FILE}`"
            ) from None


def write_profile(environment: Mapping[str, str], access: LocalAccess, namesrv: str, tls: ClientTls | None) -> bool:
    """Write the profile by which commands are the administrator; return whether they use it without an option.

    Raises:
        ConfigError: the user has a profile of this name, or the file cannot be written.
    """
    profile = Profile(
        namesrv=namesrv,
        access_key=access.access_key,
        secret_file=str(access.secret_file.resolve()),
        tls_ca=None if tls is None else _absolute(tls.ca),
        tls_cert=None if tls is None else _absolute(tls.cert),
        tls_key=None if tls is None else _absolute(tls.key),
        tls_verify=None if tls is None else tls.verify,
    )
    return save_profile(environment, PROFILE, profile, COMMAND)


def _absolute(file: str | None) -> str | None:
    return None if file is None else str(Path(file).resolve())
