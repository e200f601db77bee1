"""Writes one range of a log as Parquet files, one per topic and day. Runs in tasks.

    records ─ by topic ─ batches opened, bodies inflated ─ logical queue and offset ─ by day ─ a writer each

A task writes to unique file names and returns them. If a task runs twice, only the files of one attempt are used.
Memory: one chunk of the log, the buffered row groups (`BUFFERED_BYTES_MAX`), and a little per open file.
"""

from __future__ import annotations

import os
import uuid
import zlib
from collections.abc import Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.columns.message_columns import TYPES, RecordOrigin, from_rows
from holdfast.columns.records import Records, find_valid_bodies
from holdfast.columns.slices import Block, Int64Array
from holdfast.model.errors import CorruptRecord, UnreadableBatch
from holdfast.model.topic import AUTO_CREATE_TOPIC, NOT_SENDABLE_TOPICS, RETRY_PREFIX, SYSTEM_PREFIX
from holdfast.pipeline.archive.manifest import ArchivedFile, Interval, final_path, join_intervals
from holdfast.pipeline.scan.faults import Fault, Faults
from holdfast.pipeline.scan.log_ranges import LogRange
from holdfast.pipeline.scan.log_scan import Chunk, RangeScan
from holdfast.pipeline.scan.mappings import SegmentRange
from holdfast.pipeline.scan.messages import open_records
from holdfast.pipeline.scan.store_folder import StoreFolder
from holdfast.store.base.index_fields import INNER_BITS, NOT_QUEUED

COLUMNS: Final = tuple(name for name in TYPES if name != "topic")
"""The columns of a file. Topic and day are in its path."""
SCHEMA: Final = pa.schema([(name, TYPES[name]) for name in COLUMNS])
BUFFERED_BYTES_MAX: Final = 32 << 20
_FILES_MAX: Final = 128
_DAY_MS: Final = 86_400_000
_BLOCK_COLUMNS: Final = ("key", "body", "tags", "storeTimestamp", "bornTimestamp", "properties")
_DICTIONARY_COLUMNS: Final = ["key", "tags", "broker", "queue", "generation", "properties.key_value.key"]
TAIL_SIZE: Final = 4096


class RangeArchiveResult(msgspec.Struct, kw_only=True):
    """The result for one range.

    Attributes:
        offsets: The offsets in the files, by topic and queue.
        size: Bytes of records.
        outside: Messages of static topics outside all segments: they were never part of a logical queue.
    """

    range: LogRange
    first: int = 0
    next_start: int = 0
    size: int = 0
    rows: int = 0
    files: list[ArchivedFile] = []
    offsets: dict[str, dict[str, list[Interval]]] = {}
    outside: int = 0
    faults: Faults = msgspec.field(default_factory=Faults)


class StoreArchiver(msgspec.Struct, frozen=True):
    """Archives the ranges of one store; shipped to every task.

    Attributes:
        staging: The folder for the files.
        run: The number of the run.
        topics: Topic patterns; empty for all topics except system topics.
        segments: The segments in each physical queue of each static topic.
    """

    folder: StoreFolder
    staging: str
    run: int
    topics: tuple[str, ...]
    segments: dict[str, dict[int, list[SegmentRange]]]

    def __call__(self, log_range: LogRange) -> RangeArchiveResult:
        """Archive one range."""
        return _RangeArchiver(self, log_range).run()


def is_archived(topic: str, patterns: Sequence[str]) -> bool:
    """Return whether a topic is archived."""
    if patterns:
        return any(fnmatchcase(topic, pattern) for pattern in patterns)
    is_system = topic in NOT_SENDABLE_TOPICS or topic == AUTO_CREATE_TOPIC or topic.lower().startswith(SYSTEM_PREFIX)
    return not (is_system or topic.startswith(RETRY_PREFIX))


def tail_checksum(folder: StoreFolder, position: int, size: int = TAIL_SIZE) -> tuple[int, int]:
    """Return the checksum of the bytes before a position, and their number: at most *size*, all from one log file."""
    with folder.open_log() as log:
        found = log.find(position - 1) if position > folder.start else None
        if found is None:
            return 0, 0
        start = max(found.start, position - size)
        data = found.file.read(start - found.start, position - found.start)
    return zlib.crc32(data), len(data)


