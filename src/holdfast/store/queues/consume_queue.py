"""The index by message of one queue: 20-byte entries, one per message, at 20 times its offset.

    | position i64 | record size i32 | tags code i64 |      files of 300 000 entries, sparse, named by their first byte

    memory   tail: the newest entries, confirmed but not yet in a file
    disk     [first_file ............ tail_number * 20)    followed by zeros

An entry of size 0x7FFFFFFF is blank: no message has that offset. If a queue did not begin at 0, blanks with position 0
fill its first file up to its first offset. Blanks elsewhere carry the position of the next message.

Entries are derived from the log and never synced separately: recovery rewrites those lost in a crash. This module knows
positions, but not the records.
"""

from __future__ import annotations

from holdfast.model.topic import SIMPLE_QUEUE
from holdfast.store.base.cold_reads import FileRange, Steps
from holdfast.store.base.log_file import file_name
from holdfast.store.base.options import StoreOptions
from holdfast.store.queues.queue_files import ENTRY_SIZE, FOLDER, QueueFiles
from holdfast.store.queues.queue_index import BLANK_ENTRY_SIZE, ENTRY, FLUSH_SIZE, Entry, EntryRange, QueueIndex
from holdfast.store.queues.time_search import TimeReader, find_by_records

PRE_BLANK = ENTRY.pack(0, BLANK_ENTRY_SIZE, 0)
HOST_V6_EXTRA = 12


