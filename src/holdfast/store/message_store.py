"""`MessageStore`, the API of the log engine.

    stage, stage_run ... write             one event's records, one write
    confirm(position)                      makes the records before it readable and adds them to their queues
    hot_view                               hot reads, without copying
    cold_read, verify                      ranges that the shell reads off the loop; verified before first served
    housekeep, checkpoint, clean, close    driven by the broker's timers

Positions, in order along the log:

    start <= indexed <= confirmed <= written
             key index   readers      appended

Invariant: nothing is read beyond `confirmed`. Under sync flush the broker confirms only synced records, so that no
offset that a client has seen is assigned again after a crash. This class has no clock: methods receive the time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from holdfast.model.errors import CorruptRecord, DiskFailed, DiskFull, StoreError
from holdfast.model.queue import Position
from holdfast.store.base.cold_reads import Steps
from holdfast.store.base.disk import Disk, File, Piece
from holdfast.store.base.options import StoreOptions
from holdfast.store.housekeeping import Housekeeper, HousekeepingResult
from holdfast.store.keys.indexer import Indexer
from holdfast.store.log.commit_log import CommitLog
from holdfast.store.log.disk_space import LogSpace
from holdfast.store.log.log_scanner import StopReason, WalkedRecord, validate_record
from holdfast.store.log.retention import DiskUse, count_expired, find_retention_hold
from holdfast.store.log.verified_ranges import VerifiedRanges
from holdfast.store.queues.index_kinds import DEFAULT_KIND, find_kind
from holdfast.store.queues.queue_index import QueueIndex
from holdfast.store.recovery.open_store import OpenedStore, open_store
from holdfast.store.recovery.queue_snapshot import erased_key, save_deleted
from holdfast.store.recovery.recovery import RecoveryResult
from holdfast.store.recovery.replica_log import Indexing, IsTopicKnown, ReplicaLog, is_any_known
from holdfast.wire.records.record import StoredRecord, decode_record

__all__ = ["HousekeepingResult", "MessageStore", "QueueIndex", "StoreOptions"]

RECENT_READS_MAX = 64


class MessageStore:
    """A broker's messages. Create it with `open`; only one may be open per folder."""

    def __init__(self, opened: OpenedStore, options: StoreOptions, now_ms: int) -> None:
        self.options = options
        self.recovered: RecoveryResult = opened.recovered
        self.log: CommitLog = opened.log
        self._disk: Disk = opened.disk
        self._table = opened.table
        self._deleted = opened.deleted
        self._files = opened.log.files
        self.confirmed = opened.log.written
        self._verified = VerifiedRanges(opened.recovered.start)
        self._recent_reads: OrderedDict[int, int] = OrderedDict()  # start -> end of recent cold reads
        self._indexer = Indexer(
            opened.key_index, self._files, options, opened.indexed, hot_start=opened.recovered.start
        )
        self._housekeeper = Housekeeper(opened, self._indexer, now_ms)
        self._space = LogSpace(opened.disk, self._files, options)
        # The log's own methods, without a wrapper call: they run at least once per event.
        self.stage = self.log.stage
        self.stage_run = self.log.stage_run
        self.pack_batch = self.log.pack_batch
        self.stage_packed = self.log.stage_packed
        self.write = self.log.write
        self.discard = self.log.discard
        self.files_to_sync = self.log.pop_unsynced

    @classmethod
    def open(cls, disk: Disk, options: StoreOptions, now_ms: int) -> MessageStore:
        """Open and recover the store in the folder of *disk*; an empty folder becomes a new store.

        `recovered` reports the repairs.

        Raises:
            StoreError: the folder cannot be a store; the text says what to do.
            DiskFailed: the disk reported an error.
        """
        return cls(open_store(disk, options), options, now_ms)

    # --- positions and state

    @property
    def written(self) -> Position:
        """End of the log."""
        return Position(self.log.written)

    @property
    def start(self) -> Position:
        """Start of the oldest record."""
        return Position(self._files.start)

    @property
    def log_file_size(self) -> int:
        """Size of the log's files: no record crosses a multiple of it."""
        return self._files.size

    @property
    def last_store_ms(self) -> int:
        """Store time of the newest record. Later records never get an earlier time."""
        return self.log.store_ms

    @property
    def fault(self) -> str | None:
        """Why the store accepts no writes until it is restarted; None while it accepts them."""
        return self.log.fault

    @property
    def is_writable(self) -> bool:
        """Whether the store accepts writes. If not, only a restart helps."""
        return self.log.fault is None

    @property
    def is_disk_full(self) -> bool:
        """Whether writes are refused because the disk is nearly full, as of the last measurement."""
        return self._space.is_exhausted(self.log.written)

    @property
    def shortage(self) -> str | None:
        """The index write that the disk refused for lack of space; None while all succeed. Ends without a restart."""
        return self._space.shortage

    @property
    def disk_use(self) -> DiskUse:
        """Disk use at the last measurement."""
        return self._space.use

    @property
    def unconfirmed_bytes(self) -> int:
        """Bytes that are written but not yet confirmed."""
        return self.log.written - self.confirmed

    @property
    def index_lag_bytes(self) -> int:
        """Bytes of the confirmed log that are not in the key index yet."""
        return self.confirmed - self._indexer.indexed

    @property
    def checkpoint_lag_bytes(self) -> int:
        """Bytes of the log after the checkpoint: recovery reads them again after a crash."""
        return self.log.written - max(self._housekeeper.marked, self._files.start)

    # --- queues

    def queue(self, topic: str, queue_id: int) -> QueueIndex:
        """Return the handle of a physical queue; create it if needed. It is valid until its topic is deleted."""
        return self._table.get(topic, queue_id)

    def set_queue_type(self, topic: str, queue_type: str) -> None:
        """Set the kind of index of *topic*, which has no queues yet. The default kind need not be set.

        The folder does not show the kind before the first entry is written: the caller must have persisted it in the
        topic's configuration.

        Raises:
            StoreError: the topic has queues of another kind.
        """
        kind = find_kind(queue_type)
        if kind is not DEFAULT_KIND:
            self._table.set_kind(topic, kind)

    def find_queue_type(self, topic: str) -> str | None:
        """Return the `queue.type` of the queues of *topic*; None if it has no queues."""
        return self._table.find_queue_type(topic)

    def find_queue(self, topic: str, queue_id: int) -> QueueIndex | None:
        """Return a queue, or None if nothing was ever stored in it."""
        return self._table.find(topic, queue_id)

    def list_queues(self) -> Iterator[QueueIndex]:
        """Return all queues that hold or ever held messages."""
        return iter(self._table)

    def delete_topic(self, topic: str) -> None:
        """Remove the queues of *topic*; their handles become invalid. Its records go when their log files do."""
        self._note_deleted(topic, self.log.staged_end)
        dead = {queue for queue in self._table if queue.topic == topic}
        self.log.forget(dead)
        self._housekeeper.forget(dead)
        self._table.remove_topic(topic)

    def erase_queue(self, topic: str, queue_id: int) -> None:
        """Empty one queue, which then begins at 0 again; its handles stay valid. Its records go with their log files.

        It must not have staged or unconfirmed records.
        """
        queue = self._table.find(topic, queue_id)
        if queue is not None and queue.next_offset:
            self._erase(queue, self.log.staged_end)

    def append_copied(self, position: int, data: Piece, is_topic_known: IsTopicKnown = is_any_known) -> None:
        """Write bytes of the master's log at *position*, the end of a replica's log; see `ReplicaLog.append`."""
        self.replica.append(position, data, Indexing(is_topic_known, self._erase))

    def index_copied(self, is_topic_known: IsTopicKnown = is_any_known) -> None:
        """Continue to index a replica's records that waited for their topics; see `ReplicaLog.create_entries`."""
        self.replica.create_entries(Indexing(is_topic_known, self._erase))

    def _erase(self, queue: QueueIndex, position: int) -> None:
        """Empty a queue: its records before *position* are void."""
        self._note_deleted(erased_key(queue.topic, queue.queue_id), position)
        self.log.forget({queue})
        self._housekeeper.forget({queue})
        self._table.remove_files(queue)

    def _note_deleted(self, name: str, position: int) -> None:
        """Persist that the records of *name* before *position* are void.

        Raises:
            DiskFailed: nothing has changed. A change in memory alone would be persisted by a later deletion.
        """
        deleted = self._deleted | {name: position}
        save_deleted(self._disk, deleted)
        self._deleted = deleted

    # --- writing: see also `stage`, `write`, `discard`, `files_to_sync`

    @property
    def replica(self) -> ReplicaLog:
        """The log of a replica, which is written with `append` and never staged.

        Raises:
            StoreError: this store belongs to a master.
        """
        if not isinstance(self.log, ReplicaLog):
            raise StoreError("this store belongs to a master: only a replica's log accepts another broker's bytes")
        return self.log

    def begin_at(self, position: int) -> None:
        """Start the empty log of a replica at *position*.

        Raises:
            StoreError: it is not empty, or cannot begin there.
        """
        self.replica.begin_at(position)
        self.confirmed = position
        self._indexer.indexed = position

    def truncate(self, position: int) -> None:
        """Truncate a replica's log at *position*, from where on it differs from the master's."""
        self.replica.truncate(position)
        self.confirmed = self.replica.complete_end
        self._indexer.indexed = min(self._indexer.indexed, self.confirmed)

    def reserve_space(self) -> bool:
        """Return whether the disk has space for an event's writes, and reserve it. Call before anything is staged."""
        if self.log.fault is None:
            if self.log.written <= self._space.safe_end:
                return True
            try:
                return self._space.reserve_event(self.log.written)
            except DiskFailed as error:
                self.fail(str(error))
        return not self.is_disk_full

    def confirm(self, position: int) -> list[QueueIndex]:
        """Make everything before *position*, the end of a write, readable. Return the queues that grew."""
        writes = self.log.unconfirmed_writes
        grown: dict[QueueIndex, None] = {}
        while writes and writes[0][0] <= position:
            self.confirmed, queues, entries = writes.popleft()
            for queue, entry in zip(queues, entries, strict=True):
                queue.tail += entry
            grown.update(dict.fromkeys(queues))
        for queue in grown:
            try:
                queue.publish_tail()
            except DiskFailed as error:
                # The entries stay readable in memory, and recovery rebuilds them; but accept no more records.
                self._handle_index_error(error)
        self._housekeeper.note_grown(grown)
        return list(grown)

    def fail(self, reason: str) -> None:
        """Accept no more writes: a sync or an index write has failed, so the content of the disk is unknown."""
        self.log.fault = self.log.fault or reason

    def _handle_index_error(self, error: DiskFailed) -> None:
        """Accept no more records: on lack of space until there is some, otherwise until a restart."""
        if isinstance(error, DiskFull):
            self._space.begin_shortage(str(error))
        else:
            self.fail(str(error))

    # --- reading

    def view(self, position: int, size: int) -> memoryview | None:
        """Return bytes of the confirmed log without copying; None if they are cleaned or not confirmed.

        May block on the disk: check `is_hot` first.
        """
        if size < 0 or position + size > self.confirmed:
            return None
        files = self._files
        file = files.files.get(position // files.size)
        if file is None:
            return None
        at = position % files.size
        return file.view(at, at + size) if at + size <= files.size else None

    def hot_view(self, position: int, size: int) -> memoryview | None:
        """Return bytes of whole records without copying or blocking.

        None if they are cold, not yet verified, cleaned or not confirmed; `cold_read` returns None for the last two.
        """
        is_hot_tail = position >= self._verified.tail_start and position >= self.confirmed - self.options.hot_window
        if not is_hot_tail and self.hot_end(position) < position + size:
            return None
        return self.view(position, size)

    def is_hot(self, position: int) -> bool:
        """Return whether the record at *position* is verified and most likely in memory."""
        return self.hot_end(position) > position

    def hot_end(self, position: int) -> int:
        """Return the end of the range from *position* on that may be viewed on the loop; *position* if it is empty."""
        verified_end = self._verified.find_end(position)
        if verified_end is None:
            return position
        if position >= self._verified.tail_start:
            verified_end = self.confirmed
        if position >= self.confirmed - self.options.hot_window:
            return max(position, verified_end)
        for start, end in self._recent_reads.items():
            if start <= position < end:
                return min(end, verified_end)
        return position

    def cold_read(self, position: int, end: int) -> tuple[File, int, int] | None:
        """Return (file, start, end) of [position, end), limited to one file and the confirmed log.

        None if the record is gone. Both ends should be ends of records, or `verify` covers less than was read.
        """
        found = self._files.find(position)
        if found is None or position >= self.confirmed:
            return None
        end = min(end, self.confirmed, found.start + self._files.size)
        return found.file, position - found.start, end - found.start

    def verify(self, position: int, data: bytes | memoryview, *, is_guess: bool = False) -> int:
        """Verify the records in *data*, read from *position*; return the end of the last whole one.

        Verified records may be viewed from now on, and count as in memory for a while. With *is_guess*, bytes that are
        not a record are not reported as corrupt.

        Raises:
            CorruptRecord: a record is corrupt. The records before it are verified, and so are later ones that could be
                reached: reading them again, without it, succeeds.
        """
        view = memoryview(data)
        file_end = position - position % self._files.size + self._files.size
        start = at = position
        damage: CorruptRecord | None = None
        while at < position + len(view):
            record = validate_record(view, at - position, at, file_end - at, check_body=True)
            if isinstance(record, WalkedRecord):
                at += record.size
                continue
            if record is StopReason.DAMAGED or (record in {StopReason.BROKEN, StopReason.EMPTY} and not is_guess):
                damage = damage or CorruptRecord(at, record.value)
            if record is not StopReason.DAMAGED:
                break
            self._note_verified(start, at)
            start = at = at + int.from_bytes(view[at - position : at - position + 4], "big")
        self._note_verified(start, at)
        if damage is not None:
            raise damage
        return at

    def _note_verified(self, start: int, end: int) -> None:
        self._verified.add(start, end)
        if end > start:
            self._recent_reads[start] = end
            self._recent_reads.move_to_end(start)
            if len(self._recent_reads) > RECENT_READS_MAX:
                self._recent_reads.popitem(last=False)

    def read_record(self, position: int) -> StoredRecord | None:
        """Return one record, verified and decoded; None if there is none at *position*. May block on the disk.

        Raises:
            CorruptRecord: the record is corrupt.
        """
        head = self.view(position, 8)
        if head is None or position < 0:
            return None
        data = self.view(position, int.from_bytes(head[:4], "big"))
        if data is None:
            return None
        try:
            record = decode_record(data)
        except CorruptRecord as error:
            raise CorruptRecord(position, error.reason) from error
        return record if record.position == position else None

    # --- searches: steps, because the bytes they need may not be in memory

    def store_time(self, queue: QueueIndex, offset: int) -> Steps[int | None]:
        """Return the store time of the message at *offset*; None if it is gone."""
        return queue.find_time(offset)

    def offset_at_time(self, queue: QueueIndex, time_ms: int, *, upper: bool = False) -> Steps[int]:
        """Return the first offset stored at or after *time_ms*, or `offset_max` if there is none.

        With *upper* return the last offset stored at or before it, or `offset_min` if there is none.
        """
        return queue.find_at_time(time_ms, upper=upper)

    def find_by_key(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> Steps[list[Position]]:
        """Return the positions of records with *key* that were stored in [begin_ms, end_ms], newest first.

        First indexes a bounded part of the log that is not indexed yet.
        """
        try:
            self._indexer.catch_up(self.confirmed)
        except DiskFull as error:
            self._handle_index_error(error)
        return self._indexer.find(topic, key, max_count, begin_ms, end_ms)

    # --- housekeeping

    def housekeep(self, now_ms: int) -> HousekeepingResult:
        """Do a bounded piece of the work that is due. Return when to call again and which files to sync meanwhile.

        Disk errors are not raised: they stop writes. A shortage of space ends here, once the index writes succeed.
        """
        try:
            self._space.measure()
            self._space.prepare(self.log.written)
            if self._space.shortage is not None:
                self._housekeeper.flush_overdue()
            work = self._housekeeper.run(self.confirmed, now_ms)
            if self._space.shortage is not None:
                self._space.end_shortage()
        except DiskFailed as error:
            self._handle_index_error(error)
            return HousekeepingResult()
        return work

    def checkpoint(self, now_ms: int) -> None:
        """Record that the files which `housekeep` returned are synced."""
        try:
            self._housekeeper.note_synced(now_ms)
        except DiskFailed as error:
            self._handle_index_error(error)

    def note_warmed(self) -> None:
        """Record that the range which `housekeep` returned has been read and is in memory."""
        self._housekeeper.note_warmed()

    def clean(self, now_ms: int) -> list[str]:
        """Remove expired log files, and more if the disk is full. Return the paths of removed files."""
        is_forced = self._space.measure().is_forced or self.is_disk_full
        count = count_expired(self._files, self.log.written, now_ms, self.options, is_forced=is_forced)
        # Checked only if something could be removed, because it reads a file.
        if count and (retention_hold := find_retention_hold(self._disk)) is not None:
            count = min(count, max(0, retention_hold - self._files.start) // self._files.size)
        try:
            removed = [self._files.remove_first() for _ in range(count)]
            if removed:
                self._housekeeper.note_cleaned()
                removed += self._indexer.clean(self._files.start)
        except DiskFailed as error:
            self.fail(str(error))
            return []
        return removed

    def roll(self) -> bool:
        """Start a new file with the next record, to be staged in this event. Retention always keeps the last file.

        Return False if the disk has no space for another file.
        """
        self._space.measure()
        if self._space.has_space_for_file:
            self.log.roll()
        return self._space.has_space_for_file

    def close(self, now_ms: int) -> None:
        """Shut down cleanly: sync everything and record where it ends, so that the next start need not recover.

        After a fault, and on a full disk, nothing is recorded: the next start recovers.
        """
        self.discard()
        if self.fault is not None:
            return
        try:
            self._close(now_ms)
        except DiskFull as error:
            self._handle_index_error(error)

    def _close(self, now_ms: int) -> None:
        if isinstance(self.log, ReplicaLog):
            self.log.drop_unfinished()
        self._housekeeper.sync_log()
        self.confirm(self.log.written)
        self._housekeeper.close(self.confirmed, now_ms)
