"""Writes the first Super user of a role. With requests, only Super users create Super users."""

from __future__ import annotations

from pathlib import Path

from holdfast.access.directory_store import add_first_user
from holdfast.model.access.user import User
from holdfast.runtime.posix_disk import PosixDisk


def create_first_administrator(folder: str | Path, user: User, now_ms: int) -> None:
    """Add *user* to the users of a broker or name server that does not run.

    The other servers of its domain learn the user when it starts.

    Args:
        folder: The store folder of the broker, or the data folder of the name server. Created if it does not exist.
        user: A Super user.
        now_ms: The time.

    Raises:
        StoreError: the role runs, or its file of users and rules cannot be used.
        DirectoryRefused: the role has another Super user already, or the user cannot be created.
        DiskFailed: the file cannot be written.
    """
    disk = PosixDisk(folder)
    disk.lock()
    try:
        add_first_user(disk, user, now_ms)
    finally:
        disk.unlock()
