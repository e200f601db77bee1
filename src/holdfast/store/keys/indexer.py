"""Feeds the key index from the confirmed log, a slice at a time, and answers queries by key.

    |==== indexed ====|---- a slice ----|........ confirmed

The index is never built while messages are being stored: a send does not wait for it. Nor does it wait for the disk:
what is not in memory (the log, when it is far behind; the slots of a file that an earlier process wrote) has to be read
before, off the loop.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.model.errors import CorruptRecord
from holdfast.model.queue import Position
from holdfast.store.base.cold_reads import FileRange, Steps
from holdfast.store.base.index_fields import INNER_BITS, has_keys, index_keys, key_hash
from holdfast.store.base.log_file import LogFiles
from holdfast.store.base.options import StoreOptions
from holdfast.store.keys.batch_keys import block_of, holds_id, holds_inside
from holdfast.store.keys.key_batch import KeyBatch
from holdfast.store.keys.key_index import KeyIndex
from holdfast.store.log.log_scanner import WINDOW_SIZE, Stop, WalkedRecord, judge_at
from holdfast.store.log.record_reader import read_record
from holdfast.wire.records.record import StoredRecord, decode_record

SLICE_RECORDS = 256
WARM_SIZE = 4 << 20
QUERY_RECORDS = 1024
"""What a query is made to wait for, and everybody else with it."""
HITS_MAX = 10_000
"""Hits of a hash that a query looks at: strangers choose the keys."""


class Indexer:
    """Invariant: every record before `indexed` that has keys is in the index."""

    def __init__(
        self, index: KeyIndex, files: LogFiles, options: StoreOptions, indexed: int, *, hot_start: int
    ) -> None:
        self.index = index
        self._files = files
        self._is_on = options.key_index
        self._hot_start = hot_start  # From here on this process read the log when it began, or wrote it.
        self._hot_window = options.hot_window
        self._warm_end = indexed
        self._batch = KeyBatch()
        self.indexed = indexed

    def is_behind(self, confirmed: int) -> bool:
        """Return whether there is work."""
        return self._is_on and self.indexed < confirmed

    def advance(self, confirmed: int, records_max: int = SLICE_RECORDS) -> None:
        """Index the next records of the confirmed log, as far as they are in memory."""
        if not self._is_on:
            self.indexed = confirmed
            return
        position = max(self.indexed, self._files.start)
        until = self._warm_until(confirmed)
        while records_max > 0 and position < until:
            found = self._files.find(position)
            if found is None:
                position = confirmed
                break
            at = position - found.start
            end = min(until - found.start, self._files.size, at + WINDOW_SIZE)
            data = found.file.view(at, end)
            position, count = self._batch.scan(data, position, records_max)
            records_max -= count
            if records_max > 0 and position < found.start + end:
                position, count = self._take_closely(position)
                records_max -= count
        self.index.add(self._batch.take())
        self.indexed = min(position, confirmed)
        self.index.write_due()

    def catch_up(self, confirmed: int) -> None:
        """Index what a query should not miss, if it is in memory."""
        if self.is_behind(confirmed) and self.find_cold(confirmed) is None:
            self.advance(confirmed, QUERY_RECORDS)

    def find_cold(self, confirmed: int) -> FileRange | None:
        """Return what has to be read off the loop, and noted by `note_warm`, before the next slice."""
        slots = self.index.files[-1].find_cold() if self.index.files else None
        position = max(self.indexed, self._files.start)
        found = self._files.find(position)
        if slots is not None or found is None or position < self._warm_until(confirmed):
            return slots
        at = position - found.start
        return FileRange(found.file, at, min(at + WARM_SIZE, self._files.size, confirmed - found.start))

    def note_warm(self, place: FileRange) -> None:
        """Take note that *place* was read."""
        if self.index.files:
            self.index.files[-1].note_warm(place)
        found = self._files.find(max(self.indexed, self._files.start))
        if found is not None and found.file is place.file:
            self._warm_end = found.start + place.end

    def _warm_until(self, confirmed: int) -> int:
        """Return up to where the log may be read on the loop."""
        if self.indexed >= max(self._hot_start, confirmed - self._hot_window):
            return confirmed
        return min(confirmed, self._warm_end)

    def _take_closely(self, position: int) -> tuple[int, int]:
        """Take the keys of a record that is not plain. Return where to go on, and how many records that were."""
        record = judge_at(self._files, position, check_body=False)
        if isinstance(record, Stop):
            # A blank; or bytes that were good and are no longer: the rest of the file is lost to the index.
            return position - position % self._files.size + self._files.size, 0
        if record.sys_flag & INNER_BITS == INNER_BITS:
            return position + record.size, self._take_inner(record)
        if has_keys(record.sys_flag):
            self._batch.add(record.topic, index_keys(record.properties), position, record.store_ms)
        return position + record.size, 1

    def _take_inner(self, record: WalkedRecord) -> int:
        """Take the keys of a batch. Return as how many records it counts."""
        found = self._files.find(record.position)
        assert found is not None, "it was just read"
        at = record.position - found.start
        body = decode_record(found.file.view(at, at + record.size), check_body=False).body
        return self._batch.add_inner(
            record.topic, record.properties, body, record.sys_flag, record.position, record.store_ms
        )

    def find(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> Steps[list[Position]]:
        """Return where records with *key* are, newest first: also batches of which a message has it.

        Its own id is where a message is looked for first; only then the block of it, under which batches are.
        """
        wanted = key.encode(errors="surrogatepass")
        span = (begin_ms, end_ms)

        def has_key(record: StoredRecord) -> bool:
            return wanted in index_keys(record.properties) or holds_inside(record, wanted)

        found = yield from self._find(topic, wanted, has_key, max_count, span)
        block = None if found else block_of(wanted)
        if block is not None:
            found = yield from self._find(topic, block, lambda record: holds_id(record, wanted), max_count, span)
        return found

    def _find(
        self, topic: str, key: bytes, holds: Callable[[StoredRecord], bool], max_count: int, span: tuple[int, int]
    ) -> Steps[list[Position]]:
        """Return where records are that were entered under *key* and for which *holds*, newest first."""
        begin_ms, end_ms = span
        search = self.index.search(key_hash(topic.encode(errors="surrogatepass"), key), begin_ms, end_ms)
        found: dict[Position, None] = {}
        hits = 0
        while len(found) < max_count and hits < HITS_MAX:
            position = yield from search.next()
            if position is None:
                break
            hits += 1
            try:
                record = yield from read_record(position)
            except CorruptRecord:
                continue
            if record is not None and record.topic == topic and begin_ms <= record.store_ms <= end_ms and holds(record):
                found[Position(position)] = None
        return list(found)

    def clean(self, log_start: int) -> list[str]:
        """Forget files that know only of records before *log_start*."""
        return self.index.clean(log_start)
