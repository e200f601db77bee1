"""JSON files in `config/`, with the previous version as `.bak`.

    config/topics.json    config/topics.json.bak

RocketMQ writes the old content to `.bak` and then the new content in place. A crash may tear the first file: then the
backup is used. This module does not know the content of the files.
"""

from __future__ import annotations

from typing import Any

from holdfast.model.errors import RemoteProtocolError
from holdfast.store.base.disk import Disk
from holdfast.wire.frames import java_json

FOLDER = "config"


def config_path(name: str) -> str:
    """Return the path of the file *name*, for example `topics.json`."""
    return f"{FOLDER}/{name}"


def load_config(disk: Disk, name: str) -> Any | None:
    """Return the content of a file as plain values, or of its `.bak` if it is unreadable, or None if both are."""
    found = find_config(disk, name)
    return None if found is None else found[1]


def find_config(disk: Disk, name: str) -> tuple[str, Any] | None:
    """Return the path and the content of the file or else its `.bak`; None if neither is readable."""
    for path in (config_path(name), config_path(name) + ".bak"):
        data = disk.read_file(path)
        if data:
            try:
                return path, java_json.loads(data)
            except RemoteProtocolError:
                continue
    return None


def plan_save(disk: Disk, name: str, data: bytes) -> list[tuple[str, bytes]]:
    """Return the ordered (path, content) writes that store *data* and keep the previous content as `.bak`.

    Unreadable content is not kept: the `.bak` that it would replace is the only good version until *data* is written.
    """
    path = config_path(name)
    previous = disk.read_file(path)
    if previous == data:
        return []
    writes = [(path + ".bak", previous)] if previous and _is_readable(previous) else []
    return [*writes, (path, data)]


def save_config(disk: Disk, name: str, data: bytes) -> None:
    """Write *data* durably and keep the previous content as `.bak`, unless that is unreadable."""
    for path, content in plan_save(disk, name, data):
        disk.replace(path, content)


def _is_readable(data: bytes) -> bool:
    try:
        java_json.loads(data)
    except RemoteProtocolError:
        return False
    return True
