"""The progress of exactly-once sinks in the queues that are led here.

    (topic, queue) ─> (query, partition) ─> batch 7: 40 rows, checksum, complete or not

    a request that continues exactly there     is accepted
    another request of the same batch          gets the progress of the batch; its writer resumes after that, if the
                                               rows before it have the same checksum
    a request of an older batch                is refused: its query has continued without it
    a request of a complete batch              gets the progress, too: all its rows are stored

So two attempts of one task, one of them a zombie, write the same rows only once. Each record carries the progress up to
its last row. On start the progress is rebuilt from its last snapshot and the records after it. It moves with its queue.
If a leader was replaced by force, the rows that it stored are unknown: the queue refuses a writer that it does not
know, unless the request allows that.

Invariant: progress that is returned was acknowledged. While a batch is not durable, or waits for a replica, the request
is refused with SYSTEM_BUSY and comes again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from holdfast.broker.flow.component import SAVE_TIMER
from holdfast.broker.flow.request import Refusal, Timers
from holdfast.broker.mapping.mapping_table import Mappings
from holdfast.broker.tables.config_file import config_file
from holdfast.machine.component import Component
from holdfast.machine.kept_file import KeptFile
from holdfast.machine.turn import Turn
from holdfast.model.errors import CorruptRecord
from holdfast.model.numbers import Int64
from holdfast.model.queue import LogicalQueueId
from holdfast.store.base.disk import Disk
from holdfast.store.message_store import MessageStore
from holdfast.store.queues.queue_index import BLANK_ENTRY_SIZE, ENTRY, QueueIndex
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.requests.sink import SinkStamp, SinkState, find_state, to_state

NAME: Final = "holdfastSink.json"
WRITERS_MAX: Final = 4096
"""Maximum number of query partitions that a queue remembers. The least recent writers are dropped first."""
_LOG_GROWTH_MIN: Final = 64 * 1024 * 1024  # growth of the log after which even unchanged progress is saved

_ENTRIES_AT_ONCE: Final = 1024

Writer = tuple[str, int]
"""Query and partition."""


class SinkSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """`config/holdfastSink.json`: the combined progress of all records before *position* of the log, by topic."""

    position: Int64 = 0
    topics: dict[str, list[SinkState]] = {}


class SinkProgress(Component):
    """Remembers the written rows, and validates new ones.

    Args:
        disk: The disk with the file.
        store: The store with the records.
        mappings: The mappings of this broker.
        is_acknowledged: Returns whether a record at this position would already be acknowledged.
        turn: The turn of the broker.
    """

    def __init__(
        self,
        disk: Disk,
        store: MessageStore,
        mappings: Mappings,
        is_acknowledged: Callable[[int], bool],
        turn: Turn,
    ) -> None:
        self._turn = turn
        self._store = store
        self._mappings = mappings
        self._is_acknowledged = is_acknowledged
        self._table: dict[tuple[str, int], dict[Writer, SinkState]] = {}
        self._undo: dict[tuple[str, int, Writer], SinkState | None] = {}
        self._saved_position: int | None = None
        self._file = config_file(
            turn, disk, NAME, SinkSnapshot, self._take_snapshot, log_end=lambda: int(self._store.written)
        )
        self._load()

    # Sends.

    def validate(self, topic: str, queue: LogicalQueueId, stamp: SinkStamp) -> Refusal | None:
        """Return why rows cannot be accepted now, or None if they can."""
        known = self._table.get((topic, queue), {}).get((stamp.query, stamp.partition))
        if known is None or known.batch < stamp.batch:
            return self._check_new(topic, queue, stamp, is_known=known is not None)
        if known.batch > stamp.batch:
            text = f"batch {stamp.batch} of query {stamp.query} is over: batch {known.batch} has begun"
            return Refusal(ResponseCode.SINK_REFUSED, text)
        if not self._is_acknowledged(known.position - 1):
            # The writer would rely on this progress, but the write may still fail, or be lost before a replica has it.
            return Refusal(ResponseCode.SYSTEM_BUSY, "the rows of an earlier attempt are not durable yet; try again")
        if known.is_over or (known.count, known.checksum) != (stamp.first, stamp.checksum_before):
            return Refusal(ResponseCode.SINK_OUT_OF_SEQUENCE, msgspec.json.encode(known).decode())
        return None

    def _check_new(self, topic: str, queue: LogicalQueueId, stamp: SinkStamp, *, is_known: bool) -> Refusal | None:
        if not is_known and not stamp.accepts_unknown and self._was_forced(topic, queue):
            return Refusal(
                ResponseCode.SINK_REFUSED,
                f"logical queue {queue} of {topic} was moved away from a dead broker, and it is unknown which rows of "
                f"query {stamp.query} that broker stored: check the stored rows, then let the query write with "
                "acceptUnknown=true",
            )
        if stamp.first:
            state = SinkState(
                queue=queue, query=stamp.query, partition=stamp.partition, batch=stamp.batch, count=0, checksum=0
            )
            return Refusal(ResponseCode.SINK_OUT_OF_SEQUENCE, msgspec.json.encode(state).decode())
        return None

    def note_staged(self, topic: str, queue: LogicalQueueId, stamp: SinkStamp, position: int) -> None:
        """Note rows that were staged, the last of them at *position*."""
        state = msgspec.structs.replace(to_state(stamp, queue), position=position + 1, changed_ms=self._turn.now_ms)
        writer = (stamp.query, stamp.partition)
        self._undo = {key: previous for key, previous in self._undo.items() if not self._is_written(key)}
        self._undo.setdefault((topic, queue, writer), self._table.get((topic, queue), {}).get(writer))
        self._put(topic, state)
        self._file.mark_changed()

    def roll_back(self) -> None:
        """Roll back the progress of rows that were staged and then discarded."""
        for key, previous in self._undo.items():
            if not self._is_written(key):
                topic, queue, writer = key
                self._table[topic, queue].pop(writer)
                if previous is not None:
                    self._table[topic, queue][writer] = previous
        self._undo = {}

    def _is_written(self, key: tuple[str, int, Writer]) -> bool:
        topic, queue, writer = key
        noted = self._table.get((topic, queue), {}).get(writer)
        return noted is None or noted.position <= self._store.written

    def _was_forced(self, topic: str, queue: LogicalQueueId) -> bool:
        mapping = self._mappings.find(topic)
        found = None if mapping is None else mapping.queues.get(queue)
        return found is not None and any(segment.forced for segment in found.segments)

    def _put(self, topic: str, state: SinkState) -> None:
        writers = self._table.setdefault((topic, state.queue), {})
        writers.pop((state.query, state.partition), None)  # so that the newest is the last
        writers[state.query, state.partition] = state
        if len(writers) > WRITERS_MAX:
            del writers[next(iter(writers))]

    # Moves.

    def pack(self, topic: str, queues: Collection[LogicalQueueId]) -> list[SinkState]:
        """Return the progress that moves with these queues."""
        return [state for queue in queues for state in self._table.get((topic, queue), {}).values()]

    def adopt(self, topic: str, states: Iterable[SinkState]) -> None:
        """Add the progress that moved here with queues, unless more progress is known."""
        for state in states:
            known = self._table.get((topic, state.queue), {}).get((state.query, state.partition))
            if known is None or (known.batch, known.count) < (state.batch, state.count):
                self._put(topic, msgspec.structs.replace(state, position=0))
                self._file.mark_changed()

    def led(self, topic: str) -> list[int]:
        """Return the queues of *topic* that are led here."""
        return list(self._mappings.led_queues(topic))

    def forget(self, topic: str, queues: Iterable[LogicalQueueId]) -> None:
        """Drop the progress of queues that other brokers lead now."""
        for queue in queues:
            if self._table.pop((topic, queue), None) is not None:
                self._file.mark_changed()

    # Persistence.

    def timers(self) -> Timers:
        """Return the timers of this component, by name."""
        return {SAVE_TIMER: self._watch_growth}

    def files(self) -> Sequence[KeptFile[Any]]:
        """Return the files of this component."""
        return (self._file,)

    def _watch_growth(self) -> None:
        """Request a snapshot if the log has grown: a start reads the records after the last one."""
        saved = self._saved_position
        if self._mappings.topics() and (saved is None or self._store.written - saved > _LOG_GROWTH_MIN):
            self._file.mark_changed()

    def _take_snapshot(self) -> SinkSnapshot:
        topics: dict[str, list[SinkState]] = {}
        for (topic, _), writers in self._table.items():
            topics.setdefault(topic, []).extend(writers.values())
        self._saved_position = position = int(self._store.written)
        return SinkSnapshot(position=position, topics=topics)

    def _load(self) -> None:
        """Read the snapshot and the records after it. Blocks on the disk, so call it only while the broker starts."""
        snapshot = self._file.load()
        if snapshot is not None:
            self._saved_position = snapshot.position
            for topic, states in snapshot.topics.items():
                for state in states:
                    if state.position <= self._store.written:
                        self._put(topic, state)
        # A log that was truncated below the snapshot reuses the same positions, so read all of it.
        saved = self._saved_position
        start = saved if saved is not None and saved <= self._store.written else 0
        for topic in self._mappings.topics():
            for queue in self._mappings.led_queues(topic):
                log = self._mappings.placement(topic, queue).queue_index
                if log is not None:
                    self._load_queue(topic, queue, log, start)

    def _load_queue(self, topic: str, queue: LogicalQueueId, log: QueueIndex, start: int) -> None:
        for position in _positions(log, log.find_from(start)):
            try:
                record = self._store.read_record(position)
            except CorruptRecord:
                continue  # No consumer can read it either; recovery reports it.
            state = None if record is None else find_state(record.properties, queue)
            if state is not None:
                self._put(topic, msgspec.structs.replace(state, position=position + 1))
                self._file.mark_changed()


def _positions(log: QueueIndex, offset: int) -> Iterator[int]:
    """Yield the position of each record from *offset* on, once even if the record is a batch."""
    while offset < log.offset_max:
        raw, spans = log.read_range(offset, _ENTRIES_AT_ONCE)
        for position, size, _ in ENTRY.iter_unpack(raw):
            if size != BLANK_ENTRY_SIZE:
                yield position
        offset = offset + len(raw) // ENTRY.size if spans is None else spans[-1][1]
