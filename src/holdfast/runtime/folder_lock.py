"""Locks that keep a folder to one process. A lock ends with its process, however that ends."""

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
    """Lock *folder*, which is created if necessary, for the duration of the block.

    Raises:
        ConfigError: it cannot be created, or another process has locked it.
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
def lock_store(folder: Path) -> Iterator[PosixDisk]:
    """Lock the store folder of a stopped broker for the duration of the block.

    Raises:
        ConfigError: *folder* is not a store folder.
        StoreError: a broker or another command uses it.
    """
    if not (folder / LOG_FOLDER).is_dir():
        raise ConfigError(f"{folder} is not a store folder of a broker: there is no {folder / LOG_FOLDER}")
    disk = PosixDisk(folder)
    try:
        disk.lock()
    except StoreError as error:
        raise StoreError(f"{folder} is in use: stop its broker first, or work on a copy of the folder") from error
    try:
        yield disk
    finally:
        disk.unlock()
