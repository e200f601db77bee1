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
from holdfast.columns.slices import Places
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
from holdfast.store.queues.queue_log import BLANK_ENTRY_SIZE

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
    behind: int = 0
    records: int = 0
    messages: int = 0
    size: int = 0
    entries: int = 0
    unqueued: int = 0
    of_the_dead: int = 0
    backwards: int = 0
    faults: Faults = msgspec.field(default_factory=Faults)


@dataclass(frozen=True)
class LogAudit:
    """Checks the ranges of one store; shipped to every task.

    Attributes:
        unsound: Indexes (topic, queue) whose positions cannot be searched.
    """

    folder: StoreFolder
    unsound: frozenset[tuple[str, int]]

    def __call__(self, mine: LogRange) -> RangeAudit:
        """Audit one range."""
        return _RangeAuditor(self, mine).run()


@dataclass(frozen=True)
class _Seen:
    """The records of a range, as the index entries they should have."""

    positions: Places
    sizes: Places
    tags: Places
    queues: Places
    offsets: Places


class _RangeAuditor:
    def __init__(self, audit: LogAudit, mine: LogRange) -> None:
        self._folder = audit.folder
        self._unsound = audit.unsound
        self._range = mine
        self._queues: list[QueueFolder] = list(audit.folder.queues)
        self._numbers: dict[tuple[str, int], int] = {
            (queue.topic, queue.queue_id): number for number, queue in enumerate(self._queues)
        }
        self._done = RangeAudit(range=mine)
        self._seen: list[_Seen] = []
        self._last_store_ms = 0

    def run(self) -> RangeAudit:
        done = self._done
        try:
            with self._folder.open_log() as log:
                scan = RangeScan(log, self._range, self._folder.settled)
                for chunk in scan:
                    self._process(chunk)
        except FileNotFoundError:
            # Retention removed the file after the listing.
            done.first = done.behind = self._range.start
            return done
        for damage in scan.damages:
            self._report_log("bytes", damage.position, f"{damage.size} bytes: {damage.reason}")
        done.first, done.behind = scan.first, scan.behind
        done.records, done.size = scan.count, scan.size
        # Compare up to the end of the last record, not of the range: so no byte is left out between two tasks.
        mine = LogRange(self._range.store, scan.first, min(scan.behind, self._folder.settled), is_known=True)
        self._compare(_join(self._seen), _gather(self._folder, mine, self._unsound))
        return done

    # Records.

    def _process(self, chunk: Chunk) -> None:
        is_right = chunk.is_right()
        for row in np.flatnonzero(~is_right):
            self._report_record("checksum", chunk, int(row), "the checksum of its body is wrong")
        self._check_times(chunk)
        queues = np.full(len(chunk), -1, dtype=np.int64)
        is_wanted = (chunk.records.flags & NOT_QUEUED) == 0
        self._done.unqueued += int((~is_wanted).sum())
        for topic, queue_id, rows in chunk.by_queue():
            queues[rows] = self._numbers.get((topic, queue_id), -1)
            is_dead = chunk.positions[rows] < self._folder.life_start(topic, queue_id)
            if (topic, queue_id) not in self._numbers and topic not in self._folder.topics:
                is_dead[:] = True  # Java keeps no record of deleted topics: this one has no index and no configuration.
            self._done.of_the_dead += int((is_dead & is_wanted[rows]).sum())
            is_wanted[rows[is_dead]] = False
        counts = self._count_messages(chunk, is_right)
        self._done.messages += int(counts[is_wanted].sum())
        for row in np.flatnonzero(is_wanted & (queues < 0)):
            self._report_record("unindexed", chunk, int(row), "its queue has no index")
        is_wanted &= queues >= 0
        self._seen.append(
            _Seen(
                chunk.positions[is_wanted],
                chunk.sizes[is_wanted],
                _tag_codes(chunk)[is_wanted],
                queues[is_wanted],
                chunk.records.offsets[is_wanted],
            )
        )

    def _check_times(self, chunk: Chunk) -> None:
        times = chunk.records.store_ms
        before = np.append(self._last_store_ms, times[:-1])
        self._done.backwards += int((times < before).sum())
        self._last_store_ms = int(times[-1])

    def _count_messages(self, chunk: Chunk, is_right: npt.NDArray[np.bool_]) -> Places:
        """Return the number of messages in each record. Open batches, to check that they are readable."""
        counts = np.ones(len(chunk), dtype=np.int64)
        is_batch = are_batches(chunk.records)
        counts[is_batch] = 0
        batches = np.flatnonzero(is_batch & is_right)
        if len(batches):
            alone = chunk.select(batches)
            for _, _, rows in alone.by_queue():
                counts[batches[rows]] = self._open(alone.select(rows))
        return counts

    def _open(self, batches: Chunk) -> Places:
        """Return the number of messages in each batch of one queue."""
        offsets = batches.records.offsets
        unreadable: list[UnreadableBatch] = []
        parts = [np.sort(rows.offsets) for _, rows in open_records(batches.block, batches.records, unreadable)]
        found = np.concatenate(parts)
        counts = np.diff(np.append(np.searchsorted(found, offsets), len(found)))
        broken = {error.offset: str(error) for error in unreadable}
        view = memoryview(batches.block)
        for row, (start, size) in enumerate(
            zip(batches.records.properties_starts.tolist(), batches.records.properties_sizes.tolist(), strict=True)
        ):
            flag, offset = int(batches.records.flags[row]), int(offsets[row])
            first, stated = inner_span(flag, bytes(view[start : start + size]), offset)
            if offset in broken:
                self._report_record("batch", batches, row, broken[offset])
            elif first != offset or stated not in {1, counts[row]}:
                text = f"its header says {stated} messages from offset {first} on, but it holds {counts[row]}"
                self._report_record("batch", batches, row, text)
        return counts

    # Comparing records with entries.

    def _compare(self, seen: _Seen, entries: _Entries) -> None:
        self._done.entries = len(entries.positions)
        places = np.searchsorted(seen.positions, entries.positions)
        is_met = np.zeros(len(places), dtype=np.bool_)
        inside = places < len(seen.positions)
        is_met[inside] = seen.positions[places[inside]] == entries.positions[inside]
        for number in np.flatnonzero(~is_met & ~entries.is_shared).tolist():
            self._report_entry("no record", entries, number, "no record begins at its position")
        own = np.flatnonzero(is_met & ~entries.is_shared)
        self._find_doubles(entries, own, places[own])
        self._find_differences(seen, entries, own, places[own])
        is_led_to = np.zeros(len(seen.positions), dtype=np.bool_)
        is_led_to[places[own]] = True
        for row in np.flatnonzero(~is_led_to).tolist():
            self._report_unindexed(seen, row)

    def _find_doubles(self, entries: _Entries, own: Places, places: Places) -> None:
        for again in np.flatnonzero(np.diff(places) == 0).tolist():
            first, second = int(own[again]), int(own[again + 1])
            path, at = self._queues[int(entries.queues[first])].locate(int(entries.numbers[first]))
            self._report_entry("doubled", entries, second, f"the entry at {path} byte {at} points to the same record")

    def _find_differences(self, seen: _Seen, entries: _Entries, own: Places, places: Places) -> None:
        is_timed = np.array([queue.topic == SCHEDULE_TOPIC for queue in self._queues] or [False])
        checks: tuple[tuple[str, npt.NDArray[np.bool_]], ...] = (
            ("queue", seen.queues[places] != entries.queues[own]),
            ("offset", seen.offsets[places] != entries.offsets[own]),
            ("size", seen.sizes[places] != entries.sizes[own]),
            # Entries of the schedule topic have a time in this field.
            ("tag", (seen.tags[places] != entries.tags[own]) & ~is_timed[entries.queues[own]]),
        )
        for what, differs in checks:
            for number in np.flatnonzero(differs).tolist():
                place, entry = int(places[number]), int(own[number])
                self._report_entry(
                    "differs", entries, entry, _difference(what, self._queues, seen, place, entries, entry)
                )

    # Reporting faults.

    def _report_log(self, kind: str, position: int, text: str, **fields: Any) -> None:
        path, at = self._folder.log_path(position)
        broker = self._folder.broker
        self._done.faults.add(Fault(kind=kind, broker=broker, path=path, at=at, position=position, text=text, **fields))

    def _report_record(self, kind: str, chunk: Chunk, row: int, text: str) -> None:
        topic = chunk.topics[row].as_py().decode(errors="replace")
        queue, offset = int(chunk.queue_ids[row]), int(chunk.records.offsets[row])
        self._report_log(kind, int(chunk.positions[row]), text, topic=topic, queue=queue, offset=offset)

    def _report_unindexed(self, seen: _Seen, row: int) -> None:
        """Report a record without an entry, and what the index contains at the record's offset."""
        queue, offset = self._queues[int(seen.queues[row])], int(seen.offsets[row])
        text = "no index entry points to it"
        low, high = queue.bounds
        if not queue.is_batched and low <= offset < high:
            with closing(QueueReader(queue)) as reader:
                entry = reader.read(offset, offset + 1)[0]
            path, at = queue.locate(offset)
            says = f"says position {entry['position']}" if entry["size"] else "is empty"
            text += f": the entry of its offset, {path} byte {at}, {says}"
        fields = {"topic": queue.topic, "queue": queue.queue_id, "offset": offset}
        self._report_log("unindexed", int(seen.positions[row]), text, **fields)

    def _report_entry(self, kind: str, entries: _Entries, number: int, text: str) -> None:
        queue = self._queues[int(entries.queues[number])]
        path, at = queue.locate(int(entries.numbers[number]))
        self._done.faults.add(
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
class _Entries:
    """Entries of all queues that point into a range, by position."""

    positions: Places
    sizes: Places
    tags: Places
    queues: Places
    offsets: Places
    numbers: Places
    is_shared: npt.NDArray[np.bool_]


def _gather(folder: StoreFolder, mine: LogRange, unsound: frozenset[tuple[str, int]]) -> _Entries:
    """Return the entries of all queues that point into a range, sorted by position."""
    names = ("positions", "sizes", "tags", "queues", "offsets", "numbers")
    columns: dict[str, list[Places]] = {name: [] for name in names}
    shared: list[npt.NDArray[np.bool_]] = []
    for number, queue in enumerate(folder.queues):
        reader = QueueReader(queue)
        is_sound = (queue.topic, queue.queue_id) not in unsound
        try:
            for low, entries in _read_near(reader, mine, is_sound=is_sound):
                position, size = entries["position"].astype(np.int64), entries["size"].astype(np.int64)
                is_mine = (position >= mine.start) & (position < mine.end) & (size != 0) & (size != BLANK_ENTRY_SIZE)
                columns["positions"].append(position[is_mine])
                columns["sizes"].append(size[is_mine])
                columns["tags"].append(entries["tags"][is_mine].astype(np.int64))
                columns["queues"].append(np.full(int(is_mine.sum()), number, dtype=np.int64))
                columns["offsets"].append(first_offsets(queue, low, entries)[is_mine])
                columns["numbers"].append(np.flatnonzero(is_mine) + low)
                shared.append(np.full(int(is_mine.sum()), queue.topic.startswith(SHARED_PREFIX)))
        except FileNotFoundError:
            continue  # The topic was deleted after the listing.
        finally:
            reader.close()
    joined = {name: np.concatenate(parts) if parts else np.empty(0, np.int64) for name, parts in columns.items()}
    order = np.argsort(joined["positions"], kind="stable")
    is_shared = np.concatenate(shared) if shared else np.empty(0, np.bool_)
    return _Entries(**{name: column[order] for name, column in joined.items()}, is_shared=is_shared[order])


def _read_near(reader: QueueReader, mine: LogRange, *, is_sound: bool) -> Iterator[tuple[int, Entries]]:
    """Yield (first number, entries) that may point into a range; all entries if the index is not sound."""
    if not is_sound:
        yield from reader.chunks()
        return
    low, high = reader.find(mine.start), reader.find(mine.end)
    yield low, reader.read(low, high)


def _join(parts: list[_Seen]) -> _Seen:
    columns: Mapping[str, list[Places]] = {
        name: [getattr(part, name) for part in parts] for name in ("positions", "sizes", "tags", "queues", "offsets")
    }
    return _Seen(**{name: np.concatenate(parts) if parts else np.empty(0, np.int64) for name, parts in columns.items()})


def _tag_codes(chunk: Chunk) -> Places:
    """Return the tags code that the index entry of each record should have."""
    tags = chunk.properties.find(names.TAGS).dictionary_encode()
    codes = [java_hash(tag) if tag else 0 for tag in tags.dictionary.to_pylist()]
    found = pa.array([*codes, 0], pa.int64()).take(tags.indices.fill_null(len(codes)))
    result: Places = found.to_numpy()
    return result


def _difference(what: str, queues: list[QueueFolder], seen: _Seen, place: int, entries: _Entries, entry: int) -> str:
    if what == "queue":
        queue = queues[int(seen.queues[place])]
        return f"its record belongs to {queue.topic}/{queue.queue_id}"
    mine, theirs = {
        "offset": (entries.offsets, seen.offsets),
        "size": (entries.sizes, seen.sizes),
        "tag": (entries.tags, seen.tags),
    }[what]
    return f"it has {what} {mine[entry]}, but its record has {theirs[place]}"
