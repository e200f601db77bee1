"""LRU cache of open files.

Ten thousand queues must not cost ten thousand descriptors. An evicted file is closed when its last reference is gone: a
sync in progress keeps its files open by holding references.
"""

from __future__ import annotations

from collections import OrderedDict

from holdfast.store.base.disk import Disk, File


class FileCache:
    """Opens files and keeps the most recently used ones open."""

    def __init__(self, disk: Disk, open_max: int) -> None:
        self.disk = disk
        self._open_max = open_max
        self._files: OrderedDict[str, File] = OrderedDict()

    def open(self, path: str) -> File:
        """Return the file at *path*, which must exist."""
        file = self._files.get(path)
        if file is None:
            return self._keep(self.disk.open(path))
        self._files.move_to_end(path)
        return file

    def create(self, path: str, size: int) -> File:
        """Create a sparse file and return it."""
        return self._keep(self.disk.create(path, size))

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with its content."""
        for known in [known for known in self._files if known == path or known.startswith(path + "/")]:
            del self._files[known]
        self.disk.remove(path)

    def _keep(self, file: File) -> File:
        self._files[file.path] = file
        if len(self._files) > self._open_max:
            self._files.popitem(last=False)
        return file
