"""Delivers delayed messages when their time has come.

    SCHEDULE_TOPIC_XXXX / level-1    entry: | position | size | time of delivery |
                                     [ delivered ............ next ][ waiting, in order of time ........
                                                             ^ offset of the level, in config/delayOffset.json

Every message of a level waits equally long, so the queue of a level is in order of delivery time and only its first
waiting entry matters.

Exactly once: delivery and offset move together in memory. The file is written only when everything it counts as
delivered is synced, so a crash never skips a message; and it says how long the log was (`position`), so that after a
crash the messages in doubt are looked for behind that point before they are delivered again: a delivered record
carries the position of its scheduled one. A file that a Java broker wrote has no such point: what it may have delivered
in its last seconds before a crash is delivered once more.

Invariant: whatever lies before the point of the file and was delivered is counted by its offsets. So after a crash the
point stays where it was until every message in doubt was looked for, whoever saves meanwhile.

A message for a logical queue that has moved goes to whoever leads it, who takes it once (`forwarding.py`); while nobody
takes it, its level waits.

The one clock is that of the events. The shortest level bounds how long a new message can go unnoticed.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import msgspec

from holdfast.broker.flow.awaitables import Procedure
from holdfast.broker.flow.request import Refusal, Steps
from holdfast.broker.messages.record_lookup import properties_of, read_entries, read_scheduled, to_draft
from holdfast.broker.messages.writer import REAL_QUEUE, REAL_TOPIC, LogWriter
from holdfast.broker.options import BrokerOptions
from holdfast.broker.relay.message_forwarder import Forwards, Origin
from holdfast.broker.tables.config_store import load_config, write_config
from holdfast.broker.tables.unwritten_files import UnwrittenFiles
from holdfast.machine.effects import Effect, Log, SetTimer, SyncLog
from holdfast.model.delay import DelayLevels
from holdfast.model.numbers import parse_count
from holdfast.model.topic import HALF_TOPIC, SCHEDULE_TOPIC
from holdfast.store.base.config_files import config_path
from holdfast.store.base.disk import Disk
from holdfast.store.message_store import MessageStore
from holdfast.store.queues.queue_log import BLANK_ENTRY_SIZE, QueueLog
from holdfast.wire.cluster.registration import DataVersion
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.records.record import TRANSACTION_MASK, StoredRecord

NAME: Final = "delayOffset.json"
PATH: Final = config_path(NAME)
TIMER: Final = "delays"
RUN_MAX: Final = 256  # messages delivered before other events get their turn
_BATCH: Final = 32
_FORWARD_AGAIN_MS: Final = 1_000


class DelayOffsets(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The file, and the body of the answer to 45. Keys of the table are levels.

    Attributes:
        position: No message that these offsets do not count was delivered before here; None in files of others.
    """

    offset_table: dict[int, int] = {}
    data_version: DataVersion = DataVersion()
    position: int | None = None


