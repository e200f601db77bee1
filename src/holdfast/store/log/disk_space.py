"""Whether the log can go on growing, found out before the disk refuses.

    |############### used ###############|..... free .....|
                                         ^ disk_full_percent: no more records
    | last file of the log  ######|.....|                   no room for another file: no more records
                                   ^ MARGIN before its end

A write that the disk refuses ends all writing until a restart, since nobody knows what the disk then holds, nor what
the other half of the event has decided already. So writes are refused while there is still room for what is under way,
and a file is made before anybody counts on it: when half of the one before is used, at the latest at its margin. If it
is refused then, nothing was begun; it is tried again at every look, and writing goes on once it is there.

Log files take their whole space when they are made: that is when the disk is looked at anew, however many are made in a
second, and once in a while for the sake of others.

Index files are sparse: the disk may refuse a write to one although it seemed to have space. Everything that such a
write contains is also in the log and in memory, so it is a shortage, not a fault: records are refused until the write
succeeds.
"""

from __future__ import annotations

from typing import Final

from holdfast.model.errors import DiskFull
from holdfast.store.base.disk import Disk
from holdfast.store.base.log_file import LogFiles
from holdfast.store.base.options import StoreOptions
from holdfast.store.log.retention import DiskUse, measure_disk

_EVENT_MAX: Final = 32 * 1024 * 1024  # what one event may write


class LogRoom:
    """The room that the log has.

    Attributes:
        use: How full the disk is, as of the last look.
        shortage: Which index write the disk refused for want of space; None once all of them succeed again.
        sure: A log that ends here, or before, has room for an event: nothing has to be asked.
    """

    def __init__(self, disk: Disk, files: LogFiles, options: StoreOptions) -> None:
        self._disk = disk
        self._files = files
        self._options = options
        self._margin = max(files.size // 8, min(files.size // 2, _EVENT_MAX))
        self.use: DiskUse = measure_disk(disk, options)
        self._created_count = files.created_count
        self.shortage: str | None = None
        self._is_last = False  # The disk has no room for another file, by its own account or as it refused one.
        self.measure()

    def measure(self) -> DiskUse:
        """Look at the disk."""
        use = self.use = measure_disk(self._disk, self._options)
        self._created_count = self._files.created_count
        self._is_last = use.total - use.used <= self._files.size
        self.sure = -1 if use.is_full or self.shortage is not None else self._files.end - self._margin
        return use

    def begin_shortage(self, reason: str) -> None:
        """Admit no more records: an index write was refused for want of space."""
        self.shortage = self.shortage or reason
        self.sure = -1

    def end_shortage(self) -> None:
        """Admit records again: the index writes that were refused have succeeded."""
        self.shortage = None
        self.measure()

    @property
    def has_next(self) -> bool:
        """Whether the disk has room for another file, as of the last look."""
        return not (self.use.is_full or self._is_last)

    def is_spent(self, written: int) -> bool:
        """Say whether a log that ends at *written* should take no more records, as far as is known."""
        if self._files.created_count != self._created_count:
            self.measure()
        if self.shortage is not None or self.use.is_full:
            return True
        return self._is_last and self._files.end - written < self._margin

    def admits(self, written: int) -> bool:
        """Say whether a log that ends at *written* has room for an event. Asked before every event that adds records.

        Makes the file that the event may need.
        """
        if written > self.sure and self._files.created_count != self._created_count:
            self.measure()
        if written > self.sure and not self.use.is_full and self.shortage is None:
            self._make_next()
        return written <= self.sure

    def prepare(self, written: int) -> None:
        """Make the next file while the current one still has room, so that no send waits for it."""
        if (self._files.end - written) * 2 < self._files.size:
            self._make_next()

    def _make_next(self) -> None:
        if self._is_last:
            return
        try:
            self._files.ensure(self._files.end // self._files.size)
        except DiskFull:
            self._is_last = True
        else:
            self.measure()
