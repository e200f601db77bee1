"""Keeps a broker's retention from deleting records that are not archived: the only file that `archive` puts in a store.

    holdfast/archived.json    {"positions": {"/archive": 1073741824, "/other": 734003200}}

Each archive records up to which position it contains the log. A Holdfast broker removes no log file that one of the
archives does not contain yet. If the file is unreadable, the broker keeps the whole log, and an archive does not
replace the file: that would drop the positions of other archives.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from holdfast.pipeline.scan.read_only import replace_file
from holdfast.store.log.retention import RETENTION_HOLD_PATH, ArchiveProgress


def hold_retention(root: str, archive: str, position: int) -> bool:
    """Record that *archive* contains the log before *position*, so that retention keeps the rest.

    Returns:
        False if the existing file cannot be read.
    """
    path = Path(root) / RETENTION_HOLD_PATH
    with _locked(path.parent):
        try:
            known = msgspec.json.decode(path.read_bytes(), type=ArchiveProgress).positions
        except FileNotFoundError:
            known = {}
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return False
        replace_file(path, msgspec.json.encode(ArchiveProgress({**known, archive: position})))
        return True


def release_retention(root: str) -> None:
    """Remove the holds of all archives: retention then depends on age and disk use only."""
    (Path(root) / RETENTION_HOLD_PATH).unlink(missing_ok=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the folder, so that concurrent archives do not overwrite each other's positions."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