class Delays:
    """The schedule of delayed messages.

    Attributes:
        forwards: The way to whoever leads a logical queue; None while there is none.
    """

    def __init__(
        self,
        disk: Disk,
        options: BrokerOptions,
        levels: DelayLevels,
        store: MessageStore,
        writer: LogWriter,
        unwritten: UnwrittenFiles,
    ) -> None:
        self._disk = disk
        self._levels = levels
        self._store = store
        self._writer = writer
        self._unwritten = unwritten
        self._save_interval_ms = options.offset_save_interval_ms
        saved = load_config(disk, NAME, DelayOffsets) or DelayOffsets(position=0)
        self._offsets = dict(saved.offset_table)
        self._version = saved.data_version
        self._saved_offsets = dict(self._offsets)
        self._unsaved: tuple[int, DelayOffsets] | None = None  # waits until the log is synced up to there
        self._save_ms = 0
        self._busy = False
        self.forwards: Forwards | None = None
        # By level: offset and position of what was forwarded and might be again, after a crash.
        self._unsettled: dict[int, deque[tuple[int, int]]] = {}
        self._settled_offsets = dict(self._offsets)
        self._in_doubt = _InDoubt(store.written if saved.position is None else saved.position, store)

    def to_wire(self) -> DelayOffsets:
        """Return the table as tools and replicas get it."""
        return DelayOffsets(offset_table=dict(self._offsets), data_version=self._version)

    def take_over(self, master: DelayOffsets, effects: list[Effect]) -> None:
        """Let a replica, which delivers nothing, know what its master delivered."""
        if master.offset_table != self._offsets:
            self._offsets = dict(master.offset_table)
            self._version = master.data_version
            effects += write_config(self._disk, NAME, self.to_wire())

    def progress(self) -> dict[int, tuple[int, int]]:
        """Return (delivered, scheduled) of every level that was ever used."""
        found = {}
        for level in range(1, len(self._levels) + 1):
            queue = self._store.find_queue(SCHEDULE_TOPIC, level - 1)
            if queue is not None and queue.offset_max:
                found[level] = (self._offsets.get(level, 0), queue.offset_max)
        return found

    # The passing of time.

    def start(self, now_ms: int, effects: list[Effect]) -> None:
        """Begin to deliver."""
        for level in range(1, len(self._levels) + 1):
            queue = self._store.find_queue(SCHEDULE_TOPIC, level - 1)
            end = queue.offset_max if queue is not None else 0
            if self._offsets.get(level, 0) > end:
                # The log lost its end. Messages that now get these offsets again must not count as delivered.
                self._offsets[level] = end
            self._in_doubt.begin(level, self._offsets.get(level, 0), end)
        self._save_ms = now_ms + self._save_interval_ms
        effects.append(SetTimer(TIMER, now_ms))

    def on_timer(self, name: str, now_ms: int, effects: list[Effect]) -> Procedure[list[Effect]] | None:
        """Deliver what is due; the result is what else shall happen when that is done."""
        assert name == TIMER
        self._offer_save(now_ms)
        if self._busy:
            return None  # Waits for the disk; the timer is set again when that ends.
        if not self._store.has_room() or not self._store.writable:
            effects.append(SetTimer(TIMER, now_ms + self._levels.delay_ms(1)))
            return None
        return self._run(now_ms)

    def on_synced(self, position: int, effects: list[Effect]) -> None:
        """Save the offsets, now that everything they count as delivered is on disk."""
        if self._unsaved is not None and self._unsaved[0] <= position:
            saving, self._unsaved = self._unsaved[1], None
            if PATH not in self._unwritten:
                # The previous save is on disk by now; whether this one is will be known at the next.
                self._settled_offsets = self._saved_offsets
            self._saved_offsets = saving.offset_table
            effects += write_config(self._disk, NAME, saving)

    def stop(self, now_ms: int, effects: list[Effect]) -> None:
        """Save once more, when the log is synced: the broker is about to end, and power may yet fail before it has."""
        self._unsaved = (self._store.written, self._snapshot(now_ms))
        effects.append(SyncLog(self._store.files_to_sync(), self._store.written))

    def _offer_save(self, now_ms: int) -> None:
        if now_ms >= self._save_ms and self._unsaved is None and self._offsets != self._saved_offsets:
            self._save_ms = now_ms + self._save_interval_ms
            self._unsaved = (self._store.written, self._snapshot(now_ms))

    def _snapshot(self, now_ms: int) -> DelayOffsets:
        version = self._version
        self._version = DataVersion(state_version=version.state_version, timestamp=now_ms, counter=version.counter + 1)
        position = self._store.written if self._in_doubt.is_over else self._in_doubt.position
        return DelayOffsets(offset_table=dict(self._offsets), data_version=self._version, position=position)

    # Delivering.

    def _run(self, now_ms: int) -> Procedure[list[Effect]]:
        """Deliver what is due, level by level, and say when to look again."""
        effects: list[Effect] = []
        next_ms = now_ms + min(self._levels.delay_ms(level) for level in range(1, len(self._levels) + 1))
        left = RUN_MAX
        self._busy = True
        # What comes while this waits for the disk is judged by a later run: *now_ms* is of before it was there.
        queues = {level: self._store.find_queue(SCHEDULE_TOPIC, level - 1) for level in range(1, len(self._levels) + 1)}
        ends = {level: queue.offset_max for level, queue in queues.items() if queue is not None}
        try:
            for level, end in ends.items():
                queue = queues[level]
                if queue is None or end <= self._offsets.get(level, 0):
                    continue
                before = self._offsets.get(level, 0)
                due_ms = yield from self._run_level(level, queue, (left, end), now_ms, effects)
                left -= self._offsets.get(level, 0) - before
                next_ms = min(next_ms, due_ms)
        finally:
            self._busy = False
        return [*effects, SetTimer(TIMER, next_ms)]

    def _run_level(
        self, level: int, queue: QueueLog, limits: tuple[int, int], now_ms: int, effects: list[Effect]
    ) -> Procedure[int]:
        """Deliver due messages of one level, up to (count, end offset) as *limits*; return when the next one is due."""
        left, end = limits
        offset = max(self._offsets.get(level, 0), queue.offset_min)
        latest_ms = now_ms + self._levels.delay_ms(level)
        while left > 0 and offset < end:
            entries = yield from read_entries(queue, offset, min(left, _BATCH, end - offset))
            if not entries:
                break
            for position, size, due_ms in entries:
                # A time beyond the level's own delay means that a clock was wrong: upstream delivers at once.
                is_waiting = now_ms < due_ms <= latest_ms
                if is_waiting and not (yield from self._was_delivered_early(level, offset, position, size)):
                    self._in_doubt.resolve(level)  # Delivered in order: none behind this one was.
                    return due_ms
                if not is_waiting and size != BLANK_ENTRY_SIZE:
                    is_done = yield from self._deliver(level, offset, position, size, now_ms, effects)
                    if not is_done:
                        return now_ms + _FORWARD_AGAIN_MS
                offset += 1
                left -= 1
                # At once: a save between two steps must count what is already in the log.
                self._offsets[level] = offset
        if offset >= end:
            self._in_doubt.resolve(level)
        return now_ms if offset < queue.offset_max else latest_ms

    def _deliver(
        self, level: int, offset: int, position: int, size: int, now_ms: int, effects: list[Effect]
    ) -> Procedure[bool]:
        """Put one message where it was meant to go; False when nobody takes it now."""
        record = yield from read_scheduled(position, size)
        place = _real_place(record) if record is not None else None
        if record is None or place is None:
            effects.append(
                Log("error", "delayed message lost", {"level": level, "offset": offset, "position": position})
            )
            return True
        topic, queue_id = place
        origin = self._find_origin(level, position)
        was_delivered = yield from self._in_doubt.was_delivered(
            level, offset, record, topic, self._writer.homes(*place)
        )
        if was_delivered or (self.forwards is not None and self.forwards.is_taken(origin)):
            return True
        properties = properties_of(record)
        properties["WAIT"] = "false"
        draft = to_draft(record, properties, topic=topic, queue_id=queue_id)
        draft.sys_flag &= ~TRANSACTION_MASK
        draft.prepared_position = position
        stored = self._writer.append(draft, now_ms)
        if isinstance(stored, Refusal):
            if stored.code == ResponseCode.NOT_LEADER_FOR_QUEUE:
                is_taken = self.forwards is not None and (yield from self.forwards.send(draft, origin))
                if is_taken:
                    self._unsettled.setdefault(level, deque()).append((offset, position))
                return is_taken
            effects.append(Log("error", "delayed message lost", {"position": position, "reason": stored.remark}))
        return True

    def _was_delivered_early(self, level: int, offset: int, position: int, size: int) -> Steps[bool]:
        """Say whether a message that has to wait was delivered before a crash, by a clock that has gone back since."""
        if not self._in_doubt.is_open(level):
            return False
        record = yield from read_scheduled(position, size)
        place = _real_place(record) if record is not None else None
        if record is None or place is None:
            return False
        return (yield from self._in_doubt.was_delivered(level, offset, record, place[0], self._writer.homes(*place)))

    def _find_origin(self, level: int, position: int) -> Origin:
        """Return where a message stands, and from where on messages of its level may be forwarded again."""
        waiting = self._unsettled.get(level, deque())
        while waiting and waiting[0][0] < self._settled_offsets.get(level, 0):
            waiting.popleft()
        return Origin(f"level {level}", position, waiting[0][1] if waiting else position)


