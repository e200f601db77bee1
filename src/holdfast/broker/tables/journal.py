"""Records of one system topic, which repeat the changes of a table at the next start.

    change ─> a record in the log, written at once ─┬─> the table
                                                    └─> one sync covers it and every message before it

A `KeptFile` is enough for a value of which only the newest version counts. A journal keeps every change, in order with
the messages around it.

The log deletes its oldest records. So the owner of a journal either saves a snapshot in a `KeptFile` that waits for the
log, and continues from the position in it, or it needs only the newest records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Generic, TypeVar

import msgspec

from holdfast.model.errors import CorruptRecord, RecordRefused
from holdfast.store.message_store import MessageStore

_NO_HOST: Final = bytes(8)
_RECORD_REST_MAX: Final = 256  # upper bound for the size of a record without its body

_T = TypeVar("_T", bound=msgspec.Struct)


class Journal(Generic[_T]):
    """The records of *topic*; the body of each is a *kind* as JSON."""

    def __init__(self, store: MessageStore, topic: str, kind: type[_T]) -> None:
        self._store = store
        self._topic = topic
        self._kind = kind

    def append(self, changes: Sequence[_T], now_ms: int) -> int:
        """Write a record of each change, and everything that was staged before: it cannot be rolled back any more.

        Return the position up to which the log must be synced for the changes to be durable.

        Raises:
            DiskFailed, RecordRefused: The records could not be written; nothing has changed.
        """
        queue = self._store.queue(self._topic, 0)
        bodies = [msgspec.json.encode(change) for change in changes]
        size = max(map(len, bodies))
        if size > self._store.log_file_size - _RECORD_REST_MAX:
            raise RecordRefused(f"the log files are too small for a record of {size} bytes in {self._topic}")
        # Not checked against the message size limit: these are not messages.
        self._store.stage_run([(queue, body, b"", 0, 0, now_ms, _NO_HOST, 0, 0, 0) for body in bodies], now_ms)
        self._store.write()
        return self._store.written

    def find_from(self, position: int) -> range:
        """Return the offsets of the records at or after a position of the log."""
        queue = self._store.find_queue(self._topic, 0)
        if queue is None:
            return range(0)
        return range(queue.find_from(position), queue.offset_max)

    def find_newest(self, count: int) -> range:
        """Return the offsets of the newest records, up to *count*."""
        queue = self._store.find_queue(self._topic, 0)
        return range(0) if queue is None else range(max(queue.offset_min, queue.offset_max - count), queue.offset_max)

    def read(self, offset: int) -> _T | None:
        """Return one record; None if recovery blanked it out. May block on the disk, so call it only while opening.

        Raises:
            CorruptRecord: The record cannot be read.
        """
        position = self._store.queue(self._topic, 0).get_entry(offset)[0]
        record = self._store.read_record(position)
        if record is None:
            return None
        try:
            return msgspec.json.decode(record.body, type=self._kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise CorruptRecord(position, str(error)) from error
