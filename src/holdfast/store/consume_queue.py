"""The index of one queue: 20-byte entries, one per message, at 20 times its offset.

    | position i64 | record size i32 | tags code i64 |      files of 300 000 entries, sparse, named by their first byte

    memory   tail: the newest entries, confirmed but not yet in a file
    disk     [first_file ............ tail_offset * 20)    zeros behind

An entry of size 0x7FFFFFFF is blank: no message has that offset. Blanks with position 0 fill the first file up to the
first offset of a queue that did not begin at 0; blanks elsewhere carry the position of the next message.

Entries are derived from the log and never synced for their own sake: what a crash takes, recovery writes again.
Knows positions, but not what lies there.
"""

from __future__ import annotations

import struct
from collections import OrderedDict

from holdfast.model.errors import StoreError
from holdfast.store.file_cache import FileCache
from holdfast.store.log_file import file_name
from holdfast.store.steps import FileRange, Steps
from holdfast.wire.record import FIXED_SIZE, topic_part

FOLDER = "consumequeue"
ENTRY = struct.Struct(">qiq")
ENTRY_SIZE = 20
BLANK_ENTRY_SIZE = 0x7FFFFFFF
PRE_BLANK = ENTRY.pack(0, BLANK_ENTRY_SIZE, 0)
FLUSH_SIZE = 4096
HOST_V6_EXTRA = 12
WARM_QUEUES_MAX = 1024

Entry = tuple[int, int, int]
"""(position, record size, tags code)."""


class QueueFiles:
    """The files of all queues: what every queue would otherwise have to hold by itself."""

    def __init__(self, cache: FileCache, file_size: int, host_size: int) -> None:
        if file_size <= 0 or file_size % ENTRY_SIZE:
            raise StoreError(f"queue files of {file_size} bytes cannot hold entries of {ENTRY_SIZE}")
        self.cache = cache
        self.file_size = file_size
        self.head_extra = host_size - 8
        self.unsynced: dict[str, None] = {}
        self.warm: OrderedDict[QueueLog, tuple[int, int]] = OrderedDict()  # Old entries that were just read.
        self._topic_parts: dict[str, tuple[int, bytes]] = {}

    def topic_part(self, topic: str) -> tuple[int, bytes]:
        """Return the topic's part of its records, shared by all its queues."""
        part = self._topic_parts.get(topic)
        if part is None:
            part = self._topic_parts[topic] = topic_part(topic)
        return part

    def note_warm(self, queue: QueueLog, start: int, end: int) -> None:
        """Remember that old entries of *queue* are in memory, of as many queues as are likely to be read at a time."""
        self.warm[queue] = (start, end)
        self.warm.move_to_end(queue)
        if len(self.warm) > WARM_QUEUES_MAX:
            self.warm.popitem(last=False)

    def read(self, folder: str, at: int, size: int) -> bytes:
        """Return bytes of one queue, across files."""
        parts: list[bytes] = []
        while size > 0:
            base = at - at % self.file_size
            part = min(size, base + self.file_size - at)
            file = self.cache.open(f"{folder}/{file_name(base)}")
            parts.append(file.read(at - base, at - base + part))
            at += part
            size -= part
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def write(self, folder: str, at: int, data: memoryview, file_end: int) -> int:
        """Write bytes of one queue, across files; return where its last file ends, which was *file_end*."""
        while data:
            base = at - at % self.file_size
            path = f"{folder}/{file_name(base)}"
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


