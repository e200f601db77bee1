"""Feeds the key index from the confirmed log, a slice at a time, and answers queries by key.

    |==== indexed ====|---- a slice ----|........ confirmed

The index is never built while messages are being stored: a send does not wait for it.
"""

from __future__ import annotations

from holdfast.model.errors import CorruptRecord
from holdfast.model.queue import Position
from holdfast.store.dispatch import has_keys, index_keys, key_hash
from holdfast.store.key_batch import KeyBatch
from holdfast.store.key_index import KeyIndex
from holdfast.store.log_file import LogFiles
from holdfast.store.log_walk import WINDOW_SIZE, Stop, judge_at
from holdfast.store.options import StoreOptions
from holdfast.store.steps import LogRange, Steps

SLICE_RECORDS = 256
QUERY_RECORDS = 8192
HITS_MAX = 10_000
"""Hits of a hash that a query looks at: strangers choose the keys."""


class Indexer:
    """Invariant: every record before `indexed` that has keys is in the index."""

    def __init__(self, index: KeyIndex, files: LogFiles, options: StoreOptions, indexed: int) -> None:
        self.index = index
        self._files = files
        self._is_on = options.key_index
        self._batch = KeyBatch()
        self.indexed = indexed

    def is_behind(self, confirmed: int) -> bool:
        """Return whether there is work."""
        return self._is_on and self.indexed < confirmed

    def advance(self, confirmed: int, records_max: int = SLICE_RECORDS) -> None:
        """Index the next records of the confirmed log."""
        if not self._is_on:
            self.indexed = confirmed
            return
        position = max(self.indexed, self._files.start)
        while records_max > 0 and position < confirmed:
            found = self._files.find(position)
            if found is None:
                position = confirmed
                break
            at = position - found.start
            end = min(confirmed - found.start, self._files.size, at + WINDOW_SIZE)
            data = found.file.view(at, end)
            position, count = self._batch.scan(data, position, records_max)
            records_max -= count
            if records_max > 0 and position < found.start + end:
                position = self._take_closely(position)
                records_max -= 1
        self.index.add(self._batch.take())
        self.indexed = min(position, confirmed)

    def _take_closely(self, position: int) -> int:
        """Take the keys of a record that is not plain. Return where the next one begins."""
        record = judge_at(self._files, position, check_body=False)
        if isinstance(record, Stop):
            # A blank; or bytes that were good and are no longer: the rest of the file is lost to the index.
            return position - position % self._files.size + self._files.size
        if has_keys(record.sys_flag):
            self._batch.add(record.topic, index_keys(record.properties), position, record.store_ms)
        return position + record.size

    def find(
        self, reader: RecordReader, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int
    ) -> list[Position]:
        """Return where records with *key* are, newest first."""
        if self.is_behind(reader.confirmed):
            self.advance(reader.confirmed, QUERY_RECORDS)
        wanted = key.encode(errors="surrogatepass")
        found: dict[Position, None] = {}
        hits = self.index.find(key_hash(topic.encode(), wanted), begin_ms, end_ms)
        for _, position in zip(range(HITS_MAX), hits, strict=False):
            if len(found) >= max_count:
                break
            try:
                record = reader.read_record(position)
            except CorruptRecord:
                continue
            if (
                record is not None
                and record.topic == topic
                and begin_ms <= record.store_ms <= end_ms
                and wanted in index_keys(bytes(record.properties))
            ):
                found[Position(position)] = None
        return list(found)

    def clean(self, log_start: int) -> list[str]:
        """Forget files that know only of records before *log_start*."""
        return self.index.clean(log_start)
