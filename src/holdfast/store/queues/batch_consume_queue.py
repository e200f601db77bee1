"""The index of one queue by record: 46-byte entries, each for the one message or the many messages of a record.

    | position i64 | record size i32 | tags code i64 | store time i64 | first offset i64 | count i16 | -1 i32 | 0 i32 |

    memory   tail: the newest entries, confirmed but not yet in a file
             marks: (number, first offset) of some entries, so that a search by offset has to look at few
    disk     [first_file ............ tail_number * 46)    zeros behind; files of 300 000 entries, named by first byte

The number of an entry says nothing of its offsets: they are in it. First offsets rise, and there may be gaps between
entries: no message has the offsets of a gap, and a reader there goes on behind it. The first 20 bytes are an entry of
`consume_queue`. An empty queue has the bounds 0 and 0, and a time behind the last message is the end of the queue, as
in the other kind.

Entries are derived from the log and never synced for their own sake. Knows positions, but not what lies there.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator

from holdfast.store.base.cold_reads import FileRange, Steps
from holdfast.store.base.log_file import file_name
from holdfast.store.queues.consume_queue import FLUSH_SIZE
from holdfast.store.queues.queue_files import ENTRY_SIZE, QueueFiles
from holdfast.store.queues.queue_log import BLANK_ENTRY_SIZE, ENTRY, Entry, QueueLog, Stretch

FOLDER = "batchconsumequeue"
UNIT = struct.Struct(">qiqqqhii")
UNIT_SIZE = 46

NOT_COMPACTED = -1
_SPAN_AT = 28
_SPAN = struct.Struct(">qh")
_BLOCK = 64
"""Entries that are read at once where one is looked for; a mark is set at least so often in what is hot."""

Unit = tuple[int, int, int, int, int, int, int, int]
Search = Generator[tuple[int, int], bytes | bytearray, int]
"""Asks for (number, count) of entries, returns the number of the first that is not before what is looked for."""


def pack_unit(position: int, size: int, tags_code: int, store_ms: int, first: int, count: int) -> bytes:
    """Return the entry of one record."""
    return UNIT.pack(position, size, tags_code, store_ms, first, count, NOT_COMPACTED, 0)


class BatchQueue(QueueLog):
    """A queue whose entries are one per record.

    Invariant: entry_min <= entry_end; tail_number <= entry_end; marks rise, by number and by offset.
    """

    __slots__ = ("_entry_end", "_entry_min", "_mark_numbers", "_mark_offsets", "hot_number")

    def __init__(self, files: QueueFiles, topic: str, queue_id: int) -> None:
        super().__init__(files, topic, queue_id, is_batched=True)
        self.hot_number = 0  # As `hot_offset`.
        self._entry_min = 0
        self._entry_end = 0
        self._mark_numbers: list[int] = []
        self._mark_offsets: list[int] = []

    # --- adding entries

    def begin_at(self, offset: int) -> None:
        """Let an empty queue begin at *offset*: what was before is gone from the log."""
        assert self._entry_min == self._entry_end
        self.offset_min = self.offset_max = self.next_offset = self.hot_offset = offset

    def settle(self) -> None:
        """Make entries that were added to the tail readable; write them once they are many.

        Raises:
            DiskFailed: the entries are readable all the same.
        """
        known, size = self._entry_end, len(self.tail)
        end = self.tail_number + size // UNIT_SIZE
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

    def append(self, entry: bytes) -> None:
        """Take an entry that was found in the log: it is readable at once, and the queue goes on behind it."""
        self.tail += entry
        self.settle()
        self.next_offset = self.offset_max

    def shorten_last(self, end: int) -> None:
        """Let the last entry end at *end*: its record says more messages than it holds, and hides later ones."""
        number = self._entry_end - 1
        entry = shortened(bytes(self._read(number, 1)), end)
        if number >= self.tail_number:
            at = (number - self.tail_number) * UNIT_SIZE
            self.tail[at : at + UNIT_SIZE] = entry
        else:
            self.file_end = self.files.write(self.folder, number * UNIT_SIZE, memoryview(entry), self.file_end)
        self.offset_max = self.next_offset = end
        self.hot_offset = min(self.hot_offset, end)

    def last_entry(self) -> bytes:
        """Return the last entry; empty when there is none."""
        return bytes(self._read(self._entry_end - 1, 1)) if self._entry_min < self._entry_end else b""

    def give_back(self, entry: bytes) -> None:
        """Take the offsets of *entry*, the last that was made, as not given."""
        self.next_offset = span_of(entry)[0]

    def _tail_span(self, number: int) -> tuple[int, int]:
        return span_of(self.tail, (number - self.tail_number) * UNIT_SIZE)

    # --- by offset

    def stretch(self, start: int, count: int) -> Stretch:
        """Return the entries of up to *count* messages from *start* on, and which offsets they have.

        Raises:
            DiskFailed: the file of these entries cannot be read.
        """
        gathered = _Gathered(start, count)
        if self.offset_min <= start < self.offset_max:
            number = self._locate(start)
            while number < self._entry_end and not gathered.is_full:
                data = self._read(number, min(_BLOCK, self._entry_end - number))
                gathered.add(data, self.offset_max)
                number += len(data) // UNIT_SIZE
            gathered.close(self.offset_max)
        return gathered.raw, gathered.spans

    def fetch_stretch(self, start: int, count: int, *, ahead: int = 0) -> Steps[Stretch]:
        """Return the same, asking for entries that may not be in memory.

        Raises:
            DiskFailed: the file of these entries cannot be opened.
        """
        gathered = _Gathered(start, count)
        if not self.offset_min <= start < self.offset_max:
            return gathered.raw, gathered.spans
        if not self.is_cold(start, count):
            return self.stretch(start, count)
        number = yield from self._fetch_sought(self._search_offset(start))
        while number < self._entry_end and not gathered.is_full:
            wanted = min(count + ahead, self._entry_end - number)
            if number < self.hot_number:
                wanted = min(wanted, self.hot_number - number)
            data = yield from self._fetch(number, wanted)
            if not data:
                return gathered.raw, gathered.spans  # Erased while we waited.
            gathered.add(data, self.offset_max)
            if ahead and number < self.hot_number:
                self._note_warm(number, data)
            number += len(data) // UNIT_SIZE
        if self.offset_min <= start < self.offset_max:
            gathered.close(self.offset_max)
        return gathered.raw, gathered.spans

    def is_cold(self, start: int, count: int) -> bool:
        """Return whether some of these entries may not be in memory."""
        if start >= self.hot_offset or start < self.offset_min:
            return False
        warm_start, warm_end = self.files.warm.get(self, (0, 0))
        return not warm_start <= start or min(start + count, self.hot_offset) > warm_end

    def _note_warm(self, number: int, data: bytes | bytearray) -> None:
        """Remember what was read; marks at both ends keep later searches between them."""
        self._mark(number, span_of(data)[0])
        last = len(data) - UNIT_SIZE
        first, end = span_of(data, last)
        self._mark(number + last // UNIT_SIZE, first)
        self.files.note_warm(self, span_of(data)[0], end)

    def _mark(self, number: int, first: int) -> None:
        at = bisect_left(self._mark_numbers, number)
        # One that is near before it does as well: a search reads a block from there on.
        if at and number - self._mark_numbers[at - 1] < _BLOCK:
            return
        if at == len(self._mark_numbers) or self._mark_numbers[at] != number:
            self._mark_numbers.insert(at, number)
            self._mark_offsets.insert(at, first)

    def entries(self, start: int, count: int) -> list[Entry]:
        """Return the entries of up to *count* messages from *start* on, decoded."""
        return list(ENTRY.iter_unpack(self.stretch(start, count)[0]))

    def get_entry(self, offset: int) -> Entry:
        """Return the entry of one offset of [offset_min, offset_max); a blank one when no message has it."""
        position, size, tags_code, _, first, _, _, _ = UNIT.unpack(self._read(self._locate(offset), 1))
        return (position, size, tags_code) if first <= offset else (position, BLANK_ENTRY_SIZE, 0)

    def raw_unit(self, offset: int) -> bytes:
        """Return the entry that holds *offset*, as it is; the next one when none does."""
        return bytes(self._read(self._locate(offset), 1)) if self.offset_min <= offset < self.offset_max else b""

    # --- searching

    def find_time(self, offset: int) -> Steps[int | None]:
        """Return when the message at *offset* was stored; None when it is gone, or there is none."""
        if not self.offset_min <= offset < self.offset_max:
            return None
        unit = yield from self._fetch_unit((yield from self._fetch_sought(self._search_offset(offset))))
        return unit[3] if unit is not None and unit[4] <= offset else None

    def find_at_time(self, time_ms: int, *, upper: bool) -> Steps[int]:
        """Return the first offset stored at or after *time_ms*, or with *upper* the last one at or before it.

        Where there is none the end of the queue, or its beginning. Entries have the times: no record is read.
        """

        def is_before(unit: Unit) -> bool:
            return unit[3] <= time_ms if upper else unit[3] < time_ms

        number = yield from self._fetch_sought(_search(self._entry_min, self._entry_end, is_before))
        if upper:
            unit = yield from self._fetch_unit(number - 1)
            return self.offset_min if unit is None else max(self.offset_min, unit[4] + unit[5] - 1)
        unit = yield from self._fetch_unit(number)
        return self.offset_max if unit is None else max(self.offset_min, unit[4])

    def _search_offset(self, offset: int) -> Search:
        """Find the first entry that ends behind *offset*: that of the message, or the next where there is none."""
        at = bisect_right(self._mark_offsets, offset)
        low = self._mark_numbers[at - 1] if at else 0
        high = self._mark_numbers[at] if at < len(self._mark_numbers) else self._entry_end
        # A damaged entry that can be of no message is never before: a reader passes it from there, and nothing else.
        return _search(
            max(low, self._entry_min), high, lambda unit: unit[4] >= 0 < unit[5] and unit[4] + unit[5] <= offset
        )

    def _locate(self, offset: int) -> int:
        search = self._search_offset(offset)
        try:
            wanted = next(search)
            while True:
                wanted = search.send(self._read(*wanted))
        except StopIteration as stop:
            number: int = stop.value
            return number

    def _fetch_sought(self, search: Search) -> Steps[int]:
        """Give a search the entries that it asks for, those that may not be in memory by steps."""
        try:
            wanted = next(search)
            while True:
                wanted = search.send((yield from self._fetch(*wanted)))
        except StopIteration as stop:
            number: int = stop.value
            return number

    def _fetch_unit(self, number: int) -> Steps[Unit | None]:
        if not self._entry_min <= number < self._entry_end:
            return None
        data = yield from self._fetch(number, 1)
        return UNIT.unpack(data) if data else None

    # --- by number

    def _read(self, number: int, count: int) -> bytes | bytearray:
        """Return *count* entries, which are all there."""
        tail_number = self.tail_number
        if number >= tail_number:
            at = (number - tail_number) * UNIT_SIZE
            return self.tail[at : at + count * UNIT_SIZE]
        written = min(count, tail_number - number)
        data = self.files.read(self.folder, number * UNIT_SIZE, written * UNIT_SIZE)
        return data if written == count else data + self.tail[: (count - written) * UNIT_SIZE]

    def _fetch(self, number: int, count: int) -> Steps[bytes | bytearray]:
        """Return the same, cold ones by steps; nothing when they have gone meanwhile."""
        parts: list[bytes | bytearray] = []
        end, file_size = number + count, self.files.file_size
        if number < self.first_file // UNIT_SIZE or end > self._entry_end:
            return b""
        while number < min(end, self.hot_number):
            base = number * UNIT_SIZE // file_size * file_size
            stop = min(end, self.hot_number, (base + file_size) // UNIT_SIZE)
            file = self.files.cache.open(f"{self.folder}/{file_name(base)}")
            parts.append((yield FileRange(file, number * UNIT_SIZE - base, stop * UNIT_SIZE - base)))
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
        """Behind the number of the last entry that readers see."""
        return self._entry_end

    @property
    def last_file(self) -> int:
        """First byte of the file of the last entry: nothing else knows where the queue goes on."""
        last = max(0, self._entry_end - 1) * UNIT_SIZE
        return last - last % self.files.file_size

    def place_of(self, number: int) -> tuple[int, int]:
        """Return the position and the record size that an entry says."""
        return self.parse_place(self._read(number, 1))

    @staticmethod
    def parse_place(entry: bytes | bytearray) -> tuple[int, int]:
        """Return the same from the bytes of an entry; a size of 0 at most when it can be none."""
        position, size, _, _, first, count, _, _ = UNIT.unpack(entry)
        return position, size if position >= 0 and first >= 0 and count > 0 else 0

    def set_min(self, number: int) -> None:
        """Let entry *number* be the first whose record is still in the log."""
        self._entry_min = number
        self.offset_min = span_of(self._read(number, 1))[0] if number < self._entry_end else self.offset_max
        gone = bisect_left(self._mark_numbers, number)
        del self._mark_numbers[:gone], self._mark_offsets[:gone]

    def set_end(self, number: int) -> None:
        """Let the queue end before entry *number*."""
        first = self.first_file // UNIT_SIZE
        self._hold(min(max(self._entry_min, first), number), number)
        end = span_of(self._read(number - 1, 1))[1] if number > first else 0
        self.offset_max = self.next_offset = self.hot_offset = end
        self.set_min(self._entry_min)

    def adopt(self, first_file: int, file_end: int) -> None:
        """Have files, full ones for all that is known."""
        self.first_file = first_file
        self.file_end = file_end
        self._hold(first_file // UNIT_SIZE, file_end // UNIT_SIZE)

    def restore(self, entry_min: int, entry_end: int, offset_min: int, offset_max: int) -> bool:
        """Have the bounds noted at the last orderly end; False when the files do not bear them out."""
        self._hold(entry_min, entry_end)
        if span_of(self._read(entry_end - 1, 1))[1] != offset_max:
            return False
        self.offset_min = offset_min
        self.offset_max = self.next_offset = self.hot_offset = offset_max
        return True

    def _hold(self, entry_min: int, entry_end: int) -> None:
        """Hold the entries of [entry_min, entry_end), all of them on disk."""
        assert not self.tail
        self._entry_min = entry_min
        self._entry_end = self.tail_number = self.hot_number = entry_end
        kept = bisect_left(self._mark_numbers, entry_end)
        del self._mark_numbers[kept:], self._mark_offsets[kept:]


class _Gathered:
    """The entries that make up a stretch."""

    def __init__(self, start: int, count: int) -> None:
        self.raw = bytearray()
        self.spans: list[tuple[int, int]] = []
        self.is_full = False
        self._start = start
        self._left = count

    def add(self, data: bytes | bytearray, offset_max: int) -> None:
        """Take from *data* what still belongs to the stretch; nothing of the queue is behind *offset_max*."""
        last = len(data) - UNIT_SIZE
        for at in range(0, len(data), UNIT_SIZE):
            first, end = span_of(data, at)
            if at < last and first < (following := span_of(data, at + UNIT_SIZE)[0]) < end:
                end = following  # It says too many: the messages of the next entry must not be hidden.
            if not self._start < end <= offset_max:
                continue  # A damaged index may say anything; a reader must never be sent back, nor behind the end.
            self._left -= end - max(first, self._start)
            if self._left < 0 and self.spans:
                self.is_full = True
                return
            self.raw += data[at : at + ENTRY_SIZE]
            self.spans.append((first, end))
            self._start = end
        self.is_full = self._left <= 0

    def close(self, end: int) -> None:
        """Where damaged entries left nothing, have one that stands for no message: a reader must get on."""
        if not self.spans:
            self.raw += ENTRY.pack(0, BLANK_ENTRY_SIZE, 0)
            self.spans.append((self._start, min(end, self._start + max(1, self._left))))


def span_of(data: bytes | bytearray, at: int = 0) -> tuple[int, int]:
    """Return the offsets [first, behind last) of an entry's messages."""
    first, count = _SPAN.unpack_from(data, at + _SPAN_AT)
    return first, first + count


