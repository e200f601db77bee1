"""Read-only access to the files of a store: locks, creates, pads and removes nothing.

Reads copy instead of mapping memory: a live broker may remove or truncate files meanwhile, and accessing a map of a
truncated file kills the process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NoReturn

from holdfast.model.errors import DiskFailed

Piece = bytes | bytearray | memoryview

VIEW_SIZE_MAX: Final = 64 << 20
"""No broker accepts larger records. A larger size field is damage, and memory must not be allocated for it."""

_SEEK_DATA: Final = getattr(os, "SEEK_DATA", None)
_SEEK_HOLE: Final = getattr(os, "SEEK_HOLE", None)


class ReadOnlyFile:
    """One file, opened on the first read."""

    def __init__(self, path: str, size: int) -> None:
        self.path = path
        self.size = size
        self._descriptor: int | None = None

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes [start, end); fewer if the file ends earlier.

        Raises:
            FileNotFoundError: the file no longer exists.
        """
        if self._descriptor is None:
            self._descriptor = os.open(self.path, os.O_RDONLY)
        parts: list[bytes] = []
        while start < end and (part := os.pread(self._descriptor, end - start, start)):
            parts.append(part)
            start += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def view(self, start: int, end: int) -> memoryview:
        """Return the bytes [start, end) as a view, at most `VIEW_SIZE_MAX` of them."""
        return memoryview(self.read(start, min(end, start + VIEW_SIZE_MAX)))

    def written_spans(self) -> Iterator[tuple[int, int]]:
        """Yield the spans that the file system reports as written: files are sparse."""
        self.read(0, 1)
        at = 0
        while at < self.size:
            span = self._next_span(at)
            if span is None:
                return
            yield span
            at = span[1]

    def _next_span(self, at: int) -> tuple[int, int] | None:
        if _SEEK_DATA is None or _SEEK_HOLE is None or self._descriptor is None:
            return at, self.size
        try:
            start = os.lseek(self._descriptor, at, _SEEK_DATA)
            return start, min(os.lseek(self._descriptor, start, _SEEK_HOLE), self.size)
        except OSError:
            return None  # No data after *at*.

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def write(self, at: int, pieces: Sequence[Piece], size: int | None = None) -> NoReturn:
        """Refuse to write."""
        request = f"{len(pieces)} pieces at {at}" if size is None else f"{size} bytes at {at}"
        raise DiskFailed(f"{self.path} is open read-only, cannot write {request}")

    def erase(self, start: int, end: int) -> NoReturn:
        """Refuse to erase."""
        raise DiskFailed(f"{self.path} is open read-only, cannot erase bytes {start} to {end}")

    def reserve(self, start: int, end: int) -> NoReturn:
        """Refuse to reserve disk space."""
        raise DiskFailed(f"{self.path} is open read-only, cannot reserve bytes {start} to {end}")

    def sync(self) -> NoReturn:
        """Refuse to sync."""
        raise DiskFailed(f"{self.path} is open read-only, cannot sync it")


def read_small_file(root: str, path: str) -> bytes | None:
    """Return the content of a small file; None if it does not exist."""
    try:
        return (Path(root) / path).read_bytes()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return None


def replace_file(path: Path, data: bytes) -> None:
    """Replace the file atomically and durably: after a crash it has the old content or the new, never a mixture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Sync the directory entries of *folder*."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
