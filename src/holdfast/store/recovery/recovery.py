"""Bring log and indexes back to one truth when a store is opened.

    log      |==== synced before the mark ====|---- written, perhaps torn ----|0 0 0
    queues   |==== entries known to be good ==|---- perhaps lost, torn, stale -|
                                              ^ start: queues are cut here and the log is replayed into them

Where to start: after an orderly end at the last record, to see that it is whole; after a crash at our mark; in a folder
that Java left without a mark, where its own times allow. A replayed record that would leave a hole in its queue proves
that the queue lost more than that: the replay starts again at the file of the last entry the queue still has.

Where the log ends: at the first bytes that are no good record and have no good record behind them. Records behind
damage are kept: the damaged bytes are reported and covered by a filler record that no index takes, and the offsets that
were lost with them stay blank. Only a damaged end is cut off, and it becomes zeros (hazard H1).
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from holdfast.store.base.index_fields import NOT_QUEUED, inner_span, tags_code
from holdfast.store.base.log_file import LogFiles
from holdfast.store.base.options import StoreOptions
from holdfast.store.log.log_scanner import LogWalk, Stop, WalkedRecord, judge_at
from holdfast.store.queues.batch_consume_queue import BatchQueue, pack_unit
from holdfast.store.queues.consume_queue import FLUSH_SIZE, SimpleQueue
from holdfast.store.queues.queue_log import BLANK_ENTRY_SIZE, ENTRY, QueueLog
from holdfast.store.queues.queue_table import QueueTable
from holdfast.store.recovery.batch_overlap import find_overlap
from holdfast.store.recovery.checkpoint import CheckpointFile
from holdfast.store.recovery.log_repair import FILLER_SIZE_MIN, Damage, find_next_record, mend
from holdfast.store.recovery.queue_snapshot import QueueSnapshot
from holdfast.wire.records.record import RECORD_SIZE_MIN

BLANKS_MAX = 300_000
"""A wider gap in a queue is rather a damaged offset than so many lost messages."""

TAIL_MAX = 64 << 20
"""After an orderly end no more than this is read again: records that no queue takes may be many."""


REMAINS_CHUNK = 1 << 20
_pack_entry = ENTRY.pack


class Recovered(msgspec.Struct, kw_only=True):
    """What was found.

    Attributes:
        log_end: Where the next record goes.
        start: The replay began here; everything behind it was checked.
        store_ms: Store time of the last record.
        cut: How many bytes behind the end were no record. They are zeros now.
        damages: Places in the middle of the log that are not what was written.
    """

    log_end: int = 0
    start: int = 0
    store_ms: int = 0
    is_clean: bool = True
    records: int = 0
    cut: int = 0
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
        self._levels = options.delay_levels_ms
        self._deleted = {topic.encode(): position for topic, position in deleted.items()}
        self._is_clean = is_clean
        self._expected = expected
        self._lost = 0  # Bytes of the log that hold no readable record: so many records may be missing in queues.
        self._routes: dict[tuple[bytes, int], QueueLog] = {}

    def run(self) -> Recovered:
        """Find the end of the log and make every queue hold exactly what is before it."""
        self._checkpoint_within_log()
        start: int = self._choose_start()
        is_sure = self._is_clean
        shortened = self._find_shortened()
        if shortened:
            start = min(start, *(self._start_for(queue, self._files.end) for queue in shortened))
            is_sure = False
        again: int | None = start
        while again is not None:
            found = Recovered(start=again, is_clean=self._is_clean, store_ms=self._checkpoint.value.physic_ms)
            if not is_sure:
                self._cut_queues(again)
            again = self._replay(found)
            is_sure = False
        self._cut_log(found)
        # As an orderly end left them: then there is no need to open the files of ten thousand queues once more.
        is_as_noted = self._is_clean and not shortened and found.start == start
        if not (is_as_noted and 0 < self._table.newest < found.log_end):
            self._trim_queues(found.log_end)
        return found

    def _checkpoint_within_log(self) -> None:
        position = self._checkpoint.value.position
        if position is not None and not self._files.start <= position <= self._files.end:
            self._checkpoint.void_mark(self._files.start)

    # --- where to start

    def _choose_start(self) -> int:
        mark = self._checkpoint.value.position
        if not self._is_clean:
            if not self._table.queues:
                return self._files.start  # Somebody took the indexes away, trusting that they are made again.
            return mark if mark is not None else self._start_by_time()
        last = self._last_entry_position()
        if last is None or (mark is not None and mark - last > TAIL_MAX):
            return mark if mark is not None else self._files.start
        if isinstance(judge_at(self._files, last), WalkedRecord):
            return last
        return last - last % self._files.size

    def _find_shortened(self) -> list[QueueLog]:
        """Return the queues that end before the place where an orderly end left them (hazard H2).

        Right after an orderly end also those that end behind it, or name a record behind the log: the last entry of
        such a queue is damaged, and its offsets would be given twice if it were merely cut.
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
        """Return where the last record that any queue knows begins."""
        if self._table.newest:
            return self._table.newest if self._files.start <= self._table.newest < self._files.end else None
        last = None
        for queue in self._table:
            if queue.offset_min < queue.offset_max:
                position, size = queue.place_of(queue.entry_end - 1)
                if size != BLANK_ENTRY_SIZE and self._files.start <= position < self._files.end:
                    last = max(last or 0, position)
        return last

    def _start_by_time(self) -> int:
        """Return the start of the last file that begins before everything was known to be on disk."""
        for number in reversed(self._files.files):
            start = number * self._files.size
            record = judge_at(self._files, start)
            if isinstance(record, WalkedRecord) and 0 < record.store_ms <= self._checkpoint.value.safe_ms:
                return start
        return self._files.start

    def _cut_queues(self, start: int) -> None:
        mark = self._checkpoint.value.position
        if mark is not None and start < mark:
            # Entries before the mark are about to be written anew: until they are synced the mark would lie.
            self._checkpoint.void_mark(start)
        self._lost = 0
        for queue in self._table:
            queue.flush()
            self._table.cut(queue, start)

    # --- the replay

    def _replay(self, found: Recovered) -> int | None:
        """Walk from `found.start` to the end of the log. Return where to start instead, if that was too late."""
        position = found.start
        while True:
            walk = LogWalk(self._files, position)
            for record in walk:
                again = self._take(record, found)
                if again is not None:
                    return again
            resumed = self._pass_damage(walk, found)
            if resumed is None:
                found.log_end = walk.position
                return None
            position = resumed

    def _take(self, record: WalkedRecord, found: Recovered) -> int | None:
        """Put one record into its queue, if it is not there. Return where to start again if its queue lost more."""
        found.records += 1
        found.store_ms = record.store_ms
        if record.sys_flag & NOT_QUEUED:
            return None
        if self._deleted and self._is_of_earlier_life(record):
            return None
        queue = self._routes.get((record.topic, record.queue_id)) or self._find_route(record)
        if queue is None:
            return None
        code = tags_code(record.topic, record.properties, record.store_ms, self._levels)
        if isinstance(queue, BatchQueue):
            return self._take_batched(queue, record, code, found)
        assert isinstance(queue, SimpleQueue)
        entry = _pack_entry(record.position, record.size, code)
        if record.offset == queue.next_offset:
            self._append(queue, entry)
            return None
        if record.offset > queue.next_offset:
            return self._bridge(queue, record, entry, found)
        if queue.offset_min == queue.offset_max:
            # A crash took its first file and left a later one, with nothing in it: this record is its first.
            self._begin_anew(queue, record.offset)
            self._append(queue, entry)
            return None
        if record.offset >= queue.offset_min and queue.raw_entries(record.offset, 1) == entry:
            return None
        if record.offset == 0 and queue.offset_min == 0 and queue.get_entry(0)[0] < record.position:
            # The topic was deleted and made anew: the later life counts.
            self._begin_anew(queue, 0)
            self._append(queue, entry)
        else:
            found.damages.append(Damage(record.position, record.size, f"offset {record.offset} was given before"))
        return None

    def _take_batched(self, queue: BatchQueue, record: WalkedRecord, code: int, found: Recovered) -> int | None:
        """Do the same for a queue that is indexed by record. Its offsets may have gaps, so none has to be filled."""
        first, count = inner_span(record.sys_flag, record.properties, record.offset)
        if first != record.offset or count <= 0:
            found.damages.append(Damage(record.position, record.size, "a batch whose offsets cannot be right"))
            return None
        entry = pack_unit(record.position, record.size, code, record.store_ms, first, count)
        if queue.offset_min < first < queue.next_offset and queue.raw_unit(first) != entry:
            damage = find_overlap(self._files, queue.last_entry(), first)
            if damage is not None:
                found.damages.append(damage)
                queue.shorten_last(first)
        if first > queue.next_offset and not self._saw_all_behind(queue, found.start):
            return self._start_for(queue, found.start)
        if first >= queue.next_offset:
            queue.append(entry)
        elif queue.raw_unit(first) == entry:
            pass
        elif first == 0 and queue.offset_min == 0 and queue.get_entry(0)[0] < record.position:
            # The topic was deleted and made anew: the later life counts.
            self._begin_anew(queue, 0)
            queue.append(entry)
        else:
            found.damages.append(Damage(record.position, record.size, f"offset {first} was given before"))
        return None

    def _saw_all_behind(self, queue: BatchQueue, start: int) -> bool:
        """Return whether every record of *queue* behind its last entry was met: then a gap is one."""
        return start <= self._files.start or (
            queue.entry_min < queue.entry_end and start <= queue.place_of(queue.entry_end - 1)[0]
        )

    def _is_of_earlier_life(self, record: WalkedRecord) -> bool:
        ended = max(self._deleted.get(record.topic, 0), self._deleted.get(record.topic + b"/%d" % record.queue_id, 0))
        return record.position < ended

    def _bridge(self, queue: SimpleQueue, record: WalkedRecord, entry: bytes, found: Recovered) -> int | None:
        """Deal with a record that is ahead of its queue. Return where to start again, if that may close the gap."""
        gap = record.offset - queue.next_offset
        is_empty = queue.offset_min == queue.offset_max
        if not is_empty and gap * RECORD_SIZE_MIN <= self._lost:
            # As many messages could have been in the lost bytes. Their offsets stay theirs.
            self._append_blanks(queue, record.position, gap)
        elif found.start > self._files.start:
            return self._start_for(queue, found.start)
        elif is_empty or queue.get_entry(queue.offset_max - 1)[0] < self._files.start:
            self._begin_anew(queue, record.offset)
        elif gap <= BLANKS_MAX:
            self._append_blanks(queue, record.position, gap)
        else:
            found.damages.append(Damage(record.position, record.size, f"offset {record.offset} cannot be right"))
            return None
        self._append(queue, entry)
        return None

    def _begin_anew(self, queue: QueueLog, offset: int) -> None:
        self._table.remove_files(queue)
        queue.begin_at(offset)

    def _append_blanks(self, queue: SimpleQueue, position: int, count: int) -> None:
        for _ in range(count):
            self._append(queue, ENTRY.pack(position, BLANK_ENTRY_SIZE, 0))

    def _start_for(self, queue: QueueLog, start: int) -> int:
        end = self._end_position(queue)
        candidate = end - end % self._files.size
        return candidate if self._files.start < candidate < start else self._files.start

    def _end_position(self, queue: QueueLog) -> int:
        if queue.offset_min == queue.offset_max:
            return self._files.start
        return max(self._files.start, queue.place_of(queue.entry_end - 1)[0])

    @staticmethod
    def _append(queue: SimpleQueue, entry: bytes) -> None:
        queue.tail += entry
        queue.next_offset += 1
        queue.offset_max += 1
        if len(queue.tail) >= FLUSH_SIZE:
            queue.flush()

    def _find_route(self, record: WalkedRecord) -> QueueLog | None:
        """Return the queue of a record; None when its topic is not ours to index."""
        topic = record.topic.decode(errors="replace")
        if "/" in topic or "\0" in topic or topic in {"", ".", ".."}:
            return None
        queue = self._routes[record.topic, record.queue_id] = self._table.get(topic, record.queue_id)
        return queue

    # --- damage and the end

    def _pass_damage(self, walk: LogWalk, found: Recovered) -> int | None:
        """Return where records go on behind the place where *walk* stopped; None when that is the end of the log."""
        position = walk.position
        if walk.stop is Stop.END or (walk.stop is Stop.EMPTY and self._is_clean):
            return None
        behind, reason = position + FILLER_SIZE_MIN, walk.stop.value
        damaged = judge_at(self._files, position, check_body=False) if walk.stop is Stop.DAMAGED else None
        if isinstance(damaged, WalkedRecord):
            behind = position + damaged.size
            reason += f": {damaged.topic.decode(errors='replace')}/{damaged.queue_id} offset {damaged.offset}"
        resumed = find_next_record(self._files, behind)
        if resumed is None:
            return None
        found.damages.append(Damage(position, resumed - position, reason))
        self._lost += resumed - position
        mend(self._files, position, resumed, store_ms=found.store_ms)
        return resumed

    def _cut_log(self, found: Recovered) -> None:
        end = found.log_end
        mark = self._checkpoint.value.position
        if mark is not None and end < mark:
            self._checkpoint.void_mark(end)
        if not self._is_clean or self._has_remains(end):
            found.cut = self._measure_remains(end)
            self._files.cut(end)

    def _trim_queues(self, log_end: int) -> None:
        """Let every queue know only of what is in the log."""
        for queue in self._table:
            if queue.offset_min < queue.offset_max and self._end_position(queue) >= log_end:
                queue.flush()
                self._table.cut(queue, log_end)
            if queue.offset_min < queue.offset_max:
                self._table.correct_min(queue, self._files.start)

    def _measure_remains(self, end: int) -> int:
        """Return how many bytes behind the end, in its file, are something."""
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
        """Return whether old bytes lie right behind the end, or at the start of a later file."""
        return any(self._first_bytes(address) for address in self._starts_behind(end))

    def _starts_behind(self, end: int) -> Iterator[int]:
        yield end
        yield from (number * self._files.size for number in self._files.files if number * self._files.size > end)

    def _first_bytes(self, address: int) -> bool:
        found = self._files.find(address)
        if found is None:
            return False
        at = address - found.start
        return any(found.file.read(at, min(at + RECORD_SIZE_MIN, self._files.size)))
