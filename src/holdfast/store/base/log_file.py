"""A chain of files of one size as one address space. Each file is named by the address of its first byte.

    commitlog/00000000000000000000      [0, size)
    commitlog/00000000001073741824      [size, 2 * size)
    commitlog/00000000002147483648      created ahead: all zeros until the log reaches it

This module does not know the content of the files.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from holdfast.model.errors import DiskFull, StoreError
from holdfast.store.base.disk import Disk, File

NAME_LENGTH = 20


def file_name(start: int) -> str:
    """Return the name of the file whose first byte has the address *start*."""
    return f"{start:0{NAME_LENGTH}d}"


def parse_names(names: list[str]) -> list[int]:
    """Return the addresses in *names*, lowest first; other names are ignored."""
    return sorted(int(name) for name in names if len(name) == NAME_LENGTH and name.isascii() and name.isdigit())


class LogFile(msgspec.Struct, frozen=True):
    """One file and its first address."""

    start: int
    file: File


class LogFiles:
    """The chain of files of one log.

    Invariant: the files are adjacent, and each begins at a multiple of their size.
    """

    def __init__(self, disk: Disk, folder: str, size: int) -> None:
        self._disk = disk
        self.folder = folder
        self.size = size
        self.files: dict[int, File] = {}  # by number: address // size
        self.created_count = 0  # by this process: these have their disk space allocated
        self.unused: list[str] = []  # Paths of files before a gap in the chain: kept, but not part of it.

    @classmethod
    def load(cls, disk: Disk, folder: str, size_default: int) -> LogFiles:
        """Open all files of *folder*. Their size is read from the first one; *size_default* applies if there is none.

        Raises:
            StoreError: the files do not form one log.
        """
        starts = parse_names(disk.list(folder))
        # A crash between creating a file and setting its size leaves an empty one at the end: it never held data.
        while starts and not disk.find_size(f"{folder}/{file_name(starts[-1])}"):
            disk.remove(f"{folder}/{file_name(starts.pop())}")
        if not starts:
            return cls(disk, folder, size_default)
        size = disk.find_size(f"{folder}/{file_name(starts[0])}") or 0
        files = cls(disk, folder, size)
        for start in starts:
            files._add_file(start)
        return files

    def _add_file(self, start: int) -> None:
        path = f"{self.folder}/{file_name(start)}"
        size = self._disk.find_size(path)
        if not size or size != self.size or start % self.size:
            raise StoreError(
                f"{path} has {size} bytes where files of {self.size} are expected: "
                "restore it from a backup, or move it and all later files out of the folder"
            )
        number = start // self.size
        if self.files and number - 1 not in self.files:
            # A walk of the log cannot reach files before a gap. Keep them: this broker may not delete them.
            self.unused.extend(file.path for file in self.files.values())
            self.files.clear()
        self.files[number] = self._disk.open(path)

    @property
    def start(self) -> int:
        """Address of the first byte; 0 if there are no files."""
        return next(iter(self.files)) * self.size if self.files else 0

    @property
    def end(self) -> int:
        """Address after the last byte of the last file, whether used or not."""
        return (next(reversed(self.files)) + 1) * self.size if self.files else 0

    def find(self, address: int) -> LogFile | None:
        """Return the file that holds *address*."""
        number = address // self.size
        file = self.files.get(number)
        return LogFile(number * self.size, file) if file is not None else None

    def ensure(self, number: int) -> File:
        """Return file *number*; create it if it does not exist."""
        file = self.files.get(number)
        if file is None:
            file = self._disk.create(f"{self.folder}/{file_name(number * self.size)}", self.size, reserve=True)
            self.files[number] = file
            self.created_count += 1
        return file

    def remove_first(self) -> str:
        """Remove the first file and return its path. Views that are still held stay valid."""
        number = next(iter(self.files))
        file = self.files.pop(number)
        self._disk.remove(file.path)
        return file.path

    def truncate(self, address: int) -> None:
        """Truncate the log at *address*: the rest of its file reads as zeros, and later files are removed.

        If the bytes stayed, a later recovery could mistake old records for new ones (hazard H1).
        """
        last = address // self.size
        for number in [number for number in self.files if number > last]:
            self._disk.remove(self.files.pop(number).path)
        if last in self.files:
            self.files[last].erase(address - last * self.size, self.size)
            self.reserve(address)

    def reserve(self, address: int) -> None:
        """Allocate disk space from *address* to the end of its file, if there is enough.

        `truncate` freed it, and a file that Java created never had it. Otherwise a later write would find the disk
        full, and the log would accept no more writes.
        """
        file = self.files.get(address // self.size)
        if file is not None:
            with suppress(DiskFull):
                file.reserve(address % self.size, self.size)
