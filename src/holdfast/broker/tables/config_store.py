"""Loads and saves the broker's configuration files, typed; a file that cannot be read falls back to its `.bak`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from holdfast.machine.effects import Log, WriteFile
from holdfast.model.errors import StoreError
from holdfast.store.base import config_files
from holdfast.store.base.disk import Disk
from holdfast.wire.frames import java_json

_T = TypeVar("_T")


def load_config(disk: Disk, name: str, kind: type[_T]) -> _T | None:
    """Return the content of file *name*, or of its `.bak`; return None if neither exists.

    Raises:
        StoreError: A file exists but cannot be read. Starting without it would silently lose topics, groups or offsets.
    """
    value = config_files.load_config(disk, name)
    path = config_files.config_path(name)
    if value is None:
        if disk.find_size(path) is not None:
            raise StoreError(
                f"{path} cannot be read and its .bak is missing or damaged; restore it, or remove it to start anew"
            )
        return None
    try:
        return msgspec.convert(value, kind, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        raise StoreError(f"{path} is readable JSON but has unexpected content: {error}") from error


def report_fallbacks(disk: Disk, names: Iterable[str]) -> list[Log]:
    """Return a log line for each file that is replaced by its `.bak`: the last change to it is lost."""
    lines: list[Log] = []
    for name in names:
        found = config_files.find_config(disk, name)
        path = config_files.config_path(name)
        if found is not None and found[0] != path:
            fields: dict[str, object] = {"file": path, "used": found[0]}
            lines.append(Log("warning", "configuration missing or damaged, the version before it is used", fields))
    return lines


def save_config(disk: Disk, name: str, value: msgspec.Struct) -> None:
    """Persist *value* before returning; keep the previous content as `.bak`."""
    config_files.save_config(disk, name, java_json.encode(value))


def write_config(disk: Disk, name: str, value: msgspec.Struct) -> list[WriteFile]:
    """Return effects that persist *value* asynchronously, retrying while the disk is full."""
    return write_bytes(disk, name, java_json.encode(value))


def write_bytes(disk: Disk, name: str, data: bytes) -> list[WriteFile]:
    """Return effects that persist *data* asynchronously, retrying while the disk is full."""
    writes = config_files.plan_save(disk, name, data)
    return [WriteFile(path, content, is_retried=True) for path, content in writes]
