"""The credentials of a client or a server: fixed, or with a secret from a file that is re-read when it changes.

    the file has another time, size or inode ─> read ─┬─ another secret ─> used from now on
                                                      └─ unreadable ─────> ConfigError; the previous one stays

The file contains the secret and nothing else, and only its owner may have access to it. To rotate a secret, write the
new one to another file and rename it over the old one: then no reader sees a part of it.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from holdfast.model.access.credentials import Credentials
from holdfast.model.errors import ConfigError
from holdfast.runtime.access.private_file import FileStamp, PrivateFile, read_private_file, stamp_of


class CredentialsSource:
    """Provides the credentials that are valid now.

    Args:
        credentials: The credentials. With *secret_file*, their secret is ignored.
        secret_file: The file with the secret; None if the secret is fixed.

    Attributes:
        current: The credentials as last read.

    Raises:
        ConfigError: the file cannot be used.
    """

    def __init__(self, credentials: Credentials, secret_file: Path | str | None = None) -> None:
        self.current = credentials
        self._file = None if secret_file is None else Path(secret_file)
        self._stamp: FileStamp | None = None
        self.refresh()

    @property
    def is_fixed(self) -> bool:
        """Whether the credentials never change."""
        return self._file is None

    def refresh(self) -> bool:
        """Read the file again if it has changed. Return whether the credentials have.

        Raises:
            ConfigError: the file cannot be used; `current` stays.
        """
        if self._file is None or not self._has_file_changed(self._file):
            return False
        file = read_private_file(self._file)
        secret = _parse(self._file, file)
        self._stamp = file.stamp
        before = self.current
        self.current = msgspec.structs.replace(before, secret_key=secret)
        return self.current != before

    def _has_file_changed(self, file: Path) -> bool:
        try:
            return stamp_of(file.stat()) != self._stamp
        except OSError:
            return True  # Reading it reports the reason.


def read_secret(file: Path) -> str:
    """Return the secret in *file*, without the line break at its end.

    Raises:
        ConfigError: the file cannot be read, others have access to it, or it does not contain a secret.
    """
    return _parse(file, read_private_file(file))


def _parse(path: Path, file: PrivateFile) -> str:
    secret = file.text.removesuffix("\n").removesuffix("\r")
    if not secret or not secret.isprintable():
        raise ConfigError(f"the secret file {path} must hold one line: the secret, and nothing else")
    return secret
