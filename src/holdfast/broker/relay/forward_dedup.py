"""Which forwarded messages this broker has taken, so that it takes none of them twice.

    SYS_HOLDFAST_FORWARDS / 0    {"source", "stream", "position", "topic", "queue", "settled", "at"}

A forwarded message has a name: the broker it comes from, and where it stood in that broker's log. With the message a
record of its name is written; read again after a restart, it counts if the message is there (`at`). Names go along when
their queue moves. What the sender says will never come again is forgotten, and the oldest where there are too many.

Invariant: a name is known here when its message is in the log, and not before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

import msgspec

from holdfast.model.errors import CorruptRecord
from holdfast.model.numbers import Int64
from holdfast.model.topic import FORWARD_TOPIC
from holdfast.store.message_store import MessageStore
from holdfast.wire.records.record import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from holdfast.wire.requests.forward import ForwardFields, ForwardMark, ForwardName

KEPT_MAX: Final = 16_384
"""Names of one stream; and how many records are read after a restart."""

STREAMS_MAX: Final = 4_096
_NO_HOST: Final = bytes(8)


class _Record(ForwardMark, frozen=True, kw_only=True):
    """The body of a record.

    Attributes:
        settled: As the sender said.
        at: Where the message is in this log.
    """

    settled: Int64
    at: Int64


class Forwarded:
    """Names of messages, by stream.

    Attributes:
        is_settled: Says whether the record at a position was acknowledged, if it ever will be.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self.is_settled: Callable[[int], bool] = lambda position: position < store.confirmed
        self._streams: dict[tuple[str, str], dict[int, ForwardMark]] = {}
        for record in self._read():
            self._keep(record, record.settled)

    def __contains__(self, name: ForwardName) -> bool:
        return name.position in self._streams.get((name.source, name.stream), {})

    def is_under_way(self, name: ForwardName) -> bool:
        """Return whether a message that is known is not as safe yet as it has to be before its sender forgets it."""
        mark = self._streams[name.source, name.stream][name.position]
        return isinstance(mark, _Record) and not self.is_settled(mark.at)

    def note(self, fields: ForwardFields, at: int, now_ms: int) -> None:
        """Remember a message that was staged for position *at*, and write both: what is known cannot be taken back.

        Raises:
            DiskFailed: it could not be written, and is not known.
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
        queue = self._store.queue(FORWARD_TOPIC, 0)
        self._store.stage(queue, msgspec.json.encode(record), b"", 0, 0, now_ms, _NO_HOST, 0, now_ms)
        self._store.write()
        self._keep(record, fields.settled)

    def of(self, topic: str, queues: Collection[int]) -> list[ForwardMark]:
        """Return the names of what is in these queues."""
        return [
            mark
            for stream in self._streams.values()
            for mark in stream.values()
            if mark.topic == topic and mark.queue in queues
        ]

    def adopt(self, marks: Iterable[ForwardMark]) -> None:
        """Remember what came along with a queue; the record of its move has it, too."""
        for mark in marks:
            self._keep(mark, -1)

    def _keep(self, mark: ForwardMark, settled: int) -> None:
        key = (mark.source, mark.stream)
        stream = self._streams.setdefault(key, {})
        stream[mark.position] = mark
        # Oldest first, which is nearly the order of positions. What stays a little longer does no harm.
        while (oldest := next(iter(stream))) < settled or len(stream) > KEPT_MAX:
            del stream[oldest]
        if len(self._streams) > STREAMS_MAX:
            del self._streams[next(iter(self._streams))]

    def _read(self) -> Iterable[_Record]:
        """Yield the newest records, oldest first. Waits for the disk: only while opening."""
        queue = self._store.find_queue(FORWARD_TOPIC, 0)
        if queue is None:
            return
        for offset in range(max(queue.offset_min, queue.offset_max - KEPT_MAX), queue.offset_max):
            try:
                found = self._store.read_record(queue.get_entry(offset)[0])
                record = None if found is None else msgspec.json.decode(found.body, type=_Record)
            except (CorruptRecord, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                continue  # Then its message may be taken twice, which is better than not at all.
            if record is not None and self._is_there(record):
                yield record

    def _is_there(self, record: _Record) -> bool:
        """Return whether the message of a record is in the log: when power is lost it may be gone, and this not."""
        try:
            message = self._store.read_record(record.at)
        except CorruptRecord:
            return False
        # Where the log was mended there is a record too, but one that stands for lost bytes.
        is_mended = message is None or message.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK
        return message is not None and not is_mended and message.topic == record.topic