class _InDoubt:
    """What may have been delivered between the last save of the offsets and a crash.

    Attributes:
        position: The point of that save.
    """

    def __init__(self, position: int, store: MessageStore) -> None:
        self.position = position
        self._store = store
        self._delivered: dict[tuple[str, int], set[int]] = {}
        self._ends: dict[int, int] = {}  # by level, of what was scheduled before the crash
        self._open: set[int] = set()

    @property
    def is_over(self) -> bool:
        """Whether everything that was delivered before the crash is counted."""
        return not self._open

    def is_open(self, level: int) -> bool:
        """Say whether messages of a level may still be found delivered."""
        return level in self._open

    def begin(self, level: int, offset: int, end: int) -> None:
        """Doubt what stands on a level between these offsets."""
        self._ends[level] = end
        if offset < end:
            self._open.add(level)

    def resolve(self, level: int) -> None:
        """Take note that what was delivered of a level is counted."""
        self._open.discard(level)

    def was_delivered(
        self, level: int, offset: int, record: StoredRecord, topic: str, queue_ids: list[int]
    ) -> Steps[bool]:
        """Say whether *record* is found delivered, in one of these queues, behind the point of the last save."""
        if offset >= self._ends.get(level, 0):
            return False
        for queue_id in queue_ids:
            delivered = self._delivered.get((topic, queue_id))
            if delivered is None:
                delivered = yield from self._read_after_save(topic, queue_id)
                self._delivered[topic, queue_id] = delivered
            if record.position in delivered:
                return True
        return False

    def _read_after_save(self, topic: str, queue_id: int) -> Steps[set[int]]:
        """Return the scheduled positions of all records in a queue that lie behind the point in the log."""
        found: set[int] = set()
        queue = self._store.find_queue(topic, queue_id)
        if queue is None:
            return found
        end = queue.offset_max
        while end > queue.offset_min:
            start = max(queue.offset_min, end - _BATCH)
            entries = yield from read_entries(queue, start, end - start)
            for at, size, _ in reversed(entries):
                if size == BLANK_ENTRY_SIZE:
                    continue
                if at < self.position:
                    return found
                record = yield from read_scheduled(at, size)
                if record is None or record.sys_flag & TRANSACTION_MASK:
                    continue
                # The very first record of a log lies at 0, which is also what others have here: its property tells.
                if record.prepared_position or REAL_TOPIC in properties_of(record):
                    found.add(record.prepared_position)
            end = start
        return found


def _real_place(record: StoredRecord) -> tuple[str, int] | None:
    """Return the topic and queue that a delayed message is meant for, or None when that cannot be told."""
    properties: dict[str, Any] = properties_of(record)
    topic, queue_id = properties.get(REAL_TOPIC), parse_count(properties.get(REAL_QUEUE), -1)
    # A half message cannot be delayed: delivered as it is, it would be one that nobody decides about.
    if not topic or topic in {HALF_TOPIC, SCHEDULE_TOPIC} or queue_id < 0:
        return None
    return topic, queue_id
