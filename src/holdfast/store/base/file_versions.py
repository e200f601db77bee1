"""A small file and its previous version, which is used if the file is missing or damaged.

    path    path.bak

RocketMQ writes the old content to `.bak` and then the new content in place, so a crash may tear the first file. This
module knows neither the reader of a file nor its content.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import msgspec

from holdfast.model.errors import RemoteProtocolError

DAMAGED: Final = (RemoteProtocolError, msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What a decoder raises if the content of a file is damaged."""

ReadFile = Callable[[str], bytes | None]
"""Returns the content of the file at a path; None if there is none."""

_T = TypeVar("_T")


def backup_path(path: str) -> str:
    """Return the path of the previous version of a file."""
    return path + ".bak"


def versions_of(path: str) -> tuple[str, str]:
    """Return the paths of a file and of its previous version."""
    return path, backup_path(path)


def load_newest(read: ReadFile, paths: Sequence[str], decode: Callable[[str, bytes], _T]) -> tuple[str, _T] | None:
    """Return path and decoded content of the first file in *paths* that exists and is not damaged; None if none is.

    *decode* gets both, and raises one of `DAMAGED` if the content is damaged.
    """
    for path in paths:
        content = read(path)
        if content is not None:
            try:
                return path, decode(path, content)
            except DAMAGED:
                continue
    return None
