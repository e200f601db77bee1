"""The interface of one physical queue of either kind: an index of its messages in the log.

    consume_queue.MessageIndex         20 bytes per message     entry n belongs to offset n
    batch_consume_queue.RecordIndex    46 bytes per record      a record may hold many messages: see its entry

Entries are addressed in two ways. By *offset*, outside the store: an `EntryRange` has the entries from an offset on. By
*number*, inside the store, to maintain files: in both kinds entry n is at n times the entry size, and positions rise
with numbers.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence

from holdfast.store.base.cold_reads import Steps
from holdfast.store.queues.queue_files import QueueFiles
from holdfast.wire.records.record import FIXED_SIZE

ENTRY = struct.Struct(">qiq")
BLANK_ENTRY_SIZE = 0x7FFFFFFF
"""The record size in an entry without a message."""
BLANKS_MAX = 300_000
"""A wider gap in a queue is more likely a corrupt offset than so many lost messages."""

Entry = tuple[int, int, int]
"""(position, record size, tags code): the first 20 bytes of an entry, in both kinds."""

EntryRange = tuple[bytes | bytearray, Sequence[tuple[int, int]] | None]
"""Entries of 20 bytes each, and for each entry the offsets [first, end) of its messages.

The offsets are None if every entry is one message and the first entry belongs to the requested offset.
"""


class QueueIndex(ABC):
    """One physical queue. The store hands it out; the caller that appends may keep it.

    Invariant: offset_min <= offset_max <= next_offset.

    Attributes:
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
        "file_end",
        "files",
        "first_file",
        "folder",
        "header_size",
        "hot_offset",
        "is_batched",
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

    def __init__(self, files: QueueFiles, topic: str, queue_id: int, *, is_batched: bool) -> None:
        self.files = files
        self.topic = topic
        self.queue_id = queue_id
        self.is_batched = is_batched
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

    # --- adding entries

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

    def clear(self) -> None:
        """Reset to the state of a new queue. The caller removes the files."""
        self.tail = bytearray()
        self.first_file = self.file_end = 0
        self.offset_min = 0
        self.set_end(0)