class QueueLog:
    """One physical queue. Handed out by the store; kept by whoever appends to it.

    Invariant: offset_min <= tail_offset <= offset_max <= next_offset, but for offset_min == offset_max when empty.
    """

    __slots__ = (
        "file_end",
        "files",
        "first_file",
        "head_size",
        "hot_offset",
        "magic",
        "next_offset",
        "offset_max",
        "offset_min",
        "queue_id",
        "tail",
        "tail_offset",
        "topic",
        "topic_part",
    )

    def __init__(self, files: QueueFiles, topic: str, queue_id: int) -> None:
        self.files = files
        self.topic = topic
        self.queue_id = queue_id
        self.magic, self.topic_part = files.topic_part(topic)
        # Size of a record without its body and properties; an IPv6 born host adds to it.
        self.head_size = FIXED_SIZE + files.head_extra + len(self.topic_part) + 2
        self.offset_min = 0
        self.offset_max = 0
        self.next_offset = 0
        self.hot_offset = 0  # Entries before it were written by an earlier process: they may not be in memory.
        self.tail = bytearray()
        self.tail_offset = 0
        self.first_file = 0  # First byte of the first file, and behind the last; equal while there is none.
        self.file_end = 0

    def __repr__(self) -> str:
        return f"<QueueLog {self.topic}/{self.queue_id} [{self.offset_min}, {self.offset_max})>"

    @property
    def folder(self) -> str:
        """Where the files are."""
        return f"{FOLDER}/{self.topic}/{self.queue_id}"

    def begin_at(self, offset: int) -> None:
        """Let an empty queue begin at *offset*: what was before is gone from the log."""
        assert not self.tail
        self.offset_min = self.offset_max = self.next_offset = offset
        self.tail_offset = self.hot_offset = offset
        base = offset * ENTRY_SIZE
        base -= base % self.files.file_size
        self.first_file = self.file_end = base
        if blanks := (offset * ENTRY_SIZE - base) // ENTRY_SIZE:
            self.file_end = self.files.write(self.folder, base, memoryview(PRE_BLANK * blanks), base)

    def settle(self) -> None:
        """Make entries that were added to the tail readable; write them once they are many.

        Raises:
            DiskFailed: the entries are readable all the same.
        """
        size = len(self.tail)
        self.offset_max = self.tail_offset + size // ENTRY_SIZE
        if size >= FLUSH_SIZE:
            self.flush()

    def flush(self) -> None:
        """Write the tail to its file.

        Raises:
            DiskFailed: the entries stay readable, in memory.
        """
        if not self.tail:
            return
        with memoryview(self.tail) as data:
            self.file_end = self.files.write(self.folder, self.tail_offset * ENTRY_SIZE, data, self.file_end)
        self.tail_offset += len(self.tail) // ENTRY_SIZE
        # A new one, not an emptied one: it would keep the memory of its longest time.
        self.tail = bytearray()

    def raw_entries(self, start: int, count: int) -> bytes | bytearray:
        """Return up to *count* whole entries from *start* on; empty when *start* is outside [min, max).

        Raises:
            DiskFailed: the file of these entries cannot be read.
        """
        end = min(start + count, self.offset_max)
        if start < self.offset_min or start >= end:
            return b""
        tail_offset = self.tail_offset
        if start >= tail_offset:
            return self.tail[(start - tail_offset) * ENTRY_SIZE : (end - tail_offset) * ENTRY_SIZE]
        written_end = min(end, tail_offset)
        data = self.files.read(self.folder, start * ENTRY_SIZE, (written_end - start) * ENTRY_SIZE)
        return data if written_end == end else data + self.tail[: (end - tail_offset) * ENTRY_SIZE]

    def entries(self, start: int, count: int) -> list[Entry]:
        """Return up to *count* entries from *start* on, decoded."""
        return list(ENTRY.iter_unpack(self.raw_entries(start, count)))

    def get_entry(self, offset: int) -> Entry:
        """Return one entry of [offset_min, offset_max)."""
        position, size, tags_code = ENTRY.unpack(self.raw_entries(offset, 1))
        return position, size, tags_code

    def is_cold(self, start: int, count: int) -> bool:
        """Return whether some of these entries may not be in memory."""
        if start >= self.hot_offset or start < self.offset_min:
            return False
        warm_start, warm_end = self.files.warm.get(self, (0, 0))
        return not warm_start <= start or min(start + count, self.hot_offset) > warm_end

    def fetch_entries(self, start: int, count: int, *, ahead: int = 0) -> Steps[bytes]:
        """Return what `raw_entries` does, asking for entries that may not be in memory.

        Up to *ahead* entries behind them are read too: whoever reads a queue in order has to ask only now and then.

        Raises:
            DiskFailed: the file of these entries cannot be opened.
        """
        end = min(start + count, self.offset_max)
        if start < self.offset_min or start >= end:
            return b""
        parts: list[bytes | bytearray] = []
        file_size, cold_end = self.files.file_size, min(end, self.hot_offset)
        while start < cold_end and self.is_cold(start, cold_end - start):
            base = start * ENTRY_SIZE // file_size * file_size
            stop = min(cold_end + ahead, self.hot_offset, (base + file_size) // ENTRY_SIZE)
            file = self.files.cache.open(f"{self.folder}/{file_name(base)}")
            data = yield FileRange(file, start * ENTRY_SIZE - base, stop * ENTRY_SIZE - base)
            if ahead:
                self.files.note_warm(self, start, stop)
            stop = min(stop, cold_end)
            parts.append(data[: (stop - start) * ENTRY_SIZE])
            start = stop
        if start < end:
            parts.append(self.raw_entries(start, end - start))
        return b"".join(parts)
