"""The index by record of one queue: 46-byte entries, each for the one message or the many messages of a record.

    | position i64 | record size i32 | tags code i64 | store time i64 | first offset i64 | count i16 | -1 i32 | 0 i32 |

    memory   tail: the newest entries, confirmed but not yet in a file
             marks: (number, first offset) of some entries, so that a search by offset has to read few
    disk     [first_file ............ tail_number * 46)    then zeros; files of 300 000 entries, named by first byte

The number of an entry does not determine its offsets: the entry stores them. First offsets rise, and there may be gaps
between entries: no message has the offsets of a gap, and a reader there continues after it. The first 20 bytes are an
entry of `consume_queue`. As in the other kind, an empty queue has the bounds 0 and 0, and the search for a time after
the last message returns the end of the queue.

Entries are derived from the log and never synced separately. This module knows positions, but not the records.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable

from holdfast.model.topic import BATCH_QUEUE
from holdfast.store.base.cold_reads import FileRange, Steps
from holdfast.store.base.log_file import file_name
from holdfast.store.base.options import StoreOptions
from holdfast.store.queues.queue_files import ENTRY_SIZE, QueueFiles
from holdfast.store.queues.queue_index import BLANK_ENTRY_SIZE, ENTRY, FLUSH_SIZE, Entry, EntryRange, QueueIndex

FOLDER = "batchconsumequeue"
RECORD_ENTRY = struct.Struct(">qiqqqhii")
RECORD_ENTRY_SIZE = 46

NOT_COMPACTED = -1
_SPAN_AT = 28
_SPAN = struct.Struct(">qh")
_BLOCK = 64
"""Entries that a search reads at once, and the largest distance of marks among hot entries."""

RecordEntry = tuple[int, int, int, int, int, int, int, int]
ReadEntries = Callable[[int, int], Awaitable[bytes | bytearray]]
"""Returns (number, count) entries."""

_pack = RECORD_ENTRY.pack


class RecordIndex(QueueIndex):
    """A queue with one entry per record.

    Invariant: entry_min <= entry_end; tail_number <= entry_end; marks rise, by number and by offset.
    """

    __slots__ = ("_entry_end", "_entry_min", "_mark_numbers", "_mark_offsets", "hot_number")

    queue_type = BATCH_QUEUE
    kind_folder = FOLDER
    entry_size = RECORD_ENTRY_SIZE
    entry_fields = (
        *(("position", ">i8"), ("size", ">i4"), ("tags", ">i8"), ("store_ms", ">i8"), ("first", ">i8")),
        *(("count", ">i2"), ("compacted", ">i4"), ("rest", ">i4")),
    )
    bounds_key = "batchQueues"
    bounds_type = dict[str, dict[int, tuple[int, int, int, int]]]
    has_gaps = True

    def __init__(self, files: QueueFiles, topic: str, queue_id: int) -> None:
        super().__init__(files, topic, queue_id)
        self.accepts_batches = True
        self.hot_number = 0  # As `hot_offset`, but an entry number.
        self._entry_min = 0
        self._entry_end = 0
        self._mark_numbers: list[int] = []
        self._mark_offsets: list[int] = []

    @staticmethod
    def choose_file_size(options: StoreOptions) -> int:
        """Return the size of this kind's files in a folder that has none yet."""
        return options.batch_file_size

    # --- adding entries

    @staticmethod
    def pack_entry(position: int, size: int, tags_code: int, store_ms: int, first: int, count: int) -> bytes:
        """Return the entry of one record."""
        return _pack(position, size, tags_code, store_ms, first, count, NOT_COMPACTED, 0)

    def begin_at(self, offset: int) -> None:
        """Start an empty queue at *offset*: earlier messages are gone from the log."""
        assert self._entry_min == self._entry_end
        self.offset_min = self.offset_max = self.next_offset = self.hot_offset = offset

    def publish_tail(self) -> None:
        """Make the entries in the tail readable; write them to the file once there are enough.

        Raises:
            DiskFailed: the write failed, but the entries are readable from memory.
        """
        known, size = self._entry_end, len(self.tail)
        end = self.tail_number + size // RECORD_ENTRY_SIZE
        if known == end:
            return
        if self._entry_min == known:
            self.offset_min = self._tail_span(known)[0]
        for number in range(known + -known % _BLOCK, end, _BLOCK):
            self._mark_numbers.append(number)
            self._mark_offsets.append(self._tail_span(number)[0])
        self._entry_end = end
        self.offset_max = self._tail_span(end - 1)[1]
        if size >= FLUSH_SIZE:
            self.flush()

    def shorten_last(self, end: int) -> None:
        """Shorten the last entry to end at *end*: its record states too many messages and hides later ones."""
        number = self._entry_end - 1
        entry = self.shortened(bytes(self._read(number, 1)), end)
        if number >= self.tail_number:
            at = (number - self.tail_number) * RECORD_ENTRY_SIZE
            self.tail[at : at + RECORD_ENTRY_SIZE] = entry
        else:
            self.file_end = self.files.write(self.folder, number * RECORD_ENTRY_SIZE, memoryview(entry), self.file_end)
        self.offset_max = self.next_offset = end
        self.hot_offset = min(self.hot_offset, end)

    def last_entry(self) -> bytes:
        """Return the last entry; empty if there is none."""
        return bytes(self._read(self._entry_end - 1, 1)) if self._entry_min < self._entry_end else b""

    @staticmethod
    def parse_span(entry: bytes | bytearray) -> tuple[int, int]:
        """Return the offsets [first, end) that an entry states."""
        return span_of(entry)

    @staticmethod
    def shortened(entry: bytes, end: int) -> bytes:
        """Return *entry* with only its messages before the offset *end*."""
        first, _ = span_of(entry)
        return entry[:_SPAN_AT] + _SPAN.pack(first, end - first) + entry[_SPAN_AT + _SPAN.size :]

    def release_offsets(self, entry: bytes) -> None:
        """Release the offsets of *entry*, the last one created, so that the next message gets them."""
        self.next_offset = span_of(entry)[0]

    def _tail_span(self, number: int) -> tuple[int, int]:
        return span_of(self.tail, (number - self.tail_number) * RECORD_ENTRY_SIZE)

    # --- by offset

    def read_range(self, start: int, count: int) -> EntryRange:
        """Return the entries of up to *count* messages from *start* on, and their offsets.

        Raises:
            DiskFailed: the file of these entries cannot be read.
        """
        builder = _RangeBuilder(start, count)
        if self.offset_min <= start < self.offset_max:
            number = self._locate(start)
            while number < self._entry_end and not builder.is_full:
                data = self._read(number, min(_BLOCK, self._entry_end - number))
                builder.add(data, self.offset_max)
                number += len(data) // RECORD_ENTRY_SIZE
            builder.close(self.offset_max)
        return builder.raw, builder.spans

    async def fetch_range(self, start: int, count: int, *, ahead: int = 0) -> EntryRange:
        """Return the entries from *start* on, in steps that request those which may not be in memory.

        Raises:
            DiskFailed: the file of these entries cannot be opened.
        """
        builder = _RangeBuilder(start, count)
        if not self.offset_min <= start < self.offset_max:
            return builder.raw, builder.spans
        if not self.is_cold(start, count):
            return self.read_range(start, count)
        number = await self._find_number(start, self._fetch)
        while number < self._entry_end and not builder.is_full:
            read_count = min(count + ahead, self._entry_end - number)
            if number < self.hot_number:
                read_count = min(read_count, self.hot_number - number)
            data = await self._fetch(number, read_count)
            if not data:
                return builder.raw, builder.spans  # Erased during the read.
            builder.add(data, self.offset_max)
            if ahead and number < self.hot_number:
                self._note_warm(number, data)
            number += len(data) // RECORD_ENTRY_SIZE
        if self.offset_min <= start < self.offset_max:
            builder.close(self.offset_max)
        return builder.raw, builder.spans

    def is_cold(self, start: int, count: int) -> bool:
        """Return whether some of these entries may not be in memory."""
        if start >= self.hot_offset or start < self.offset_min:
            return False
        warm_start, warm_end = self.files.warm.get(self, (0, 0))
        return not warm_start <= start or min(start + count, self.hot_offset) > warm_end

    def _note_warm(self, number: int, data: bytes | bytearray) -> None:
        """Remember the entries as warm; marks at both ends keep later searches between them."""
        self._mark(number, span_of(data)[0])
        last = len(data) - RECORD_ENTRY_SIZE
        first, end = span_of(data, last)
        self._mark(number + last // RECORD_ENTRY_SIZE, first)
        self.files.note_warm(self, span_of(data)[0], end)

    def _mark(self, number: int, first: int) -> None:
        at = bisect_left(self._mark_numbers, number)
        # A mark shortly before it is enough: a search reads a block from there on.
        if at and number - self._mark_numbers[at - 1] < _BLOCK:
            return
        if at == len(self._mark_numbers) or self._mark_numbers[at] != number:
            self._mark_numbers.insert(at, number)
            self._mark_offsets.insert(at, first)

    def entries(self, start: int, count: int) -> list[Entry]:
        """Return the decoded entries of up to *count* messages from *start* on."""
        return list(ENTRY.iter_unpack(self.read_range(start, count)[0]))

    def get_entry(self, offset: int) -> Entry:
        """Return the entry of one offset of [offset_min, offset_max); a blank one if no message has it."""
        position, size, tags_code, _, first, _, _, _ = RECORD_ENTRY.unpack(self._read(self._locate(offset), 1))
        return (position, size, tags_code) if first <= offset else (position, BLANK_ENTRY_SIZE, 0)

    def raw_entry(self, offset: int) -> bytes:
        """Return the bytes of the entry that holds *offset*, or of the next one if none does."""
        return bytes(self._read(self._locate(offset), 1)) if self.offset_min <= offset < self.offset_max else b""

    # --- searching

    async def find_time(self, offset: int) -> int | None:
        """Return the store time of the message at *offset*; None if it is gone, or there is none."""
        if not self.offset_min <= offset < self.offset_max:
            return None
        unit = await self._fetch_entry(await self._find_number(offset, self._fetch))
        return unit[3] if unit is not None and unit[4] <= offset else None

    async def find_at_time(self, time_ms: int, *, upper: bool) -> int:
        """Return the first offset stored at or after *time_ms*, or with *upper* the last one at or before it.

        If there is none, return the end of the queue, or with *upper* its beginning. The times are in the entries: no
        record is read.
        """

        def is_before(entry: RecordEntry) -> bool:
            return entry[3] <= time_ms if upper else entry[3] < time_ms

        number = await _search(self._entry_min, self._entry_end, is_before, self._fetch)
        if upper:
            entry = await self._fetch_entry(number - 1)
            return self.offset_min if entry is None else max(self.offset_min, entry[4] + entry[5] - 1)
        entry = await self._fetch_entry(number)
        return self.offset_max if entry is None else max(self.offset_min, entry[4])

    def _locate(self, offset: int) -> int:
        """Return the number of the entry of *offset*. Blocks on the disk if the entries are not in memory."""
        return _complete(self._find_number(offset, self._read_now))

    def _find_number(self, offset: int, read: ReadEntries) -> Steps[int]:
        """Return the number of the message's entry, the first that ends after *offset*; or of the next one."""
        at = bisect_right(self._mark_offsets, offset)
        low = self._mark_numbers[at - 1] if at else 0
        high = self._mark_numbers[at] if at < len(self._mark_numbers) else self._entry_end
        # A corrupt entry that can hold no message never counts as before: only a reader at that entry skips it.
        return _search(
            max(low, self._entry_min),
            high,
            lambda entry: entry[4] >= 0 < entry[5] and entry[4] + entry[5] <= offset,
            read,
        )

    async def _fetch_entry(self, number: int) -> RecordEntry | None:
        if not self._entry_min <= number < self._entry_end:
            return None
        data = await self._fetch(number, 1)
        return RECORD_ENTRY.unpack(data) if data else None

    # --- by number

    def _read(self, number: int, count: int) -> bytes | bytearray:
        """Return *count* entries, which must all exist."""
        tail_number = self.tail_number
        if number >= tail_number:
            at = (number - tail_number) * RECORD_ENTRY_SIZE
            return self.tail[at : at + count * RECORD_ENTRY_SIZE]
        written = min(count, tail_number - number)
        data = self.files.read(self.folder, number * RECORD_ENTRY_SIZE, written * RECORD_ENTRY_SIZE)
        return data if written == count else data + self.tail[: (count - written) * RECORD_ENTRY_SIZE]

    async def _read_now(self, number: int, count: int) -> bytes | bytearray:
        """Return *count* entries without a step."""
        return self._read(number, count)

    async def _fetch(self, number: int, count: int) -> bytes | bytearray:
        """Return *count* entries, cold ones by steps; empty if they have been removed meanwhile."""
        parts: list[bytes | bytearray] = []
        end, file_size = number + count, self.files.file_size
        if number < self.first_file // RECORD_ENTRY_SIZE or end > self._entry_end:
            return b""
        while number < min(end, self.hot_number):
            base = number * RECORD_ENTRY_SIZE // file_size * file_size
            stop = min(end, self.hot_number, (base + file_size) // RECORD_ENTRY_SIZE)
            file = self.files.cache.open(f"{self.folder}/{file_name(base)}")
            parts.append(await FileRange(file, number * RECORD_ENTRY_SIZE - base, stop * RECORD_ENTRY_SIZE - base))
            number = stop
        if number < end:
            parts.append(self._read(number, end - number))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    @property
    def entry_min(self) -> int:
        """Number of the first entry whose record is still in the log."""
        return self._entry_min

    @property
    def entry_end(self) -> int:
        """End of the numbers of the entries that readers see."""
        return self._entry_end

    @property
    def last_file(self) -> int:
        """First byte of the file of the last entry: only this entry holds the queue's next offset."""
        last = max(0, self._entry_end - 1) * RECORD_ENTRY_SIZE
        return last - last % self.files.file_size

    def location_of(self, number: int) -> tuple[int, int]:
        """Return the position and the record size in entry *number*."""
        return self.parse_location(self._read(number, 1))

    @staticmethod
    def parse_location(entry: bytes | bytearray) -> tuple[int, int]:
        """Return the position and the record size in the bytes of an entry; a size <= 0 if the entry is invalid."""
        position, size, _, _, first, count, _, _ = RECORD_ENTRY.unpack(entry)
        return position, size if position >= 0 and first >= 0 and count > 0 else 0

    def set_min(self, number: int) -> None:
        """Make entry *number* the first whose record is still in the log."""
        self._entry_min = number
        self.offset_min = span_of(self._read(number, 1))[0] if number < self._entry_end else self.offset_max
        count = bisect_left(self._mark_numbers, number)
        del self._mark_numbers[:count], self._mark_offsets[:count]

    def set_end(self, number: int) -> None:
        """Truncate the queue before entry *number*."""
        first = self.first_file // RECORD_ENTRY_SIZE
        self._set_entries(min(max(self._entry_min, first), number), number)
        end = span_of(self._read(number - 1, 1))[1] if number > first else 0
        self.offset_max = self.next_offset = self.hot_offset = end
        self.set_min(self._entry_min)

    def attach_files(self, first_file: int, file_end: int) -> None:
        """Set the range of existing files, assumed to be full of entries."""
        self.first_file = first_file
        self.file_end = file_end
        self._set_entries(first_file // RECORD_ENTRY_SIZE, file_end // RECORD_ENTRY_SIZE)

    def bounds(self) -> tuple[int, ...]:
        """Return the bounds to note at a clean shutdown: in offsets, and in entry numbers."""
        return self.offset_min, self.offset_max, self._entry_min, self._entry_end

    @staticmethod
    def entry_bounds(bounds: tuple[int, ...]) -> tuple[int, int]:
        """Return the numbers [first, end) of the entries of a queue with these *bounds*."""
        return bounds[2], bounds[3]

    def restore(self, bounds: tuple[int, ...]) -> bool:
        """Set the noted *bounds*; return False if the last entry does not end the queue there."""
        offset_min, offset_max, entry_min, entry_end = bounds
        self._set_entries(entry_min, entry_end)
        if span_of(self._read(entry_end - 1, 1))[1] != offset_max:
            return False
        self.offset_min = offset_min
        self.offset_max = self.next_offset = self.hot_offset = offset_max
        return True

    def _set_entries(self, entry_min: int, entry_end: int) -> None:
        """Set the range of entries to [entry_min, entry_end), all of them on disk."""
        assert not self.tail
        self._entry_min = entry_min
        self._entry_end = self.tail_number = self.hot_number = entry_end
        kept = bisect_left(self._mark_numbers, entry_end)
        del self._mark_numbers[kept:], self._mark_offsets[kept:]


class _RangeBuilder:
    """Collects the entries of a range."""

    def __init__(self, start: int, count: int) -> None:
        self.raw = bytearray()
        self.spans: list[tuple[int, int]] = []
        self.is_full = False
        self._start = start
        self._remaining = count

    def add(self, data: bytes | bytearray, offset_max: int) -> None:
        """Add the entries in *data* that belong to the range; no valid entry ends after *offset_max*."""
        last = len(data) - RECORD_ENTRY_SIZE
        for at in range(0, len(data), RECORD_ENTRY_SIZE):
            first, end = span_of(data, at)
            if at < last and first < (following := span_of(data, at + RECORD_ENTRY_SIZE)[0]) < end:
                end = following  # It states too many messages: it must not hide those of the next entry.
            if not self._start < end <= offset_max:
                continue  # A corrupt index may say anything: never send a reader back, nor beyond the end.
            self._remaining -= end - max(first, self._start)
            if self._remaining < 0 and self.spans:
                self.is_full = True
                return
            self.raw += data[at : at + ENTRY_SIZE]
            self.spans.append((first, end))
            self._start = end
        self.is_full = self._remaining <= 0

    def close(self, end: int) -> None:
        """If corrupt entries left nothing, add an entry without a message, so that a reader makes progress."""
        if not self.spans:
            self.raw += ENTRY.pack(0, BLANK_ENTRY_SIZE, 0)
            self.spans.append((self._start, min(end, self._start + max(1, self._remaining))))


def span_of(data: bytes | bytearray, at: int = 0) -> tuple[int, int]:
    """Return the offsets [first, end) of an entry's messages."""
    first, count = _SPAN.unpack_from(data, at + _SPAN_AT)
    return first, first + count


def _complete(steps: Steps[int]) -> int:
    """Return the result of *steps* that request nothing."""
    try:
        next(steps.__await__())
    except StopIteration as stop:
        number: int = stop.value
        return number
    raise AssertionError("these steps read from memory")


async def _search(low: int, high: int, is_before: Callable[[RecordEntry], bool], read: ReadEntries) -> int:
    """Return the first number of [low, high) whose entry is not before the target; *high* if all are."""
    is_near = True  # A sequential reader searches for an entry right after a mark.
    while low < high:
        if is_near or high - low <= _BLOCK:
            count = min(_BLOCK, high - low)
            data = await read(low, count)
            if len(data) < count * RECORD_ENTRY_SIZE:
                return high
            if is_before(RECORD_ENTRY.unpack_from(data, (count - 1) * RECORD_ENTRY_SIZE)):
                low += count
            else:
                return low + _count_before(data, is_before)
            is_near = False
        else:
            middle = (low + high) // 2
            data = await read(middle, 1)
            if len(data) < RECORD_ENTRY_SIZE:
                return high
            if is_before(RECORD_ENTRY.unpack(data)):
                low = middle + 1
            else:
                high = middle
    return low


def _count_before(data: bytes | bytearray, is_before: Callable[[RecordEntry], bool]) -> int:
    low, high = 0, len(data) // RECORD_ENTRY_SIZE
    while low < high:
        middle = (low + high) // 2
        if is_before(RECORD_ENTRY.unpack_from(data, middle * RECORD_ENTRY_SIZE)):
            low = middle + 1
        else:
            high = middle
    return low
