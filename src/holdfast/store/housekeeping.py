"""Background work in bounded pieces: no send and no pull waits for it.

    every call       a slice of the key index, a slice of first offsets
    every interval   a round: write all index tails, sync everything, then advance the checkpoint mark

        collect queues -> write their tails, some per call -> sync, some files at a time -> checkpoint -> sync that

A round takes as many calls as it needs; the mark advances only when everything is on disk. This module has no timers:
it returns when it wants to be called again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice

import msgspec

from holdfast.model.errors import DiskFailed
from holdfast.store.base.cold_reads import FileRange
from holdfast.store.base.disk import File, Syncable
from holdfast.store.keys.indexer import Indexer
from holdfast.store.queues.index_kinds import IndexKind
from holdfast.store.queues.queue_index import FLUSH_SIZE, QueueIndex
from holdfast.store.recovery.checkpoint import Checkpoint
from holdfast.store.recovery.open_store import ABORT_PATH, OpenedStore
from holdfast.store.recovery.queue_snapshot import QueueSnapshot, TopicBounds, save_snapshot

QUEUES_PER_CALL = 64
REGIONS_PER_CALL = 8
SYNC_FILES_MAX = 128
CLOSE_RECORDS_MAX = 50_000
IDLE_MS = 1000
BUSY_MS = 20  # While sends arrive: a slice takes about a millisecond, and sends have priority.
EAGER_MS = 1
INDEX_LAG_HIGH = 512 << 20  # At this lag sends wait a little: otherwise the key index might never catch up.
INDEX_LAG_HIGH_MS = 4


class HousekeepingResult(msgspec.Struct, frozen=True):
    """The result of one call: when to call again, and the I/O to do meanwhile.

    Attributes:
        delay_ms: When to call again.
        files: Files to sync off the loop; then `MessageStore.checkpoint` is called.
        read: A range to read off the loop, only to bring it into memory; then `MessageStore.note_warmed` is called.
    """

    delay_ms: int = IDLE_MS
    files: tuple[Syncable, ...] = ()
    read: FileRange | None = None

    @property
    def has_more_work(self) -> bool:
        """Whether more work is due than this call did."""
        return self.delay_ms < IDLE_MS


class _Round:
    """One round, from collecting queues to the checkpoint."""

    def __init__(self, position: int, store_ms: int, queues: Iterable[QueueIndex]) -> None:
        self.position = position
        self.store_ms = store_ms
        self.queues = iter(tuple(queues))
        self.heads: Iterator[None] | None = None
        self.is_written = False
        self.is_marked = False
        self.indexed = 0
        self.index_ms = 0
        self.log_files: tuple[File, ...] = ()
        self.paths: list[str] = []
        self.returned_paths: list[str] = []
        self.returned_log_files: tuple[File, ...] = ()
        self.is_syncing = False


class Housekeeper:
    """Brings the files up to date with memory.

    Attributes:
        marked: The position from which on recovery reads the log: everything before it, with its indexes, is on disk.
    """

    def __init__(self, opened: OpenedStore, indexer: Indexer, now_ms: int) -> None:
        self._opened = opened
        self._indexer = indexer
        self._options = opened.options
        # Replayed queues have tails, too.
        self._grown: dict[QueueIndex, None] = dict.fromkeys(queue for queue in opened.table if queue.tail)
        self._round: _Round | None = None
        self._round_ms = now_ms  # When the last round ended.
        self.marked = opened.checkpoint.value.position or 0
        self._last_written = opened.log.written
        self._to_correct: Iterator[QueueIndex] = iter(())
        self._warming: FileRange | None = None

    def note_grown(self, queues: Iterable[QueueIndex]) -> None:
        """Remember queues whose entries are not in their files yet."""
        self._grown.update(dict.fromkeys(queues))

    def note_cleaned(self) -> None:
        """Remember that the start of the log has advanced."""
        self._to_correct = iter(tuple(self._opened.table))

    def forget(self, dead: set[QueueIndex]) -> None:
        """Drop all work for deleted queues."""
        alive = [queue for queue in self._grown if queue not in dead]
        self._grown = dict.fromkeys(alive)
        self._to_correct = iter([queue for queue in self._to_correct if queue not in dead])
        if self._round is not None:
            self._round.queues = iter([queue for queue in self._round.queues if queue not in dead])
            folders = tuple(queue.folder + "/" for queue in dead)
            self._round.paths = [path for path in self._round.paths if not path.startswith(folders)]
            self._round.returned_paths = [path for path in self._round.returned_paths if not path.startswith(folders)]

    def run(self, confirmed: int, now_ms: int) -> HousekeepingResult:
        """Do a piece of everything that is due."""
        read = self._advance_index(confirmed)
        corrected = self._correct_some()
        files = self._advance_round(confirmed, now_ms)
        is_quiet = self._opened.log.written == self._last_written
        self._last_written = self._opened.log.written
        is_round_ready = self._round is not None and not self._round.is_syncing
        can_index = self._indexer.is_lagging(confirmed) and self._warming is None
        if not (is_round_ready or corrected or can_index):
            return HousekeepingResult(IDLE_MS, files, read)
        if is_quiet:
            return HousekeepingResult(EAGER_MS, files, read)
        is_lag_high = can_index and confirmed - self._indexer.indexed > INDEX_LAG_HIGH
        return HousekeepingResult(INDEX_LAG_HIGH_MS if is_lag_high else BUSY_MS, files, read)

    def flush_overdue(self) -> None:
        """Write tails that are too long because the disk refused them: it may have space again.

        Raises:
            DiskFailed: some tails are still only in memory.
        """
        for queue in self._opened.table:
            if len(queue.tail) >= FLUSH_SIZE:
                queue.flush()

    def _advance_index(self, confirmed: int) -> FileRange | None:
        """Index a slice. Return the range that must be read first, if any."""
        if self._warming is not None or not self._indexer.is_lagging(confirmed):
            return None
        self._warming = self._indexer.find_cold(confirmed)
        if self._warming is None:
            self._indexer.advance(confirmed)
        return self._warming

    def note_warmed(self) -> None:
        """Record that the requested range is in memory."""
        if self._warming is not None:
            self._indexer.note_warm(self._warming)
            self._warming = None

    def _correct_some(self) -> bool:
        """Advance the first offsets of some queues to the start of the log; return whether there may be more."""
        queues = tuple(islice(self._to_correct, QUEUES_PER_CALL))
        table, start = self._opened.table, self._opened.log.files.start
        removed_paths = {path for queue in queues for path in table.correct_min(queue, start)}
        if removed_paths and self._round is not None:
            # On a full disk these may include recent files: they can no longer be synced.
            self._round.paths = [path for path in self._round.paths if path not in removed_paths]
            self._round.returned_paths = [path for path in self._round.returned_paths if path not in removed_paths]
        return bool(queues)

    # --- rounds

    def _advance_round(self, confirmed: int, now_ms: int) -> tuple[Syncable, ...]:
        if self._round is None and self._is_due(confirmed, now_ms):
            self._round = _Round(confirmed, self._opened.log.store_ms, self._grown)
            self._grown = {}
        current = self._round
        if current is None or current.is_syncing:
            return ()
        if not current.is_written:
            queues = tuple(islice(current.queues, QUEUES_PER_CALL))
            try:
                for queue in queues:
                    queue.flush()
            except DiskFailed:
                current.queues = chain(
                    queues, current.queues
                )  # The mark must not pass them; flushing twice is harmless.
                raise
            if len(queues) == QUEUES_PER_CALL or not self._write_some_heads(current):
                return ()
            self._finish_writing(current)
        files = self._next_files(current)
        # With nothing to sync, the mark advances at once.
        current.is_syncing = bool(files)
        if not files:
            self._write_checkpoint(current)
            current.is_marked = current.is_syncing = True
            return (self._opened.checkpoint.file,)
        return files

    def _is_due(self, confirmed: int, now_ms: int) -> bool:
        mark = self._opened.checkpoint.value
        if mark.position == confirmed and mark.indexed == self._indexer.indexed and not self._grown:
            return False
        return (
            now_ms - self._round_ms >= self._options.checkpoint_interval_ms
            or confirmed - (mark.position or 0) >= self._options.checkpoint_bytes
        )

    def _write_some_heads(self, current: _Round) -> bool:
        """Write a piece of the key index that is only in memory; return whether it was the last one."""
        if current.heads is None:
            current.indexed = self._indexer.indexed
            current.index_ms = self._indexer.index.end_ms
            current.heads = self._indexer.index.write_heads()
        try:
            return len(tuple(islice(current.heads, REGIONS_PER_CALL))) < REGIONS_PER_CALL
        except DiskFailed:
            current.heads = None  # The error ended the iterator: the next call starts over with the remaining heads.
            raise

    def _finish_writing(self, current: _Round) -> None:
        current.is_written = True
        # The mark covers the log, too. Some of its files may be in another sync that is not complete.
        current.log_files = (*self._unmarked_log_files(), *self._indexer.index.pop_unsynced())
        unsynced = self._opened.table.unsynced
        current.paths = list(unsynced)
        unsynced.clear()

    def _next_files(self, current: _Round) -> tuple[Syncable, ...]:
        if current.is_marked:
            return (self._opened.checkpoint.file,)
        if len(current.paths) > SYNC_FILES_MAX and self._opened.disk.can_sync:
            # A burst over ten thousand queues: one sync of the whole disk is faster than ten thousand.
            current.returned_paths, current.paths = current.paths, []
            current.returned_log_files += current.log_files
            current.log_files = ()
            return (self._opened.disk,)
        paths, current.paths = current.paths[:SYNC_FILES_MAX], current.paths[SYNC_FILES_MAX:]
        current.returned_paths = paths
        current.returned_log_files += current.log_files
        files = (*current.log_files, *map(self._opened.table.open_file, paths))
        current.log_files = ()
        return files

    def note_synced(self, now_ms: int) -> None:
        """Record that the files returned last are on disk."""
        current = self._round
        if current is None or not current.is_syncing:
            return
        current.is_syncing = False
        if current.is_marked:
            self._round = None
            self._round_ms = now_ms
            self.marked = current.position
        elif not current.paths:
            self._write_checkpoint(current)
            current.is_marked = True

    def _write_checkpoint(self, current: _Round) -> None:
        old = self._opened.checkpoint.value
        self._opened.checkpoint.write(
            Checkpoint(
                physic_ms=current.store_ms,
                logics_ms=current.store_ms,
                index_ms=current.index_ms,
                master_flushed=old.master_flushed,
                confirmed=old.confirmed,
                logics_position=current.position,
                position=current.position,
                indexed=min(current.indexed, current.position),
            )
        )

    def sync_log(self) -> None:
        """Sync all log files after the mark: files that were returned for syncing may never have been synced."""
        self._opened.log.pop_unsynced()
        for file in self._unmarked_log_files():
            file.sync()

    def _unmarked_log_files(self) -> list[File]:
        """Return the files of the log from the mark to its end."""
        log = self._opened.log
        first = max(self._opened.checkpoint.value.position or 0, log.files.start) // log.files.size
        last = log.written // log.files.size
        return [file for number, file in log.files.files.items() if first <= number <= last]

    def close(self, confirmed: int, now_ms: int) -> None:
        """Write and sync everything, record where everything ends, and remove the abort file."""
        opened = self._opened
        if self._indexer.is_lagging(confirmed):
            self._indexer.advance(confirmed, CLOSE_RECORDS_MAX)
        for queue in opened.table:
            queue.flush()
        if self._round is not None:
            # It is unknown whether the files it returned were ever synced: sync all of them again.
            opened.table.unsynced.update(dict.fromkeys(self._round.returned_paths + self._round.paths))
        last = _Round(confirmed, opened.log.store_ms, ())
        while not self._write_some_heads(last):
            pass
        self._finish_writing(last)
        if self._round is not None:
            last.log_files += self._round.returned_log_files
        while files := self._next_files(last):
            for file in files:
                file.sync()
        self._write_checkpoint(last)
        opened.checkpoint.file.sync()
        save_snapshot(opened.disk, self._snapshot(confirmed, now_ms))
        opened.disk.remove(ABORT_PATH)

    def _snapshot(self, log_end: int, now_ms: int) -> QueueSnapshot:
        bounds: dict[IndexKind, TopicBounds] = {}
        for queue in self._opened.table:
            if queue.offset_max:
                topics = bounds.setdefault(type(queue), {})
                topics.setdefault(queue.topic, {})[queue.queue_id] = queue.bounds()
        return QueueSnapshot(
            log_start=self._opened.log.files.start,
            log_end=log_end,
            closed_ms=now_ms,
            bounds=bounds,
        )
