"""Delivers delayed messages when they are due.

    SCHEDULE_TOPIC_XXXX / level-1    entry: | position | size | time of delivery |
                                     [ delivered ............ next ][ waiting, in order of time ........
                                                             ^ offset of the level, in config/delayOffset.json

All messages of a level wait equally long, so the queue of a level is in order of delivery time and only its first
waiting entry matters.

Delivery is exactly once. Delivery and offset advance together in memory. The file is written only when everything that
it counts as delivered is synced, so a crash never skips a message. The file also has a checkpoint: the end of the log
at that time (`position`). After a crash, the log past the checkpoint is searched for each message in doubt before it is
delivered again: a delivered record carries the position of its scheduled one. A file that a Java broker wrote has no
checkpoint, so messages delivered in the last seconds before a crash are delivered twice.

Invariant: the offsets of the file count every message delivered before its checkpoint. So after a crash the checkpoint
does not advance until all messages in doubt are resolved, even if the file is saved meanwhile.

A message for a logical queue that has moved is forwarded to its leader, which deduplicates it (`message_forwarder.py`).
While no leader accepts it, its level waits.

Time comes from events only. The shortest level bounds how long a new message can go unnoticed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from holdfast.broker.flow.component import MasterComponent
from holdfast.broker.flow.request import Refusal, Timers
from holdfast.broker.messages.record_lookup import properties_of, read_entries, to_draft, try_read_record
from holdfast.broker.messages.writer import REAL_QUEUE, REAL_TOPIC, LogWriter
from holdfast.broker.options import BrokerOptions
from holdfast.broker.relay.message_forwarder import MessageForwarder, Origin
from holdfast.broker.tables.config_file import config_file
from holdfast.machine.kept_file import KeptFile
from holdfast.machine.turn import Turn
from holdfast.model.delay import DelayLevels
from holdfast.model.numbers import parse_count
from holdfast.model.queue import LogicalQueueId, QueueKey
from holdfast.model.topic import HALF_TOPIC, SCHEDULE_TOPIC
from holdfast.store.base.disk import Disk
from holdfast.store.message_store import MessageStore
from holdfast.store.queues.queue_index import BLANK_ENTRY_SIZE, QueueIndex
from holdfast.wire.cluster.registration import DataVersion
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.records.record import TRANSACTION_MASK, StoredRecord

NAME: Final = "delayOffset.json"
TIMER: Final = "delays"
RUN_MAX: Final = 256  # messages delivered before other events get their turn
_BATCH: Final = 32
_FORWARD_RETRY_MS: Final = 1_000


class DelayOffsets(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The content of the file, and the body of the answer to 45. Keys of the table are levels.

    Attributes:
        position: The checkpoint: the offsets count every message delivered before it. None in files of Java brokers.
    """

    offset_table: dict[int, int] = {}
    data_version: DataVersion = DataVersion()
    position: int | None = None


