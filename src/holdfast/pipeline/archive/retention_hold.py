"""Tells the retention of a broker what it may delete: the one thing that a job writes into a store folder.

    holdfast/archived.json    {"positions": {"/archive": 1073741824, "/other": 734003200}}

Each archive says up to where it has the log. A Holdfast broker removes no log file that one of them has not got yet.
A file that cannot be read keeps all of the log, and is left alone: who wrote it anew would drop what others said.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from holdfast.pipeline.scan.read_only import replace_small
from holdfast.store.log.retention import HOLD_PATH, Hold


def hold_log(root: str, archive: str, position: int) -> bool:
    """Say that *archive* has everything before *position*, and wants what is behind it to be kept.

    Returns:
        False if what is there cannot be read.
    """
    path = Path(root) / HOLD_PATH
    with _alone(path.parent):
        try:
            known = msgspec.json.decode(path.read_bytes(), type=Hold).positions
        except FileNotFoundError:
            known = {}
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return False
        replace_small(path, msgspec.json.encode(Hold({**known, archive: position})))
        return True


def release_log(root: str) -> None:
    """Let retention go by age and disk use alone, whatever is archived."""
    (Path(root) / HOLD_PATH).unlink(missing_ok=True)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one archive write at a time: none may drop what another has just said."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
