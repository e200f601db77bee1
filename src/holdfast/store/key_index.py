"""Find records by key: hash tables in files, each newer than the one before.

    0   begin time i64 | end time i64 | begin position i64 | end position i64 | used slots i32 | item count i32
    40  slots: newest item of each chain i32, 0 = none
        items: key hash i32 | position i64 | seconds since begin time i32 | previous item of the chain i32

The item count begins at 1, item 0 is never used. The end position is where the last indexed record begins. Files are
sparse, named by a time (ours by the store time of their first record, UTC), and only the last one grows. A hit is a
hit of the hash: the caller compares real keys.

A file does not say how many slots it has. Those of the options are tried first, then those that follow from upstream's
default proportion of 1 to 4 and from 1 to 2; a guess counts if the first and the last item are where they belong. A
file that fits none is left alone and not searched.

Built lazily from the confirmed log, in slices. Knows nothing of properties and topics.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from holdfast.store.disk import Disk, File
from holdfast.store.options import StoreOptions

FOLDER = "index"
HEADER = struct.Struct(">qqqqii")
SLOT = struct.Struct(">i")
ITEM = struct.Struct(">iqii")
NAME_LENGTH = 17
_SECONDS_MAX = (1 << 31) - 1
_TIME_MAX_MS = 253_402_300_799_999  # The end of the year 9999: names have four digits for it.
_GUESSES = (84, 44)  # Bytes per slot when there are 4, or 2, items to a slot.

IndexKey = tuple[int, int, int]
"""(hash, position of the record, its store time)."""


class IndexFile:
    """One file of the index."""

    def __init__(self, file: File, slots: int) -> None:
        self.file = file
        self.slots = slots
        self.items_at = HEADER.size + SLOT.size * slots
        self.items = (file.size - self.items_at) // ITEM.size
        header: tuple[int, int, int, int, int, int] = HEADER.unpack(file.read(0, HEADER.size))
        self.begin_ms, self.end_ms, self.begin_position, self.end_position, self.used_slots, count = header
        self.count = min(max(count, 1), self.items)

    @property
    def room(self) -> int:
        """How many more keys fit."""
        return self.items - self.count

    def add(self, keys: Sequence[IndexKey]) -> None:
        """Add *keys*, in log order; there is room for them."""
        assert len(keys) <= self.room
        heads: dict[int, int] = {}
        items: list[bytes] = []
        number = self.count
        for key_hash, position, store_ms in keys:
            if number == 1:
                self.begin_ms, self.begin_position = store_ms, position
            slot = key_hash % self.slots
            previous = heads.get(slot)
            if previous is None:
                previous = self._head(slot)
                self.used_slots += previous == 0
            seconds = min(max(store_ms - self.begin_ms, 0) // 1000, _SECONDS_MAX)
            items.append(ITEM.pack(key_hash, position, seconds, previous))
            heads[slot] = number
            number += 1
        self.file.write(self.items_at + ITEM.size * self.count, items)
        for slot, head in heads.items():
            self.file.write(HEADER.size + SLOT.size * slot, (SLOT.pack(head),))
        self.count = number
        if keys:
            _, self.end_position, self.end_ms = keys[-1]
        self._write_header()

    def _write_header(self) -> None:
        header = HEADER.pack(
            self.begin_ms, self.end_ms, self.begin_position, self.end_position, self.used_slots, self.count
        )
        self.file.write(0, (header,))

    def _head(self, slot: int) -> int:
        at = HEADER.size + SLOT.size * slot
        (number,) = SLOT.unpack(self.file.read(at, at + SLOT.size))
        return number if 0 < number < self.count else 0

    def find(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Yield positions under *key_hash*, newest first, whose time to the second may be in [begin_ms, end_ms]."""
        if self.count <= 1 or self.end_ms + 1000 < begin_ms or self.begin_ms - 1000 > end_ms:
            return
        number = self._head(key_hash % self.slots)
        while number:
            found_hash, position, seconds, previous = self._item(number)
            time_ms = self.begin_ms + seconds * 1000
            if found_hash == key_hash and begin_ms - 1000 <= time_ms <= end_ms:
                yield position
            # Chains lead to older items only: a damaged one cannot lead in a circle.
            number = previous if 0 < previous < number else 0

    def holds_together(self) -> bool:
        """Return whether the first and the last item are where they belong, given this number of slots."""
        if self.items < 2:
            return False
        if self.count == 1:
            return True
        first_hash, first_position, _, first_previous = self._item(1)
        last_hash, last_position, _, _ = self._item(self.count - 1)
        return (
            (first_position, first_previous, last_position) == (self.begin_position, 0, self.end_position)
            and self._head(first_hash % self.slots) > 0
            and self._head(last_hash % self.slots) == self.count - 1
        )

    def _item(self, number: int) -> tuple[int, int, int, int]:
        at = self.items_at + ITEM.size * number
        key_hash, position, seconds, previous = ITEM.unpack(self.file.read(at, at + ITEM.size))
        return key_hash, position, seconds, previous


