"""A disk in memory that tears and loses writes the way a real disk may when the power fails.

    write   changes pages at once, and remembers the last synced content of each dirty page
    sync    of a file: makes its pages and its name durable; of the disk: does so for all files
    crash   every dirty page keeps its new content, reverts to its old content, or is torn between the two;
            a new file whose name was never synced may be gone, a removed file may be back

Files are sparse, so large ones cost nothing. `before` and `after` are called around every call that reaches the disk,
with its name and path: they may raise `DiskFailed`, or any error that simulates a power loss. The disk has no clock:
its owner sets `now_ms`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random

from holdfast.model.errors import DiskFailed
from holdfast.store.base.disk import File, Piece

PAGE_SIZE = 4096
SECTOR_SIZE = 512
_ZEROS = bytes(PAGE_SIZE)

Hook = Callable[[str, str], None]


class _Content:
    """The pages of one file, with the last synced content of those that are dirty."""

    def __init__(self, size: int, *, is_named: bool) -> None:
        self.size = size
        self.is_named = is_named  # Whether the name survives a crash.
        self.modified_ms = 0
        self.is_private = False
        self.pages: dict[int, bytearray] = {}
        self.synced: dict[int, bytes] = {}  # Of dirty pages only.

    def write(self, at: int, data: bytes) -> None:
        while data:
            number, start = divmod(at, PAGE_SIZE)
            part = data[: PAGE_SIZE - start]
            page = self.pages.setdefault(number, bytearray(PAGE_SIZE))
            self.synced.setdefault(number, bytes(page))
            page[start : start + len(part)] = part
            at += len(part)
            data = data[len(part) :]

    def read(self, start: int, end: int) -> bytes:
        first, last = start // PAGE_SIZE, (end + PAGE_SIZE - 1) // PAGE_SIZE
        data = b"".join(self.pages.get(number, _ZEROS) for number in range(first, last))
        return data[start - first * PAGE_SIZE : end - first * PAGE_SIZE]

    def erase(self, start: int, end: int) -> None:
        for number in [
            number for number in self.pages if start < (number + 1) * PAGE_SIZE and number * PAGE_SIZE < end
        ]:
            first, last = max(start, number * PAGE_SIZE), min(end, (number + 1) * PAGE_SIZE)
            self.write(first, bytes(last - first))

    def sync(self) -> None:
        self.synced.clear()
        self.is_named = True

    def after_crash(self, random: Random) -> _Content:
        """Return the content that is left after a power loss."""
        survivor = _Content(self.size, is_named=True)
        survivor.modified_ms = self.modified_ms
        survivor.is_private = self.is_private
        survivor.pages = {number: bytearray(page) for number, page in self.pages.items()}
        for number, old in self.synced.items():
            survivor.pages[number] = _torn(random, old, self.pages[number])
        return survivor


def _torn(random: Random, old: bytes, new: bytearray) -> bytearray:
    """Return a page that was being written when the power failed: the old one, the new one, or some sectors of each."""
    match random.randrange(3):
        case 0:
            return bytearray(old)
        case 1:
            return bytearray(new)
        case _:
            page = bytearray(old)
            for start in range(0, PAGE_SIZE, SECTOR_SIZE):
                if random.random() < 0.5:
                    page[start : start + SECTOR_SIZE] = new[start : start + SECTOR_SIZE]
            return page


class SimFile:
    """One open file. After a crash its writes are lost."""

    def __init__(self, disk: SimDisk, path: str, content: _Content) -> None:
        self.path = path
        self.size = content.size
        self._disk = disk
        self._content = content

    def __repr__(self) -> str:
        return f"<SimFile {self.path} {self.size}>"

    def write(self, at: int, pieces: Sequence[Piece], size: int | None = None) -> None:
        """Write *pieces* one after the other."""
        data = b"".join(pieces)
        assert size is None or size == len(data), "the declared size must match the pieces"
        if at < 0 or at + len(data) > self.size:
            raise DiskFailed(
                f"write to {self.path} from {at} to {at + len(data)} is out of range: it has {self.size} bytes"
            )
        with self._disk.call("write", self.path):
            self._content.write(at, data)
            self._content.modified_ms = self._disk.now_ms

    def view(self, start: int, end: int) -> memoryview:
        """Return the bytes of [start, end). Later writes do not change them."""
        return memoryview(self.read(start, end))

    def read(self, start: int, end: int) -> bytes:
        """Return a copy of the bytes of [start, end)."""
        if not 0 <= start <= end <= self.size:
            raise DiskFailed(f"read of {self.path} from {start} to {end} is out of range: it has {self.size} bytes")
        with self._disk.call("read", self.path):
            return self._content.read(start, end)

    def sync(self) -> None:
        """Make all writes and the name durable."""
        with self._disk.call("sync", self.path):
            if not self._content.is_named:
                self._disk.sync_folder(self.path)
            self._content.sync()

    def erase(self, start: int, end: int) -> None:
        """Overwrite [start, end) with zeros."""
        with self._disk.call("erase", self.path):
            self._content.erase(start, min(end, self.size))

    def reserve(self, start: int, end: int) -> None:
        """Do nothing: this disk is never full for a write."""

    def close(self) -> None:
        """Do nothing: an open file holds no resources."""


class SimDisk:
    """A folder of simulated files."""

    def __init__(self, *, total: int = 1 << 50, before: Hook | None = None, after: Hook | None = None) -> None:
        self.now_ms = 0
        self.used = 0
        self.total = total
        self.before = before
        self.after = after
        self._files: dict[str, _Content] = {}
        self._removed: dict[str, _Content] = {}

    @contextmanager
    def call(self, name: str, path: str) -> Iterator[None]:
        """Run the hooks before and after one call that reaches the disk."""
        if self.before is not None:
            self.before(name, path)
        yield
        if self.after is not None:
            self.after(name, path)

    def crash(self, random: Random) -> None:
        """Simulate a power loss. Open files are dead; the files that survive can be opened again."""
        survivors: dict[str, _Content] = {}
        for path, content in self._files.items():
            if content.is_named or random.random() < 0.5:
                survivors[path] = content.after_crash(random)
        for path, content in self._removed.items():
            if path not in survivors and random.random() < 0.5:
                survivors[path] = content.after_crash(random)
        self._files = survivors
        self._removed = {}

    @property
    def can_sync(self) -> bool:
        """Return that `sync` is supported."""
        return True

    def sync(self) -> None:
        """Make everything durable: pages, names, removals."""
        with self.call("sync", ""):
            for content in self._files.values():
                content.sync()
            self._removed.clear()

    def sync_folder(self, path: str) -> None:
        """Make removals in the folder of *path* durable: syncing a name syncs its folder."""
        folder = path.rpartition("/")[0]
        for removed in [removed for removed in self._removed if removed.rpartition("/")[0] == folder]:
            del self._removed[removed]

    def list(self, folder: str) -> list[str]:
        """Return the names in *folder*, sorted; folders end with `/`."""
        with self.call("list", folder):
            prefix = folder + "/" if folder else ""
            rests = (path[len(prefix) :] for path in self._files if path.startswith(prefix))
            return sorted({head + slash for head, slash, _ in (rest.partition("/") for rest in rests)})

    def find_size(self, path: str) -> int | None:
        """Return the size of a file, or None when it does not exist."""
        with self.call("find_size", path):
            content = self._files.get(path)
            return content.size if content is not None else None

    def modified_ms(self, path: str) -> int:
        """Return the time of the last write to the file."""
        with self.call("modified_ms", path):
            return self._get(path).modified_ms

    def open(self, path: str) -> File:
        """Open an existing file."""
        with self.call("open", path):
            return SimFile(self, path, self._get(path))

    def create(self, path: str, size: int, *, reserve: bool = False) -> File:
        """Create a file of zeros. With *reserve* its name is durable at once."""
        with self.call("create", path):
            content = self._files[path] = _Content(size, is_named=reserve)
            content.modified_ms = self.now_ms
            if reserve:
                self.sync_folder(path)
            return SimFile(self, path, content)

    def read_file(self, path: str) -> bytes | None:
        """Return the content of a small file, or None when it does not exist."""
        with self.call("read_file", path):
            content = self._files.get(path)
            return content.read(0, content.size) if content is not None else None

    def is_private(self, path: str) -> bool:
        """Return whether the file was written as a private one."""
        with self.call("is_private", path):
            return self._get(path).is_private

    def replace(self, path: str, data: bytes, *, is_private: bool = False) -> None:
        """Write *data* to *path*, durable at once."""
        with self.call("replace", path):
            content = _Content(len(data), is_named=True)
            content.is_private = is_private
            content.write(0, data)
            content.sync()
            content.modified_ms = self.now_ms
            self.sync_folder(path)
            self._files[path] = content

    def rename(self, source: str, target: str) -> None:
        """Move a file, or a folder with everything in it, durable at once."""
        with self.call("rename", source):
            inside = [path for path in self._files if path.startswith(source + "/")]
            if inside and any(path.startswith(target + "/") for path in self._files):
                raise DiskFailed(f"{target} already exists")
            for path in inside or [source]:
                self._files[target + path[len(source) :]] = self._get(path)
                del self._files[path]

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with everything in it."""
        with self.call("remove", path):
            for removed in [removed for removed in self._files if removed == path or removed.startswith(path + "/")]:
                content = self._files.pop(removed)
                if content.is_named:
                    self._removed[removed] = content

    def space(self) -> tuple[int, int]:
        """Return (used bytes, total bytes), as configured."""
        return self.used, self.total

    def _get(self, path: str) -> _Content:
        content = self._files.get(path)
        if content is None:
            raise DiskFailed(f"{path} does not exist")
        return content
