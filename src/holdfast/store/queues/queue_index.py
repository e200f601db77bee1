"""The interface of one physical queue of any kind: an index of its messages in the log.

    consume_queue.MessageIndex         20 bytes per message     entry n belongs to offset n
    batch_consume_queue.RecordIndex    46 bytes per record      a record may hold many messages: see its entry

A kind of index is a subclass, listed in `index_kinds.KINDS`. The rest of the store tests no kind: it asks for what a
kind declares, or calls a method.

Entries are addressed in two ways. By *offset*, outside the store: an `EntryRange` has the entries from an offset on. By
*number*, inside the store, to maintain files: in every kind entry n is at n times the entry size, and positions rise
with numbers.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, ClassVar

from holdfast.store.base.cold_reads import Steps
from holdfast.store.base.options import StoreOptions
from holdfast.store.queues.queue_files import QueueFiles
from holdfast.wire.records.record import FIXED_SIZE

ENTRY = struct.Struct(">qiq")
BLANK_ENTRY_SIZE = 0x7FFFFFFF
"""The record size in an entry without a message."""
FLUSH_SIZE = 4096
"""A tail of so many bytes is written to its file."""
BLANKS_MAX = 300_000
"""A wider gap in a queue is more likely a corrupt offset than so many lost messages."""

Entry = tuple[int, int, int]
"""(position, record size, tags code): the first 20 bytes of an entry, in every kind."""

EntryRange = tuple[bytes | bytearray, Sequence[tuple[int, int]] | None]
"""Entries of 20 bytes each, and for each entry the offsets [first, end) of its messages.

