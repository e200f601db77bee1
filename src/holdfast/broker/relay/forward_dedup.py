"""Deduplicates forwarded messages: the names of those that this broker has stored.

    SYS_HOLDFAST_FORWARDS / 0    {"source", "stream", "position", "topic", "queue", "settled", "at"}

A forwarded message has a name: its source broker, stream, and position in that broker's log. A record of the name is
written together with the message. After a restart these records are read again; one counts if its message is in the
log (`at`). Names move with their queue. A name is forgotten when the sender reports that it will not repeat the
message, and the oldest names are dropped if there are too many.

Invariant: a name is known here when its message is in the log, and not before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

from holdfast.broker.tables.journal import Journal
from holdfast.machine.turn import Turn
from holdfast.model.errors import CorruptRecord
from holdfast.model.numbers import Int64
from holdfast.model.queue import LogicalQueueId
from holdfast.model.topic import FORWARD_TOPIC
from holdfast.store.message_store import MessageStore
from holdfast.wire.records.record import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from holdfast.wire.requests.forward import AcceptedForward, ForwardFields, ForwardName

NAMES_MAX: Final = 16_384
"""Maximum number of names of one stream, and of records read after a restart."""

STREAMS_MAX: Final = 4_096


class _Record(AcceptedForward, frozen=True, kw_only=True):
    """The body of a record.

    Attributes:
        settled: The sender will not repeat messages before this position.
        at: The position of the message in this log.
    """

    settled: Int64
    at: Int64


class ForwardedNames:
    """Names of stored messages, by stream.

    Args:
        store: The store with the names.
        is_acknowledged: Returns whether a record at this position would already be acknowledged.
        turn: The turn of the broker.
    """

    def __init__(self, store: MessageStore, is_acknowledged: Callable[[int], bool], turn: Turn) -> None:
        self._turn = turn
        self._store = store
        self._journal = Journal(store, FORWARD_TOPIC, _Record)
        self._is_acknowledged = is_acknowledged
        self._streams: dict[tuple[str, str], dict[int, AcceptedForward]] = {}
        for record in self._read():
            self._insert(record, record.settled)

    def __contains__(self, name: ForwardName) -> bool:
        return name.position in self._streams.get((name.source, name.stream), {})

    def is_pending(self, name: ForwardName) -> bool:
        """Return whether a known message is not yet durable enough for its sender to forget it."""
        mark = self._streams[name.source, name.stream][name.position]
        return isinstance(mark, _Record) and not self._is_acknowledged(mark.at)

    def add(self, fields: ForwardFields, at: int) -> None:
        """Record the name of a message staged for position *at*, and write both: a known name cannot be rolled back.

        Raises:
            DiskFailed: The write failed, and the name is not known.
        """
        record = _Record(
            source=fields.source,
            stream=fields.stream,
            position=fields.position,
            topic=fields.topic,
            queue=fields.queue_id,
            settled=fields.settled,
            at=at,
        )
        self._journal.append([record], self._turn.now_ms)
        self._insert(record, fields.settled)

    def names_of(self, topic: str, queues: Collection[LogicalQueueId]) -> list[AcceptedForward]:
        """Return the names of the messages in these queues."""
        return [
            mark
            for stream in self._streams.values()
            for mark in stream.values()
            if mark.topic == topic and mark.queue in queues
        ]

    def adopt(self, marks: Iterable[AcceptedForward]) -> None:
        """Record the names that moved here with a queue. The record of the move persists them."""
        for mark in marks:
            self._insert(mark, settled=0)

    def _insert(self, mark: AcceptedForward, settled: int) -> None:
        key = (mark.source, mark.stream)
        stream = self._streams.setdefault(key, {})
        stream[mark.position] = mark
        # Oldest first, which is nearly the order of positions. A name that stays a little longer does no harm.
        while (oldest := next(iter(stream))) < settled or len(stream) > NAMES_MAX:
            del stream[oldest]
        if len(self._streams) > STREAMS_MAX:
            del self._streams[next(iter(self._streams))]

    def _read(self) -> Iterable[_Record]:
        """Yield the newest records, oldest first. Blocks on the disk, so call it only while the broker starts."""
        for offset in self._journal.find_newest(NAMES_MAX):
            try:
                record = self._journal.read(offset)
            except CorruptRecord:
                continue  # Its message may then be stored twice, which is better than not at all.
            if record is not None and self._is_message_stored(record):
                yield record

    def _is_message_stored(self, record: _Record) -> bool:
        """Return whether the message of a record is in the log: a power failure may lose it and keep the record."""
        try:
            message = self._store.read_record(record.at)
        except CorruptRecord:
            return False
        # A repaired range of the log holds a filler record, marked as rolled back, in place of the lost bytes.
        is_repaired = message is None or message.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK
        return message is not None and not is_repaired and message.topic == record.topic
