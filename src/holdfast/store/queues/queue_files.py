"""Reads and writes the files of all queues of one kind. Holds the state that would otherwise be repeated per queue.

    <folder>/<topic>/<queue id>/00000000000000000000      entries of one size, files of one size, named by first byte

This module knows the size of an entry, but not its content.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import lru_cache
from typing import TYPE_CHECKING

from holdfast.model.errors import StoreError
from holdfast.store.base.file_cache import FileCache
from holdfast.store.base.log_file import file_name
from holdfast.wire.records.record import topic_part

if TYPE_CHECKING:
    from holdfast.store.queues.queue_index import QueueIndex

FOLDER = "consumequeue"
ENTRY_SIZE = 20
WARM_QUEUES_MAX = 1024


class QueueFiles:
    """Reads and writes bytes of queues, across file boundaries.

    Attributes:
        unsynced: Paths of files that were written since the last checkpoint. All kinds of a store share it.
        warm: Old entries that were just read: [start, end) of their offsets.
    """

    def __init__(
        self,
        cache: FileCache,
        file_size: int,
        host_size: int,
        *,
        folder: str = FOLDER,
        entry_size: int = ENTRY_SIZE,
        unsynced: dict[str, None] | None = None,
    ) -> None:
        if file_size <= 0 or file_size % entry_size:
            raise StoreError(f"queue files of {file_size} bytes cannot hold entries of {entry_size}")
        self.cache = cache
        self.file_size = file_size
        self.folder = folder
        self.entry_size = entry_size
        self.host_extra = host_size - 8
        self.unsynced: dict[str, None] = {} if unsynced is None else unsynced
        self.warm: OrderedDict[QueueIndex, tuple[int, int]] = OrderedDict()
        self._topic_parts: dict[str, tuple[int, bytes]] = {}

    def topic_part(self, topic: str) -> tuple[int, bytes]:
        """Return the magic number and the topic field of the topic's records, shared by all its queues."""
        part = self._topic_parts.get(topic)
        if part is None:
            part = self._topic_parts[topic] = topic_part(topic)
        return part

    def note_warm(self, queue: QueueIndex, start: int, end: int) -> None:
        """Remember that old entries of *queue* are in memory. Tracks as many queues as are likely read at a time."""
        self.warm[queue] = (start, end)
        self.warm.move_to_end(queue)
        if len(self.warm) > WARM_QUEUES_MAX:
            self.warm.popitem(last=False)

    def forget_unsynced(self, folder: str) -> None:
        """Drop unsynced files below *folder*, which is about to be removed."""
        for path in [path for path in self.unsynced if path.startswith(folder + "/")]:
            del self.unsynced[path]

    def read(self, folder: str, at: int, size: int) -> bytes:
        """Return bytes of one queue, across file boundaries."""
        base = at - at % self.file_size
        if 0 < size <= base + self.file_size - at:  # Nearly always within one file.
            return self.cache.open(_path(folder, base)).read(at - base, at - base + size)
        parts: list[bytes] = []
        while size > 0:
            base = at - at % self.file_size
            part = min(size, base + self.file_size - at)
            file = self.cache.open(_path(folder, base))
            parts.append(file.read(at - base, at - base + part))
            at += part
            size -= part
        return b"".join(parts)

    def write(self, folder: str, at: int, data: memoryview, file_end: int) -> int:
        """Write bytes of one queue, across file boundaries; return the new end of its last file (was *file_end*)."""
        while data:
            base = at - at % self.file_size
            path = _path(folder, base)
            part = data[: base + self.file_size - at]
            if base >= file_end:
                file = self.cache.create(path, self.file_size)
                file_end = base + self.file_size
            else:
                file = self.cache.open(path)
            file.write(at - base, (part,))
            self.unsynced[path] = None
            at += len(part)
            data = data[len(part) :]
        return file_end


@lru_cache(maxsize=WARM_QUEUES_MAX)
def _path(folder: str, base: int) -> str:
    """Return the path of a file. Cached: every pull needs one, mostly the same as the last."""
    return f"{folder}/{file_name(base)}"
