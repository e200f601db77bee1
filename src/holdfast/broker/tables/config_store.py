"""The broker's own small files, typed: what is in them, and what happens when they cannot be read."""

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
    """Return what is in the file *name*, or in its `.bak`; None when there is neither.

    Raises:
        StoreError: there is a file and nothing can be made of it. Going on without it would forget topics, groups or
            offsets in silence.
    """
    value = config_files.load_config(disk, name)
    path = config_files.config_path(name)
    if value is None:
        if disk.find_size(path) is not None:
            raise StoreError(
                f"{path} cannot be read and has no good .bak beside it; restore it, or remove it to begin anew"
            )
        return None
    try:
        return msgspec.convert(value, kind, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        raise StoreError(f"{path} has not the shape it should have: {error}") from error


def report_fallbacks(disk: Disk, names: Iterable[str]) -> list[Log]:
    """Return a line for each file in whose place its `.bak` counts: what was last changed in it is forgotten."""
    lines: list[Log] = []
    for name in names:
        found = config_files.find_config(disk, name)
        path = config_files.config_path(name)
        if found is not None and found[0] != path:
            fields: dict[str, object] = {"file": path, "used": found[0]}
            lines.append(Log("warning", "configuration missing or damaged, the version before it is used", fields))
    return lines


def save_config(disk: Disk, name: str, value: msgspec.Struct) -> None:
    """Put *value* on disk before returning, and what was there into `.bak`."""
    config_files.save_config(disk, name, java_json.encode(value))


def write_config(disk: Disk, name: str, value: msgspec.Struct) -> list[WriteFile]:
    """Return the effects that put *value* on disk off the loop, however long the disk has no space for it."""
    return write_bytes(disk, name, java_json.encode(value))


def write_bytes(disk: Disk, name: str, data: bytes) -> list[WriteFile]:
    """Return the effects that put *data* on disk off the loop, however long the disk has no space for it."""
    writes = config_files.plan_save(disk, name, data)
    return [WriteFile(path, content, is_retried=True) for path, content in writes]
