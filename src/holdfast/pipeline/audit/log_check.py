"""Checks one range of a log against all indexes: every record has exactly one entry, and both agree.

    log range      |r0 |r1   |r2 |r3      |          records that begin in it, by position
    orders/0        ^         ^                      the entries of every index that point into the range
    orders/1             ^                           sorted together, they must match the records

It needs no shuffle: positions rise along an index, so the entries of a range are adjacent in it. Runs in tasks.

It cannot check fields that are stored only once and that no checksum covers: the born time, flags, hosts, and all
properties except the tag.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.columns.inner_batches import are_batches
from holdfast.columns.slices import Int64Array
from holdfast.model import property_names as names
from holdfast.model.errors import UnreadableBatch
from holdfast.model.java_hash import java_hash
from holdfast.model.topic import SCHEDULE_TOPIC
from holdfast.pipeline.scan.faults import Fault, Faults
from holdfast.pipeline.scan.log_ranges import LogRange
from holdfast.pipeline.scan.log_scan import Chunk, RangeScan
from holdfast.pipeline.scan.messages import open_records
from holdfast.pipeline.scan.queue_entries import Entries, QueueFolder, QueueReader, first_offsets
from holdfast.pipeline.scan.store_folder import StoreFolder
from holdfast.store.base.index_fields import NOT_QUEUED, inner_span
from holdfast.store.queues.queue_index import BLANK_ENTRY_SIZE

SHARED_PREFIX: Final = "%LMQ%"
"""Prefix of Java's light message queues: their entries point to records that another index contains, too."""


class RangeAudit(msgspec.Struct, kw_only=True):
    """The result for one range.

    Attributes:
        messages: The number of messages; those in batches are counted individually.
        size: Bytes of records.
        unqueued: Records that belong to no queue: prepared, rolled back, fillers.
        of_the_dead: Records of deleted topics or queues.
        backwards: Records with an earlier store time than the record before: a clock was set back.
    """

    range: LogRange
    first: int = 0
    next_start: int = 0
    records: int = 0
    messages: int = 0
    size: int = 0
    entries: int = 0
    unqueued: int = 0
    of_the_dead: int = 0
    backwards: int = 0
    faults: Faults = msgspec.field(default_factory=Faults)


@dataclass(frozen=True)
class LogAuditor:
    """Checks the ranges of one store; shipped to every task.

    Attributes:
        unsearchable: Indexes (topic, queue) whose positions cannot be searched.
    """

    folder: StoreFolder
    unsearchable: frozenset[tuple[str, int]]

    def __call__(self, log_range: LogRange) -> RangeAudit:
        """Audit one range."""
        return _RangeAuditor(self, log_range).run()


@dataclass(frozen=True)
class _RecordColumns:
    """The records of a range, as the index entries they should have."""

    positions: Int64Array
    sizes: Int64Array
    tags: Int64Array
    queues: Int64Array
    offsets: Int64Array


