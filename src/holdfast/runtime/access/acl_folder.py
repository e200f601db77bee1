"""Finds the ACL 1.0 files that a role follows."""

from __future__ import annotations

from pathlib import Path

from holdfast.model.errors import ConfigError
from holdfast.runtime.posix_disk import PosixDisk


def open_acl_folder(path: str | None) -> tuple[PosixDisk, str] | None:
    """Return the folder of the files that the option `acl_file` names, and the name of the file in it.

    The name is empty if *path* is a folder: then all ACL files in it are followed.

    Raises:
        ConfigError: *path* does not exist.
    """
    if path is None:
        return None
    named = Path(path)
    if named.is_dir():
        return PosixDisk(named), ""
    if not named.is_file():
        raise ConfigError(f"acl_file: {path} does not exist; name RocketMQ's plain_acl.yml, or a folder of ACL files")
    return PosixDisk(named.parent), named.name
