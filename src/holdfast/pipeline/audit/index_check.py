"""Checks the index of one queue on its own: no entry missing, positions and offsets rise, none is past the log's end.

    entries   [=====|=====|0 0 0|=====|=====|0 0 0 0 0 ...        zeros between entries: one was lost

Runs in tasks, with several queues each. It also determines the bounds of the queue, and whether its positions can be
searched: the checks of the log and of the mapping need both.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from holdfast.pipeline.scan.faults import Fault, Faults
from holdfast.pipeline.scan.queue_entries import Entries, QueueFolder, QueueReader, first_offsets
from holdfast.store.queues.queue_index import BLANK_ENTRY_SIZE


class IndexTask(msgspec.Struct, frozen=True):
    """Some queues of one store, and the bounds of its log.

    Attributes:
        end: Entries at or past this position are ignored while the broker is live: it continues to write.
        is_closed: The log ends at *end*, and entries past it are faults.
    """

    broker: str
    store: int
    start: int
    end: int
    is_closed: bool
    queues: tuple[QueueFolder, ...]


class IndexResult(msgspec.Struct, kw_only=True):
    """The result for one queue.

    Attributes:
        is_searchable: Its positions rise, so they can be searched.
        offset_min: Its first offset that is still in the log.
        offset_max: The end of its offsets, exclusive.
        blanks: Entries that a recovery wrote for lost messages.
        gaps: Offsets without an entry; an index whose entries state their offsets may have them.
    """

    store: int
    topic: str
    queue_id: int
    entries: int = 0
    is_searchable: bool = True
    offset_min: int = 0
    offset_max: int = 0
    blanks: int = 0
    gaps: int = 0
    faults: Faults = msgspec.field(default_factory=Faults)


def audit_queues(task: IndexTask) -> list[IndexResult]:
    """Check every queue of a task."""
    return [_QueueAudit(task, queue).run() for queue in task.queues]


class _QueueAudit:
    def __init__(self, task: IndexTask, queue: QueueFolder) -> None:
        self._task = task
        self._queue = queue
        self._reader = QueueReader(queue)
        self._result = IndexResult(store=task.store, topic=queue.topic, queue_id=queue.queue_id)
        self._last_position = -1
        self._last_number = -1
        self._next_offset = -1
        self._has_min = False

    def run(self) -> IndexResult:
        try:
            for first, entries in self._reader.chunks():
                self._process(first, entries)
        except FileNotFoundError:
            # The topic was deleted, or the oldest file removed, after the listing: do not check removed files.
            self._result.is_searchable = False
        finally:
            self._reader.close()
        return self._result

    def _process(self, first: int, entries: Entries) -> None:
        sizes = entries["size"]
        is_used = sizes != 0
        if not self._task.is_closed:
            is_used &= entries["position"] < self._task.end
        numbers = np.flatnonzero(is_used)
        if not len(numbers):
            return
        self._find_missing(first, numbers)
        is_real = sizes[numbers] != BLANK_ENTRY_SIZE
        self._result.blanks += int((~is_real).sum())
        real = numbers[is_real]
        self._result.entries += len(real)
        if len(real):
            self._check_positions(first, entries, real)
            self._check_offsets(first, entries, real)
        if not self._queue.has_offsets:
            self._result.offset_max = first + int(numbers[-1]) + 1

    def _find_missing(self, first: int, numbers: npt.NDArray[np.int64]) -> None:
        known = numbers + first
        before = np.append(self._last_number if self._last_number >= 0 else known[0] - 1, known[:-1])
        for row in np.flatnonzero(known != before + 1):
            # Retention removes only whole files from the front, so a hole elsewhere is a lost entry.
            self._result.is_searchable = False
            count = int(known[row] - before[row] - 1)
            lost = int(before[row]) + 1
            description = f"entry {lost} is" if count == 1 else f"entries {lost} to {lost + count - 1} are"
            self._report("lost entry", lost, f"{description} empty, but later entries exist")
        self._last_number = int(known[-1])

    def _check_positions(self, first: int, entries: Entries, real: npt.NDArray[np.int64]) -> None:
        positions = entries["position"][real].astype(np.int64)
        before = np.append(self._last_position, positions[:-1])
        for row in np.flatnonzero(positions <= before):
            self._result.is_searchable = False
            text = f"position {positions[row]} follows position {before[row]}"
            self._report("order", first + int(real[row]), text, int(positions[row]))
        self._last_position = int(positions.max(initial=self._last_position))
        is_invalid = (entries["size"][real] < 0) | (positions < 0)
        if self._task.is_closed:
            is_invalid |= positions >= self._task.end
        for row in np.flatnonzero(is_invalid):
            self._result.is_searchable = False
            text = f"it points to position {positions[row]}, but the log ends at {self._task.end}"
            self._report("no record", first + int(real[row]), text, int(positions[row]))

    def _check_offsets(self, first: int, entries: Entries, real: npt.NDArray[np.int64]) -> None:
        offsets = first_offsets(self._queue, first, entries)[real]
        is_in_log = entries["position"][real] >= self._task.start
        if not self._has_min and is_in_log.any():
            self._has_min = True
            self._result.offset_min = int(offsets[int(np.argmax(is_in_log))])
        if not self._queue.has_offsets:
            return
        counts = entries["count"][real].astype(np.int64)
        before = np.append(self._next_offset if self._next_offset >= 0 else offsets[0], (offsets + counts)[:-1])
        self._result.gaps += int(np.maximum(offsets - before, 0).sum())
        for row in np.flatnonzero((offsets < before) | (counts <= 0)):
            text = f"offset {offsets[row]}, {counts[row]} messages, follows offset {before[row] - 1}"
            self._report("order", first + int(real[row]), text)
        self._next_offset = self._result.offset_max = int((offsets + counts)[-1])

    def _report(self, kind: str, number: int, text: str, position: int | None = None) -> None:
        path, at = self._queue.locate(number)
        fields: dict[str, Any] = {"topic": self._queue.topic, "queue": self._queue.queue_id}
        if not self._queue.has_offsets:
            fields["offset"] = number
        self._result.faults.add(
            Fault(kind=kind, broker=self._task.broker, path=path, at=at, position=position, text=text, **fields)
        )