class _RangeArchiver:
    def __init__(self, job: StoreArchiver, log_range: LogRange) -> None:
        self._job = job
        self._range = log_range
        self._result = RangeArchiveResult(range=log_range)
        self._files = _Files(job.staging, f"{job.run:06d}-{job.folder.broker}-{log_range.start:020d}")

    def run(self) -> RangeArchiveResult:
        result, folder = self._result, self._job.folder
        with folder.open_log() as log:
            scan = RangeScan(log, self._range, folder.settled)
            for chunk in scan:
                self._process(chunk)
        for damage in scan.damages:
            self._report("bytes", damage.position, f"{damage.size} bytes: {damage.reason}")
        result.first, result.next_start, result.size = scan.first, scan.next_start, scan.size
        result.files = self._files.finish()
        result.rows = sum(file.rows for file in result.files)
        result.offsets = {
            topic: {queue: join_intervals(parts) for queue, parts in queues.items()}
            for topic, queues in result.offsets.items()
        }
        return result

    def _process(self, chunk: Chunk) -> None:
        for topic, rows in chunk.by_topic():
            if not is_archived(topic, self._job.topics):
                continue
            selected = rows[(chunk.records.flags[rows] & NOT_QUEUED) == 0]
            selected = selected[self._is_not_deleted(topic, chunk, selected)]
            if len(selected):
                self._process_topic(topic, chunk.select(selected))

    def _is_not_deleted(self, topic: str, chunk: Chunk, rows: Int64Array) -> npt.NDArray[np.bool_]:
        """Return for each row whether it is newer than the last deletion of its topic or queue."""
        deleted = self._job.folder.deleted
        if not any(name == topic or name.startswith(topic + "/") for name in deleted):
            return np.ones(len(rows), dtype=np.bool_)
        ids = chunk.queue_ids[rows]
        starts = {int(number): self._job.folder.deleted_before(topic, int(number)) for number in np.unique(ids)}
        return chunk.positions[rows] >= np.array([starts[number] for number in ids.tolist()], dtype=np.int64)

    def _process_topic(self, topic: str, chunk: Chunk) -> None:
        if not ((chunk.records.flags & INNER_BITS) == INNER_BITS).any():
            try:
                self._write(topic, chunk.block, chunk.records, chunk.queue_ids)
            except CorruptRecord:
                chunk = self._without_damaged(chunk)
                self._write(topic, chunk.block, chunk.records, chunk.queue_ids)
            return
        chunk = self._without_damaged(chunk)
        for _, queue_id, rows in chunk.by_queue():
            unreadable: list[UnreadableBatch] = []
            for block, records in open_records(chunk.block, chunk.records.select(rows), unreadable):
                self._write(topic, block, records, np.full(len(records), queue_id, dtype=np.int32))
            positions = dict(zip(chunk.records.offsets[rows].tolist(), chunk.positions[rows].tolist(), strict=True))
            for error in unreadable:
                self._report("batch", positions[error.offset], f"{topic}/{queue_id}: {error}")

    def _without_damaged(self, chunk: Chunk) -> Chunk:
        is_valid = find_valid_bodies(chunk.block, chunk.records)
        for row in np.flatnonzero(~is_valid).tolist():
            self._report("checksum", int(chunk.positions[row]), "the checksum of its body is wrong")
        return chunk if is_valid.all() else chunk.select(is_valid)

    def _write(self, topic: str, block: Block, records: Records, queue_ids: npt.NDArray[np.int32]) -> None:
        if topic in self._job.segments:
            self._write_logical(topic, block, records, queue_ids)
            return
        broker = self._job.folder.broker
        generations = pa.nulls(len(records), pa.int32())
        self._write_rows(topic, block, records, queue_ids.astype(np.int32), records.offsets, generations)
        for number in np.unique(queue_ids).tolist():
            self._record_offsets(topic, f"{broker}/{number}", records.offsets[queue_ids == number])

    def _write_logical(self, topic: str, block: Block, records: Records, queue_ids: npt.NDArray[np.int32]) -> None:
        """Write the messages that belong to logical queues, with logical queue numbers and offsets."""
        queues = np.full(len(records), -1, dtype=np.int32)
        offsets = records.offsets.copy()
        generations = np.zeros(len(records), dtype=np.int32)
        for number in np.unique(queue_ids).tolist():
            for segment in self._job.segments[topic].get(number, ()):
                is_in = (queue_ids == number) & (records.offsets >= segment.start)
                if segment.end is not None:
                    is_in &= records.offsets < segment.end
                queues[is_in], generations[is_in] = segment.queue, segment.generation
                offsets[is_in] = records.offsets[is_in] + segment.delta
        is_inside = queues >= 0
        inside = records if is_inside.all() else records.select(is_inside)
        queues, offsets = queues[is_inside], offsets[is_inside]
        self._write_rows(topic, block, inside, queues, offsets, pa.array(generations[is_inside]))
        self._result.outside += len(records) - len(inside)
        for number in np.unique(queues).tolist():
            self._record_offsets(topic, str(number), offsets[queues == number])

    def _write_rows(
        self,
        topic: str,
        block: Block,
        records: Records,
        queues: npt.NDArray[np.int32],
        offsets: Int64Array,
        generations: pa.Array,
    ) -> None:
        if not len(records):
            return
        broker = self._job.folder.broker
        converted = from_rows(block, records, RecordOrigin(topic, 0, broker, None), _BLOCK_COLUMNS)
        columns: dict[str, Any] = dict(zip(_BLOCK_COLUMNS, converted.columns, strict=True))
        columns |= {"queue": pa.array(queues), "offset": pa.array(offsets), "generation": generations}
        columns["broker"] = pa.repeat(pa.scalar(broker), len(records))
        batch = pa.RecordBatch.from_arrays([columns[name] for name in COLUMNS], schema=SCHEMA)
        days = records.store_ms // _DAY_MS
        for day in np.unique(days).tolist():
            part = batch if (days == day).all() else batch.filter(pa.array(days == day))
            self._files.add(topic, datetime.fromtimestamp(day * _DAY_MS / 1000, UTC).strftime("%Y-%m-%d"), part)

    def _record_offsets(self, topic: str, queue: str, offsets: Int64Array) -> None:
        """Record the written offsets."""
        if not len(offsets):
            return
        ordered = np.sort(offsets)
        splits = np.flatnonzero(np.diff(ordered) > 1) + 1
        firsts, lasts = ordered[np.append(0, splits)], ordered[np.append(splits, len(ordered)) - 1]
        parts = self._result.offsets.setdefault(topic, {}).setdefault(queue, [])
        parts += zip(firsts.tolist(), (lasts + 1).tolist(), strict=True)
        if len(parts) > 1000:
            self._result.offsets[topic][queue] = join_intervals(parts)

    def _report(self, kind: str, position: int, text: str) -> None:
        folder = self._job.folder
        path, at = folder.log_path(position)
        self._result.faults.add(Fault(kind=kind, broker=folder.broker, path=path, at=at, position=position, text=text))


