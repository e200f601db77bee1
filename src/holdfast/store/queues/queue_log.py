"""One physical queue, whatever its entries look like: where its messages lie in the log.

    consume_queue.SimpleQueue   20 bytes per message     entry n is that of offset n
    batch_queue.BatchQueue      46 bytes per record      a record may hold many messages; an entry says which offsets

Two ways to speak of entries. By *offset*, as everybody outside the store does: a stretch of a queue is what a reader
gets from an offset on. By *number*, as the store itself does where it looks after files: entry n is at n times its
size, and positions rise with numbers, in both kinds.
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
"""The record size of an entry that stands for no message."""

Entry = tuple[int, int, int]
"""(position, record size, tags code): what the first 20 bytes of an entry say, in both kinds."""

Stretch = tuple[bytes | bytearray, Sequence[tuple[int, int]] | None]
"""Entries of 20 bytes each, and of each the offsets [first, behind last) of its messages.

None where every entry is one message and the first is that of the offset that was asked for.
"""


class QueueLog(ABC):
    """One physical queue. Handed out by the store; kept by whoever appends to it.

    Invariant: offset_min <= offset_max <= next_offset.

    Attributes:
        offset_min: First offset whose record is still in the log; equal to `offset_max` when there is none.
        offset_max: Behind the last confirmed message: what readers see. An empty queue has 0 and 0.
        next_offset: What the next message gets: ahead of `offset_max` while records wait to be confirmed.
        hot_offset: Entries before it were written by an earlier process: they may not be in memory.
        head_size: Size of a record without its body and properties; an IPv6 born host adds to it.
        tail: The newest entries, not yet in a file; `tail_number` is the number of the first.
        folder: Where the files are.
        first_file, file_end: First byte of the first file, and behind the last; equal while there is none.
    """

    __slots__ = (
        "file_end",
        "files",
        "first_file",
        "folder",
        "head_size",
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
        self.head_size = FIXED_SIZE + files.head_extra + len(self.topic_part) + 2
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
    def stretch(self, start: int, count: int) -> Stretch:
        """Return the entries of up to *count* messages from *start* on; none when *start* is outside [min, max).

        A record is never cut: at least one entry is returned, and the first may begin before *start*.

        Raises:
            DiskFailed: the file of these entries cannot be read.
        """

    @abstractmethod
    def fetch_stretch(self, start: int, count: int, *, ahead: int = 0) -> Steps[Stretch]:
        """Return the same, asking for entries that may not be in memory.

        Up to *ahead* entries behind them are read too: whoever reads a queue in order has to ask only now and then.

        Raises:
            DiskFailed: the file of these entries cannot be opened.
        """

    @abstractmethod
    def is_cold(self, start: int, count: int) -> bool:
        """Return whether some of these entries may not be in memory."""

    @abstractmethod
    def entries(self, start: int, count: int) -> list[Entry]:
        """Return the entries of up to *count* messages from *start* on, decoded."""

    @abstractmethod
    def get_entry(self, offset: int) -> Entry:
        """Return the entry of one offset of [offset_min, offset_max); a blank one when no message has it."""

    # --- adding entries

    @abstractmethod
    def settle(self) -> None:
        """Make entries that were added to the tail readable; write them once they are many.

        Raises:
            DiskFailed: the entries are readable all the same.
        """

    def flush(self) -> None:
        """Write the tail to its file.

        Raises:
            DiskFailed: the entries stay readable, in memory.
        """
        if not self.tail:
            return
        size = self.files.entry_size
        with memoryview(self.tail) as data:
            self.file_end = self.files.write(self.folder, self.tail_number * size, data, self.file_end)
        self.tail_number += len(self.tail) // size
        # A new one, not an emptied one: it would keep the memory of its longest time.
        self.tail = bytearray()

    @abstractmethod
    def give_back(self, entry: bytes) -> None:
        """Take the offsets of *entry*, the last that was made, as not given."""

    @abstractmethod
    def begin_at(self, offset: int) -> None:
        """Let an empty queue begin at *offset*: what was before is gone from the log."""

    # --- by number: for whoever looks after files

    @property
    @abstractmethod
    def entry_min(self) -> int:
        """Number of the first entry whose record is still in the log."""

    @property
    @abstractmethod
    def entry_end(self) -> int:
        """Behind the number of the last entry that readers see."""

    @property
    @abstractmethod
    def last_file(self) -> int:
        """First byte of the file that must stay, whatever retention takes: it knows where the queue goes on."""

    @abstractmethod
    def place_of(self, number: int) -> tuple[int, int]:
        """Return the position and the record size that an entry of the queue says."""

    @staticmethod
    @abstractmethod
    def parse_place(entry: bytes) -> tuple[int, int]:
        """Return the same from the bytes of an entry; a size of 0 at most when it can be none."""

    @abstractmethod
    def set_min(self, number: int) -> None:
        """Let entry *number* be the first whose record is still in the log."""

    @abstractmethod
    def set_end(self, number: int) -> None:
        """Let the queue end before entry *number*; nothing may be in the tail."""

    @abstractmethod
    def adopt(self, first_file: int, file_end: int) -> None:
        """Have files, full ones for all that is known; `set_end` comes next."""

    def clear(self) -> None:
        """Be empty, as a new queue is. Its files are somebody else's business."""
        self.tail = bytearray()
        self.first_file = self.file_end = 0
        self.offset_min = 0
        self.set_end(0)
