"""The one door of the log engine.

    stage, stage_run ... write             one event's records, one write
    confirm(position)                      what is before it becomes readable and is put into its queues
    hot_view / stretch                     hot reads, without copying
    cold_read, verify                      what the shell reads off the loop, and the check before it is first served
    housekeep, checkpoint, clean, close    driven by the broker's timers

Positions, in order along the log:

    start <= indexed <= confirmed <= written
             key index   readers      appended

Invariant: nobody reads behind `confirmed`. Under sync flush the broker confirms what is synced, so no offset that was
seen can be given out again after a crash. Knows no clock: every method that needs the time is given it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from holdfast.model.errors import CorruptRecord, DiskFailed, DiskFull, StoreError
from holdfast.model.queue import Position
from holdfast.store.base.cold_reads import Steps
from holdfast.store.base.disk import Disk, File
from holdfast.store.base.options import StoreOptions
from holdfast.store.housekeeping import Housekeeper, Housekeeping
from holdfast.store.keys.indexer import Indexer
from holdfast.store.log.commit_log import CommitLog
from holdfast.store.log.disk_space import LogRoom
from holdfast.store.log.log_scanner import Stop, WalkedRecord, judge
from holdfast.store.log.retention import DiskUse, count_expired, find_hold
from holdfast.store.log.verified_ranges import Verified
from holdfast.store.queues.queue_log import QueueLog
from holdfast.store.queues.time_search import find_offset_at, find_time
from holdfast.store.recovery.open_store import OpenedStore, open_store
from holdfast.store.recovery.queue_snapshot import erased_key, save_deleted
from holdfast.store.recovery.recovery import Recovered
from holdfast.store.recovery.replica_log import ReplicaLog
from holdfast.wire.records.record import StoredRecord, decode_record

__all__ = ["Housekeeping", "MessageStore", "QueueLog", "StoreOptions"]

RECENT_READS_MAX = 64


class MessageStore:
    """A broker's messages. Made by `open`; one at a time per folder."""

    def __init__(self, opened: OpenedStore, options: StoreOptions, now_ms: int) -> None:
        self.options = options
        self.recovered: Recovered = opened.recovered
        self.log: CommitLog = opened.log
        self._disk: Disk = opened.disk
        self._table = opened.table
        self._deleted = opened.deleted
        self._files = opened.log.files
        self.confirmed = opened.log.written
        self._verified = Verified(opened.recovered.start)
        self._recent: OrderedDict[int, int] = OrderedDict()  # start -> end of cold ranges that were just read
        self._indexer = Indexer(
            opened.key_index, self._files, options, opened.indexed, hot_start=opened.recovered.start
        )
        self._housekeeper = Housekeeper(opened, self._indexer, now_ms)
        self._room = LogRoom(opened.disk, self._files, options)
        if isinstance(self.log, ReplicaLog):
            self.log.erase = self._erase
        # The same methods, without a call in between: they run at least once per event.
        self.stage = self.log.stage
        self.stage_run = self.log.stage_run
        self.write = self.log.write
        self.discard = self.log.discard
        self.files_to_sync = self.log.take_unsynced

    @classmethod
    def open(cls, disk: Disk, options: StoreOptions, now_ms: int) -> MessageStore:
        """Load and recover what is in the folder of *disk*; an empty folder becomes a store.

        What had to be repaired is told by `recovered`.

        Raises:
            StoreError: the folder cannot be a store; the text says what to do.
            DiskFailed: the disk refused.
        """
        return cls(open_store(disk, options), options, now_ms)

    # --- where things are

    @property
    def written(self) -> Position:
        """End of the log."""
        return Position(self.log.written)

    @property
    def start(self) -> Position:
        """Where the oldest record begins."""
        return Position(self._files.start)

    @property
    def log_file_size(self) -> int:
        """Size of the log's files: no record crosses a multiple of it."""
        return self._files.size

    @property
    def last_store_ms(self) -> int:
        """Store time of the newest record. Later ones never get an earlier time."""
        return self.log.store_ms

    @property
    def fault(self) -> str | None:
        """Why the store takes no writes until it is restarted; None while it takes them."""
        return self.log.fault

    @property
    def writable(self) -> bool:
        """Whether the store takes writes. Once it does not, only a restart helps."""
        return self.log.fault is None

    @property
    def disk_full(self) -> bool:
        """Whether writes are refused because the disk is nearly full, as of the last look."""
        return self._room.is_spent(self.log.written)

    @property
    def shortage(self) -> str | None:
        """Which index write the disk refused for want of space; None while all succeed. It ends without a restart."""
        return self._room.shortage

    @property
    def disk_use(self) -> DiskUse:
        """How full the disk is, as of the last look."""
        return self._room.use

    @property
    def unconfirmed(self) -> int:
        """Bytes that are written but not yet confirmed."""
        return self.log.written - self.confirmed

    @property
    def index_behind(self) -> int:
        """Bytes of the confirmed log that the key index has not seen yet."""
        return self.confirmed - self._indexer.indexed

    @property
    def checkpoint_behind(self) -> int:
        """Bytes of the log behind the checkpoint: after a crash these are read again."""
        return self.log.written - max(self._housekeeper.marked, self._files.start)

    # --- queues

    def queue(self, topic: str, queue_id: int) -> QueueLog:
        """Return the handle of a physical queue, making it when it is new. It is good until its topic is deleted."""
        return self._table.get(topic, queue_id)

    def set_batched(self, topic: str) -> None:
        """Let the queues of *topic*, which has none yet, be indexed by record.

        The folder does not say so before the first entry is written: whoever calls this has made sure that the topic's
        configuration, on disk, does.

        Raises:
            StoreError: it has queues that are indexed by message.
        """
        self._table.set_batched(topic)

    def find_kind(self, topic: str) -> bool | None:
        """Return whether the queues of *topic* are indexed by record; None when it has none."""
        return self._table.find_kind(topic)

    def find_queue(self, topic: str, queue_id: int) -> QueueLog | None:
        """Return a queue, or None when nothing was ever stored in it."""
        return self._table.find(topic, queue_id)

    def list_queues(self) -> Iterator[QueueLog]:
        """Return all queues that hold or held anything."""
        return iter(self._table)

    def delete_topic(self, topic: str) -> None:
        """Remove the queues of *topic*; handles of them are dead. Its records go with their log files."""
        self._note_deleted(topic, self.log.staged_end)
        dead = {queue for queue in self._table if queue.topic == topic}
        self.log.forget(dead)
        self._housekeeper.forget(dead)
        self._table.remove_topic(topic)

    def erase_queue(self, topic: str, queue_id: int) -> None:
        """Empty one queue, which then begins at 0 again; handles of it stay good. Its records go with their log files.

        Nothing may be staged or unconfirmed for it.
        """
        queue = self._table.find(topic, queue_id)
        if queue is not None and queue.next_offset:
            self._erase(queue, self.log.staged_end)

    def _erase(self, queue: QueueLog, position: int) -> None:
        """Empty a queue: what is before *position* is of an earlier life."""
        self._note_deleted(erased_key(queue.topic, queue.queue_id), position)
        self.log.forget({queue})
        self._housekeeper.forget({queue})
        self._table.remove_files(queue)

    def _note_deleted(self, name: str, position: int) -> None:
        """Persist that the records of *name* before *position* are void.

        Raises:
            DiskFailed: nothing has changed. In memory alone, a later deletion would persist this one too.
        """
        deleted = self._deleted | {name: position}
        save_deleted(self._disk, deleted)
        self._deleted = deleted

    # --- writing: see also `stage`, `write`, `discard`, `files_to_sync`

    @property
    def replica(self) -> ReplicaLog:
        """The log of a replica, which is written by `append` and never staged.

        Raises:
            StoreError: this store is a master's.
        """
        if not isinstance(self.log, ReplicaLog):
            raise StoreError("only the log of a replica takes another broker's bytes")
        return self.log

    def begin_at(self, position: int) -> None:
        """Let the empty log of a replica begin at *position*.

        Raises:
            StoreError: it is not empty, or cannot begin there.
        """
        self.replica.begin_at(position)
        self.confirmed = position
        self._indexer.indexed = position

    def cut_back(self, position: int) -> None:
        """Let a replica forget everything from *position* on: it is not what the master has."""
        self.replica.cut_back(position)
        self.confirmed = self.replica.begun
        self._indexer.indexed = min(self._indexer.indexed, self.confirmed)

    def has_room(self) -> bool:
        """Say whether the disk has room for what an event may write, and take it. Asked before anything is staged."""
        if self.log.fault is None:
            if self.log.written <= self._room.sure:
                return True
            try:
                return self._room.admits(self.log.written)
            except DiskFailed as error:
                self.fail(str(error))
        return not self.disk_full

    def confirm(self, position: int) -> list[QueueLog]:
        """Make everything before *position*, the end of some write, readable. Return the queues that grew."""
        batches = self.log.batches
        grown: dict[QueueLog, None] = {}
        while batches and batches[0][0] <= position:
            self.confirmed, queues, entries = batches.popleft()
            for queue, entry in zip(queues, entries, strict=True):
                queue.tail += entry
            grown.update(dict.fromkeys(queues))
        for queue in grown:
            try:
                queue.settle()
            except DiskFailed as error:
                # The entries stay readable in memory, and recovery makes them again; but no more may pile up.
                self._index_failed(error)
        self._housekeeper.note_grown(grown)
        return list(grown)

    def fail(self, reason: str) -> None:
        """Take no more writes: a sync or an index write has failed, and what the disk holds is no longer known."""
        self.log.fault = self.log.fault or reason

    def _index_failed(self, error: DiskFailed) -> None:
        """Take no more records: until there is space again if that is all that is missing, else until a restart."""
        if isinstance(error, DiskFull):
            self._room.begin_shortage(str(error))
        else:
            self.fail(str(error))

    # --- reading

    def view(self, position: int, size: int) -> memoryview | None:
        """Return bytes of the confirmed log without copying; None when they are cleaned or not confirmed.

        May wait for the disk: ask `is_hot` first.
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
        """Return bytes of whole records without copying and without waiting.

        None when they are cold, not yet checked, cleaned or not confirmed: then `cold_read` tells which.
        """
        is_sure = position >= self._verified.tail_start and position >= self.confirmed - self.options.hot_window
        if not is_sure and self.hot_end(position) < position + size:
            return None
        return self.view(position, size)

    def is_hot(self, position: int) -> bool:
        """Return whether the record at *position* was checked and is most likely in memory."""
        return self.hot_end(position) > position

    def hot_end(self, position: int) -> int:
        """Return up to where records from *position* on may be viewed on the loop; *position* when it may not."""
        verified_end = self._verified.find_end(position)
        if verified_end is None:
            return position
        if position >= self._verified.tail_start:
            verified_end = self.confirmed
        if position >= self.confirmed - self.options.hot_window:
            return max(position, verified_end)
        for start, end in self._recent.items():
            if start <= position < end:
                return min(end, verified_end)
        return position

    def cold_read(self, position: int, end: int) -> tuple[File, int, int] | None:
        """Return (file, start, end) of [position, end), as far as one file and the confirmed log reach.

        None when the record is gone. Both ends should be ends of records, or `verify` sees less than was read.
        """
        found = self._files.find(position)
        if found is None or position >= self.confirmed:
            return None
        end = min(end, self.confirmed, found.start + self._files.size)
        return found.file, position - found.start, end - found.start

    def verify(self, position: int, data: bytes | memoryview, *, is_guess: bool = False) -> int:
        """Check the records in *data*, read from *position*; return the end of the last whole one.

        Every good one may be viewed from now on, and is taken to be in memory for a while. Bytes that are no record are
        no damage if *is_guess*.

        Raises:
            CorruptRecord: a record is damaged. Those before it are good, and so are those behind it that could be
                reached: reading them again, apart from it, succeeds.
        """
        view = memoryview(data)
        file_end = position - position % self._files.size + self._files.size
        start = at = position
        damage: CorruptRecord | None = None
        while at < position + len(view):
            record = judge(view, at - position, at, file_end - at, check_body=True)
            if isinstance(record, WalkedRecord):
                at += record.size
                continue
            if record is Stop.DAMAGED or (record in {Stop.BROKEN, Stop.EMPTY} and not is_guess):
                damage = damage or CorruptRecord(at, record.value)
            if record is not Stop.DAMAGED:
                break
            self._note_good(start, at)
            start = at = at + int.from_bytes(view[at - position : at - position + 4], "big")
        self._note_good(start, at)
        if damage is not None:
            raise damage
        return at

    def _note_good(self, start: int, end: int) -> None:
        self._verified.add(start, end)
        if end > start:
            self._recent[start] = end
            self._recent.move_to_end(start)
            if len(self._recent) > RECENT_READS_MAX:
                self._recent.popitem(last=False)

    def read_record(self, position: int) -> StoredRecord | None:
        """Return one record, checked and decoded; None when there is none at *position*. May wait for the disk.

        Raises:
            CorruptRecord: there is one, and it is damaged.
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

    # --- looking for things: steps, as what they need may not be in memory

    def store_time(self, queue: QueueLog, offset: int) -> Steps[int | None]:
        """Return when the message at *offset* was stored; None when it is gone."""
        return find_time(queue, offset)

    def offset_at_time(self, queue: QueueLog, time_ms: int, *, upper: bool = False) -> Steps[int]:
        """Return the first offset stored at or after *time_ms*, `offset_max` when there is none.

        With *upper* the last offset stored at or before it, `offset_min` when there is none.
        """
        return find_offset_at(queue, time_ms, upper=upper)

    def find_by_key(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> Steps[list[Position]]:
        """Return where records with *key* are that were stored in [begin_ms, end_ms], newest first.

        Looks through a bounded part of what is not indexed yet.
        """
        try:
            self._indexer.catch_up(self.confirmed)
        except DiskFull as error:
            self._index_failed(error)
        return self._indexer.find(topic, key, max_count, begin_ms, end_ms)

    # --- housekeeping

    def housekeep(self, now_ms: int) -> Housekeeping:
        """Do a bounded piece of the work that is due. Return when to call again and what to sync meanwhile.

        A failing disk stops writes; it is not raised. A shortage of space ends here, once the index writes succeed.
        """
        try:
            self._room.measure()
            self._room.prepare(self.log.written)
            if self._room.shortage is not None:
                self._housekeeper.flush_overdue()
            work = self._housekeeper.run(self.confirmed, now_ms)
            if self._room.shortage is not None:
                self._room.end_shortage()
        except DiskFailed as error:
            self._index_failed(error)
            return Housekeeping()
        return work

    def checkpoint(self, now_ms: int) -> None:
        """Take note that what `housekeep` asked to sync is on disk."""
        try:
            self._housekeeper.synced(now_ms)
        except DiskFailed as error:
            self._index_failed(error)

    def warmed(self) -> None:
        """Take note that what `housekeep` asked to read is in memory."""
        self._housekeeper.warmed()

    def clean(self, now_ms: int) -> list[str]:
        """Remove what has expired, and more when the disk is full. Return the paths of what was removed."""
        is_forced = self._room.measure().is_forced or self.disk_full
        count = count_expired(self._files, self.log.written, now_ms, self.options, is_forced=is_forced)
        # Looked at only when something could go: a file is read.
        if count and (hold := find_hold(self._disk)) is not None:
            count = min(count, max(0, hold - self._files.start) // self._files.size)
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
        """Let the next record, which is to be staged in this event, begin a file: retention never takes the last one.

        False when the disk has no room for another file.
        """
        self._room.measure()
        if self._room.has_next:
            self.log.roll()
        return self._room.has_next

    def close(self, now_ms: int) -> None:
        """End in order: everything is synced and noted, so that the next start need not look for it.

        After a fault, and on a disk without space, nothing is noted: the next start recovers.
        """
        self.discard()
        if self.fault is not None:
            return
        try:
            self._close(now_ms)
        except DiskFull as error:
            self._index_failed(error)

    def _close(self, now_ms: int) -> None:
        if isinstance(self.log, ReplicaLog):
            self.log.drop_unfinished()
        self._housekeeper.sync_log()
        self.confirm(self.log.written)
        self._housekeeper.close(self.confirmed, now_ms)