class _Files:
    """The files of one range. Buffers rows into row groups; `finish` syncs all files to disk."""

    def __init__(self, staging: str, name: str) -> None:
        self._staging = staging
        self._name = name
        self._open: dict[tuple[str, str], tuple[str, pq.ParquetWriter]] = {}
        self._buffered: dict[tuple[str, str], list[pa.RecordBatch]] = {}
        self._buffered_bytes = 0
        self._closed: list[ArchivedFile] = []

    def add(self, topic: str, day: str, batch: pa.RecordBatch) -> None:
        self._buffered.setdefault((topic, day), []).append(batch)
        self._buffered_bytes += batch.nbytes
        if self._buffered_bytes >= BUFFERED_BYTES_MAX:
            self._flush()
        if len(self._open) > _FILES_MAX:
            self.finish()

    def finish(self) -> list[ArchivedFile]:
        self._flush()
        for (topic, day), (staged, writer) in self._open.items():
            writer.close()
            path = f"{self._staging}/{staged}"
            with open(path, "rb") as file:  # noqa: PTH123 - building a Path is too slow in a task
                os.fsync(file.fileno())
            rows = pq.read_metadata(path).num_rows
            target = final_path(topic, day, f"{self._name}-{len(self._closed)}.parquet")
            self._closed.append(ArchivedFile(staged, target, topic, day, rows, os.stat(path).st_size))  # noqa: PTH116
        self._open = {}
        return self._closed

    def _flush(self) -> None:
        for key, batches in self._buffered.items():
            if key not in self._open:
                self._open[key] = self._open_writer()
            self._open[key][1].write_table(pa.Table.from_batches(batches, schema=SCHEMA))
        self._buffered = {}
        self._buffered_bytes = 0

    def _open_writer(self) -> tuple[str, pq.ParquetWriter]:
        staged = f"{uuid.uuid4().hex}.parquet"
        writer = pq.ParquetWriter(
            f"{self._staging}/{staged}",
            SCHEMA,
            compression="zstd",
            compression_level=1,
            use_dictionary=_DICTIONARY_COLUMNS,
        )
        return staged, writer
