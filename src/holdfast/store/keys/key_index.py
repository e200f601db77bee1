"""The index files: hash tables from key hash to log position, each newer than the one before.

    0   begin time i64 | end time i64 | begin position i64 | end position i64 | used slots i32 | item count i32
    40  slots: newest item of each chain i32, 0 = none
        items: key hash i32 | position i64 | seconds since begin time i32 | previous item of the chain i32

The item count begins at 1; item 0 is never used. The end position is the start of the last indexed record. Files are
sparse and named by a time (ours by the store time of their first record, UTC); only the last one grows. A hit means
only that the hashes are equal: the caller compares the keys.

    slots    |  region  |  region  |  region  | ...     written a region at a time, in turn
    memory   heads that are newer than the slots

Keys hit all slots with the same probability: written one by one, every key would cost a separate write. Heads lost in a
crash are rebuilt from the log.

A file does not contain its number of slots. The configured number is tried first, then the numbers that follow from
RocketMQ's default ratio of 1 to 4 and from 1 to 2. A guess is right if the first and the last item are where they
belong. A file that fits no guess is kept but not searched.

The index is built lazily from the confirmed log, in slices. This module knows neither properties nor topics.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from holdfast.model.errors import DiskFailed
from holdfast.store.base.cold_reads import FileRange
from holdfast.store.base.disk import Disk, File
from holdfast.store.base.options import StoreOptions

FOLDER = "index"
HEADER = struct.Struct(">qqqqii")
SLOT = struct.Struct(">i")
ITEM = struct.Struct(">iqii")
NAME_LENGTH = 17
REGION_SLOTS = 1 << 16
REGION_KEYS = 1024
"""The number of keys after which a region is written."""
HOT_ITEMS = 1 << 21
WARM_SIZE = 1 << 20
_SCATTERED_MAX = 64  # The number of single slots that can be written in the time of one whole region.
_SECONDS_MAX = (1 << 31) - 1
_TIME_MAX_MS = 253_402_300_799_999  # The end of the year 9999: names have four digits for it.
_SLOT_BYTES_GUESSES = (84, 44)  # Bytes per slot if there are 4, or 2, items per slot.

IndexKey = tuple[int, int, int]
"""(hash, position of the record, its store time)."""

Item = tuple[int, int, int, int]
"""(hash, position of the record, seconds since the file's begin time, previous item of the chain)."""


class IndexFile:
    """One file of the index.

    Invariant: a head in memory is newer than the one in its slot, and only the last file has any.
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
        regions = -(-slots // REGION_SLOTS)
        self._heads: list[dict[int, int]] = [{} for _ in range(regions)]
        self._is_blank = [is_new] * regions  # Never written: no need to fetch pages of zeros.
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

    def add(self, keys: Sequence[IndexKey]) -> None:
        """Add *keys*, in log order; they must fit into the file.

        Raises:
            DiskFailed: none of them was added.
        """
        assert len(keys) <= self.free_items
        if not keys:
            return
        number = known = self.count
        used_before = self.used_slots
        if known == 1:
            _, self.begin_position, self.begin_ms = keys[0]
        items: list[bytes] = []
        heads, slots, begin_ms, pack = self._heads, self.slots, self.begin_ms, ITEM.pack
        is_blank, unpack_head, slot_size, region_slots = self._is_blank, SLOT.unpack_from, SLOT.size, REGION_SLOTS
        table = self.file.view(HEADER.size, self.items_at) if not all(is_blank) else None
        seconds, seconds_of = 0, begin_ms
        for key_hash, position, store_ms in keys:
            slot = key_hash % slots
            region = slot // region_slots
            previous = heads[region].get(slot)
            if previous is None:
                previous = 0
                if table is not None and not is_blank[region]:
                    (previous,) = unpack_head(table, slot_size * slot)
                if not 0 < previous < known:
                    previous = 0
                    self.used_slots += 1
            if store_ms != seconds_of:
                seconds, seconds_of = min(max(store_ms - begin_ms, 0) // 1000, _SECONDS_MAX), store_ms
            items.append(pack(key_hash, position, seconds, previous))
            heads[region][slot] = number
            number += 1
        end_before = (self.end_position, self.end_ms)
        _, self.end_position, self.end_ms = keys[-1]
        self.count = number
        try:
            self.file.write(self.items_at + ITEM.size * known, (b"".join(items),))
            self._write_header()
        except DiskFailed:
            self._undo_heads(items)
            self.count, self.used_slots = known, used_before
            self.end_position, self.end_ms = end_before
            raise
        self._keys_since_write += len(keys)

    def _undo_heads(self, items: list[bytes]) -> None:
        """Restore the chain heads from before *items*, which the disk refused."""
        for item in reversed(items):
            key_hash, _, _, previous = ITEM.unpack(item)
            slot = key_hash % self.slots
            heads = self._heads[slot // REGION_SLOTS]
            if previous:
                heads[slot] = previous
            else:
                del heads[slot]

    def write_due(self) -> None:
        """Write the regions that are due by the number of keys added.

        Raises:
            DiskFailed: their heads stay in memory and remain due.
        """
        while self._keys_since_write >= REGION_KEYS:
            self._write_region(self._next_region)
            self._keys_since_write -= REGION_KEYS
            self._next_region = (self._next_region + 1) % len(self._heads)

    def write_heads(self) -> Iterator[None]:
        """Write heads that are only in memory, a region per step. Those of keys added meanwhile may stay in memory."""
        for region, heads in enumerate(self._heads):
            if heads:
                self._write_region(region)
                yield

    def _write_region(self, region: int) -> None:
        heads = self._heads[region]
        start = region * REGION_SLOTS
        if len(heads) <= _SCATTERED_MAX:
            for slot, head in heads.items():
                self.file.write(HEADER.size + SLOT.size * slot, (SLOT.pack(head),))
        else:
            at = HEADER.size + SLOT.size * start
            size = min(SLOT.size * REGION_SLOTS, self.items_at - at)
            data = bytearray(size if self._is_blank[region] else self.file.view(at, at + size))
            pack_head = SLOT.pack_into
            for slot, head in heads.items():
                pack_head(data, SLOT.size * (slot - start), head)
            self.file.write(at, (data,))
        if heads:
            self._is_blank[region] = False
        heads.clear()

    def _write_header(self) -> None:
        header = HEADER.pack(
            self.begin_ms, self.end_ms, self.begin_position, self.end_position, self.used_slots, self.count
        )
        self.file.write(0, (header,))

    async def find_head(self, key_hash: int) -> int:
        """Return the newest item of the chain of *key_hash*, 0 if there is none."""
        slot = key_hash % self.slots
        number = self._heads[slot // REGION_SLOTS].get(slot)
        if number is None:
            at = HEADER.size + SLOT.size * slot
            if at < self._warm_end:
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

    def add(self, keys: Sequence[IndexKey]) -> None:
        """Add *keys*, in log order.

        Raises:
            DiskFailed: some were not added. The caller may add all of them again: duplicate hits are counted once.
        """
        while keys:
            if not self.files or not self.files[-1].free_items:
                # Write all heads of the last file at once: this happens once in millions of keys.
                for _ in self.write_heads():
                    pass
                self.files.append(self._create(keys[0][2]))
            index_file = self.files[-1]
            part = keys[: index_file.free_items]
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
