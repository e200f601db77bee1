"""Make log and queues consistent when a store is opened.

    log      |==== synced before the mark ====|---- written, perhaps torn ----|0 0 0
    queues   |==== entries known to be good ==|---- perhaps lost, torn, stale -|
                                              ^ start: truncate the queues here and replay the log into them

Where to start: after a clean shutdown at the last record, to check that it is whole; after a crash at our mark; in a
folder that Java left without a mark, where RocketMQ's own times allow. If a replayed record would leave a hole in its
queue, the queue lost more than that. Then the replay starts again at the log file of the queue's last remaining entry.

Where the log ends: at the first bytes that are not a valid record and have no valid record after them. Records after
corrupt bytes are kept: these bytes are reported and covered by a filler record, which no index contains, and their
lost offsets stay blank. Only a corrupt end is truncated; it becomes zeros (hazard H1).
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from holdfast.store.base.index_fields import NOT_QUEUED, inner_span, tags_code
from holdfast.store.base.log_file import LogFiles
from holdfast.store.base.options import StoreOptions
from holdfast.store.log.log_scanner import LogWalk, StopReason, WalkedRecord, validate_record_at
from holdfast.store.queues.queue_index import BLANK_ENTRY_SIZE, BLANKS_MAX, QueueIndex
from holdfast.store.queues.queue_table import QueueTable
from holdfast.store.recovery.batch_overlap import find_overlap
from holdfast.store.recovery.checkpoint import CheckpointFile
from holdfast.store.recovery.log_repair import FILLER_SIZE_MIN, Damage, cover_damage, find_next_record
from holdfast.store.recovery.queue_snapshot import QueueSnapshot
from holdfast.wire.records.record import RECORD_SIZE_MIN

TAIL_MAX = 64 << 20
"""The most bytes that are read again after a clean shutdown: there may be many records without a queue."""


REMAINS_CHUNK = 1 << 20


class RecoveryResult(msgspec.Struct, kw_only=True):
    """The result of a recovery.

    Attributes:
        log_end: Position of the next record.
        start: The replay began here; everything after it is verified.
        store_ms: Store time of the last record.
        truncated_bytes: The number of bytes after the end that were not records. They are zeros now.
        damages: Corrupt places in the middle of the log.
    """

    log_end: int = 0
    start: int = 0
    store_ms: int = 0
    is_clean: bool = True
    records: int = 0
    truncated_bytes: int = 0
    damages: list[Damage] = []


class Recovery:
    """One recovery; `run` does it."""

    def __init__(
        self,
        files: LogFiles,
        table: QueueTable,
        checkpoint: CheckpointFile,
        options: StoreOptions,
        deleted: dict[str, int],
        *,
        is_clean: bool,
        expected: QueueSnapshot | None = None,
    ) -> None:
        self._files = files
        self._table = table
        self._checkpoint = checkpoint
        self._delay_levels_ms = options.delay_levels_ms
        self._deleted = {topic.encode(): position for topic, position in deleted.items()}
        self._is_clean = is_clean
        self._expected = expected
        self._lost_bytes = 0  # Bytes of the log without a readable record. They bound the number of lost messages.
        self._queues: dict[tuple[bytes, int], QueueIndex] = {}

    def run(self) -> RecoveryResult:
        """Find the end of the log and make every queue hold exactly the records before it."""
        self._checkpoint_within_log()
        start: int = self._choose_start()
        is_trusted = self._is_clean
        shortened = self._find_shortened()
        if shortened:
            start = min(start, *(self._start_for(queue, self._files.end) for queue in shortened))
            is_trusted = False
        replay_start: int | None = start
        while replay_start is not None:
            result = RecoveryResult(
                start=replay_start, is_clean=self._is_clean, store_ms=self._checkpoint.value.physic_ms
            )
            if not is_trusted:
                self._truncate_queues(replay_start)
            replay_start = self._replay(result)
            is_trusted = False
        self._truncate_log(result)
        # If the queues are as the clean shutdown noted, skip opening the files of ten thousand queues once more.
        matches_snapshot = self._is_clean and not shortened and result.start == start
        if not (matches_snapshot and 0 < self._table.newest_position < result.log_end):
            self._trim_queues(result.log_end)
        return result

    def _checkpoint_within_log(self) -> None:
        position = self._checkpoint.value.position
        if position is not None and not self._files.start <= position <= self._files.end:
            self._checkpoint.void_mark(self._files.start)

    # --- where to start

    def _choose_start(self) -> int:
        mark = self._checkpoint.value.position
        if not self._is_clean:
            if not self._table.queues:
                return self._files.start  # The operator removed the indexes, to have them rebuilt.
            return mark if mark is not None else self._start_by_time()
        last = self._last_entry_position()
        if last is None or (mark is not None and mark - last > TAIL_MAX):
            return mark if mark is not None else self._files.start
        if isinstance(validate_record_at(self._files, last), WalkedRecord):
            return last
        return last - last % self._files.size

    def _find_shortened(self) -> list[QueueIndex]:
        """Return the queues that end earlier than noted at the last clean shutdown (hazard H2).

        Right after a clean shutdown also return those that end later, or refer to a record after the end of the log.
        The last entry of such a queue is corrupt. Merely truncating the queue would assign its offsets twice.
        """
        expected = self._expected
        if expected is None:
            return []
        return [
            queue
            for topic, queue_id, offset_max in expected.ends()
            if (queue := self._table.get(topic, queue_id)).offset_max < offset_max
            or (self._is_clean and (queue.offset_max > offset_max or self._end_position(queue) >= expected.log_end))
        ]

    def _last_entry_position(self) -> int | None:
        """Return the position of the last record that any queue indexes."""
        if self._table.newest_position:
            return (
                self._table.newest_position
                if self._files.start <= self._table.newest_position < self._files.end
                else None
            )
        last = None
        for queue in self._table:
            if queue.offset_min < queue.offset_max:
                position, size = queue.location_of(queue.entry_end - 1)
                if size != BLANK_ENTRY_SIZE and self._files.start <= position < self._files.end:
                    last = max(last or 0, position)
        return last

    def _start_by_time(self) -> int:
        """Return the start of the last log file whose first record is on disk according to RocketMQ's times."""
        for number in reversed(self._files.files):
            start = number * self._files.size
            record = validate_record_at(self._files, start)
            if isinstance(record, WalkedRecord) and 0 < record.store_ms <= self._checkpoint.value.safe_ms:
                return start
        return self._files.start

    def _truncate_queues(self, start: int) -> None:
        mark = self._checkpoint.value.position
        if mark is not None and start < mark:
            # Entries before the mark are about to be rewritten: until they are synced the mark would be wrong.
            self._checkpoint.void_mark(start)
        self._lost_bytes = 0
        for queue in self._table:
            queue.flush()
            self._table.truncate(queue, start)

    # --- the replay

    def _replay(self, result: RecoveryResult) -> int | None:
        """Walk from `result.start` to the end of the log. Return an earlier start if that was too late."""
        position = result.start
        while True:
            walk = LogWalk(self._files, position)
            for record in walk:
                restart = self._add_record(record, result)
                if restart is not None:
                    return restart
            resume_at = self._skip_damage(walk, result)
            if resume_at is None:
                result.log_end = walk.position
                return None
            position = resume_at

    def _add_record(self, record: WalkedRecord, result: RecoveryResult) -> int | None:
        """Add a record to its queue if it is missing. Return where to restart if the queue lost more entries."""
        result.records += 1
        result.store_ms = record.store_ms
        if record.sys_flag & NOT_QUEUED:
            return None
        if self._deleted and self._is_void(record):
            return None
        queue = self._queues.get((record.topic, record.queue_id)) or self._find_queue(record)
        if queue is None:
            return None
        code = tags_code(record.topic, record.properties, record.store_ms, self._delay_levels_ms)
        first, count = record.offset, 1
        if queue.accepts_batches:
            first, count = inner_span(record.sys_flag, record.properties, record.offset)
            if first != record.offset or count <= 0:
                result.damages.append(Damage(record.position, record.size, "a batch with invalid offsets"))
                return None
        entry = queue.pack_entry(record.position, record.size, code, record.store_ms, first, count)
        if first == queue.next_offset:
            queue.append(entry)
            return None
        if first > queue.next_offset:
            return self._handle_gap(queue, record, entry, result)
        self._check_assigned(queue, record, entry, result)
        return None

    def _check_assigned(self, queue: QueueIndex, record: WalkedRecord, entry: bytes, result: RecoveryResult) -> None:
        """Check a record at an offset that *queue* has assigned: usually to the same record."""
        first = record.offset
        if queue.raw_entry(first) == entry:
            return
        if queue.accepts_batches and queue.offset_min < first:
            damage = find_overlap(self._files, queue, queue.last_entry(), first)
            if damage is not None:
                result.damages.append(damage)
                queue.shorten_last(first)
                queue.append(entry)
                return
        is_reset = not queue.has_gaps and queue.offset_min == queue.offset_max
        if is_reset or (first == 0 and queue.offset_min == 0 and queue.get_entry(0)[0] < record.position):
            # A crash lost the first file and left a later, empty one: this record is the first. Or the topic was
            # deleted and created again: the later record counts.
            self._restart_queue(queue, first)
            queue.append(entry)
        else:
            result.damages.append(Damage(record.position, record.size, f"offset {first} was assigned before"))

    def _covers_rest_of(self, queue: QueueIndex, start: int) -> bool:
        """Return whether the replay covered every record of *queue* after its last entry: then a gap is genuine."""
        return start <= self._files.start or (
            queue.entry_min < queue.entry_end and start <= queue.location_of(queue.entry_end - 1)[0]
        )

    def _is_void(self, record: WalkedRecord) -> bool:
        ended = max(self._deleted.get(record.topic, 0), self._deleted.get(record.topic + b"/%d" % record.queue_id, 0))
        return record.position < ended

    def _handle_gap(self, queue: QueueIndex, record: WalkedRecord, entry: bytes, result: RecoveryResult) -> int | None:
        """Handle a record ahead of its queue. Return where to restart, if that may close the gap."""
        if queue.has_gaps:
            if not self._covers_rest_of(queue, result.start):
                return self._start_for(queue, result.start)
            queue.append(entry)
            return None
        gap = record.offset - queue.next_offset
        is_empty = queue.offset_min == queue.offset_max
        if not is_empty and gap * RECORD_SIZE_MIN <= self._lost_bytes:
            # The lost bytes may have held that many messages: keep their offsets.
            self._append_blanks(queue, record.position, gap)
        elif result.start > self._files.start:
            return self._start_for(queue, result.start)
        elif is_empty or queue.get_entry(queue.offset_max - 1)[0] < self._files.start:
            self._restart_queue(queue, record.offset)
        elif gap <= BLANKS_MAX:
            self._append_blanks(queue, record.position, gap)
        else:
            result.damages.append(Damage(record.position, record.size, f"offset {record.offset} is invalid"))
            return None
        queue.append(entry)
        return None

    def _restart_queue(self, queue: QueueIndex, offset: int) -> None:
        self._table.remove_files(queue)
        queue.begin_at(offset)

    @staticmethod
    def _append_blanks(queue: QueueIndex, position: int, count: int) -> None:
        for entry in queue.blank_entries(count, position):
            queue.append(entry)

    def _start_for(self, queue: QueueIndex, start: int) -> int:
        end = self._end_position(queue)
        candidate = end - end % self._files.size
        return candidate if self._files.start < candidate < start else self._files.start

    def _end_position(self, queue: QueueIndex) -> int:
        if queue.offset_min == queue.offset_max:
            return self._files.start
        return max(self._files.start, queue.location_of(queue.entry_end - 1)[0])

    def _find_queue(self, record: WalkedRecord) -> QueueIndex | None:
        """Return the queue of a record; None if its topic cannot have an index."""
        topic = record.topic.decode(errors="replace")
        if "/" in topic or "\0" in topic or topic in {"", ".", ".."}:
            return None
        queue = self._queues[record.topic, record.queue_id] = self._table.get(topic, record.queue_id)
        return queue

    # --- damage and the end

    def _skip_damage(self, walk: LogWalk, result: RecoveryResult) -> int | None:
        """Return the start of the next record after *walk* stopped; None if the log ends there."""
        position = walk.position
        if walk.stop is StopReason.END or (walk.stop is StopReason.EMPTY and self._is_clean):
            return None
        search_start, reason = position + FILLER_SIZE_MIN, walk.stop.value
        damaged = (
            validate_record_at(self._files, position, check_body=False) if walk.stop is StopReason.DAMAGED else None
        )
        if isinstance(damaged, WalkedRecord):
            search_start = position + damaged.size
            reason += f": {damaged.topic.decode(errors='replace')}/{damaged.queue_id} offset {damaged.offset}"
        resume_at = find_next_record(self._files, search_start)
        if resume_at is None:
            return None
        result.damages.append(Damage(position, resume_at - position, reason))
        self._lost_bytes += resume_at - position
        cover_damage(self._files, position, resume_at, store_ms=result.store_ms)
        return resume_at

    def _truncate_log(self, result: RecoveryResult) -> None:
        end = result.log_end
        mark = self._checkpoint.value.position
        if mark is not None and end < mark:
            self._checkpoint.void_mark(end)
        if not self._is_clean or self._has_remains(end):
            result.truncated_bytes = self._measure_remains(end)
            self._files.truncate(end)

    def _trim_queues(self, log_end: int) -> None:
        """Remove entries of records that are not in the log from every queue."""
        for queue in self._table:
            if queue.offset_min < queue.offset_max and self._end_position(queue) >= log_end:
                queue.flush()
                self._table.truncate(queue, log_end)
            if queue.offset_min < queue.offset_max:
                self._table.correct_min(queue, self._files.start)

    def _measure_remains(self, end: int) -> int:
        """Return the number of bytes up to the last nonzero one after the end, in its file."""
        found = self._files.find(end)
        remains = at = 0
        while found is not None and end + at < found.start + self._files.size:
            start = end + at - found.start
            chunk = found.file.read(start, min(start + REMAINS_CHUNK, self._files.size))
            used = len(chunk.rstrip(b"\0"))
            if not used:
                break
            remains = at + used
            at += len(chunk)
        return remains

    def _has_remains(self, end: int) -> bool:
        """Return whether old bytes remain right after the end, or at the start of a later file."""
        return any(self._has_bytes_at(address) for address in self._starts_after(end))

    def _starts_after(self, end: int) -> Iterator[int]:
        yield end
        yield from (number * self._files.size for number in self._files.files if number * self._files.size > end)

    def _has_bytes_at(self, address: int) -> bool:
        found = self._files.find(address)
        if found is None:
            return False
        at = address - found.start
        return any(found.file.read(at, min(at + RECORD_SIZE_MIN, self._files.size)))
