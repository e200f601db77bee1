"""Feed the key index from the confirmed log in slices, and answer queries by key.

    |==== indexed ====|---- a slice ----|........ confirmed

Indexing is not part of storing a message: no send waits for it. Indexing does not wait for the disk either: cold bytes
(the log, if the index lags far; slots of a file that an earlier process wrote) are first read off the loop.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.model.errors import CorruptRecord
from holdfast.model.queue import Position
from holdfast.store.base.cold_reads import FileRange
from holdfast.store.base.disk import Piece
from holdfast.store.base.index_fields import INNER_BITS, has_keys, index_keys, key_hash
from holdfast.store.base.log_file import LogFiles
from holdfast.store.base.options import StoreOptions
from holdfast.store.keys.batch_keys import block_of, has_item_id, has_item_key
from holdfast.store.keys.key_index import KeyIndex
from holdfast.store.keys.key_scan import KeyCollector, scan_keys
from holdfast.store.log.log_scanner import WINDOW_SIZE, StopReason, WalkedRecord, validate_record_at
from holdfast.store.log.record_reader import read_record
from holdfast.wire.records.record import StoredRecord, decode_record

SLICE_RECORDS = 256
WARM_SIZE = 4 << 20
QUERY_RECORDS = 1024
"""The most records that a query indexes first, because that blocks the loop."""
HITS_MAX = 10_000
"""Hits of a hash that a query examines. The limit matters because clients choose the keys."""


class Indexer:
    """Feeds and queries the key index. Invariant: it contains every record before `indexed` that has keys."""

    def __init__(
        self, index: KeyIndex, files: LogFiles, options: StoreOptions, indexed: int, *, hot_start: int
    ) -> None:
        self.index = index
        self._files = files
        self._is_enabled = options.key_index
        self._hot_start = hot_start  # From here on this process wrote the log, or read it during recovery.
        self._hot_window = options.hot_window
        self._warm_end = indexed
        self.indexed = indexed

    def is_lagging(self, confirmed: int) -> bool:
        """Return whether some of the confirmed log is not indexed yet."""
        return self._is_enabled and self.indexed < confirmed

    def advance(self, confirmed: int, records_max: int = SLICE_RECORDS) -> None:
        """Index the next records of the confirmed log that are in memory."""
        if not self._is_enabled:
            self.indexed = confirmed
            return
        position = max(self.indexed, self._files.start)
        until = self._warm_until(confirmed)
        keys: list[bytes] = []
        while records_max > 0 and position < until:
            found = self._files.find(position)
            if found is None:
                position = confirmed
                break
            at = position - found.start
            end = min(until - found.start, self._files.size, at + WINDOW_SIZE)
            data = found.file.view(at, end)
            found_keys, position, count = scan_keys(data, position, records_max)
            keys.append(found_keys)
            records_max -= count
            if records_max > 0 and position < found.start + end:
                found_keys, position, count = self._scan_unusual(position)
                keys.append(found_keys)
                records_max -= count
        self.index.add(b"".join(keys))
        self.indexed = min(position, confirmed)
        self.index.write_due()

    def catch_up(self, confirmed: int) -> None:
        """Index recent records for a query, if they are in memory."""
        if self.is_lagging(confirmed) and self.find_cold(confirmed) is None:
            self.advance(confirmed, QUERY_RECORDS)

    def find_cold(self, confirmed: int) -> FileRange | None:
        """Return the range to read off the loop, and to pass to `note_warm`, before the next slice; None if none."""
        slots = self.index.files[-1].find_cold() if self.index.files else None
        position = max(self.indexed, self._files.start)
        found = self._files.find(position)
        if slots is not None or found is None or position < self._warm_until(confirmed):
            return slots
        at = position - found.start
        return FileRange(found.file, at, min(at + WARM_SIZE, self._files.size, confirmed - found.start))

    def note_warm(self, file_range: FileRange) -> None:
        """Record that *file_range* was read."""
        if self.index.files:
            self.index.files[-1].note_warm(file_range)
        found = self._files.find(max(self.indexed, self._files.start))
        if found is not None and found.file is file_range.file:
            self._warm_end = found.start + file_range.end

    def _warm_until(self, confirmed: int) -> int:
        """Return the position up to which the log may be read on the loop."""
        if self.indexed >= max(self._hot_start, confirmed - self._hot_window):
            return confirmed
        return min(confirmed, self._warm_end)

    def _scan_unusual(self, position: int) -> tuple[bytes, int, int]:
        """Return the keys of a record that is not plain, where to continue, and its cost in records."""
        record = validate_record_at(self._files, position, check_body=False)
        if isinstance(record, StopReason):
            # A blank; or bytes that became corrupt: the index skips the rest of the file.
            return b"", position - position % self._files.size + self._files.size, 0
        collector, cost = KeyCollector(), 1
        if record.sys_flag & INNER_BITS == INNER_BITS:
            cost = collector.add_inner(
                record.topic, record.properties, self._read_body(record), record.sys_flag, position, record.store_ms
            )
        elif has_keys(record.sys_flag):
            collector.add(record.topic, index_keys(record.properties), position, record.store_ms)
        return collector.pack(), position + record.size, cost

    def _read_body(self, record: WalkedRecord) -> Piece:
        found = self._files.find(record.position)
        assert found is not None, "it was just read"
        at = record.position - found.start
        return decode_record(found.file.view(at, at + record.size), check_body=False).body

    async def find(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> list[Position]:
        """Return the positions of records with *key*, newest first. A batch matches if one of its messages has the key.

        If *key* is an id, it is looked up first; only if that finds nothing, the block of the id, which finds batches.
        """
        key_bytes = key.encode(errors="surrogatepass")
        span = (begin_ms, end_ms)

        def has_key(record: StoredRecord) -> bool:
            return key_bytes in index_keys(record.properties) or has_item_key(record, key_bytes)

        found = await self._find(topic, key_bytes, has_key, max_count, span)
        block = None if found else block_of(key_bytes)
        if block is not None:
            found = await self._find(topic, block, lambda record: has_item_id(record, key_bytes), max_count, span)
        return found

    async def _find(
        self, topic: str, key: bytes, matches: Callable[[StoredRecord], bool], max_count: int, span: tuple[int, int]
    ) -> list[Position]:
        """Return the positions of records indexed under *key* for which *matches* is true, newest first."""
        begin_ms, end_ms = span
        search = self.index.search(key_hash(topic.encode(errors="surrogatepass"), key), begin_ms, end_ms)
        found: dict[Position, None] = {}
        hits = 0
        while len(found) < max_count and hits < HITS_MAX:
            position = await search.next()
            if position is None:
                break
            hits += 1
            try:
                record = await read_record(position)
            except CorruptRecord:
                continue
            if (
                record is not None
                and record.topic == topic
                and begin_ms <= record.store_ms <= end_ms
                and matches(record)
            ):
                found[Position(position)] = None
        return list(found)

    def clean(self, log_start: int) -> list[str]:
        """Remove index files that contain only records before *log_start*."""
        return self.index.clean(log_start)
