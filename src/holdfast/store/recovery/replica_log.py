"""The log of a replica: bytes of a master's log at the same positions; records are indexed when they are complete.

    bytes     [start .............................. written)     records, split anywhere
    records   [start ................... begun)                  complete: in their queues once confirmed
                                          ^ start of a record that is not complete yet

Nothing is ever staged here: a replica creates no messages. Records are validated as in recovery. Bytes that are
not a record are removed: the log then ends after the last complete one, and the caller gets an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from holdfast.model.errors import CorruptRecord, DiskFailed, RecordRefused, StoreError
from holdfast.store.base.disk import Disk, Piece
from holdfast.store.base.index_fields import NOT_QUEUED, inner_span, tags_code
from holdfast.store.base.log_file import LogFiles
from holdfast.store.base.options import StoreOptions
from holdfast.store.log.commit_log import FOLDER, CommitLog, RecordDraft
from holdfast.store.log.log_scanner import LogWalk, StopReason, WalkedRecord, validate_record
from holdfast.store.queues.queue_index import BLANKS_MAX, QueueIndex
from holdfast.store.queues.queue_table import QueueTable
from holdfast.store.recovery.batch_overlap import find_overlap
from holdfast.store.recovery.log_repair import Damage

REPLICA_REFUSAL = "this broker is a replica: it accepts messages only from its master"

REPLICA_MARKER_PATH = "holdfast/replica"
"""This file marks the folder of a replica."""

IsTopicKnown = Callable[[str], bool | None]
"""Returns whether enough is known of a topic to index its records; None if it is deleted and they are not indexed."""


def is_any_known(_topic: str) -> bool:
    """Return that enough is known of every topic."""
    return True


class Indexing(msgspec.Struct, frozen=True):
    """What the log needs from its owner in order to index records.

    Attributes:
        is_topic_known: The first record of an unknown topic waits, and so do all later ones, until `create_entries` is
            called again.
        erase: Empties a queue: its records before the given position are void.
    """

    is_topic_known: IsTopicKnown
    erase: Callable[[QueueIndex, int], None]


"""Empties a queue that starts over with the record at a position."""


def ensure_role(disk: Disk, *, is_replica: bool) -> None:
    """Ensure that no replica's log is continued as a master's, and no master's log is replaced by another's replica.

    Raises:
        StoreError: the folder is a replica's but the options are a master's, or the reverse.
    """
    if is_replica:
        if disk.list(FOLDER) and disk.find_size(REPLICA_MARKER_PATH) is None:
            raise StoreError(
                "this folder has a log that is not a replica's: its topics and offsets would be replaced by those of a "
                "master. Start the replica with an empty folder; if this is a copy of its master's log, as a RocketMQ "
                f"slave leaves it, put an empty file {REPLICA_MARKER_PATH} into it"
            )
        disk.replace(REPLICA_MARKER_PATH, b"")
    elif disk.find_size(REPLICA_MARKER_PATH) is not None:
        raise StoreError(
            "this folder is a replica's: it may lack the last messages of its master, whose offsets would be assigned "
            "again. Start it with --replica-of, and move the queues of a dead master by force; or, if the master's own "
            f"folder is lost and no static topic is in it, remove {REPLICA_MARKER_PATH} from the folder"
        )


class ReplicaLog(CommitLog):
    """A log that only receives another broker's bytes.

    Invariant: everything before `complete_end` is whole records; from there to `written` is the beginning of one.

    Attributes:
        complete_end: Start of the first record that is not complete yet.
        awaited_topic: The unknown topic that the log waits for.
        damages: Corrupt fields of records that no checksum covers.
    """

    def __init__(
        self, files: LogFiles, options: StoreOptions, table: QueueTable, *, written: int, store_ms: int
    ) -> None:
        super().__init__(files, options, written=written, store_ms=store_ms)
        self._table = table
        self._delay_levels_ms = options.delay_levels_ms
        self.complete_end = written
        self._entries_end = written  # Everything before it is in batches, or confirmed.
        self.awaited_topic: str | None = None
        self.damages: list[Damage] = []

    def stage_run(self, drafts: Sequence[RecordDraft], store_ms: int) -> list[tuple[int, int]]:  # noqa: ARG002
        """Refuse: a replica's own records would conflict with its master's.

        Raises:
            RecordRefused: always.
        """
        raise RecordRefused(
            REPLICA_REFUSAL
            if self.fault is None
            else f"the store accepts no writes until it is restarted: {self.fault}"
        )

    def roll(self) -> None:
        """Do nothing: files end where the master ended them."""

    def begin_at(self, position: int) -> None:
        """Start an empty log at *position*: its master has nothing older.

        Raises:
            StoreError: it is not empty, or no file of this log can begin there.
        """
        size = self.files.size
        if self.written != self.files.start:
            raise StoreError(f"the log has messages up to {self.written}, so it cannot begin at {position}")
        if position % size:
            raise StoreError(
                f"the master's log begins at {position}, where no log file of {size} bytes does: start with an empty "
                "folder, and the master's log_file_size"
            )
        while self.files.files:
            self.files.remove_first()
        self.files.ensure(position // size)
        self.written = self.complete_end = self._entries_end = position
        self._reset()

    def truncate(self, position: int) -> None:
        """Truncate the log at *position*: the record that contains it becomes incomplete.

        All records must be confirmed.
        """
        assert not self.unconfirmed_writes
        walk = LogWalk(self.files, position - position % self.files.size, end=position + 1, check_body=False)
        starts = [record.position for record in walk if record.position <= position]
        self.complete_end = self._entries_end = starts[-1] if starts else position - position % self.files.size
        for queue in self._table:
            queue.flush()
            self._table.truncate(queue, self.complete_end)
        self._end_at(position)

    def append(self, position: int, data: Piece, indexing: Indexing) -> None:
        """Write *data* at *position*, the end of the log, and index the records that are complete now.

        Raises:
            CorruptRecord: the bytes are not a record. The log now ends after the last complete record.
            StoreError: the log does not end there.
            DiskFailed: the disk refused; no more writes are accepted.
        """
        if self.fault is not None:
            raise StoreError(f"the store accepts no writes until it is restarted: {self.fault}")
        if position != self.written:
            raise StoreError(f"the log ends at {self.written}, so nothing can be added at {position}")
        view, size, at = memoryview(data), self.files.size, 0
        try:
            while at < len(view):
                start = (position + at) % size
                part = view[at : at + size - start]
                number = (position + at) // size
                file = self.files.files.get(number) or self.files.ensure(number)
                file.write(start, [part])
                self._unsynced[file] = None
                at += len(part)
        except DiskFailed as error:
            self.fault = str(error)
            raise
        self.written = position + len(view)
        self._reset()
        self.create_entries(indexing)

    def create_entries(self, indexing: Indexing) -> None:
        """Index all complete records, up to the first of an unknown topic.

        Raises:
            CorruptRecord: the bytes are not a record. The log now ends after the last complete record.
        """
        self.awaited_topic = None
        queues: list[QueueIndex] = []
        entries: list[bytes] = []
        try:
            while self.complete_end < self.written and self.awaited_topic is None:
                if not self._create_file_entries(queues, entries, indexing):
                    break
        finally:
            if self.complete_end > self._entries_end:
                self.unconfirmed_writes.append((self.complete_end, queues, entries))
                self._entries_end = self.complete_end

    def _create_file_entries(self, queues: list[QueueIndex], entries: list[bytes], indexing: Indexing) -> bool:
        """Index the complete records of one file; return False if one waits for its remaining bytes or its topic."""
        size = self.files.size
        file_start = self.complete_end - self.complete_end % size
        file_end = file_start + size
        file = self.files.files[file_start // size]
        base = self.complete_end
        data = file.view(base - file_start, min(self.written, file_end) - file_start)
        while self.complete_end < min(self.written, file_end):
            found = validate_record(
                data, self.complete_end - base, self.complete_end, file_end - self.complete_end, check_body=True
            )
            if isinstance(found, WalkedRecord):
                if not self._create_entry(found, queues, entries, indexing):
                    return False
                self.complete_end += found.size
            elif found is StopReason.BLANK:
                if self.written < file_end:
                    return False
                self.complete_end = file_end
            elif found is StopReason.INCOMPLETE and self.written < file_end:
                return False
            else:
                raise self._drop_incomplete(StopReason.BROKEN if found is StopReason.INCOMPLETE else found)
        return True

    def _drop_incomplete(self, stop: StopReason) -> CorruptRecord:
        """Truncate the log after its last complete record."""
        self._end_at(self.complete_end)
        return CorruptRecord(self.complete_end, stop.value)

    def _end_at(self, position: int) -> None:
        self.files.truncate(position)
        self.files.ensure(position // self.files.size)
        self._unsynced = {file: None for file in self.files.files.values() if file in self._unsynced}
        self.written = position
        self._reset()

    def drop_unfinished(self) -> None:
        """Truncate the log after its last complete record, for a clean shutdown. Records that wait for a topic stay."""
        if self.complete_end < self.written and self.awaited_topic is None:
            self._drop_incomplete(StopReason.INCOMPLETE)

    def _create_entry(
        self, record: WalkedRecord, queues: list[QueueIndex], entries: list[bytes], indexing: Indexing
    ) -> bool:
        """Create the entry of one record; return False if its topic is not known yet."""
        topic = record.topic.decode(errors="replace")
        is_queued = not (record.sys_flag & NOT_QUEUED or "/" in topic or "\0" in topic or topic in {"", ".", ".."})
        queue = self._table.find(topic, record.queue_id) if is_queued else None
        if is_queued and queue is None:
            is_known = indexing.is_topic_known(topic)
            if is_known is False:
                self.awaited_topic = topic
                return False
            queue = self._table.get(topic, record.queue_id) if is_known else None
        if queue is not None:
            code = tags_code(record.topic, record.properties, record.store_ms, self._delay_levels_ms)
            first, count = record.offset, 1
            if queue.accepts_batches:
                first, count = inner_span(record.sys_flag, record.properties, record.offset)
                if first < queue.next_offset:
                    self._shorten_overlap(queue, first, queues, entries)
            entry = queue.pack_entry(record.position, record.size, code, record.store_ms, first, count)
            if count > 0 and self._align(queue, first, record.position, queues, entries, indexing):
                queue.next_offset = first + count
                queues.append(queue)
                entries.append(entry)
        self.store_ms = max(self.store_ms, record.store_ms)
        return True

    def _shorten_overlap(self, queue: QueueIndex, first: int, queues: list[QueueIndex], entries: list[bytes]) -> None:
        """Shorten the last entry of *queue* if it reaches beyond *first* because its record is corrupt."""
        pending = [
            (queues, entries),
            *((write_queues, write_entries) for _, write_queues, write_entries in reversed(self.unconfirmed_writes)),
        ]
        for write_queues, write_entries in pending:
            at = next((at for at in reversed(range(len(write_queues))) if write_queues[at] is queue), None)
            if at is not None:
                if (damage := find_overlap(self.files, queue, write_entries[at], first)) is not None:
                    write_entries[at] = queue.shortened(write_entries[at], first)
                    queue.next_offset = first
                    self.damages.append(damage)
                return
        last = queue.last_entry()
        if last and (damage := find_overlap(self.files, queue, last, first)) is not None:
            queue.shorten_last(first)
            self.damages.append(damage)

    def _align(
        self,
        queue: QueueIndex,
        offset: int,
        position: int,
        queues: list[QueueIndex],
        entries: list[bytes],
        indexing: Indexing,
    ) -> bool:
        """Continue *queue* at *offset*, as the master's queue did; return False if that offset is invalid."""
        gap = offset - queue.next_offset
        if gap < 0 and offset == 0:
            # Its topic was deleted and created again, or a logical queue moved back to it: the later one counts.
            for at in reversed(range(len(queues))):
                if queues[at] is queue:
                    del queues[at], entries[at]
            indexing.erase(queue, position)
        elif gap > 0 and queue.next_offset == 0:
            queue.begin_at(offset)
        elif gap > 0 and not queue.has_gaps:
            if gap > BLANKS_MAX:
                return False
            queues += [queue] * gap
            entries += queue.blank_entries(gap, position)
        return gap >= 0 or offset == 0
