"""The disk interface. `runtime.posix_disk` is the real one; `sim.disk` simulates torn and lost writes.

Paths are relative to the store's root folder and use `/`. Every method may raise `DiskFailed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

Piece = bytes | bytearray | memoryview


class Syncable(Protocol):
    """A file or a whole disk that can be synced."""

    def sync(self) -> None:
        """Sync everything written. Blocks: on a real disk, call it from a thread."""
        ...


class File(Syncable, Protocol):
    """One open file of fixed size."""

    path: str
    size: int

    def write(self, at: int, pieces: Sequence[Piece], size: int | None = None) -> None:
        """Write *pieces* one after the other, starting at byte *at*. Visible to `view` and `read` at once.

        Any number of pieces is accepted. A caller that knows their total *size* can pass it, to save summing it up.
        After a crash any page that was not synced may be missing.
        """
        ...

    def view(self, start: int, end: int) -> memoryview:
        """Return the bytes of [start, end) without copying. The view keeps the file's pages alive while it is held."""
        ...

    def read(self, start: int, end: int) -> bytes:
        """Return a copy of the bytes of [start, end)."""
        ...

    def erase(self, start: int, end: int) -> None:
        """Make [start, end) read as zeros, and free the disk space where possible."""
        ...

    def reserve(self, start: int, end: int) -> None:
        """Allocate disk space for [start, end) where it is not allocated yet. The bytes keep their values.

        Raises:
            DiskFull: there is not enough disk space.
        """
        ...

    def close(self) -> None:
        """Close the file. Views that are still held stay valid."""
        ...


class Disk(Syncable, Protocol):
    """A folder of files.

    `sync` syncs all files and their names, at a cost that does not depend on their number.
    """

    @property
    def can_sync(self) -> bool:
        """Whether `sync` may be called: some systems lack it, or do not report its failures."""
        ...

    def list(self, folder: str) -> list[str]:
        """Return the names in *folder*, sorted; empty if the folder does not exist. Names of folders end with `/`."""
        ...

    def find_size(self, path: str) -> int | None:
        """Return the size of a file in bytes, or None if it does not exist."""
        ...

    def modified_ms(self, path: str) -> int:
        """Return the time of the last write to the file."""
        ...

    def open(self, path: str) -> File:
        """Open an existing file for reading and writing."""
        ...

    def create(self, path: str, size: int, *, reserve: bool = False) -> File:
        """Create a file of *size* zero bytes, and its parent folders; *reserve* allocates its disk space at once.

        Raises:
            DiskFull: the space to reserve is not available. No file is created.
        """
        ...

    def read_file(self, path: str) -> bytes | None:
        """Return the content of a small file, or None if it does not exist."""
        ...

    def is_private(self, path: str) -> bool:
        """Return whether only the owner of an existing file may read and write it."""
        ...

    def replace(self, path: str, data: bytes, *, is_private: bool = False) -> None:
        """Write *data* to *path* durably and atomically: a crash leaves the old content or the new, never a mixture.

        Only the owner may read and write the file if *is_private*.
        """
        ...

    def rename(self, source: str, target: str) -> None:
        """Move a file, or a folder with its content, durably and atomically; an existing file *target* is replaced."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with its content. Do nothing if it does not exist."""
        ...

    def space(self) -> tuple[int, int]:
        """Return (used bytes, total bytes) of the file system that holds the folder."""
        ...