class MessageIndex(QueueIndex):
    """A queue with one entry per message: the number of an entry is its offset.

    Invariant: offset_min <= tail_number <= offset_max <= next_offset, unless offset_min == offset_max (empty).
    """

    __slots__ = ()

    queue_type = SIMPLE_QUEUE
    kind_folder = FOLDER
    entry_size = ENTRY_SIZE
    entry_fields = (("position", ">i8"), ("size", ">i4"), ("tags", ">i8"))
    bounds_key = "queues"
    bounds_type = dict[str, dict[int, tuple[int, int]]]
    has_gaps = False

    def __init__(self, files: QueueFiles, topic: str, queue_id: int) -> None:
        super().__init__(files, topic, queue_id)
        self.has_plain_entries = True

    @staticmethod
    def choose_file_size(options: StoreOptions) -> int:
        """Return the size of this kind's files in a folder that has none yet."""
        return options.queue_file_size

    def begin_at(self, offset: int) -> None:
        """Start an empty queue at *offset*: earlier messages are gone from the log."""
        assert not self.tail
        base = file_end = offset * ENTRY_SIZE // self.files.file_size * self.files.file_size
        if blanks := (offset * ENTRY_SIZE - base) // ENTRY_SIZE:
            # Write before changing any state: a full disk refuses it, and the caller tries again.
            file_end = self.files.write(self.folder, base, memoryview(PRE_BLANK * blanks), base)
        self.offset_min = self.offset_max = self.next_offset = offset
        self.tail_number = self.hot_offset = offset
        self.first_file, self.file_end = base, file_end

    def publish_tail(self) -> None:
        """Make the entries in the tail readable; write them to the file once there are enough.

        Raises:
            DiskFailed: the write failed, but the entries are readable from memory.
        """
        size = len(self.tail)
        self.offset_max = self.tail_number + size // ENTRY_SIZE
        if size >= FLUSH_SIZE:
            self.flush()

    @staticmethod
    def pack_entry(
        position: int,
        size: int,
        tags_code: int,
        store_ms: int,  # noqa: ARG004 - read from the record
        first: int,  # noqa: ARG004 - the number of the entry
        count: int,  # noqa: ARG004 - always 1
    ) -> bytes:
        """Return the entry of one message."""
        return ENTRY.pack(position, size, tags_code)

    def append(self, entry: bytes) -> None:
        """Append an entry that was found in the log. Specialized, because recovery appends millions of them."""
        self.tail += entry
        self.next_offset += 1
        self.offset_max += 1
        if len(self.tail) >= FLUSH_SIZE:
            self.flush()

    def release_offsets(self, entry: bytes) -> None:  # noqa: ARG002 - every entry is one message
        """Release the offset of the last entry, so that the next message gets it."""
        self.next_offset -= 1

    def read_range(self, start: int, count: int) -> EntryRange:
        """Return up to *count* entries from *start* on."""
        return self.raw_entries(start, count), None

    def raw_entries(self, start: int, count: int) -> bytes | bytearray:
        """Return up to *count* whole entries from *start* on; empty if *start* is outside [min, max).

        Raises:
            DiskFailed: the file of these entries cannot be read.
        """
        end = min(start + count, self.offset_max)
        if start < self.offset_min or start >= end:
            return b""
        tail_number = self.tail_number
        if start >= tail_number:
            return self.tail[(start - tail_number) * ENTRY_SIZE : (end - tail_number) * ENTRY_SIZE]
        written_end = min(end, tail_number)
        data = self.files.read(self.folder, start * ENTRY_SIZE, (written_end - start) * ENTRY_SIZE)
        return data if written_end == end else data + self.tail[: (end - tail_number) * ENTRY_SIZE]

    def entries(self, start: int, count: int) -> list[Entry]:
        """Return up to *count* decoded entries from *start* on."""
        return list(ENTRY.iter_unpack(self.raw_entries(start, count)))

    def get_entry(self, offset: int) -> Entry:
        """Return one entry of [offset_min, offset_max)."""
        position, size, tags_code = ENTRY.unpack(self.raw_entries(offset, 1))
        return position, size, tags_code

    def raw_entry(self, offset: int) -> bytes | bytearray:
        """Return the bytes of the entry of *offset*; empty outside [min, max)."""
        return self.raw_entries(offset, 1)

    def find_time(self, offset: int) -> Steps[int | None]:
        """Return the store time of the message at *offset*, read from its record; None if it has none."""
        return TimeReader(self).read(offset)

    def find_at_time(self, time_ms: int, *, upper: bool) -> Steps[int]:
        """Return the first offset stored at or after *time_ms*, or with *upper* the last one at or before it.

        If there is none, return the end of the queue, or with *upper* its beginning. The times are in the records.
        """
        return find_by_records(self, time_ms, upper=upper)

    def is_cold(self, start: int, count: int) -> bool:
        """Return whether some of these entries may not be in memory."""
        if start >= self.hot_offset or start < self.offset_min:
            return False
        warm_start, warm_end = self.files.warm.get(self, (0, 0))
        return not warm_start <= start or min(start + count, self.hot_offset) > warm_end

    async def fetch_range(self, start: int, count: int, *, ahead: int = 0) -> EntryRange:
        """Return the entries from *start* on, in steps that request those which may not be in memory."""
        return (await self.fetch_entries(start, count, ahead=ahead)), None

    async def fetch_entries(self, start: int, count: int, *, ahead: int = 0) -> bytes:
        """Return up to *count* raw entries, in steps that request the entries which may not be in memory.

        Up to *ahead* later entries are read as well, so that a sequential reader rarely needs a request.

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
            data = await FileRange(file, start * ENTRY_SIZE - base, stop * ENTRY_SIZE - base)
            if ahead:
                self.files.note_warm(self, start, stop)
            stop = min(stop, cold_end)
            parts.append(data[: (stop - start) * ENTRY_SIZE])
            start = stop
        if start < end:
            parts.append(self.raw_entries(start, end - start))
        return b"".join(parts)

    @property
    def entry_min(self) -> int:
        """Number of the first entry whose record is still in the log."""
        return self.offset_min

    @property
    def entry_end(self) -> int:
        """End of the numbers of the entries that readers see."""
        return self.offset_max

    @property
    def last_file(self) -> int:
        """First byte of the last file. It is kept, as RocketMQ does, even while it is all zeros."""
        return self.file_end - self.files.file_size

    def location_of(self, number: int) -> tuple[int, int]:
        """Return the position and the record size in entry *number*."""
        if number >= self.tail_number:
            at = (number - self.tail_number) * ENTRY_SIZE
            return self.parse_location(bytes(self.tail[at : at + ENTRY_SIZE]))
        return self.parse_location(self.files.read(self.folder, number * ENTRY_SIZE, ENTRY_SIZE))

    @staticmethod
    def parse_location(entry: bytes) -> tuple[int, int]:
        """Return the position and the record size in the bytes of an entry; a size <= 0 if the entry is invalid."""
        position, size, _ = ENTRY.unpack(entry)
        return position, size if position >= 0 else 0

    def set_min(self, number: int) -> None:
        """Make *number* the first offset of the queue."""
        self.offset_min = number

    def set_end(self, number: int) -> None:
        """Truncate the queue before *number*."""
        assert not self.tail
        self.offset_max = self.next_offset = self.tail_number = self.hot_offset = number
        self.offset_min = min(self.offset_min, number)

    def attach_files(self, first_file: int, file_end: int) -> None:
        """Set the range of existing files, assumed to be full of entries."""
        self.first_file = first_file
        self.file_end = file_end
        self.offset_min = first_file // ENTRY_SIZE
        self.set_end(file_end // ENTRY_SIZE)

    @staticmethod
    def entry_bounds(bounds: tuple[int, ...]) -> tuple[int, int]:
        """Return the numbers [first, end) of the entries of a queue with these *bounds*."""
        return bounds[0], bounds[1]

    def restore(self, bounds: tuple[int, ...]) -> bool:
        """Set the noted *bounds*. Files that reach so far match."""
        offset_min, offset_max = bounds
        self.set_end(offset_max)
        self.set_min(offset_min)
        return True
