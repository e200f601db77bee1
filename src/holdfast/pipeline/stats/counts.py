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
from holdfast.columns.slices import Block, Places, take_slices
from holdfast.model import property_names as names
from holdfast.pipeline.scan.log_ranges import LogRange
from holdfast.pipeline.scan.log_scan import Chunk, RangeScan
from holdfast.pipeline.scan.messages import open_records
from holdfast.pipeline.scan.store_folder import StoreFolder
from holdfast.pipeline.stats.histogram import Histogram, add, count
from holdfast.store.base.index_fields import NOT_QUEUED

HOT_MAX: Final = 2000
"""The most keys, or tags, that a task reports per topic."""
_HELD_MAX: Final = 16 * HOT_MAX

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
    behind: int = 0
    queues: list[QueueCounts] = []
    times: dict[str, dict[int, Count]] = {}
    keys: dict[str, dict[str, int]] = {}
    tags: dict[str, dict[str, int]] = {}
    keys_missed: dict[str, int] = {}
    tags_missed: dict[str, int] = {}
    size: int = 0
    bad: int = 0


def count_range(folder: StoreFolder, mine: LogRange, step_ms: int) -> RangeStats:
    """Count the messages in a range."""
    counter = _Counter(mine, step_ms)
    try:
        with folder.open_log() as log:
            scan = RangeScan(log, mine, folder.settled)
            for chunk in scan:
                counter.take(chunk)
    except FileNotFoundError:
        return RangeStats(range=mine, first=mine.start, behind=mine.start)  # Retention removed it after the listing.
    done = counter.finish()
    done.first, done.behind, done.size = scan.first, scan.behind, scan.size
    done.bad = sum(damage.size for damage in scan.damages)
    return done


class _Counter:
    def __init__(self, mine: LogRange, step_ms: int) -> None:
        self._step_ms = step_ms
        self._done = RangeStats(range=mine)
        self._queues: dict[tuple[str, int], QueueCounts] = {}
        self._keys = _Frequent()
        self._tags = _Frequent()

    def take(self, chunk: Chunk) -> None:
        queued = np.flatnonzero((chunk.records.flags & NOT_QUEUED) == 0)
        chunk = chunk if len(queued) == len(chunk) else chunk.select(queued)
        for topic, queue_id, rows in chunk.by_queue():
            self._count_records(topic, queue_id, chunk.sizes[rows], chunk.records.store_ms[rows])
            for block, records in open_records(chunk.block, chunk.records.select(rows)):
                self._count_messages(topic, queue_id, records)
                self._count_texts(topic, block, records)

    def finish(self) -> RangeStats:
        done = self._done
        done.queues = list(self._queues.values())
        done.keys, done.keys_missed = self._keys.finish()
        done.tags, done.tags_missed = self._tags.finish()
        return done

    def _count_records(self, topic: str, queue_id: int, sizes: Places, stored_ms: Places) -> None:
        mine = self._queue(topic, queue_id)
        mine.records += len(sizes)
        mine.size += int(sizes.sum())
        mine.first_ms = min(mine.first_ms, int(stored_ms.min()))
        mine.last_ms = max(mine.last_ms, int(stored_ms.max()))
        times = self._done.times.setdefault(topic, {})
        for step, size in self._steps(stored_ms, sizes):
            messages, known = times.get(step, (0, 0))
            times[step] = (messages, known + size)

    def _count_messages(self, topic: str, queue_id: int, records: Records) -> None:
        mine = self._queue(topic, queue_id)
        late = records.store_ms - records.born_ms
        mine.messages += len(records)
        mine.body_size += int(records.body_sizes.sum())
        mine.skewed += int((late < 0).sum())
        add(mine.late, count(np.maximum(late, 0)))
        add(mine.sizes, count(records.body_sizes))
        times = self._done.times.setdefault(topic, {})
        for step, messages in self._steps(records.store_ms):
            known, size = times.get(step, (0, 0))
            times[step] = (known + messages, size)

    def _queue(self, topic: str, queue_id: int) -> QueueCounts:
        mine = self._queues.get((topic, queue_id))
        if mine is None:
            mine = self._queues[topic, queue_id] = QueueCounts(topic, queue_id)
        return mine

    def _steps(self, times_ms: Places, weights: Places | None = None) -> Iterator[tuple[int, int]]:
        """Yield (start, total weight) of each time step in *times_ms*. Without weights each time weighs 1."""
        steps, places = np.unique(times_ms // self._step_ms, return_inverse=True)
        sums = np.bincount(places, weights=weights, minlength=len(steps)).astype(np.int64)
        return zip((steps * self._step_ms).tolist(), sums.tolist(), strict=True)

    def _count_texts(self, topic: str, block: Block, records: Records) -> None:
        starts = records.properties_starts
        found = split_properties(take_slices(block, starts, starts + records.properties_sizes))
        sharding = found.find(names.SHARDING_KEY)
        keys = pc.coalesce(sharding, found.find(names.KEYS)) if sharding.null_count else sharding
        self._keys.add(topic, keys)
        self._tags.add(topic, found.find(names.TAGS))


class _Frequent:
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
        for text, times in zip(found.field(0).to_pylist(), found.field(1).to_pylist(), strict=True):
            counts[text] = counts.get(text, 0) + times
        if len(counts) > _HELD_MAX:
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
