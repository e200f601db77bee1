"""Reads files that only their owner may have access to: secrets and tokens. No error repeats any part of a file."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

import msgspec

from holdfast.model.errors import ConfigError

SECRET_BYTES_MAX: Final = 4096

FileStamp = tuple[int, int, int]
"""Time, size and inode of a file: another stamp means that the file has changed."""


class PrivateFile(msgspec.Struct, frozen=True):
    """A file as it was read.

    Attributes:
        text: Its content.
        stamp: Its stamp when it was read.
    """

    text: str
    stamp: FileStamp


def read_private_file(path: Path | str) -> PrivateFile:
    """Return the content of a secret file.

    Raises:
        ConfigError: it cannot be read, others have access to it, it is too large, or it is no text.
    """
    try:
        # A pipe without a writer would block.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            _check_owner_only(path, status)
            content = file.read(SECRET_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"the secret file {path} cannot be read: {error.strerror or error}") from None
    if len(content) > SECRET_BYTES_MAX:
        raise ConfigError(
            f"the secret file {path} has more than {SECRET_BYTES_MAX} bytes: it must hold only the secret"
        )
    try:
        return PrivateFile(content.decode(), stamp_of(status))
    except UnicodeDecodeError:
        raise ConfigError(f"the secret file {path} is not UTF-8 text") from None


def stamp_of(status: os.stat_result) -> FileStamp:
    """Return the stamp of a file with *status*."""
    return status.st_mtime_ns, status.st_size, status.st_ino


def _check_owner_only(path: Path | str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"the secret file {path} is not a regular file")
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(
            f"other users may have access to the secret file {path} (its mode is {stat.S_IMODE(status.st_mode):o}): "
            f"run `chmod 600 {path}`"
        )
