"""What the log engine asks of a disk. `runtime.posix_disk` is the real one, `sim.disk` one that tears and forgets.

Paths are relative to the store's root folder and use `/`. Every method may raise `DiskFailed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

Piece = bytes | bytearray | memoryview


class Syncable(Protocol):
    """What can be brought to disk: a file, or a whole disk."""

    def sync(self) -> None:
        """Bring everything written to disk. Blocks: on a real disk it is called from a thread."""
        ...


class File(Syncable, Protocol):
    """One open file of fixed size."""

    path: str
    size: int

    def write(self, at: int, pieces: Sequence[Piece], size: int | None = None) -> None:
        """Write *pieces* one behind the other, starting at byte *at*. Visible to `view` and `read` at once.

        Any number of pieces; who knows their *size* together may tell it, which is cheaper than to ask each. After a
        crash any part of what was not synced may be missing, page by page.
        """
        ...

    def view(self, start: int, end: int) -> memoryview:
        """Return the bytes of [start, end) without copying. The view keeps the file's pages alive while it is held."""
        ...

    def read(self, start: int, end: int) -> bytes:
        """Return a copy of the bytes of [start, end)."""
        ...

    def erase(self, start: int, end: int) -> None:
        """Make [start, end) read as zeros, giving the space back where the disk can."""
        ...

    def reserve(self, start: int, end: int) -> None:
        """Take the space of [start, end) from the disk, where it is not taken yet. The bytes stay.

        Raises:
            DiskFull: the space is not there.
        """
        ...

    def close(self) -> None:
        """Let go of the file. Views that are still held stay good."""
        ...


class Disk(Syncable, Protocol):
    """A folder of files.

    `sync` brings all of them to disk, and their names, at a price that does not depend on their number.
    """

    @property
    def can_sync(self) -> bool:
        """Whether `sync` may be called: not every system has it, or tells when it fails."""
        ...

    def list(self, folder: str) -> list[str]:
        """Return the names in *folder*, sorted; empty when there is no such folder. Folders end with `/`."""
        ...

    def find_size(self, path: str) -> int | None:
        """Return the size of a file in bytes, or None when it does not exist."""
        ...

    def modified_ms(self, path: str) -> int:
        """Return when the file was last written to."""
        ...

    def open(self, path: str) -> File:
        """Open an existing file for reading and writing."""
        ...

    def create(self, path: str, size: int, *, reserve: bool = False) -> File:
        """Create a file of *size* zero bytes, and the folders above it; *reserve* takes the space from the disk now.

        Raises:
            DiskFull: the space to be reserved is not there, and neither is the file.
        """
        ...

    def read_file(self, path: str) -> bytes | None:
        """Return a whole small file, or None when it does not exist."""
        ...

    def replace(self, path: str, data: bytes) -> None:
        """Put *data* under *path* durably: a crash leaves the old content or the new, never a mixture."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Move a file, or a folder with everything in it, durably and in one; an existing file *target* is replaced."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with everything in it. Not there is fine."""
        ...

    def space(self) -> tuple[int, int]:
        """Return (used bytes, total bytes) of the file system below the folder."""
        ...
