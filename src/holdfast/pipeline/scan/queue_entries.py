"""Reads the index of a queue, of any kind, as columns of numbers.

    20 bytes   position | record size | tags code                                       entry n belongs to offset n
    46 bytes   these three | store time | first offset | count | -1 | 0                 offsets are in the entry

The store's table of kinds has the fields of an entry (`index_kinds`). The columns `first` and `count` decide whether
offsets are in the entry.

Entries are addressed by number. Positions rise with the number, so a binary search of some twenty reads finds the
entry for a log position. In a damaged index positions may not rise: then the caller reads the whole index.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from holdfast.pipeline.scan.read_only import ReadOnlyFile
from holdfast.store.base.log_file import file_name
from holdfast.store.queues.batch_consume_queue import RecordIndex
from holdfast.store.queues.consume_queue import MessageIndex
from holdfast.store.queues.index_kinds import find_kind
from holdfast.store.queues.queue_index import BLANK_ENTRY_SIZE

MESSAGE_ENTRY: Final = np.dtype(list(MessageIndex.entry_fields))
RECORD_ENTRY: Final = np.dtype(list(RecordIndex.entry_fields))
CHUNK_ENTRIES: Final = 256 * 1024
"""The most entries in memory at once."""

Entries: TypeAlias = npt.NDArray[Any]


@cache
def _entry_type(queue_type: str) -> np.dtype[Any]:
    return np.dtype(list(find_kind(queue_type).entry_fields))


class QueueFolder(msgspec.Struct, frozen=True):
    """The index of one physical queue.

    Attributes:
        queue_type: The kind of index.
        folder: Contains its files.
        starts: The first byte of each file, from the file name.
        file_size: The size of each file.
    """

    topic: str
    queue_id: int
    queue_type: str
    folder: str
    starts: tuple[int, ...]
    file_size: int

    @property
    def entry_type(self) -> np.dtype[Any]:
        """The layout of an entry."""
        return _entry_type(self.queue_type)

    @property
    def has_offsets(self) -> bool:
        """Whether an entry states its offsets. Otherwise entry n belongs to offset n."""
        return "first" in (self.entry_type.names or ())

    @property
    def bounds(self) -> tuple[int, int]:
        """The entry numbers [first, end) that fit in the files."""
        size = self.entry_type.itemsize
        return self.starts[0] // size, (self.starts[-1] + self.file_size) // size

    def locate(self, number: int) -> tuple[str, int]:
        """Return the file of an entry, and the byte in that file at which the entry begins."""
        at = number * self.entry_type.itemsize
        start = at - at % self.file_size
        return f"{self.folder}/{file_name(start)}", at - start


class QueueReader:
    """Reads the entries of one queue."""

    def __init__(self, queue: QueueFolder) -> None:
        self.queue = queue
        self._files = {
            start: ReadOnlyFile(f"{queue.folder}/{file_name(start)}", queue.file_size) for start in queue.starts
        }

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()

    def read(self, low: int, high: int) -> Entries:
        """Return the entries [low, high). Entries without a file are zeros."""
        entry_type, file_size = self.queue.entry_type, self.queue.file_size
        at, end = low * entry_type.itemsize, high * entry_type.itemsize
        parts: list[bytes] = []
        while at < end:
            start = at - at % file_size
            stop = min(end, start + file_size)
            file = self._files.get(start)
            part = file.read(at - start, stop - start) if file is not None else b""
            parts.append(part.ljust(stop - at, b"\0"))
            at = stop
        return np.frombuffer(b"".join(parts), dtype=entry_type)

    def find(self, position: int) -> int:
        """Return the number of the first entry at or after *position*. Empty entries count as after all positions."""
        low, high = self.queue.bounds
        while low < high:
            middle = (low + high) // 2
            entry = self.read(middle, middle + 1)[0]
            if entry["size"] > 0 and entry["position"] < position:
                low = middle + 1
            else:
                high = middle
        return low

    def find_message(self, offset: int) -> int | None:
        """Return the position of the message at *offset*; -1 if it was removed, None if it is not in the index yet."""
        first, end = low, high = self.queue.bounds
        if not self.queue.has_offsets:
            if offset < first:
                return -1
            entry = self.read(offset, offset + 1)[0] if offset < end else None
            return int(entry["position"]) if entry is not None and entry["size"] else None
        while low < high:
            middle = (low + high) // 2
            entry = self.read(middle, middle + 1)[0]
            if entry["size"] > 0 and entry["first"] + entry["count"] <= offset:
                low = middle + 1
            else:
                high = middle
        entry = self.read(low, low + 1)[0]
        if not entry["size"]:
            return None
        return -1 if low == first and offset < entry["first"] else int(entry["position"])

    def chunks(self) -> Iterator[tuple[int, Entries]]:
        """Yield (first number, entries) of all written spans, in order. Both ends may contain zeros."""
        size = self.queue.entry_type.itemsize
        for start in self.queue.starts:
            done = 0
            for begin, end in self._files[start].written_spans():
                low = max(done, begin - begin % size)
                high = min(end + -end % size, self.queue.file_size)
                for at in range(low, high, CHUNK_ENTRIES * size):
                    first = (start + at) // size
                    yield first, self.read(first, first + min(CHUNK_ENTRIES, (high - at) // size))
                done = max(done, high)

    def find_last(self) -> tuple[int, int] | None:
        """Return (position, size) of the last entry that points to a record; None if there is none."""
        number = self.find(1 << 62)
        first = self.queue.bounds[0]
        while number > first:
            low = max(first, number - 64)
            entries = self.read(low, number)
            is_real = (entries["size"] > 0) & (entries["size"] != BLANK_ENTRY_SIZE)
            if is_real.any():
                last = entries[int(np.flatnonzero(is_real)[-1])]
                return int(last["position"]), int(last["size"])
            number = low
        return None


def first_offsets(queue: QueueFolder, first: int, entries: Entries) -> npt.NDArray[np.int64]:
    """Return the offset of the first message of each entry; *first* is the number of the first entry."""
    if queue.has_offsets:
        return entries["first"].astype(np.int64)
    return np.arange(first, first + len(entries), dtype=np.int64)
