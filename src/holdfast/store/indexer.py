"""Feeds the key index from the confirmed log, a slice at a time, and answers queries by key.

    |==== indexed ====|---- a slice ----|........ confirmed

The index is never built while messages are being stored: a send does not wait for it.
"""

from __future__ import annotations

from typing import Protocol

from holdfast.model.errors import CorruptRecord
from holdfast.model.queue import Position
from holdfast.store.dispatch import has_keys, index_keys, key_hash
from holdfast.store.key_index import IndexKey, KeyIndex
from holdfast.store.log_file import LogFiles
from holdfast.store.log_walk import LogWalk, Stop
from holdfast.store.options import StoreOptions
from holdfast.wire.record import StoredRecord

SLICE_RECORDS = 256
QUERY_RECORDS = 8192
HITS_MAX = 10_000
"""Hits of a hash that a query looks at: strangers choose the keys."""


class RecordReader(Protocol):
    """The part of the store that a query needs."""

    confirmed: int

    def read_record(self, position: int) -> StoredRecord | None:
        """Return one confirmed record."""
        ...


class Indexer:
    """Invariant: every record before `indexed` that has keys is in the index."""

    def __init__(self, index: KeyIndex, files: LogFiles, options: StoreOptions, indexed: int) -> None:
        self.index = index
        self._files = files
        self._is_on = options.key_index
        self.indexed = indexed

    def is_behind(self, confirmed: int) -> bool:
        """Return whether there is work."""
        return self._is_on and self.indexed < confirmed

    def advance(self, confirmed: int, records_max: int = SLICE_RECORDS) -> None:
        """Index the next records of the confirmed log."""
        if not self._is_on:
            self.indexed = confirmed
            return
        self.indexed = max(self.indexed, self._files.start)
        walk = LogWalk(self._files, self.indexed, end=confirmed, check_body=False)
        keys: list[IndexKey] = []
        for count, record in enumerate(walk, 1):
            if has_keys(record.sys_flag):
                keys += [
                    (key_hash(record.topic, key), record.position, record.store_ms)
                    for key in index_keys(record.properties)
                ]
            if count == records_max:
                self.index.add(keys)
                self.indexed = record.position + record.size
                return
        self.index.add(keys)
        # What the walk cannot pass was found bad after it had been good: its file's rest is lost to the index.
        self.indexed = confirmed if walk.stop is Stop.END else min(confirmed, self._next_file(walk.position))

    def _next_file(self, position: int) -> int:
        return position - position % self._files.size + self._files.size

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
