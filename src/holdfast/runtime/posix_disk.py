"""A folder of a real file system as a `Disk`.

    write   pwritev, 1024 pieces at a time       the page cache has it at once, views of the file see it
    view    a shared read-only mapping           made on first use, lives as long as a view refers to it
    sync    fdatasync                            and, once per new file, its folder: the name must be durable, too
            syncfs                               for the whole disk, if this Linux reports its failures
    erase   a hole, or zeros if the file system has no holes

Descriptors and mappings are freed when nothing refers to the file any more, so a sync in another thread never finds its
file closed. Every failure is a `DiskFailed` that names the file, or a `DiskFull` if the file system has no space left,
which can be retried. A sync that fails for lack of space is never a `DiskFull`: pages may be lost already.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import re
import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import IO, ParamSpec, TypeVar

from holdfast.model.errors import DiskFailed, DiskFull, StoreError
from holdfast.runtime.process.libc import find_function
from holdfast.store.base.disk import File, Piece

IOV_MAX = 1024
_ZEROS = bytes(1 << 20)
_FORBIDDEN_PARTS = frozenset({".", ".."})
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
_PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01
_OTHERS = 0o077
"""The permissions of everybody but the owner."""

_P = ParamSpec("_P")
_T = TypeVar("_T")


def _convert_os_errors(method: Callable[_P, _T]) -> Callable[_P, _T]:
    """Turn an error of the operating system into `DiskFailed`."""

    @wraps(method)
    def guarded(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return method(*args, **kwargs)
        except OSError as error:
            raise _failure(f"{method.__name__} failed", error) from error

    return guarded


def _failure(action: str, error: OSError, path: str = "") -> DiskFailed:
    """Return the error to raise for *error*: `DiskFull` if there is no space left, so that it can be retried."""
    kind = DiskFull if error.errno in _NO_SPACE else DiskFailed
    return kind(f"{action}: {error}" + (f" ({path})" if path else ""))


def _reports_sync_errors(release: str) -> bool:
    """Return whether syncfs of this Linux release reports failed writes: since 5.8."""
    major, minor, *_ = (*re.findall(r"\d+", release), "0", "0")
    return (int(major), int(minor)) >= (5, 8)


_fallocate = find_function("fallocate", ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_syncfs = find_function("syncfs", ctypes.c_int) if _reports_sync_errors(os.uname().release) else None


def _open_private(path: str, flags: int) -> int:
    """Open a file that only its owner may read, also while it is new."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(descriptor, 0o600)  # An earlier draft may have been left with other permissions.
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


