"""Whether the log can go on growing, found out before the disk refuses.

    |############### used ###############|..... free .....|
                                         ^ disk_full_percent: no more records
    | last file of the log  ######|.....|                   no room for another file: no more records
                                   ^ MARGIN before its end

A write that the disk refuses ends all writing until a restart, since nobody knows what the disk then holds. So writes
are refused while there is still room for what is under way. Log files take their whole space when they are made: that
is when the disk is looked at anew, however many are made in a second, and once in a while for the sake of others.
"""

from __future__ import annotations

from typing import Final

from holdfast.store.disk import Disk
from holdfast.store.log_file import LogFiles
from holdfast.store.options import StoreOptions
from holdfast.store.retention import DiskUse, measure_disk

_EVENT_MAX: Final = 32 * 1024 * 1024  # what one event may write


class LogRoom:
    """The room that the log has.

    Attributes:
        use: How full the disk is, as of the last look.
    """

    def __init__(self, disk: Disk, files: LogFiles, options: StoreOptions) -> None:
        self._disk = disk
        self._files = files
        self._options = options
        self._margin = max(files.size // 8, min(files.size // 2, _EVENT_MAX))
        self.use: DiskUse = measure_disk(disk, options)
        self._created_count = files.created_count
        self._is_last = False  # The disk has no room for another file.
        self.measure()

    def measure(self) -> DiskUse:
        """Look at the disk."""
        use = self.use = measure_disk(self._disk, self._options)
        self._created_count = self._files.created_count
        self._is_last = use.total - use.used <= self._files.size
        return use

    @property
    def has_next(self) -> bool:
        """Whether the disk has room for another file, as of the last look."""
        return not (self.use.is_full or self._is_last)

    def is_spent(self, written: int) -> bool:
        """Say whether a log that ends at *written* should take no more records. Asked before every write."""
        if self._files.created_count != self._created_count:
            self.measure()
        return self.use.is_full or (self._is_last and self._files.end - written < self._margin)
