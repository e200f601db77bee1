"""The index files: hash tables from key hash to log position, each newer than the one before.

    0   begin time i64 | end time i64 | begin position i64 | end position i64 | used slots i32 | item count i32
    40  slots: newest item of each chain i32, 0 = none
        items: key hash i32 | position i64 | seconds since begin time i32 | previous item of the chain i32

The item count begins at 1; item 0 is never used. The end position is the start of the last indexed record. Files are
sparse and named by a time (ours by the store time of their first record, UTC); only the last one grows. A hit means
only that the hashes are equal: the caller compares the keys.

    slots    |  region  |  region  |  region  | ...     written a region at a time, in turn
    table    all slots of the last file in memory: newer than the file in its dirty blocks

Keys hit all slots with the same probability: written one by one, every key would cost a separate write. Heads lost in a
crash are rebuilt from the log.

A file does not contain its number of slots. The configured number is tried first, then the numbers that follow from
RocketMQ's default ratio of 1 to 4 and from 1 to 2. A guess is right if the first and the last item are where they
belong. A file that fits no guess is kept but not searched.

The index is built lazily from the confirmed log, in slices. This module knows neither properties nor topics.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from holdfast.model.errors import DiskFailed
from holdfast.store.base.cold_reads import FileRange
from holdfast.store.base.disk import Disk, File
from holdfast.store.base.options import StoreOptions
from holdfast.store.keys.key_links import ITEM, KEY_SIZE, SLOT, link_keys, unpack_keys

FOLDER = "index"
HEADER = struct.Struct(">qqqqii")
NAME_LENGTH = 17
BLOCK_SLOTS = 64
REGION_BLOCKS = 1024
REGION_KEYS = 1024
"""The number of keys after which a region is written."""
HOT_ITEMS = 1 << 21
WARM_SIZE = 1 << 20
_SCATTERED_MAX = 64  # The number of single blocks that can be written in the time of one whole region.
_TIME_MAX_MS = 253_402_300_799_999  # The end of the year 9999: names have four digits for it.
_SLOT_BYTES_GUESSES = (84, 44)  # Bytes per slot if there are 4, or 2, items per slot.

Item = tuple[int, int, int, int]
"""(hash, position of the record, seconds since the file's begin time, previous item of the chain)."""


class IndexFile:
    """One file of the index.

    Invariant: a head in the table is the newest of its chain; only the last file has a table. `_table_end` bytes of it
    are loaded; keys are added to a complete table only.
    """

    def __init__(self, file: File, slots: int, *, is_new: bool = False) -> None:
        self.file = file
        self.slots = slots
        self.items_at = HEADER.size + SLOT.size * slots
        self.items = (file.size - self.items_at) // ITEM.size
        header: tuple[int, int, int, int, int, int] = HEADER.unpack(file.read(0, HEADER.size))
        self.begin_ms, self.end_ms, self.begin_position, self.end_position, self.used_slots, count = header
        self.count = min(max(count, 1), self.items)
        self._loaded_count = self.count  # Items before this one were written by an earlier process.
        self._warm_end = self.items_at if self.count == 1 else HEADER.size  # Slots before it are in memory.
        self._table = memoryview(b"")
        self._table_end = SLOT.size * slots if is_new else 0  # Never written: no need to fetch pages of zeros.
        self._dirty = bytearray(-(-slots // BLOCK_SLOTS))
        self._next_region = 0
        self._keys_since_write = 0

    @property
    def free_items(self) -> int:
        """The number of keys that still fit."""
        return self.items - self.count

    def find_cold(self) -> FileRange | None:
        """Return the slots to read before keys are added. Keys use any slot; a disk seek for each would be too slow."""
        if self._warm_end >= self.items_at:
            return None
        return FileRange(self.file, self._warm_end, min(self._warm_end + WARM_SIZE, self.items_at))

    def note_warm(self, file_range: FileRange) -> None:
        """Record that *file_range* was read."""
        if file_range.file is self.file:
            self._warm_end = max(self._warm_end, file_range.end)
            self._load(self._warm_end - HEADER.size)

    def _load(self, end: int) -> None:
        """Load the table up to byte *end*."""
        if not self._table:
            # Anonymous: the kernel provides each page, zeroed, when its first key arrives. A table has 20 MB.
            self._table = memoryview(mmap.mmap(-1, SLOT.size * self.slots))
        start = self._table_end
        if start < end:
            self._table[start:end] = self.file.view(HEADER.size + start, HEADER.size + end)
            self._table_end = end

    def release_table(self) -> None:
        """Free the table: the file is full, and all heads are written."""
        assert not any(self._dirty)
        self._table = memoryview(b"")
        self._table_end = 0

    def add(self, keys: bytes) -> None:
        """Add *keys*, packed as in `key_links`, in log order; they must fit into the file.

        Raises:
            DiskFailed: none of them was added.
        """
        count = len(keys) // KEY_SIZE
        assert count <= self.free_items
        if not count:
            return
        self._load(SLOT.size * self.slots)
        known = self.count
        ((_, begin_position, begin_ms),) = unpack_keys(keys[:KEY_SIZE])
        ((_, end_position, end_ms),) = unpack_keys(keys[-KEY_SIZE:])
        if known == 1:
            self.begin_position, self.begin_ms = begin_position, begin_ms
        items, used = link_keys(self._table, self._dirty, BLOCK_SLOTS, keys, known, self.begin_ms)
        before = (self.end_position, self.end_ms, self.count, self.used_slots)
        self.end_position, self.end_ms = end_position, end_ms
        self.count += count
        self.used_slots += used
        try:
            self.file.write(self.items_at + ITEM.size * known, (items,))
            self._write_header()
        except DiskFailed:
            self._undo_heads(items)
            self.end_position, self.end_ms, self.count, self.used_slots = before
            raise
        self._keys_since_write += count

    def _undo_heads(self, items: bytes) -> None:
        """Restore the chain heads from before *items*, which the disk refused."""
        for key_hash, _, _, previous in reversed([*ITEM.iter_unpack(items)]):
            SLOT.pack_into(self._table, SLOT.size * (key_hash % self.slots), previous)

    def write_due(self) -> None:
        """Write the regions that are due by the number of keys added.

        Raises:
            DiskFailed: their heads stay in memory and remain due.
        """
        while self._keys_since_write >= REGION_KEYS:
            self._write_region(self._next_region)
            self._keys_since_write -= REGION_KEYS
            self._next_region = (self._next_region + 1) % -(-len(self._dirty) // REGION_BLOCKS)

    def write_heads(self) -> Iterator[None]:
        """Write heads that are only in memory, a region per step. Those of keys added meanwhile may stay in memory."""
        for region in range(-(-len(self._dirty) // REGION_BLOCKS)):
            if self._write_region(region):
                yield

    def _write_region(self, region: int) -> bool:
        """Write the dirty blocks of a region, or all of it if they are many. Return whether there were any."""
        dirty = self._dirty
        start, end = region * REGION_BLOCKS, min((region + 1) * REGION_BLOCKS, len(dirty))
        runs: list[tuple[int, int]] = []
        at = dirty.find(1, start, end)
        while at >= 0:
            stop = dirty.find(0, at, end)
            runs.append((at, stop if stop >= 0 else end))
            at = dirty.find(1, stop, end) if stop >= 0 else -1
        if len(runs) > _SCATTERED_MAX:
            runs = [(start, end)]
        block_size = SLOT.size * BLOCK_SLOTS
        for first, last in runs:
            self.file.write(HEADER.size + first * block_size, (self._table[first * block_size : last * block_size],))
        dirty[start:end] = bytes(end - start)
        return bool(runs)

    def _write_header(self) -> None:
        header = HEADER.pack(
            self.begin_ms, self.end_ms, self.begin_position, self.end_position, self.used_slots, self.count
        )
        self.file.write(0, (header,))

    async def find_head(self, key_hash: int) -> int:
        """Return the newest item of the chain of *key_hash*, 0 if there is none."""
        slot_at = SLOT.size * (key_hash % self.slots)
        at = HEADER.size + slot_at
        if self._table and slot_at < self._table_end:
            data = self._table[slot_at : slot_at + SLOT.size].tobytes()
        elif at < self._warm_end:
            data = self.file.read(at, at + SLOT.size)
        else:
            data = await FileRange(self.file, at, at + SLOT.size)
        (number,) = SLOT.unpack(data)
        return number if 0 < number < self.count else 0

    async def find_item(self, number: int) -> Item:
        """Return one item of [1, count)."""
        at = self.items_at + ITEM.size * number
        if number >= max(self._loaded_count, self.count - HOT_ITEMS):
            data = self.file.read(at, at + ITEM.size)
        else:
            data = await FileRange(self.file, at, at + ITEM.size)
        key_hash, position, seconds, previous = ITEM.unpack(data)
        return key_hash, position, seconds, previous

    def may_contain(self, begin_ms: int, end_ms: int) -> bool:
        """Return whether the file may contain a key of this time, to the second."""
        return self.count > 1 and self.end_ms + 1000 >= begin_ms and self.begin_ms - 1000 <= end_ms

    def is_consistent(self) -> bool:
        """Return whether the first and the last item are where they belong with this number of slots."""
        if self.items < 2:
            return False
        if self.count == 1:
            return True
        first_hash, first_position, _, first_previous = self._read_item(1)
        last_hash, last_position, _, _ = self._read_item(self.count - 1)
        return (
            (first_position, first_previous, last_position) == (self.begin_position, 0, self.end_position)
            and self._read_head(first_hash) > 0
            and self._read_head(last_hash) == self.count - 1
        )

    def _read_head(self, key_hash: int) -> int:
        at = HEADER.size + SLOT.size * (key_hash % self.slots)
        (number,) = SLOT.unpack(self.file.read(at, at + SLOT.size))
        return number if 0 < number < self.count else 0

    def _read_item(self, number: int) -> Item:
        at = self.items_at + ITEM.size * number
        key_hash, position, seconds, previous = ITEM.unpack(self.file.read(at, at + ITEM.size))
        return key_hash, position, seconds, previous


class KeySearch:
    """One search, newest hit first."""

    def __init__(self, files: Sequence[IndexFile], key_hash: int, begin_ms: int, end_ms: int) -> None:
        self._files = [index_file for index_file in files if index_file.may_contain(begin_ms, end_ms)]
        self._key_hash = key_hash
        self._begin_ms, self._end_ms = begin_ms, end_ms
        self._file: IndexFile | None = None
        self._number = 0

    async def next(self) -> int | None:
        """Return the position of the next record that may have the key; its time matches to the second."""
        while self._number or self._files:
            if not self._number:
                self._file = self._files.pop()
                self._number = await self._file.find_head(self._key_hash)
                continue
            assert self._file is not None
            found_hash, position, seconds, previous = await self._file.find_item(self._number)
            # Chains lead to older items only: a corrupt one cannot form a cycle.
            self._number = previous if 0 < previous < self._number else 0
            time_ms = self._file.begin_ms + seconds * 1000
            if found_hash == self._key_hash and self._begin_ms - 1000 <= time_ms <= self._end_ms:
                return position
        return None


def open_index_file(file: File, slots_wanted: int) -> IndexFile | None:
    """Return *file* as an index with the number of slots that fits its content; None if no number fits."""
    body = file.size - HEADER.size
    for slots in (slots_wanted, *(body // share for share in _SLOT_BYTES_GUESSES)):
        if slots > 0 and body > SLOT.size * slots and (body - SLOT.size * slots) % ITEM.size == 0:
            index_file = IndexFile(file, slots)
            if index_file.is_consistent():
                return index_file
    return None


class KeyIndex:
    """The files of the index, oldest first."""

    def __init__(self, disk: Disk, options: StoreOptions, *, is_clean: bool, synced: int | None = None) -> None:
        """Open the existing files. After a crash keep only synced ones: all about records before *synced*, if known."""
        self._disk = disk
        self._slots, self._items = options.index_slots, options.index_items
        self.files: list[IndexFile] = []
        self.unsynced: dict[File, None] = {}
        names = [name for name in disk.list(FOLDER) if len(name) == NAME_LENGTH and name.isdigit()]
        while names and not is_clean:
            # A crash may have lost any page of a file that grew after the sync. It is rebuilt from the log.
            begin = self._find_begin(f"{FOLDER}/{names[-1]}")
            disk.remove(f"{FOLDER}/{names.pop()}")
            if synced is None or (begin is not None and begin < synced):
                break
        for name in names:
            if (disk.find_size(f"{FOLDER}/{name}") or 0) > HEADER.size:
                index_file = open_index_file(disk.open(f"{FOLDER}/{name}"), self._slots)
                if index_file is not None:
                    self.files.append(index_file)
        self._last_name = names[-1] if names else ""

    def _find_begin(self, path: str) -> int | None:
        """Return the start of the first record in a file; None if it has none."""
        if (self._disk.find_size(path) or 0) <= HEADER.size:
            return None
        index_file = IndexFile(self._disk.open(path), 1)
        return index_file.begin_position if index_file.count > 1 else None

    @property
    def end_position(self) -> int | None:
        """Start of the last indexed record."""
        return self.files[-1].end_position if self.files and self.files[-1].count > 1 else None

    @property
    def end_ms(self) -> int:
        """Store time of the last indexed record."""
        return self.files[-1].end_ms if self.files else 0

    def add(self, keys: bytes) -> None:
        """Add *keys*, packed as in `key_links`, in log order.

        Raises:
            DiskFailed: some were not added. The caller may add all of them again: duplicate hits are counted once.
        """
        while keys:
            if not self.files or not self.files[-1].free_items:
                # Write all heads of the last file at once: this happens once in millions of keys.
                for _ in self.write_heads():
                    pass
                if self.files:
                    self.files[-1].release_table()
                ((_, _, store_ms),) = unpack_keys(keys[:KEY_SIZE])
                self.files.append(self._create(store_ms))
            index_file = self.files[-1]
            part = keys[: index_file.free_items * KEY_SIZE]
            index_file.add(part)
            self.unsynced[index_file.file] = None
            keys = keys[len(part) :]

    def _create(self, store_ms: int) -> IndexFile:
        store_ms = min(max(store_ms, 0), _TIME_MAX_MS)
        created = datetime.fromtimestamp(store_ms // 1000, UTC)
        name = f"{created:%Y%m%d%H%M%S}{store_ms % 1000:03d}"
        if name <= self._last_name:
            name = f"{int(self._last_name) + 1:0{NAME_LENGTH}d}"
        size = HEADER.size + SLOT.size * self._slots + ITEM.size * self._items
        file = self._disk.create(f"{FOLDER}/{name}", size)
        self._last_name = name
        return IndexFile(file, self._slots, is_new=True)

    def search(self, key_hash: int, begin_ms: int, end_ms: int) -> KeySearch:
        """Return a search for records that may have the key and were stored in [begin_ms, end_ms]."""
        return KeySearch(self.files, key_hash, begin_ms, end_ms)

    def write_due(self) -> None:
        """Write the heads that are due by the number of keys added."""
        if self.files:
            self.files[-1].write_due()

    def write_heads(self) -> Iterator[None]:
        """Write heads that are only in memory, in bounded pieces: for all keys that were added before this call."""
        return self.files[-1].write_heads() if self.files else iter(())

    def clean(self, log_start: int) -> list[str]:
        """Remove files that contain only records before *log_start*, except the last; return their paths."""
        removed: list[str] = []
        while len(self.files) > 1 and self.files[0].end_position < log_start:
            file = self.files.pop(0).file
            self.unsynced.pop(file, None)
            self._disk.remove(file.path)
            removed.append(file.path)
        return removed

    def pop_unsynced(self) -> tuple[File, ...]:
        """Return the files written since the last call."""
        files = tuple(self.unsynced)
        self.unsynced.clear()
        return files