class _RangeAuditor:
    def __init__(self, audit: LogAuditor, log_range: LogRange) -> None:
        self._folder = audit.folder
        self._unsearchable = audit.unsearchable
        self._range = log_range
        self._queues: list[QueueFolder] = list(audit.folder.queues)
        self._numbers: dict[tuple[str, int], int] = {
            (queue.topic, queue.queue_id): number for number, queue in enumerate(self._queues)
        }
        self._result = RangeAudit(range=log_range)
        self._records: list[_RecordColumns] = []
        self._last_store_ms = 0

    def run(self) -> RangeAudit:
        result = self._result
        try:
            with self._folder.open_log() as log:
                scan = RangeScan(log, self._range, self._folder.settled)
                for chunk in scan:
                    self._process(chunk)
        except FileNotFoundError:
            # Retention removed the file after the listing.
            result.first = result.next_start = self._range.start
            return result
        for damage in scan.damages:
            self._report_log("bytes", damage.position, f"{damage.size} bytes: {damage.reason}")
        result.first, result.next_start = scan.first, scan.next_start
        result.records, result.size = scan.count, scan.size
        # Compare up to the end of the last record, not of the range: so no byte is left out between two tasks.
        log_range = LogRange(self._range.store, scan.first, min(scan.next_start, self._folder.settled), is_known=True)
        self._compare(_concatenate(self._records), _collect_entries(self._folder, log_range, self._unsearchable))
        return result

    # Records.

    def _process(self, chunk: Chunk) -> None:
        is_valid = chunk.are_bodies_valid()
        for row in np.flatnonzero(~is_valid):
            self._report_record("checksum", chunk, int(row), "the checksum of its body is wrong")
        self._check_times(chunk)
        queues = np.full(len(chunk), -1, dtype=np.int64)
        is_queued = (chunk.records.flags & NOT_QUEUED) == 0
        self._result.unqueued += int((~is_queued).sum())
        for topic, queue_id, rows in chunk.by_queue():
            queues[rows] = self._numbers.get((topic, queue_id), -1)
            is_deleted = chunk.positions[rows] < self._folder.deleted_before(topic, queue_id)
            if (topic, queue_id) not in self._numbers and topic not in self._folder.topics:
                is_deleted[:] = (
                    True  # Java keeps no record of deleted topics: this one has no index and no configuration.
                )
            self._result.of_the_dead += int((is_deleted & is_queued[rows]).sum())
            is_queued[rows[is_deleted]] = False
        counts = self._count_messages(chunk, is_valid)
        self._result.messages += int(counts[is_queued].sum())
        for row in np.flatnonzero(is_queued & (queues < 0)):
            self._report_record("unindexed", chunk, int(row), "its queue has no index")
        is_queued &= queues >= 0
        self._records.append(
            _RecordColumns(
                chunk.positions[is_queued],
                chunk.sizes[is_queued],
                _tag_codes(chunk)[is_queued],
                queues[is_queued],
                chunk.records.offsets[is_queued],
            )
        )

    def _check_times(self, chunk: Chunk) -> None:
        times = chunk.records.store_ms
        before = np.append(self._last_store_ms, times[:-1])
        self._result.backwards += int((times < before).sum())
        self._last_store_ms = int(times[-1])

    def _count_messages(self, chunk: Chunk, is_valid: npt.NDArray[np.bool_]) -> Int64Array:
        """Return the number of messages in each record. Open batches, to check that they are readable."""
        counts = np.ones(len(chunk), dtype=np.int64)
        is_batch = are_batches(chunk.records)
        counts[is_batch] = 0
        batches = np.flatnonzero(is_batch & is_valid)
        if len(batches):
            batch_chunk = chunk.select(batches)
            for _, _, rows in batch_chunk.by_queue():
                counts[batches[rows]] = self._count_items(batch_chunk.select(rows))
        return counts

    def _count_items(self, batches: Chunk) -> Int64Array:
        """Return the number of messages in each batch of one queue."""
        offsets = batches.records.offsets
        unreadable: list[UnreadableBatch] = []
        parts = [np.sort(rows.offsets) for _, rows in open_records(batches.block, batches.records, unreadable)]
        found = np.concatenate(parts)
        counts = np.diff(np.append(np.searchsorted(found, offsets), len(found)))
        errors = {error.offset: str(error) for error in unreadable}
        view = memoryview(batches.block)
        for row, (start, size) in enumerate(
            zip(batches.records.properties_starts.tolist(), batches.records.properties_sizes.tolist(), strict=True)
        ):
            flag, offset = int(batches.records.flags[row]), int(offsets[row])
            first, stated = inner_span(flag, bytes(view[start : start + size]), offset)
            if offset in errors:
                self._report_record("batch", batches, row, errors[offset])
            elif first != offset or stated not in {1, counts[row]}:
                text = f"its header says {stated} messages from offset {first} on, but it holds {counts[row]}"
                self._report_record("batch", batches, row, text)
        return counts

    # Comparing records with entries.

    def _compare(self, records: _RecordColumns, entries: _EntryColumns) -> None:
        self._result.entries = len(entries.positions)
        rows = np.searchsorted(records.positions, entries.positions)
        is_matched = np.zeros(len(rows), dtype=np.bool_)
        inside = rows < len(records.positions)
        is_matched[inside] = records.positions[rows[inside]] == entries.positions[inside]
        for number in np.flatnonzero(~is_matched & ~entries.is_shared).tolist():
            self._report_entry("no record", entries, number, "no record begins at its position")
        own_entries = np.flatnonzero(is_matched & ~entries.is_shared)
        self._find_duplicates(entries, own_entries, rows[own_entries])
        self._find_differences(records, entries, own_entries, rows[own_entries])
        is_indexed = np.zeros(len(records.positions), dtype=np.bool_)
        is_indexed[rows[own_entries]] = True
        for row in np.flatnonzero(~is_indexed).tolist():
            self._report_unindexed(records, row)

    def _find_duplicates(self, entries: _EntryColumns, own_entries: Int64Array, rows: Int64Array) -> None:
        for duplicate in np.flatnonzero(np.diff(rows) == 0).tolist():
            first, second = int(own_entries[duplicate]), int(own_entries[duplicate + 1])
            path, at = self._queues[int(entries.queues[first])].locate(int(entries.numbers[first]))
            self._report_entry("doubled", entries, second, f"the entry at {path} byte {at} points to the same record")

    def _find_differences(
        self, records: _RecordColumns, entries: _EntryColumns, own_entries: Int64Array, rows: Int64Array
    ) -> None:
        is_timed = np.array([queue.topic == SCHEDULE_TOPIC for queue in self._queues] or [False])
        checks: tuple[tuple[str, npt.NDArray[np.bool_]], ...] = (
            ("queue", records.queues[rows] != entries.queues[own_entries]),
            ("offset", records.offsets[rows] != entries.offsets[own_entries]),
            ("size", records.sizes[rows] != entries.sizes[own_entries]),
            # Entries of the schedule topic have a time in this field.
            ("tag", (records.tags[rows] != entries.tags[own_entries]) & ~is_timed[entries.queues[own_entries]]),
        )
        for field, differs in checks:
            for number in np.flatnonzero(differs).tolist():
                row, entry = int(rows[number]), int(own_entries[number])
                self._report_entry(
                    "differs", entries, entry, _difference(field, self._queues, records, row, entries, entry)
                )

    # Reporting faults.

    def _report_log(self, kind: str, position: int, text: str, **fields: Any) -> None:
        path, at = self._folder.log_path(position)
        broker = self._folder.broker
        self._result.faults.add(
            Fault(kind=kind, broker=broker, path=path, at=at, position=position, text=text, **fields)
        )

    def _report_record(self, kind: str, chunk: Chunk, row: int, text: str) -> None:
        topic = chunk.topics[row].as_py().decode(errors="replace")
        queue, offset = int(chunk.queue_ids[row]), int(chunk.records.offsets[row])
        self._report_log(kind, int(chunk.positions[row]), text, topic=topic, queue=queue, offset=offset)

    def _report_unindexed(self, records: _RecordColumns, row: int) -> None:
        """Report a record without an entry, and what the index contains at the record's offset."""
        queue, offset = self._queues[int(records.queues[row])], int(records.offsets[row])
        text = "no index entry points to it"
        low, high = queue.bounds
        if not queue.has_offsets and low <= offset < high:
            with closing(QueueReader(queue)) as reader:
                entry = reader.read(offset, offset + 1)[0]
            path, at = queue.locate(offset)
            entry_text = f"says position {entry['position']}" if entry["size"] else "is empty"
            text += f": the entry of its offset, {path} byte {at}, {entry_text}"
        fields = {"topic": queue.topic, "queue": queue.queue_id, "offset": offset}
        self._report_log("unindexed", int(records.positions[row]), text, **fields)

    def _report_entry(self, kind: str, entries: _EntryColumns, number: int, text: str) -> None:
        queue = self._queues[int(entries.queues[number])]
        path, at = queue.locate(int(entries.numbers[number]))
        self._result.faults.add(
            Fault(
                kind=kind,
                broker=self._folder.broker,
                path=path,
                at=at,
                position=int(entries.positions[number]),
                topic=queue.topic,
                queue=queue.queue_id,
                offset=int(entries.offsets[number]),
                text=text,
            )
        )