class _Folders:
    """The folders whose names may not be durable yet. Used by the loop and by syncing threads."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._unsynced: dict[str, int] = {}  # folder -> the number of its newest name
        self._count = 0
        self._change_lock = threading.Lock()
        self._sync_lock = threading.Lock()  # A thread that finds a folder clean must know that its sync is complete.

    def note_new(self, path: str) -> None:
        """Record that *path*, and perhaps folders above it, got a new name."""
        with self._change_lock:
            self._count += 1
            self._unsynced.update(dict.fromkeys(_folders_above(path), self._count))

    def is_new(self, path: str) -> bool:
        """Return whether the name of *path* may not be durable yet."""
        return path.rpartition("/")[0] in self._unsynced

    def sync_above(self, path: str) -> None:
        """Make the names of *path* and of the folders above it durable."""
        with self._sync_lock:
            for folder in _folders_above(path):
                # Remove first, then sync: a name that is added meanwhile is recorded again.
                if self._unsynced.pop(folder, None) is not None:
                    self._sync(folder)

    def sync_all(self, sync: Callable[[], None]) -> None:
        """Make all names durable with *sync*. It may take long, so it does not block `sync_above`."""
        before = self._count
        sync()
        with self._change_lock:
            for folder in [folder for folder, number in self._unsynced.items() if number <= before]:
                del self._unsynced[folder]

    def _sync(self, folder: str) -> None:
        try:
            descriptor = os.open(f"{self._root}/{folder}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:  # The loop removed it while this thread synced a file in it: no names remain.
            return
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _folders_above(path: str) -> list[str]:
    """Return the folders that contain *path*, the root (an empty text) last."""
    parts = path.split("/")[:-1]
    return ["/".join(parts[:count]) for count in range(len(parts), -1, -1)]


class PosixFile:
    """One open file."""

    def __init__(self, folders: _Folders, path: str, descriptor: int, size: int, *, is_new: bool) -> None:
        self.path = path
        self.size = size
        self._folders = folders
        self._descriptor = descriptor
        self._is_new = is_new
        self._pages: memoryview | None = None

    def __repr__(self) -> str:
        return f"<PosixFile {self.path} {self.size}>"

    def __del__(self) -> None:
        self.close()

    def write(self, at: int, pieces: Sequence[Piece], size: int | None = None) -> None:
        """Write *pieces* in sequence."""
        # Runs once per event of a busy broker, so it has a separate guard, and copies the list only if it is too long.
        try:
            if len(pieces) <= IOV_MAX:
                written = os.pwritev(self._descriptor, pieces, at)
                if written != (sum(map(len, pieces)) if size is None else size):
                    self._write_rest(pieces, at, written)
                return
            for start in range(0, len(pieces), IOV_MAX):
                part = pieces[start : start + IOV_MAX]
                part_size = sum(map(len, part))
                written = os.pwritev(self._descriptor, part, at)
                if written != part_size:
                    self._write_rest(part, at, written)
                at += part_size
        except OSError as error:
            raise _failure("write failed", error, self.path) from error

    def _write_rest(self, pieces: Sequence[Piece], at: int, written: int) -> None:
        """Write the rest after a short write, which is rare enough to copy the pieces."""
        rest = memoryview(b"".join(pieces))
        while written < len(rest):
            written += os.pwrite(self._descriptor, rest[written:], at + written)

    def view(self, start: int, end: int) -> memoryview:
        """Return the bytes of [start, end) without copying."""
        pages = self._pages
        return (self._map() if pages is None else pages)[start:end]

    @_convert_os_errors
    def _map(self) -> memoryview:
        pages = self._pages = memoryview(mmap.mmap(self._descriptor, self.size, access=mmap.ACCESS_READ))
        return pages

    def read(self, start: int, end: int) -> bytes:
        """Return a copy of the bytes of [start, end)."""
        # Runs once per pull, so it has a separate guard, as in `write`.
        try:
            data = os.pread(self._descriptor, end - start, start)
            while len(data) < end - start:
                more = os.pread(self._descriptor, end - start - len(data), start + len(data))
                if not more:
                    raise DiskFailed(f"{self.path} ends at {start + len(data)}, wanted to read up to {end}")
                data += more
        except OSError as error:
            raise DiskFailed(f"read failed: {error}") from error
        return data

    def sync(self) -> None:
        """Make everything that was written durable."""
        try:
            os.fdatasync(self._descriptor)
            if self._is_new:
                self._is_new = False
                self._folders.sync_above(self.path)
        except OSError as error:
            # Never a `DiskFull`: the kernel may have dropped the pages that it could not write.
            raise DiskFailed(f"sync failed: {error} ({self.path})") from error

    @_convert_os_errors
    def erase(self, start: int, end: int) -> None:
        """Make [start, end) read as zeros."""
        if start >= end:
            return
        if _fallocate is not None and _fallocate(self._descriptor, _PUNCH_HOLE_KEEP_SIZE, start, end - start) == 0:
            return
        while start < end:
            start += os.pwrite(self._descriptor, _ZEROS[: end - start], start)

    @_convert_os_errors
    def reserve(self, start: int, end: int) -> None:
        """Allocate disk space for [start, end), where it is not allocated yet."""
        if start < end:
            os.posix_fallocate(self._descriptor, start, end - start)

    def close(self) -> None:
        """Release the file. Existing views stay valid."""
        # A mapping cannot be closed while views refer to it: it is freed with the last of them.
        self._pages = None
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class PosixDisk:
    """A folder of the file system. It is created if it does not exist."""

    def __init__(self, root: str | Path) -> None:
        self._root = str(root)
        self._folders = _Folders(self._root)
        self._lock: IO[bytes] | None = None
        try:
            Path(self._root).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DiskFailed(f"cannot create the folder {self._root}: {error}") from error

    def __repr__(self) -> str:
        return f"<PosixDisk {self._root}>"

    @_convert_os_errors
    def lock(self) -> None:
        """Lock the folder against other processes, Java brokers too, until `unlock` or the end of this process.

        Raises:
            StoreError: another process uses the folder.
        """
        file = Path(self._full_path("lock")).open("ab")  # noqa: SIM115 - it is held, not used
        try:
            # The same kind of lock, on the same byte, as Java uses.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        except (BlockingIOError, PermissionError):
            file.close()
            raise StoreError(
                f"{self._root} is in use by another broker: stop that broker, or give this one a separate folder"
            ) from None
        file.truncate(0)
        file.write(b"lock")
        file.flush()
        self._lock = file

    def unlock(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @property
    def can_sync(self) -> bool:
        """Whether this system can sync a whole file system and reports failures."""
        return _syncfs is not None

    def sync(self) -> None:
        """Make everything durable, including folders that are links to another file system."""
        try:
            self._folders.sync_all(self._sync_file_systems)
        except OSError as error:
            raise DiskFailed(f"sync failed: {error}") from error  # Never a `DiskFull`: see `PosixFile.sync`.

    def _sync_file_systems(self) -> None:
        assert _syncfs is not None
        synced: set[int] = set()
        for folder in ["", *(name for name in self.list("") if name.endswith("/"))]:
            descriptor = os.open(self._full_path(folder), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                device = os.fstat(descriptor).st_dev
                if device not in synced:
                    synced.add(device)
                    if _syncfs(descriptor) != 0:
                        raise OSError(ctypes.get_errno(), f"cannot sync the file system of {self._full_path(folder)}")
            finally:
                os.close(descriptor)

    def _full_path(self, path: str) -> str:
        if not _FORBIDDEN_PARTS.isdisjoint(path.split("/")):
            raise DiskFailed(f"{path!r} is outside of {self._root}")
        return f"{self._root}/{path}"

    @_convert_os_errors
    def list(self, folder: str) -> list[str]:
        """Return the names in *folder*, sorted; folders end with `/`."""
        try:
            with os.scandir(self._full_path(folder)) as entries:
                return sorted(entry.name + "/" if entry.is_dir() else entry.name for entry in entries)
        except (FileNotFoundError, NotADirectoryError):
            return []

    @_convert_os_errors
    def find_size(self, path: str) -> int | None:
        """Return the size of a file, or None if it does not exist."""
        try:
            return os.stat(self._full_path(path)).st_size  # noqa: PTH116 - called ten thousand times at a start
        except (FileNotFoundError, NotADirectoryError):
            return None

    @_convert_os_errors
    def modified_ms(self, path: str) -> int:
        """Return when the file was last written to."""
        return os.stat(self._full_path(path)).st_mtime_ns // 1_000_000  # noqa: PTH116

    @_convert_os_errors
    def open(self, path: str) -> File:
        """Open an existing file."""
        descriptor = os.open(self._full_path(path), os.O_RDWR | os.O_CLOEXEC)
        size = os.fstat(descriptor).st_size
        # It may have been created, released and opened again before it was synced.
        return PosixFile(self._folders, path, descriptor, size, is_new=self._folders.is_new(path))

    @_convert_os_errors
    def create(self, path: str, size: int, *, reserve: bool = False) -> File:
        """Create a file of zeros; with *reserve*, its space is allocated and its name is durable."""
        try:
            return self._create(path, size, reserve=reserve)
        except OSError as error:
            if reserve and error.errno in _NO_SPACE:
                raise DiskFull(f"there is no space for {path}, which takes {size} bytes: {error}") from error
            raise

    def _create(self, path: str, size: int, *, reserve: bool) -> File:
        full_path = self._full_path(path)
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        try:
            descriptor = os.open(full_path, flags, 0o644)
        except FileNotFoundError:
            Path(full_path).parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(full_path, flags, 0o644)
        self._folders.note_new(path)
        file = PosixFile(self._folders, path, descriptor, size, is_new=True)
        try:
            if reserve and size:
                os.posix_fallocate(descriptor, 0, size)
                os.fsync(descriptor)
            else:
                os.ftruncate(descriptor, size)
        except OSError:
            # Remove the incomplete file, which the next start would find.
            Path(full_path).unlink()
            raise
        if reserve and size:
            file.sync()
        return file

    @_convert_os_errors
    def read_file(self, path: str) -> bytes | None:
        """Return a whole small file, or None if it does not exist."""
        try:
            return Path(self._full_path(path)).read_bytes()
        except FileNotFoundError:
            return None

    @_convert_os_errors
    def is_private(self, path: str) -> bool:
        """Return whether only the owner may read and write the file."""
        return not os.stat(self._full_path(path)).st_mode & _OTHERS  # noqa: PTH116

    @_convert_os_errors
    def replace(self, path: str, data: bytes, *, is_private: bool = False) -> None:
        """Durably store *data* under *path*, atomically."""
        full_path = Path(self._full_path(path))
        full_path.parent.mkdir(parents=True, exist_ok=True)
        temporary = full_path.with_name(full_path.name + ".tmp")
        try:
            opener = _open_private if is_private else None
            with open(temporary, "wb", opener=opener) as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError:
            temporary.unlink(missing_ok=True)  # An incomplete draft would occupy space that a full disk needs.
            raise
        temporary.replace(full_path)
        self._folders.note_new(path)
        self._folders.sync_above(path)

    @_convert_os_errors
    def rename(self, source: str, target: str) -> None:
        """Move a file, or a folder with everything in it; an existing file *target* is replaced."""
        full_path = Path(self._full_path(target))
        full_path.parent.mkdir(parents=True, exist_ok=True)
        Path(self._full_path(source)).replace(full_path)
        for path in (target, source):
            self._folders.note_new(path)
            self._folders.sync_above(path)

    @_convert_os_errors
    def remove(self, path: str) -> None:
        """Remove a file, or a folder with everything in it."""
        full_path = Path(self._full_path(path))
        if full_path.is_dir() and not full_path.is_symlink():
            shutil.rmtree(full_path)
            return
        with suppress(FileNotFoundError):
            full_path.unlink()

    @_convert_os_errors
    def space(self) -> tuple[int, int]:
        """Return (used bytes, total bytes) of the file system, as an unprivileged user sees them."""
        stats = os.statvfs(self._root)
        used = (stats.f_blocks - stats.f_bfree) * stats.f_frsize
        return used, used + stats.f_bavail * stats.f_frsize
