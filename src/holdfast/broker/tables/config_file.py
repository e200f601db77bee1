"""A file in `config/`: JSON as RocketMQ writes it, with the previous version as `.bak`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from holdfast.machine.kept_file import KeptFile
from holdfast.machine.turn import Turn
from holdfast.store.base.config_files import config_path
from holdfast.store.base.disk import Disk
from holdfast.wire.frames import java_json

_T = TypeVar("_T")


def config_file(
    turn: Turn,
    disk: Disk,
    name: str,
    kind: type[_T],
    value: Callable[[], _T],
    *,
    encode: Callable[[_T], bytes] = java_json.encode,
    log_end: Callable[[], int] | None = None,
    saves_at_once: bool = False,
) -> KeptFile[_T]:
    """Return the file *name*, which contains a *kind*; see `KeptFile` for the other arguments."""

    def decode(content: bytes) -> Any:
        return msgspec.convert(java_json.loads(content), kind, strict=False)

    return KeptFile(
        turn,
        disk,
        config_path(name),
        value,
        encode=encode,
        decode=decode,
        log_end=log_end,
        saves_at_once=saves_at_once,
    )