@dataclass(frozen=True)
class _EntryColumns:
    """Entries of all queues that point into a range, by position."""

    positions: Int64Array
    sizes: Int64Array
    tags: Int64Array
    queues: Int64Array
    offsets: Int64Array
    numbers: Int64Array
    is_shared: npt.NDArray[np.bool_]


def _collect_entries(
    folder: StoreFolder, log_range: LogRange, unsearchable: frozenset[tuple[str, int]]
) -> _EntryColumns:
    """Return the entries of all queues that point into a range, sorted by position."""
    names = ("positions", "sizes", "tags", "queues", "offsets", "numbers")
    columns: dict[str, list[Int64Array]] = {name: [] for name in names}
    shared: list[npt.NDArray[np.bool_]] = []
    for number, queue in enumerate(folder.queues):
        reader = QueueReader(queue)
        is_searchable = (queue.topic, queue.queue_id) not in unsearchable
        try:
            for low, entries in _read_candidates(reader, log_range, is_searchable=is_searchable):
                position, size = entries["position"].astype(np.int64), entries["size"].astype(np.int64)
                is_in_range = (
                    (position >= log_range.start)
                    & (position < log_range.end)
                    & (size != 0)
                    & (size != BLANK_ENTRY_SIZE)
                )
                columns["positions"].append(position[is_in_range])
                columns["sizes"].append(size[is_in_range])
                columns["tags"].append(entries["tags"][is_in_range].astype(np.int64))
                columns["queues"].append(np.full(int(is_in_range.sum()), number, dtype=np.int64))
                columns["offsets"].append(first_offsets(queue, low, entries)[is_in_range])
                columns["numbers"].append(np.flatnonzero(is_in_range) + low)
                shared.append(np.full(int(is_in_range.sum()), queue.topic.startswith(SHARED_PREFIX)))
        except FileNotFoundError:
            continue  # The topic was deleted after the listing.
        finally:
            reader.close()
    joined = {name: np.concatenate(parts) if parts else np.empty(0, np.int64) for name, parts in columns.items()}
    order = np.argsort(joined["positions"], kind="stable")
    is_shared = np.concatenate(shared) if shared else np.empty(0, np.bool_)
    return _EntryColumns(**{name: column[order] for name, column in joined.items()}, is_shared=is_shared[order])