class DelayedDelivery(MasterComponent):
    """The schedule of delayed messages.

    Attributes:
        forwarder: Forwards messages to the leaders of logical queues; None if this broker cannot forward.
    """

    def __init__(
        self,
        disk: Disk,
        options: BrokerOptions,
        levels: DelayLevels,
        store: MessageStore,
        writer: LogWriter,
        forwarder: MessageForwarder | None,
        turn: Turn,
    ) -> None:
        self._turn = turn
        self._is_replica = options.is_replica
        self._levels = levels
        self._store = store
        self._writer = writer
        # A replica delivers nothing, so its offsets do not depend on its log.
        log_end = None if options.is_replica else lambda: int(store.written)
        self._file = config_file(turn, disk, NAME, DelayOffsets, self._to_saved, log_end=log_end)
        saved = self._file.load() or DelayOffsets(position=0)
        self._offsets = dict(saved.offset_table)
        self._version = saved.data_version
        self._saved_offsets = dict(self._offsets)
        self._is_busy = False
        self.forwarder = forwarder
        # By level: (offset, position) of forwarded messages that may be forwarded again after a crash.
        self._forwarded: dict[int, deque[tuple[int, int]]] = {}
        self._durable_offsets = dict(self._offsets)
        self._uncertain = _UncertainDeliveries(store.written if saved.position is None else saved.position, store)

    def to_wire(self) -> DelayOffsets:
        """Return the table in the form that tools and replicas get."""
        return DelayOffsets(offset_table=dict(self._offsets), data_version=self._version)

    def replace_offsets(self, master: DelayOffsets) -> None:
        """Replace the offsets of a replica, which delivers nothing, with those of its master."""
        if master.offset_table != self._offsets:
            self._offsets = dict(master.offset_table)
            self._version = master.data_version
            self._file.save_change()

    def progress(self) -> dict[int, tuple[int, int]]:
        """Return (delivered, scheduled) of every level that was ever used."""
        found = {}
        for level in range(1, len(self._levels) + 1):
            queue = self._store.find_queue(SCHEDULE_TOPIC, level - 1)
            if queue is not None and queue.offset_max:
                found[level] = (self._offsets.get(level, 0), queue.offset_max)
        return found

    # Timer and saving.

    def timers(self) -> Timers:
        """Return the timers of this component, by name."""
        return {TIMER: self.on_timer}

    def files(self) -> Sequence[KeptFile[Any]]:
        """Return the files of this component."""
        return (self._file,)

    def start(self) -> None:
        """Start to deliver."""
        for level in range(1, len(self._levels) + 1):
            queue = self._store.find_queue(SCHEDULE_TOPIC, level - 1)
            end = queue.offset_max if queue is not None else 0
            if self._offsets.get(level, 0) > end:
                # The log lost its end. Messages that now get these offsets again must not count as delivered.
                self._offsets[level] = end
                self._file.mark_changed()
            self._uncertain.begin(level, self._offsets.get(level, 0), end)
        self._turn.set_timer(TIMER, self._turn.now_ms)

    def on_timer(self) -> None:
        """Start to deliver due messages, unless a run still waits or the store accepts none."""
        if self._is_busy:
            return  # A run waits for the disk, and sets the timer when it ends.
        if not self._store.reserve_space() or not self._store.is_writable:
            self._turn.set_timer(TIMER, self._turn.now_ms + self._levels.delay_ms(1))
            return
        self._turn.spawn(self._run())

    def stop(self) -> None:
        """Save the offsets before the broker stops, after syncing the log: power may fail before the broker ends."""
        if self._is_replica:
            return  # It delivers nothing: its offsets are those of its master.
        self._saved_offsets = self._durable_offsets  # A snapshot that still waits for the log is not written any more.
        self._file.mark_changed()
        self._turn.sync_log(self._store.files_to_sync(), self._store.written)

    def _to_saved(self) -> DelayOffsets:
        if self._is_replica:
            return self.to_wire()
        if self._file.fault is None and not self._file.is_being_written:
            self._durable_offsets = self._saved_offsets  # The previous save is on disk.
        self._saved_offsets = dict(self._offsets)
        version = self._version
        self._version = DataVersion(
            state_version=version.state_version, timestamp=self._turn.now_ms, counter=version.counter + 1
        )
        position = self._store.written if self._uncertain.is_resolved else self._uncertain.position
        return DelayOffsets(offset_table=self._saved_offsets, data_version=self._version, position=position)

    # Delivery.

    async def _run(self) -> None:
        """Deliver due messages, level by level, and set the timer for the next run."""
        now_ms = self._turn.now_ms
        next_ms = now_ms + min(self._levels.delay_ms(level) for level in range(1, len(self._levels) + 1))
        remaining = RUN_MAX
        self._is_busy = True
        # A later run handles messages that arrive while this one waits for the disk: *now_ms* predates them.
        queues = {level: self._store.find_queue(SCHEDULE_TOPIC, level - 1) for level in range(1, len(self._levels) + 1)}
        ends = {level: queue.offset_max for level, queue in queues.items() if queue is not None}
        try:
            for level, end in ends.items():
                queue = queues[level]
                if queue is None or end <= self._offsets.get(level, 0):
                    continue
                before = self._offsets.get(level, 0)
                due_ms = await self._run_level(level, queue, (remaining, end))
                remaining -= self._offsets.get(level, 0) - before
                next_ms = min(next_ms, due_ms)
        finally:
            self._is_busy = False
        self._turn.set_timer(TIMER, next_ms)

    async def _run_level(self, level: int, queue: QueueIndex, limits: tuple[int, int]) -> int:
        """Deliver due messages of one level up to *limits* (count, end offset); return when the next one is due."""
        now_ms = self._turn.now_ms
        remaining, end = limits
        offset = max(self._offsets.get(level, 0), queue.offset_min)
        latest_ms = now_ms + self._levels.delay_ms(level)
        while remaining > 0 and offset < end:
            entries = await read_entries(queue, offset, min(remaining, _BATCH, end - offset))
            if not entries:
                break
            for position, size, due_ms in entries:
                # A delivery time beyond the delay of the level means that a clock was wrong: deliver at once, as
                # RocketMQ does.
                is_waiting = now_ms < due_ms <= latest_ms
                if is_waiting and not await self._was_delivered_early(level, offset, position, size):
                    self._uncertain.resolve(level)  # Delivery is in order: no later message was delivered.
                    return due_ms
                if not is_waiting and size != BLANK_ENTRY_SIZE:
                    is_done = await self._deliver(level, offset, position, size)
                    if not is_done:
                        return now_ms + _FORWARD_RETRY_MS
                offset += 1
                remaining -= 1
                # Update at once: a save between two steps must count messages that are already in the log.
                self._offsets[level] = offset
                self._file.mark_changed()
        if offset >= end:
            self._uncertain.resolve(level)
        return now_ms if offset < queue.offset_max else latest_ms

    async def _deliver(self, level: int, offset: int, position: int, size: int) -> bool:
        """Deliver one message to its real queue; return False if no leader accepts it now."""
        record = await try_read_record(position, size)
        real_queue = _real_queue(record) if record is not None else None
        if record is None or real_queue is None:
            self._turn.log("error", "delayed message lost", level=level, offset=offset, position=position)
            return True
        topic, queue_id = real_queue
        origin = self._find_origin(level, position)
        indexes = self._writer.queues.own_indexes(topic, queue_id)
        was_delivered = await self._uncertain.was_delivered(level, offset, record, indexes)
        if was_delivered or (self.forwarder is not None and self.forwarder.is_stored(origin)):
            return True
        properties = properties_of(record)
        properties["WAIT"] = "false"
        draft = to_draft(record, properties, topic=topic, queue_id=queue_id)
        draft.sys_flag &= ~TRANSACTION_MASK
        draft.prepared_position = position
        stored = self._writer.append(draft)
        if isinstance(stored, Refusal):
            if stored.code == ResponseCode.NOT_LEADER_FOR_QUEUE:
                is_forwarded = self.forwarder is not None and await self.forwarder.send(draft, origin)
                if is_forwarded:
                    self._forwarded.setdefault(level, deque()).append((offset, position))
                return is_forwarded
            self._turn.log("error", "delayed message lost", position=position, reason=stored.remark)
        return True

    async def _was_delivered_early(self, level: int, offset: int, position: int, size: int) -> bool:
        """Return whether a message that is not due was delivered before a crash, if the clock has gone back since."""
        if not self._uncertain.is_uncertain(level):
            return False
        record = await try_read_record(position, size)
        real_queue = _real_queue(record) if record is not None else None
        if record is None or real_queue is None:
            return False
        indexes = self._writer.queues.own_indexes(*real_queue)
        return await self._uncertain.was_delivered(level, offset, record, indexes)

    def _find_origin(self, level: int, position: int) -> Origin:
        """Return the origin of a message, with the position from which its level may be forwarded again."""
        forwarded = self._forwarded.get(level, deque())
        while forwarded and forwarded[0][0] < self._durable_offsets.get(level, 0):
            forwarded.popleft()
        return Origin(f"level {level}", position, forwarded[0][1] if forwarded else position)


