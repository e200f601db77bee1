"""Admission of writes by free disk space, so that the disk never has to refuse one.

    |############### used ###############|..... free .....|
                                         ^ disk_full_percent: no more records
    | last file of the log  ######|.....|                   no space for another file: no more records
                                   ^ MARGIN before its end

If the disk refuses a write, the store accepts no writes until a restart: the disk content is unknown, and so is which
decisions of the event already took effect. So records are refused while there is space for all work in progress. A file
is created before it is needed: when half of the last file is used, at the latest at its margin. If that fails, no write
had started; the creation is retried at every check, and writing resumes once it succeeds.

Creating a log file allocates its disk space. Disk use is measured after each creation, however many there are in a
second, and periodically because other programs use the disk, too.

Index files are sparse: the disk may refuse a write to one although it seemed to have space. The log and memory hold
everything in such a write, so this is a shortage, not a fault: records are refused until the write succeeds.
"""

from __future__ import annotations

from typing import Final

from holdfast.model.errors import DiskFull
from holdfast.store.base.disk import Disk
from holdfast.store.base.log_file import LogFiles
from holdfast.store.base.options import StoreOptions
from holdfast.store.log.retention import DiskUse, measure_disk

_EVENT_MAX: Final = 32 * 1024 * 1024  # bytes that one event may write


class LogSpace:
    """The disk space that is available to the log.

    Attributes:
        use: Disk use at the last measurement.
        shortage: The index write that the disk refused for lack of space; None once all of them succeed again.
        safe_end: If the log ends here or before, an event fits without further checks.
    """

    def __init__(self, disk: Disk, files: LogFiles, options: StoreOptions) -> None:
        self._disk = disk
        self._files = files
        self._options = options
        self._margin = max(files.size // 8, min(files.size // 2, _EVENT_MAX))
        self.use: DiskUse = measure_disk(disk, options)
        self._created_count = files.created_count
        self.shortage: str | None = None
        self._is_last_file = False  # No space for another file: by measurement, or because the disk refused one.
        self.measure()

    def measure(self) -> DiskUse:
        """Measure the disk use."""
        use = self.use = measure_disk(self._disk, self._options)
        self._created_count = self._files.created_count
        self._is_last_file = use.total - use.used <= self._files.size
        self.safe_end = -1 if use.is_full or self.shortage is not None else self._files.end - self._margin
        return use

    def begin_shortage(self, reason: str) -> None:
        """Admit no more records: the disk refused an index write for lack of space."""
        self.shortage = self.shortage or reason
        self.safe_end = -1

    def end_shortage(self) -> None:
        """Admit records again: the refused index writes have succeeded."""
        self.shortage = None
        self.measure()

    @property
    def has_space_for_file(self) -> bool:
        """Whether the disk has space for another file, as of the last measurement."""
        return not (self.use.is_full or self._is_last_file)

    def is_exhausted(self, written: int) -> bool:
        """Return whether a log that ends at *written* should accept no more records, as far as is known."""
        if self._files.created_count != self._created_count:
            self.measure()
        if self.shortage is not None or self.use.is_full:
            return True
        return self._is_last_file and self._files.end - written < self._margin

    def reserve_event(self, written: int) -> bool:
        """Return whether an event fits into a log that ends at *written*. Call before every event that adds records.

        Creates the file that the event may need.
        """
        if written > self.safe_end and self._files.created_count != self._created_count:
            self.measure()
        if written > self.safe_end and not self.use.is_full and self.shortage is None:
            self._create_next()
        return written <= self.safe_end

    def prepare(self, written: int) -> None:
        """Create the next file while the current one still has space, so that no send waits for it."""
        if (self._files.end - written) * 2 < self._files.size:
            self._create_next()

    def _create_next(self) -> None:
        if self._is_last_file:
            return
        try:
            self._files.ensure(self._files.end // self._files.size)
        except DiskFull:
            self._is_last_file = True
        else:
            self.measure()