def _read_candidates(reader: QueueReader, log_range: LogRange, *, is_searchable: bool) -> Iterator[tuple[int, Entries]]:
    """Yield (first number, entries) that may point into a range; all entries if the index is not sound."""
    if not is_searchable:
        yield from reader.chunks()
        return
    low, high = reader.find(log_range.start), reader.find(log_range.end)
    yield low, reader.read(low, high)


def _concatenate(parts: list[_RecordColumns]) -> _RecordColumns:
    columns: Mapping[str, list[Int64Array]] = {
        name: [getattr(part, name) for part in parts] for name in ("positions", "sizes", "tags", "queues", "offsets")
    }
    return _RecordColumns(
        **{name: np.concatenate(parts) if parts else np.empty(0, np.int64) for name, parts in columns.items()}
    )


def _tag_codes(chunk: Chunk) -> Int64Array:
    """Return the tags code that the index entry of each record should have."""
    tags = chunk.properties.find(names.TAGS).dictionary_encode()
    codes = [java_hash(tag) if tag else 0 for tag in tags.dictionary.to_pylist()]
    found = pa.array([*codes, 0], pa.int64()).take(tags.indices.fill_null(len(codes)))
    result: Int64Array = found.to_numpy()
    return result


def _difference(
    field: str, queues: list[QueueFolder], records: _RecordColumns, row: int, entries: _EntryColumns, entry: int
) -> str:
    if field == "queue":
        queue = queues[int(records.queues[row])]
        return f"its record belongs to {queue.topic}/{queue.queue_id}"
    entry_column, record_column = {
        "offset": (entries.offsets, records.offsets),
        "size": (entries.sizes, records.sizes),
        "tag": (entries.tags, records.tags),
    }[field]
    return f"it has {field} {entry_column[entry]}, but its record has {record_column[row]}"
