"""JSON files in `config/`, with the previous version as `.bak`.

    config/topics.json    config/topics.json.bak

The broker saves these files (`KeptFile`); the store only reads them, and does not know their content.
"""

from __future__ import annotations

from typing import Any

from holdfast.store.base.file_versions import ReadFile, load_newest, versions_of
from holdfast.wire.frames import java_json

FOLDER = "config"


def config_path(name: str) -> str:
    """Return the path of the file *name*, for example `topics.json`."""
    return f"{FOLDER}/{name}"


def load_config(read: ReadFile, name: str) -> Any | None:
    """Return the content of a file as plain values, or of its `.bak` if it is unreadable, or None if both are."""
    newest = load_newest(read, versions_of(config_path(name)), lambda _path, content: java_json.loads(content))
    return None if newest is None else newest[1]
