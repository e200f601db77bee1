"""New secrets: generated, or read from a file or standard input; and files that only their owner can read.

A secret is never an argument of a command: every user of the machine can see the arguments of a process.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Final

import typer

from holdfast.admin.cluster_access import PartlyDone
from holdfast.model.errors import BrokerRefused, ConfigError, ConnectionLost, RequestTimeout
from holdfast.runtime.access.credentials_source import read_secret
from holdfast.runtime.access.private_file import SECRET_BYTES_MAX
from holdfast.wire.frames.codes import ResponseCode

SECRET_BYTES: Final = 24
"""The random bytes of a generated secret: 32 characters."""
STANDARD_INPUT: Final = "-"

SecretFromOption = Annotated[
    str | None,
    typer.Option("--secret-from", metavar="FILE", help="Use the secret in this file; - reads standard input."),
]
SaveToOption = Annotated[
    Path | None,
    typer.Option("--save-to", metavar="FILE", help="Generate a secret, and write it to this file, not to the screen."),
]


def new_secret() -> str:
    """Return a random secret."""
    return secrets.token_urlsafe(SECRET_BYTES)


def read_new_secret(source: str) -> str:
    """Return the secret in a file, or on standard input for `-`.

    Raises:
        ConfigError: there is no secret, or others can read the file.
    """
    if source != STANDARD_INPUT:
        return read_secret(Path(source))
    text = sys.stdin.read(SECRET_BYTES_MAX + 1).removesuffix("\n").removesuffix("\r")
    if not text or len(text) > SECRET_BYTES_MAX or not text.isprintable():
        raise ConfigError("standard input must contain one line: the secret, and nothing else")
    return text


@contextmanager
def saved_secret(file: Path, secret: str, *, replaces: bool = False) -> Iterator[None]:
    """Write *secret* to *file*, which only its owner can read, if the block succeeds.

    The secret is on disk before the block begins, so that a full disk cannot lose a secret that a server has accepted.
    If a change to an existing user may have been made although it failed, the new secret stays in `FILE.new`: it may be
    the only valid one.

    Raises:
        ConfigError: the file exists and must not be replaced, or cannot be written.
    """
    if file.exists() and not replaces:
        raise ConfigError(
            f"{file} exists: choose another file, or remove it first if its secret is not needed any more"
        )
    temporary = file.with_name(f".{file.name}.new")
    try:
        with suppress(FileNotFoundError):
            temporary.unlink()
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
            opened.write(secret + "\n")
            opened.flush()
            os.fsync(opened.fileno())
    except OSError as error:
        raise ConfigError(f"the secret cannot be written to {file}: {error.strerror or error}") from None
    try:
        yield
        temporary.replace(file)
    except BaseException as error:
        if replaces and _may_be_done(error):
            kept = file.with_name(f"{file.name}.new")
            temporary.replace(kept)
            sys.stderr.write(f"{file} is unchanged. If a server has made the change, the new secret is in {kept}\n")
        raise
    finally:
        temporary.unlink(missing_ok=True)


def _may_be_done(error: BaseException) -> bool:
    """Return whether a server may have made a change that failed with *error*."""
    if isinstance(error, BrokerRefused):
        return error.code == ResponseCode.SYSTEM_ERROR  # in effect, but not on disk
    return isinstance(error, ConnectionLost | RequestTimeout | PartlyDone | KeyboardInterrupt)
