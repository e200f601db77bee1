"""One process at a time on a folder. The lock goes with the process, however it ends."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.model.errors import ConfigError


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold *folder*, made if it is not there, for the time of the block.

    Raises:
        ConfigError: it cannot be made, or another process holds it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / "lock").open("w")
    except OSError as error:
        raise ConfigError(f"cannot use {folder}: {error.strerror or error}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{folder} is in use by another `holdfast up`; stop it, or choose --data DIR") from None
        yield