def shortened(entry: bytes, end: int) -> bytes:
    """Return *entry* with as many messages as end before the offset *end*."""
    first, _ = span_of(entry)
    return entry[:_SPAN_AT] + _SPAN.pack(first, end - first) + entry[_SPAN_AT + _SPAN.size :]


def _search(low: int, high: int, is_before: Callable[[Unit], bool]) -> Search:
    """Return the first number of [low, high) whose entry is not before what is looked for, *high* when all are."""
    is_near = True  # Whoever reads in order looks for what is right behind a mark.
    while low < high:
        if is_near or high - low <= _BLOCK:
            count = min(_BLOCK, high - low)
            data = yield low, count
            if len(data) < count * UNIT_SIZE:
                return high
            if is_before(UNIT.unpack_from(data, (count - 1) * UNIT_SIZE)):
                low += count
            else:
                return low + _count_before(data, is_before)
            is_near = False
        else:
            middle = (low + high) // 2
            data = yield middle, 1
            if len(data) < UNIT_SIZE:
                return high
            if is_before(UNIT.unpack(data)):
                low = middle + 1
            else:
                high = middle
    return low


def _count_before(data: bytes | bytearray, is_before: Callable[[Unit], bool]) -> int:
    low, high = 0, len(data) // UNIT_SIZE
    while low < high:
        middle = (low + high) // 2
        if is_before(UNIT.unpack_from(data, middle * UNIT_SIZE)):
            low = middle + 1
        else:
            high = middle
    return low
