"""Which log files may be removed.

    file n   |....................|      removed when the first record of file n + 1 is old enough: so is all of file n
    file n+1 |r...................|
    file n+2 |......... <- writing        never removed, nor are the files created ahead of it

Ages come from the records, not from the files: copying a folder must not make it young (hazard H7). Above one limit of
disk use the oldest files are removed whatever their age; above another, writes are refused.

An archive job writes its progress to a file of the folder. No log file that it still needs is removed, however old it
is and however full the disk. Without that file nothing is held; an unreadable one holds everything.
"""

from __future__ import annotations

import msgspec

from holdfast.model.errors import DiskFailed
from holdfast.store.base.disk import Disk
from holdfast.store.base.log_file import LogFiles
from holdfast.store.base.options import StoreOptions
from holdfast.store.log.log_scanner import WalkedRecord, validate_record_at

RETENTION_HOLD_PATH = "holdfast/archived.json"


class ArchiveProgress(msgspec.Struct, frozen=True):
    """The content of the file: for each archive, the position before which it is complete. There may be several."""

    positions: dict[str, int]


class DiskUse(msgspec.Struct, frozen=True):
    """Disk use, and the measures that it requires."""

    used: int
    total: int
    is_forced: bool
    is_full: bool

    @property
    def percent(self) -> float:
        """Disk use in percent."""
        return 100 * self.used / self.total if self.total else 0.0


def measure_disk(disk: Disk, options: StoreOptions) -> DiskUse:
    """Return the current disk use."""
    used, total = disk.space()
    return DiskUse(
        used,
        total,
        is_forced=used * 100 > options.clean_forced_percent * total,
        is_full=used * 100 > options.disk_full_percent * total,
    )


def find_retention_hold(disk: Disk) -> int | None:
    """Return the position from which on the log must be kept; None if no archive requires that."""
    try:
        data = disk.read_file(RETENTION_HOLD_PATH)
        return (
            None
            if data is None
            else min(msgspec.json.decode(data, type=ArchiveProgress).positions.values(), default=None)
        )
    except (DiskFailed, msgspec.MsgspecError, UnicodeDecodeError):
        return 0


def count_expired(files: LogFiles, written: int, now_ms: int, options: StoreOptions, *, is_forced: bool) -> int:
    """Return how many files may be removed from the front of the log now."""
    writing = written // files.size
    count = 0
    for number in files.files:
        if number >= writing or count == options.clean_files_max:
            break
        if not is_forced:
            following = validate_record_at(files, (number + 1) * files.size, check_body=False)
            if not isinstance(following, WalkedRecord) or following.store_ms + options.retention_ms > now_ms:
                break
        count += 1
    return count
