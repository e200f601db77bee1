"""Counts the messages in one range of a log. Runs in tasks; the result is small, whatever the range contains."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.columns.property_columns import split_properties
from holdfast.columns.records import Records
from holdfast.columns.slices import Block, Int64Array, copy_slices
from holdfast.model import property_names as names
from holdfast.pipeline.scan.log_ranges import LogRange
from holdfast.pipeline.scan.log_scan import Chunk, RangeScan
from holdfast.pipeline.scan.messages import open_records
from holdfast.pipeline.scan.store_folder import StoreFolder
from holdfast.pipeline.stats.histogram import Histogram, add, count
from holdfast.store.base.index_fields import NOT_QUEUED

HOT_MAX: Final = 2000
"""The most keys, or tags, that a task reports per topic."""
_TRACKED_MAX: Final = 16 * HOT_MAX

Count = tuple[int, int]
"""Messages, and bytes of log."""


class QueueCounts(msgspec.Struct):
    """The counts of one queue in a range."""

    topic: str
    queue_id: int
    messages: int = 0
    records: int = 0
    size: int = 0
    body_size: int = 0
    first_ms: int = 1 << 62
    last_ms: int = 0
    skewed: int = 0
    late: Histogram = {}
    sizes: Histogram = {}


class RangeStats(msgspec.Struct, kw_only=True):
    """The counts of a range.

    Attributes:
        times: Counts by topic and start of a time step.
        keys, tags: By topic, the counts of the most frequent ones.
        keys_missed, tags_missed: By topic, the most occurrences that a key or tag can have beyond its reported count.
        size: Bytes of records.
        bad: Bytes that are not a record.
    """

    range: LogRange
    first: int = 0
    next_start: int = 0
    queues: list[QueueCounts] = []
    times: dict[str, dict[int, Count]] = {}
    keys: dict[str, dict[str, int]] = {}
    tags: dict[str, dict[str, int]] = {}
    keys_missed: dict[str, int] = {}
    tags_missed: dict[str, int] = {}
    size: int = 0
    bad: int = 0


def count_range(folder: StoreFolder, log_range: LogRange, step_ms: int) -> RangeStats:
    """Count the messages in a range."""
    counter = _Counter(log_range, step_ms)
    try:
        with folder.open_log() as log:
            scan = RangeScan(log, log_range, folder.settled)
            for chunk in scan:
                counter.add(chunk)
    except FileNotFoundError:
        return RangeStats(
            range=log_range, first=log_range.start, next_start=log_range.start
        )  # Retention removed it after the listing.
    result = counter.finish()
    result.first, result.next_start, result.size = scan.first, scan.next_start, scan.size
    result.bad = sum(damage.size for damage in scan.damages)
    return result


class _Counter:
    def __init__(self, log_range: LogRange, step_ms: int) -> None:
        self._step_ms = step_ms
        self._result = RangeStats(range=log_range)
        self._queues: dict[tuple[str, int], QueueCounts] = {}
        self._keys = _FrequentTexts()
        self._tags = _FrequentTexts()

    def add(self, chunk: Chunk) -> None:
        queued = np.flatnonzero((chunk.records.flags & NOT_QUEUED) == 0)
        chunk = chunk if len(queued) == len(chunk) else chunk.select(queued)
        for topic, queue_id, rows in chunk.by_queue():
            self._count_records(topic, queue_id, chunk.sizes[rows], chunk.records.store_ms[rows])
            for block, records in open_records(chunk.block, chunk.records.select(rows)):
                self._count_messages(topic, queue_id, records)
                self._count_texts(topic, block, records)

    def finish(self) -> RangeStats:
        result = self._result
        result.queues = list(self._queues.values())
        result.keys, result.keys_missed = self._keys.finish()
        result.tags, result.tags_missed = self._tags.finish()
        return result

    def _count_records(self, topic: str, queue_id: int, sizes: Int64Array, stored_ms: Int64Array) -> None:
        counts = self._queue(topic, queue_id)
        counts.records += len(sizes)
        counts.size += int(sizes.sum())
        counts.first_ms = min(counts.first_ms, int(stored_ms.min()))
        counts.last_ms = max(counts.last_ms, int(stored_ms.max()))
        times = self._result.times.setdefault(topic, {})
        for step, size in self._steps(stored_ms, sizes):
            messages, known = times.get(step, (0, 0))
            times[step] = (messages, known + size)

    def _count_messages(self, topic: str, queue_id: int, records: Records) -> None:
        counts = self._queue(topic, queue_id)
        late = records.store_ms - records.born_ms
        counts.messages += len(records)
        counts.body_size += int(records.body_sizes.sum())
        counts.skewed += int((late < 0).sum())
        add(counts.late, count(np.maximum(late, 0)))
        add(counts.sizes, count(records.body_sizes))
        times = self._result.times.setdefault(topic, {})
        for step, messages in self._steps(records.store_ms):
            known, size = times.get(step, (0, 0))
            times[step] = (known + messages, size)

    def _queue(self, topic: str, queue_id: int) -> QueueCounts:
        counts = self._queues.get((topic, queue_id))
        if counts is None:
            counts = self._queues[topic, queue_id] = QueueCounts(topic, queue_id)
        return counts

    def _steps(self, times_ms: Int64Array, weights: Int64Array | None = None) -> Iterator[tuple[int, int]]:
        """Yield (start, total weight) of each time step in *times_ms*. Without weights each time weighs 1."""
        steps, step_indexes = np.unique(times_ms // self._step_ms, return_inverse=True)
        sums = np.bincount(step_indexes, weights=weights, minlength=len(steps)).astype(np.int64)
        return zip((steps * self._step_ms).tolist(), sums.tolist(), strict=True)

    def _count_texts(self, topic: str, block: Block, records: Records) -> None:
        starts = records.properties_starts
        found = split_properties(copy_slices(block, starts, starts + records.properties_sizes))
        sharding = found.find(names.SHARDING_KEY)
        keys = pc.coalesce(sharding, found.find(names.KEYS)) if sharding.null_count else sharding
        self._keys.add(topic, keys)
        self._tags.add(topic, found.find(names.TAGS))


class _FrequentTexts:
    """The most frequent texts of each topic, in bounded memory.

    When there are too many, the rarest are dropped, and the count of the most frequent dropped text is added to the
    topic's error bound: a reported text may have been dropped before, so its count may be too low by up to that bound.
    """

    def __init__(self) -> None:
        self._counts: dict[str, dict[str, int]] = {}
        self._missed: dict[str, int] = {}

    def add(self, topic: str, texts: pa.Array) -> None:
        counts = self._counts.setdefault(topic, {})
        found = pc.value_counts(texts.drop_null())
        for text, occurrences in zip(found.field(0).to_pylist(), found.field(1).to_pylist(), strict=True):
            counts[text] = counts.get(text, 0) + occurrences
        if len(counts) > _TRACKED_MAX:
            self._drop(topic)

    def finish(self) -> tuple[dict[str, dict[str, int]], dict[str, int]]:
        for topic in list(self._counts):
            if len(self._counts[topic]) > HOT_MAX:
                self._drop(topic)
        return {topic: counts for topic, counts in self._counts.items() if counts}, self._missed

    def _drop(self, topic: str) -> None:
        ordered = sorted(self._counts[topic].items(), key=lambda found: -found[1])
        self._counts[topic] = dict(ordered[:HOT_MAX])
        self._missed[topic] = self._missed.get(topic, 0) + ordered[HOT_MAX][1]
