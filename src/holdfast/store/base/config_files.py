"""The JSON files in `config/`, each with the previous one beside it as `.bak`.

    config/topics.json    config/topics.json.bak

Upstream writes the old content to `.bak` and then the new one in place, so a crash may leave the first torn: then the
second counts. Knows nothing of what is in the files.
"""

from __future__ import annotations

from typing import Any

from holdfast.model.errors import RemoteProtocolError
from holdfast.store.base.disk import Disk
from holdfast.wire.frames import java_json

FOLDER = "config"


def config_path(name: str) -> str:
    """Return where the file *name*, say `topics.json`, is kept."""
    return f"{FOLDER}/{name}"


def load_config(disk: Disk, name: str) -> Any | None:
    """Return the content of a file as plain values, of its `.bak` if it cannot be read, or None if neither can."""
    found = find_config(disk, name)
    return None if found is None else found[1]


def find_config(disk: Disk, name: str) -> tuple[str, Any] | None:
    """Return which of the two files counts, and its content; None if neither can be read."""
    for path in (config_path(name), config_path(name) + ".bak"):
        data = disk.read_file(path)
        if data:
            try:
                return path, java_json.loads(data)
            except RemoteProtocolError:
                continue
    return None


def plan_save(disk: Disk, name: str, data: bytes) -> list[tuple[str, bytes]]:
    """Return the (path, content) to write, in order, so that *data* is the file and what it was becomes its `.bak`."""
    path = config_path(name)
    previous = disk.read_file(path)
    if previous == data:
        return []
    writes = [(path + ".bak", previous)] if previous else []
    return [*writes, (path, data)]


def save_config(disk: Disk, name: str, data: bytes) -> None:
    """Write *data* durably and keep what was there as `.bak`."""
    for path, content in plan_save(disk, name, data):
        disk.replace(path, content)