class _UncertainDeliveries:
    """The messages that may have been delivered between the last save of the offsets and a crash.

    Attributes:
        position: The checkpoint of that save.
    """

    def __init__(self, position: int, store: MessageStore) -> None:
        self.position = position
        self._store = store
        self._delivered: dict[tuple[str, int], set[int]] = {}
        self._ends: dict[int, int] = {}  # by level, of the messages scheduled before the crash
        self._levels: set[int] = set()

    @property
    def is_resolved(self) -> bool:
        """Whether the offsets count everything that was delivered before the crash."""
        return not self._levels

    def is_uncertain(self, level: int) -> bool:
        """Return whether a level still has messages in doubt."""
        return level in self._levels

    def begin(self, level: int, offset: int, end: int) -> None:
        """Mark the messages of a level between *offset* and *end* as in doubt."""
        self._ends[level] = end
        if offset < end:
            self._levels.add(level)

    def resolve(self, level: int) -> None:
        """Note that the offset of a level counts everything that was delivered before the crash."""
        self._levels.discard(level)

    async def was_delivered(self, level: int, offset: int, record: StoredRecord, indexes: list[QueueIndex]) -> bool:
        """Return whether *record* was delivered to one of these queues after the checkpoint of the last save."""
        if offset >= self._ends.get(level, 0):
            return False
        for index in indexes:
            key = (index.topic, index.queue_id)
            delivered = self._delivered.get(key)
            if delivered is None:
                delivered = self._delivered[key] = await self._read_after_save(index)
            if record.position in delivered:
                return True
        return False

    async def _read_after_save(self, queue: QueueIndex) -> set[int]:
        """Return the scheduled positions of all delivered records in a queue after the checkpoint."""
        found: set[int] = set()
        end = queue.offset_max
        while end > queue.offset_min:
            start = max(queue.offset_min, end - _BATCH)
            entries = await read_entries(queue, start, end - start)
            for at, size, _ in reversed(entries):
                if size == BLANK_ENTRY_SIZE:
                    continue
                if at < self.position:
                    return found
                record = await try_read_record(at, size)
                if record is None or record.sys_flag & TRANSACTION_MASK:
                    continue
                # The first record of a log has position 0, as have records that were never delayed: check its property.
                if record.prepared_position or REAL_TOPIC in properties_of(record):
                    found.add(record.prepared_position)
            end = start
        return found


def _real_queue(record: StoredRecord) -> QueueKey | None:
    """Return the real topic and queue of a delayed message, or None if it names none that is allowed."""
    properties: dict[str, Any] = properties_of(record)
    topic, queue_id = properties.get(REAL_TOPIC), parse_count(properties.get(REAL_QUEUE))
    # A half message cannot be delayed: delivered unchanged, it would never be decided.
    if not topic or topic in {HALF_TOPIC, SCHEDULE_TOPIC} or queue_id is None:
        return None
    return topic, LogicalQueueId(queue_id)
