"""The credentials of a client or a server: fixed, or with a secret from a file that is re-read when it changes.

    the file has another time, size or inode ─> read ─┬─ another secret ─> used from now on
                                                      └─ unreadable ─────> ConfigError; the previous one stays

The file contains the secret and nothing else, and only its owner may have access to it. To rotate a secret, write the
new one to another file and rename it over the old one: then no reader sees a part of it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

import msgspec

from holdfast.model.access.credentials import Credentials
from holdfast.model.errors import ConfigError

SECRET_BYTES_MAX: Final = 4096

_Stamp = tuple[int, int, int]


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
        self._stamp: _Stamp | None = None
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
        secret, self._stamp = _read(self._file)
        before = self.current
        self.current = msgspec.structs.replace(before, secret_key=secret)
        return self.current != before

    def _has_file_changed(self, file: Path) -> bool:
        try:
            return _stamp(file.stat()) != self._stamp
        except OSError:
            return True  # Reading it reports the reason.


def read_secret(file: Path) -> str:
    """Return the secret in *file*, without the line break at its end.

    Raises:
        ConfigError: the file cannot be read, others have access to it, or it does not contain a secret.
    """
    return _read(file)[0]


def _read(file: Path) -> tuple[str, _Stamp]:
    try:
        # A pipe without a writer would block.
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ConfigError(f"the secret file {file} cannot be read: {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as opened:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"the secret file {file} is not a regular file")
        if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigError(
                f"other users may have access to the secret file {file} (its mode is {stat.S_IMODE(status.st_mode):o}):"
                f" run `chmod 600 {file}`"
            )
        try:
            content = opened.read(SECRET_BYTES_MAX + 1)
        except OSError as error:
            raise ConfigError(f"the secret file {file} cannot be read: {error.strerror}") from None
    return _parse(file, content), _stamp(status)


def _parse(file: Path, content: bytes) -> str:
    """Return the secret. No error repeats any part of the content."""
    if len(content) > SECRET_BYTES_MAX:
        raise ConfigError(
            f"the secret file {file} has more than {SECRET_BYTES_MAX} bytes: it must hold only the secret"
        )
    try:
        secret = content.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise ConfigError(f"the secret file {file} is not UTF-8 text") from None
    if not secret or not secret.isprintable():
        raise ConfigError(f"the secret file {file} must hold one line: the secret, and nothing else")
    return secret


def _stamp(status: os.stat_result) -> _Stamp:
    return status.st_mtime_ns, status.st_size, status.st_ino