def open_index_file(file: File, slots_wanted: int) -> IndexFile | None:
    """Return *file* as an index with a number of slots that fits what is in it."""
    body = file.size - HEADER.size
    for slots in (slots_wanted, *(body // share for share in _GUESSES)):
        if slots > 0 and body > SLOT.size * slots and (body - SLOT.size * slots) % ITEM.size == 0:
            index_file = IndexFile(file, slots)
            if index_file.holds_together():
                return index_file
    return None


class KeyIndex:
    """The files of the index, oldest first."""

    def __init__(self, disk: Disk, options: StoreOptions, *, is_clean: bool) -> None:
        self._disk = disk
        self._slots, self._items = options.index_slots, options.index_items
        self.files: list[IndexFile] = []
        self.unsynced: dict[File, None] = {}
        names = [name for name in disk.list(FOLDER) if len(name) == NAME_LENGTH and name.isdigit()]
        if names and not is_clean:
            # A crash may have taken any page of the file that was growing. It is made again from the log.
            disk.remove(f"{FOLDER}/{names.pop()}")
        for name in names:
            if (disk.find_size(f"{FOLDER}/{name}") or 0) > HEADER.size:
                index_file = open_index_file(disk.open(f"{FOLDER}/{name}"), self._slots)
                if index_file is not None:
                    self.files.append(index_file)
        self._last_name = names[-1] if names else ""

    @property
    def end_position(self) -> int | None:
        """Where the last indexed record begins."""
        return self.files[-1].end_position if self.files and self.files[-1].count > 1 else None

    @property
    def end_ms(self) -> int:
        """Store time of the last indexed record."""
        return self.files[-1].end_ms if self.files else 0

    def add(self, keys: Sequence[IndexKey]) -> None:
        """Add *keys*, in log order."""
        while keys:
            if not self.files or not self.files[-1].room:
                self.files.append(self._create(keys[0][2]))
            index_file = self.files[-1]
            part = keys[: index_file.room]
            index_file.add(part)
            self.unsynced[index_file.file] = None
            keys = keys[len(part) :]

    def _create(self, store_ms: int) -> IndexFile:
        store_ms = min(max(store_ms, 0), _TIME_MAX_MS)
        made = datetime.fromtimestamp(store_ms // 1000, UTC)
        name = f"{made:%Y%m%d%H%M%S}{store_ms % 1000:03d}"
        if name <= self._last_name:
            name = f"{int(self._last_name) + 1:0{NAME_LENGTH}d}"
        self._last_name = name
        size = HEADER.size + SLOT.size * self._slots + ITEM.size * self._items
        return IndexFile(self._disk.create(f"{FOLDER}/{name}", size), self._slots)

    def find(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Yield positions of records that may have the key, newest first."""
        for index_file in reversed(self.files):
            yield from index_file.find(key_hash, begin_ms, end_ms)

    def clean(self, log_start: int) -> list[str]:
        """Remove files that know only of records before *log_start*, but never the last; return their paths."""
        removed: list[str] = []
        while len(self.files) > 1 and self.files[0].end_position < log_start:
            file = self.files.pop(0).file
            self.unsynced.pop(file, None)
            self._disk.remove(file.path)
            removed.append(file.path)
        return removed

    def take_unsynced(self) -> tuple[File, ...]:
        """Return the files written to since the last call."""
        files = tuple(self.unsynced)
        self.unsynced.clear()
        return files
