"""A store's files for those who only look: nothing is locked, created, padded or removed.

Reads are copies, not maps: a live broker removes files under us, and a map of a file that others shorten kills the
process that looks at it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NoReturn

from holdfast.model.errors import DiskFailed

Piece = bytes | bytearray | memoryview

VIEW_SIZE_MAX: Final = 64 << 20
"""No broker takes larger records: a size that says more is damage, and must not be believed with memory."""

_SEEK_DATA: Final = getattr(os, "SEEK_DATA", None)
_SEEK_HOLE: Final = getattr(os, "SEEK_HOLE", None)


class ReadOnlyFile:
    """One file, opened when it is first read."""

    def __init__(self, path: str, size: int) -> None:
        self.path = path
        self.size = size
        self._descriptor: int | None = None

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes of [start, end), fewer where the file ends before.

        Raises:
            FileNotFoundError: it is gone.
        """
        if self._descriptor is None:
            self._descriptor = os.open(self.path, os.O_RDONLY)
        parts: list[bytes] = []
        while start < end and (part := os.pread(self._descriptor, end - start, start)):
            parts.append(part)
            start += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def view(self, start: int, end: int) -> memoryview:
        """Return the same as a view, but never more than a record can be."""
        return memoryview(self.read(start, min(end, start + VIEW_SIZE_MAX)))

    def written_spans(self) -> Iterator[tuple[int, int]]:
        """Yield what was ever written to, as far as the file system tells: files are sparse."""
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
            return None  # There is nothing behind.

    def close(self) -> None:
        """Let go of it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def write(self, at: int, pieces: Sequence[Piece], size: int | None = None) -> NoReturn:
        """Refuse."""
        told = f"{len(pieces)} pieces at {at}" if size is None else f"{size} bytes at {at}"
        raise DiskFailed(f"{self.path} is only looked at, not written ({told})")

    def erase(self, start: int, end: int) -> NoReturn:
        """Refuse."""
        raise DiskFailed(f"{self.path} is only looked at, not erased ({start} to {end})")

    def reserve(self, start: int, end: int) -> NoReturn:
        """Refuse."""
        raise DiskFailed(f"{self.path} is only looked at, not changed ({start} to {end})")

    def sync(self) -> NoReturn:
        """Refuse."""
        raise DiskFailed(f"{self.path} is only looked at, not synced")


def read_small(root: str, path: str) -> bytes | None:
    """Return a whole small file of a folder; None when it does not exist."""
    try:
        return (Path(root) / path).read_bytes()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return None


def replace_small(path: Path, data: bytes) -> None:
    """Put *data* under *path* durably: a crash leaves the old content or the new, never a mixture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Bring the names in *folder* to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