The offsets are None if every entry is one message and the first entry belongs to the requested offset.
"""


class QueueIndex(ABC):
    """One physical queue. The store hands it out; the caller that appends may keep it.

    Invariant: offset_min <= offset_max <= next_offset.

    Attributes:
        queue_type: The value of the topic attribute `queue.type` that selects this kind.
        kind_folder: The folder of all queues of this kind.
        entry_size: Bytes of an entry.
        entry_fields: Name and format of every field of an entry, as numpy reads them. The first three are the same in
            every kind. If there are fields `first` and `count`, they state the offsets of an entry; otherwise entry n
            belongs to offset n.
        bounds_key: The key of this kind in the file of the queues' bounds.
        bounds_type: The type of its value: `bounds` of every queue, by topic and number.
        has_gaps: Offsets without an entry may lie between two entries. Otherwise blank entries fill a gap.
        accepts_batches: A record may hold many messages.
        has_plain_entries: An entry is an `Entry` and nothing else, so the hot path packs it inline.
        offset_min: First offset whose record is still in the log; equal to `offset_max` if there is none.
        offset_max: End of the confirmed messages, which readers see. Both bounds of a new queue are 0.
        next_offset: The offset of the next message: greater than `offset_max` while records are unconfirmed.
        hot_offset: Entries before it were written by an earlier process: they may not be in memory.
        header_size: Size of a record without its body and properties; an IPv6 born host adds to it.
        tail: The newest entries, not yet in a file; `tail_number` is the number of the first.
        folder: The folder of the files.
        first_file, file_end: Start of the first file and end of the last; equal if there is none.
    """

    __slots__ = (
        "accepts_batches",
        "file_end",
        "files",
        "first_file",
        "folder",
        "has_plain_entries",
        "header_size",
        "hot_offset",
        "magic",
        "next_offset",
        "offset_max",
        "offset_min",
        "queue_id",
        "tail",
        "tail_number",
        "topic",
        "topic_part",
    )

    queue_type: ClassVar[str]
    kind_folder: ClassVar[str]
    entry_size: ClassVar[int]
    entry_fields: ClassVar[tuple[tuple[str, str], ...]]
    bounds_key: ClassVar[str]
    bounds_type: ClassVar[Any]
    has_gaps: ClassVar[bool]

    def __init__(self, files: QueueFiles, topic: str, queue_id: int) -> None:
        self.files = files
        self.topic = topic
        self.queue_id = queue_id
        # Of the kind. Read for every message, and faster from the instance than from the class.
        self.accepts_batches = False
        self.has_plain_entries = False
        self.folder = f"{files.folder}/{topic}/{queue_id}"
        self.magic, self.topic_part = files.topic_part(topic)
        self.header_size = FIXED_SIZE + files.host_extra + len(self.topic_part) + 2
        self.offset_min = 0
        self.offset_max = 0
        self.next_offset = 0
        self.hot_offset = 0
        self.tail = bytearray()
        self.tail_number = 0
        self.first_file = 0
        self.file_end = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.topic}/{self.queue_id} [{self.offset_min}, {self.offset_max})>"

    @staticmethod
    @abstractmethod
    def choose_file_size(options: StoreOptions) -> int:
        """Return the size of this kind's files in a folder that has none yet."""

    # --- by offset: for readers

    @abstractmethod
    def read_range(self, start: int, count: int) -> EntryRange:
        """Return the entries of up to *count* messages from *start* on; none if *start* is outside [min, max).

        A record is never split: at least one entry is returned, and the first may begin before *start*.

        Raises:
            DiskFailed: the file of these entries cannot be read.
        """

    @abstractmethod
    def fetch_range(self, start: int, count: int, *, ahead: int = 0) -> Steps[EntryRange]:
        """Return the entries from *start* on, in steps that request those which may not be in memory.

        Up to *ahead* later entries are read as well, so that a sequential reader rarely needs a request.

        Raises:
            DiskFailed: the file of these entries cannot be opened.
        """

    @abstractmethod
    def is_cold(self, start: int, count: int) -> bool:
        """Return whether some of these entries may not be in memory."""

    @abstractmethod
    def entries(self, start: int, count: int) -> list[Entry]:
        """Return the decoded entries of up to *count* messages from *start* on."""

    @abstractmethod
    def get_entry(self, offset: int) -> Entry:
        """Return the entry of one offset of [offset_min, offset_max); a blank one if no message has it."""

    @abstractmethod
    def raw_entry(self, offset: int) -> bytes | bytearray:
        """Return the bytes of the entry that holds *offset*, or of the next one; empty outside [min, max)."""

    def find_from(self, position: int) -> int:
        """Return the first offset whose record is at *position* of the log or after it; `offset_max` if none is."""
        offsets = range(self.offset_min, self.offset_max)
        return self.offset_min + bisect_left(offsets, position, key=lambda offset: self.get_entry(offset)[0])

    # --- by time: steps, because entries and records may not be in memory

    @abstractmethod
    def find_time(self, offset: int) -> Steps[int | None]:
        """Return the store time of the message at *offset*; None if it is gone, blank or corrupt."""

    @abstractmethod
    def find_at_time(self, time_ms: int, *, upper: bool) -> Steps[int]:
        """Return the first offset stored at or after *time_ms*, or with *upper* the last one at or before it.

        If there is none, return the end of the queue, or with *upper* its beginning.
        """

    # --- adding entries

    @staticmethod
    @abstractmethod
    def pack_entry(position: int, size: int, tags_code: int, store_ms: int, first: int, count: int) -> bytes:
        """Return the entry of a record with the messages [first, first + count)."""

    def append(self, entry: bytes) -> None:
        """Append an entry that was found in the log: it is readable at once, and the next offset follows it."""
        self.tail += entry
        self.publish_tail()
        self.next_offset = self.offset_max

    def blank_entries(self, count: int, position: int) -> list[bytes]:
        """Return entries for *count* offsets without a message, before the record at *position*."""
        return [self.pack_entry(position, BLANK_ENTRY_SIZE, 0, 0, 0, 1)] * count

    @abstractmethod
    def publish_tail(self) -> None:
        """Make the entries in the tail readable; write them to the file once there are enough.

        Raises:
            DiskFailed: the write failed, but the entries are readable from memory.
        """

    def flush(self) -> None:
        """Write the tail to its file.

        Raises:
            DiskFailed: the entries stay readable from memory.
        """
        if not self.tail:
            return
        size = self.files.entry_size
        with memoryview(self.tail) as data:
            self.file_end = self.files.write(self.folder, self.tail_number * size, data, self.file_end)
        self.tail_number += len(self.tail) // size
        # Allocate a new one: an emptied bytearray would keep its largest capacity.
        self.tail = bytearray()

    @abstractmethod
    def release_offsets(self, entry: bytes) -> None:
        """Release the offsets of *entry*, the last one created, so that the next message gets them."""

    @abstractmethod
    def begin_at(self, offset: int) -> None:
        """Start an empty queue at *offset*: earlier messages are gone from the log."""

    # --- by number: for file maintenance

    @property
    @abstractmethod
    def entry_min(self) -> int:
        """Number of the first entry whose record is still in the log."""

    @property
    @abstractmethod
    def entry_end(self) -> int:
        """End of the numbers of the entries that readers see."""

    @property
    @abstractmethod
    def last_file(self) -> int:
        """First byte of the file that retention must keep, because it holds the queue's next offset."""

    @abstractmethod
    def location_of(self, number: int) -> tuple[int, int]:
        """Return the position and the record size in entry *number*."""

    @staticmethod
    @abstractmethod
    def parse_location(entry: bytes) -> tuple[int, int]:
        """Return the position and the record size in the bytes of an entry; a size <= 0 if the entry is invalid."""

    @abstractmethod
    def set_min(self, number: int) -> None:
        """Make entry *number* the first whose record is still in the log."""

    @abstractmethod
    def set_end(self, number: int) -> None:
        """Truncate the queue before entry *number*; the tail must be empty."""

    @abstractmethod
    def attach_files(self, first_file: int, file_end: int) -> None:
        """Set the range of existing files, assumed to be full of entries; the caller calls `set_end` next."""

    def bounds(self) -> tuple[int, ...]:
        """Return the bounds to note at a clean shutdown. The first two are `offset_min` and `offset_max`."""
        return self.offset_min, self.offset_max

    @staticmethod
    @abstractmethod
    def entry_bounds(bounds: tuple[int, ...]) -> tuple[int, int]:
        """Return the numbers [first, end) of the entries of a queue with these *bounds*."""

    @abstractmethod
    def restore(self, bounds: tuple[int, ...]) -> bool:
        """Set the noted *bounds* after `attach_files`; return False if the files do not match."""

    # --- overlaps: only for kinds that accept batches, whose records may state too many messages

    @staticmethod
    def parse_span(entry: bytes | bytearray) -> tuple[int, int]:
        """Return the offsets [first, end) that an entry states."""
        raise NotImplementedError

    @staticmethod
    def shortened(entry: bytes, end: int) -> bytes:
        """Return *entry* with only its messages before the offset *end*."""
        raise NotImplementedError

    def last_entry(self) -> bytes:
        """Return the last entry; empty if there is none."""
        raise NotImplementedError

    def shorten_last(self, end: int) -> None:
        """Shorten the last entry to end at *end*: its record states too many messages and hides later ones."""
        raise NotImplementedError

    def clear(self) -> None:
        """Reset to the state of a new queue. The caller removes the files."""
        self.tail = bytearray()
        self.first_file = self.file_end = 0
        self.offset_min = 0
        self.set_end(0)
