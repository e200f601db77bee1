"""Append records to the log: stage them, then write all staged records with one call.

    staged   [header, body, tail, header, body, tail, ...]     pieces; bodies are views of the receive buffer
    written  [start ............ written)                      one `File.write` per event
    batches  (end, queues, entries) of the records that are written but not confirmed

A record never crosses the end of a file. If it does not fit, a blank fills the file, and the next file begins.

This is the hot path of a send: the body of `stage_run` runs once per message, and prefers speed to brevity. This module
has no clock: callers pass store times, which are only kept from decreasing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from holdfast.model.errors import DiskFailed, RecordRefused
from holdfast.store.base.disk import File, Piece
from holdfast.store.base.index_fields import INNER_BITS, NOT_QUEUED, inner_count, with_inner_base
from holdfast.store.base.log_file import LogFiles
from holdfast.store.base.options import StoreOptions
from holdfast.store.log.batch_records import PackedItems, pack_items
from holdfast.store.queues.consume_queue import HOST_V6_EXTRA
from holdfast.store.queues.queue_index import ENTRY, QueueIndex
from holdfast.wire.records.properties import PROPERTIES_SIZE_MAX
from holdfast.wire.records.record import (
    BLANK,
    BLANK_SIZE,
    BORN_HOST_V6,
    CRC_MASK,
    INNER_BATCH,
    LAYOUTS,
    MAGIC_BLANK,
    STORE_HOST_V6,
    crc32,
)

FOLDER = "commitlog"

UnconfirmedWrite = tuple[int, list[QueueIndex], list[bytes]]

RecordDraft = tuple[QueueIndex, Piece, bytes, int, int, int, bytes, int, int, int]
"""The arguments of `stage`, without the store time. A plain tuple, because there is one for every message."""

_pack_entry = ENTRY.pack
_NOT_PLAIN = NOT_QUEUED | INNER_BATCH
_NO_HOST_BITS = ~(BORN_HOST_V6 | STORE_HOST_V6)
_SMALL_SIZES = tuple(size.to_bytes(2, "big") for size in range(1024))


class CommitLog:
    """The end of the log, where records are appended.

    Invariant: nothing is staged between events; batches are in the order of their ends.
    """

    def __init__(self, files: LogFiles, options: StoreOptions, *, written: int, store_ms: int) -> None:
        self.files = files
        self.written = written
        self.store_ms = store_ms  # Of the newest record: store times never decrease along the log.
        self.fault: str | None = None  # Why no more writes are accepted.
        self.unconfirmed_writes: deque[UnconfirmedWrite] = deque()
        self._host = options.store_host
        store_bit = STORE_HOST_V6 if len(options.store_host) != 8 else 0
        self._bits_v4, self._bits_v6 = store_bit, store_bit | BORN_HOST_V6
        self._pack_v4, self._pack_v6 = LAYOUTS[store_bit >> 4].pack, LAYOUTS[store_bit >> 4 | 1].pack
        self._body_size_max = options.body_size_max
        self._unsynced: dict[File, None] = {}
        # (start, end, pieces) of files that became full during staging
        self._runs: list[tuple[int, int, list[Piece]]] = []
        self._reset()

    def _reset(self) -> None:
        self._next = self.written
        self._file_end = self.written - self.written % self.files.size + self.files.size
        self._pieces: list[Piece] = []
        self._run_start = self.written
        self._queues: list[QueueIndex] = []
        self._entries: list[bytes] = []

    def stage(  # noqa: PLR0913, PLR0917 - the fields of a record
        self,
        queue: QueueIndex,
        body: Piece,
        properties: bytes,
        flag: int,
        sys_flag: int,
        born_ms: int,
        born_host: bytes,
        tags_code: int,
        store_ms: int,
        reconsume_times: int = 0,
        prepared_position: int = 0,
    ) -> tuple[int, int]:
        """Stage a record for the next `write`. Return its position and its offset in the queue.

        *body* may be a view of the receive buffer: it is not copied, so call `write` before the event ends. Prepared
        and rollback records get offset 0 and no entry in the queue.

        Raises:
            RecordRefused: it is too large, states an invalid number of messages, or the store accepts no writes.
                Nothing was staged.
        """
        if len(body) > self._body_size_max or len(properties) > PROPERTIES_SIZE_MAX:
            raise self._refusal(len(body), len(properties))
        draft = (
            queue, body, properties, flag, sys_flag, born_ms, born_host, tags_code, reconsume_times, prepared_position
        )  # fmt: skip
        return self.stage_run((draft,), store_ms)[0]

    def stage_run(self, drafts: Sequence[RecordDraft], store_ms: int) -> list[tuple[int, int]]:
        """Stage many records, each as in `stage`. The caller has checked that none is too large.

        Raises:
            RecordRefused: the store accepts no writes. Nothing was staged.
        """
        if self.fault is not None:
            raise self._refusal(0, 0)
        store_ms = self.store_ms = max(store_ms, self.store_ms)
        staged: list[tuple[int, int]] = []
        pieces, queues, entries, host = self._pieces, self._queues, self._entries, self._host
        position, usable_end = self._next, self._file_end - BLANK_SIZE
        for (
            queue, body, properties, flag, sys_flag, born_ms, born_host, tags_code, reconsume_times, prepared_position
        ) in drafts:  # fmt: skip
            count = 1
            if sys_flag & _NOT_PLAIN:
                self._next = position
                properties, count = self._inspect(queue, properties, sys_flag)  # noqa: PLW2901 - as the record has them
            body_size = len(body)
            properties_size = len(properties)
            size = queue.header_size + body_size + properties_size
            if len(born_host) == 8:
                pack, host_bits = self._pack_v4, self._bits_v4
            else:
                size += HOST_V6_EXTRA
                pack, host_bits = self._pack_v6, self._bits_v6
            if position + size > usable_end:
                self._next = position
                self._roll(size)
                pieces, position, usable_end = self._pieces, self._next, self._file_end - BLANK_SIZE
            if count:
                offset = queue.next_offset
                queue.next_offset = offset + count
                queues.append(queue)
                if queue.has_plain_entries:
                    entries.append(_pack_entry(position, size, tags_code))
                else:
                    entries.append(queue.pack_entry(position, size, tags_code, store_ms, offset, count))
            else:
                offset = 0
            pieces += (
                pack(
                    size, queue.magic, crc32(body) & CRC_MASK, queue.queue_id, flag, offset, position,
                    sys_flag & _NO_HOST_BITS | host_bits, born_ms, born_host, store_ms, host, reconsume_times,
                    prepared_position, body_size,
                ),
                body,
                queue.topic_part
                + (_SMALL_SIZES[properties_size] if properties_size < 1024 else properties_size.to_bytes(2, "big"))
                + properties,
            )  # fmt: skip
            staged.append((position, offset))
            position += size
        self._next = position
        return staged

    def pack_batch(
        self,
        queue: QueueIndex,
        batch: Piece,
        sys_flag: int,
        born_ms: int,
        born_host: bytes,
        store_ms: int,
        reconsume_times: int,
    ) -> PackedItems | None:
        """Return the records of a batch that is split, for `stage_packed`; None if `stage_run` must stage its messages.

        Nothing is staged yet, and nothing else may be staged in between.
        """
        if self.fault is not None or sys_flag & _NOT_PLAIN or not queue.has_plain_entries:
            return None
        if len(born_host) == 8:
            pack, host_bits = self._pack_v4, self._bits_v4
        else:
            pack, host_bits = self._pack_v6, self._bits_v6
        self.store_ms = max(store_ms, self.store_ms)
        head = pack(
            0, queue.magic, 0, queue.queue_id, 0, 0, 0, sys_flag & _NO_HOST_BITS | host_bits, born_ms, born_host,
            self.store_ms, self._host, reconsume_times, 0, 0,
        )  # fmt: skip
        return pack_items(
            batch, head, queue.topic_part, queue.next_offset, self._next, self._file_end - BLANK_SIZE,
            self._body_size_max,
        )  # fmt: skip

    def stage_packed(self, queue: QueueIndex, packed: PackedItems) -> int:
        """Stage the records that `pack_batch` returned. Return the offset of the first in the queue."""
        pieces, entries, positions, _ = packed
        assert positions[0] == self._next, "nothing was staged in between"
        offset = queue.next_offset
        queue.next_offset = offset + len(entries)
        self._queues += [queue] * len(entries)
        self._entries += entries
        self._pieces += pieces
        (_, size, _) = ENTRY.unpack(entries[-1])
        self._next = positions[-1] + size
        return offset

    def _inspect(self, queue: QueueIndex, properties: bytes, sys_flag: int) -> tuple[bytes, int]:
        """Return the properties of a record that is not plain, and the number of its messages in its queue.

        The number is 0 if the record gets no offset, and the stated count for a batch in a queue that accepts batches.

        Raises:
            RecordRefused: it states a count that no index can hold. Nothing of this record was staged.
        """
        if sys_flag & NOT_QUEUED:
            return properties, 0
        if not queue.accepts_batches:
            return properties, 1
        count = inner_count(sys_flag, properties)
        if sys_flag & INNER_BITS == INNER_BITS:
            properties = with_inner_base(properties, queue.next_offset)
            if len(properties) > PROPERTIES_SIZE_MAX:
                raise self._refusal(0, len(properties))
        return properties, count

    def roll(self) -> None:
        """Start the next record in a new file, unless it does so anyway. Nothing is written before it is staged."""
        if self._next % self.files.size:
            self._roll(0)

    def _roll(self, size: int) -> None:
        """End the current file with a blank and continue in the next."""
        if size + BLANK_SIZE > self.files.size:
            raise RecordRefused(f"a record of {size} bytes does not fit a log file of {self.files.size}")
        self._pieces.append(BLANK.pack(self._file_end - self._next, MAGIC_BLANK))
        # Write only the head of the blank: the rest of the file is already zeros.
        self._runs.append((self._run_start, self._next + BLANK_SIZE, self._pieces))
        self._pieces = []
        self._next = self._run_start = self._file_end
        self._file_end += self.files.size

    def _refusal(self, body_size: int, properties_size: int) -> RecordRefused:
        if self.fault is not None:
            return RecordRefused(f"the store accepts no writes until it is restarted: {self.fault}")
        if properties_size > PROPERTIES_SIZE_MAX:
            return RecordRefused(f"properties have {properties_size} bytes, at most {PROPERTIES_SIZE_MAX} are allowed")
        return RecordRefused(f"the body has {body_size} bytes, at most {self._body_size_max} are allowed")

    def write(self) -> None:
        """Write everything that is staged.

        Raises:
            DiskFailed: the staged records are dropped, their offsets released, and no more writes are accepted.
        """
        if not self._pieces:
            return
        runs, file_size = self._runs, self.files.size
        runs.append((self._run_start, self._next, self._pieces))
        try:
            for start, end, pieces in runs:
                number = start // file_size
                file = self.files.files.get(number) or self.files.ensure(number)
                file.write(start % file_size, pieces, end - start)
                self._unsynced[file] = None
        except DiskFailed as error:
            self.discard()
            self.fault = str(error)
            raise
        self.written = self._run_start = self._next
        self.unconfirmed_writes.append((self.written, self._queues, self._entries))
        self._runs = []
        self._pieces = []
        self._queues = []
        self._entries = []

    def discard(self) -> None:
        """Drop everything that is staged and release its offsets."""
        for queue, entry in zip(reversed(self._queues), reversed(self._entries), strict=True):
            queue.release_offsets(entry)
        self._runs = []
        self._reset()

    def pop_unsynced(self) -> tuple[File, ...]:
        """Return the files written since the last call. The caller must sync them, or stop the store."""
        files = tuple(self._unsynced)
        self._unsynced.clear()
        return files

    def forget(self, dead: set[QueueIndex]) -> None:
        """Drop the staged and unconfirmed entries of deleted queues. The records stay in the log."""
        for _, queues, entries in (*self.unconfirmed_writes, (0, self._queues, self._entries)):
            kept = [(queue, entry) for queue, entry in zip(queues, entries, strict=True) if queue not in dead]
            queues[:] = [queue for queue, _ in kept]
            entries[:] = [entry for _, entry in kept]

    @property
    def staged_end(self) -> int:
        """The end of the log after everything staged is written."""
        return self._next
