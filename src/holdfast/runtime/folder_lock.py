"""One process at a time on a folder. The lock goes with the process, however it ends."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.model.errors import ConfigError, StoreError
from holdfast.runtime.posix_disk import PosixDisk
from holdfast.store.log.commit_log import FOLDER as LOG_FOLDER


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


@contextmanager
def hold_store(folder: Path) -> Iterator[PosixDisk]:
    """Hold the store folder of a broker that does not run, for the time of the block.

    Raises:
        ConfigError: it is no such folder.
        StoreError: a broker, or another command, is at work there.
    """
    if not (folder / LOG_FOLDER).is_dir():
        raise ConfigError(f"{folder} is no store folder of a broker: there is no {folder / LOG_FOLDER}")
    disk = PosixDisk(folder)
    try:
        disk.lock()
    except StoreError as error:
        raise StoreError(f"{folder} is in use: stop its broker first, or work on a copy of the folder") from error
    try:
        yield disk
    finally:
        disk.unlock()
