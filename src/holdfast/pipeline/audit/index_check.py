"""One queue's index by itself: no holes, positions and offsets rise, nothing leads behind the log.

    entries   [=====|=====|0 0 0|=====|=====|0 0 0 0 0 ...        zeros between entries: one was lost

Runs in tasks, some queues each. What it finds out beside, how far the queue goes and whether its positions can be
searched, the audit of the log and of the mapping builds on.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from holdfast.pipeline.scan.faults import Fault, Faults
from holdfast.pipeline.scan.queue_entries import Entries, QueueFolder, QueueReader, first_offsets
from holdfast.store.queues.queue_log import BLANK_ENTRY_SIZE


class IndexTask(msgspec.Struct, frozen=True):
    """Some queues of one store, and what of its log counts.

    Attributes:
        end: Entries of records at or behind it are not looked at: a live broker goes on.
        is_closed: There is nothing behind the end, and entries that lead there are wrong.
    """

    broker: str
    store: int
    start: int
    end: int
    is_closed: bool
    queues: tuple[QueueFolder, ...]


class IndexDone(msgspec.Struct, kw_only=True):
    """What was found of one queue.

    Attributes:
        is_sound: Its positions rise: they can be searched.
        offset_min: Its first offset that is in the log.
        offset_max: Behind its last.
        blanks: Entries that stand for messages that were lost before, as a recovery told.
        gaps: Offsets that no entry has, in an index by record, where that is allowed.
    """

    store: int
    topic: str
    queue_id: int
    entries: int = 0
    is_sound: bool = True
    offset_min: int = 0
    offset_max: int = 0
    blanks: int = 0
    gaps: int = 0
    faults: Faults = msgspec.field(default_factory=Faults)


def audit_queues(task: IndexTask) -> list[IndexDone]:
    """Look at every queue of a task."""
    return [_QueueAudit(task, queue).run() for queue in task.queues]


class _QueueAudit:
    def __init__(self, task: IndexTask, queue: QueueFolder) -> None:
        self._task = task
        self._queue = queue
        self._reader = QueueReader(queue)
        self._done = IndexDone(store=task.store, topic=queue.topic, queue_id=queue.queue_id)
        self._last_position = -1
        self._last_number = -1
        self._next_offset = -1
        self._has_min = False

    def run(self) -> IndexDone:
        try:
            for first, entries in self._reader.chunks():
                self._take(first, entries)
        except FileNotFoundError:
            # Its topic was deleted, or the oldest file removed, since it was listed: what is gone is not judged.
            self._done.is_sound = False
        finally:
            self._reader.close()
        return self._done

    def _take(self, first: int, entries: Entries) -> None:
        sizes = entries["size"]
        is_used = sizes != 0
        if not self._task.is_closed:
            is_used &= entries["position"] < self._task.end
        numbers = np.flatnonzero(is_used)
        if not len(numbers):
            return
        self._find_holes(first, numbers)
        is_real = sizes[numbers] != BLANK_ENTRY_SIZE
        self._done.blanks += int((~is_real).sum())
        real = numbers[is_real]
        self._done.entries += len(real)
        if len(real):
            self._judge_positions(first, entries, real)
            self._judge_offsets(first, entries, real)
        if not self._queue.is_batched:
            self._done.offset_max = first + int(numbers[-1]) + 1

    def _find_holes(self, first: int, numbers: npt.NDArray[np.int64]) -> None:
        known = numbers + first
        before = np.append(self._last_number if self._last_number >= 0 else known[0] - 1, known[:-1])
        for place in np.flatnonzero(known != before + 1):
            # Retention removes whole files, from the front.
            self._done.is_sound = False
            count = int(known[place] - before[place] - 1)
            lost = int(before[place]) + 1
            which = f"entry {lost} is" if count == 1 else f"entries {lost} to {lost + count - 1} are"
            self._tell("lost entry", lost, f"{which} empty, and there are entries behind")
        self._last_number = int(known[-1])

    def _judge_positions(self, first: int, entries: Entries, real: npt.NDArray[np.int64]) -> None:
        positions = entries["position"][real].astype(np.int64)
        before = np.append(self._last_position, positions[:-1])
        for place in np.flatnonzero(positions <= before):
            self._done.is_sound = False
            text = f"position {positions[place]} comes after {before[place]}"
            self._tell("order", first + int(real[place]), text, int(positions[place]))
        self._last_position = int(positions.max(initial=self._last_position))
        wrong = (entries["size"][real] < 0) | (positions < 0)
        if self._task.is_closed:
            wrong |= positions >= self._task.end
        for place in np.flatnonzero(wrong):
            self._done.is_sound = False
            text = f"it leads to position {positions[place]}, and the log ends at {self._task.end}"
            self._tell("no record", first + int(real[place]), text, int(positions[place]))

    def _judge_offsets(self, first: int, entries: Entries, real: npt.NDArray[np.int64]) -> None:
        offsets = first_offsets(self._queue, first, entries)[real]
        is_there = entries["position"][real] >= self._task.start
        if not self._has_min and is_there.any():
            self._has_min = True
            self._done.offset_min = int(offsets[int(np.argmax(is_there))])
        if not self._queue.is_batched:
            return
        counts = entries["count"][real].astype(np.int64)
        before = np.append(self._next_offset if self._next_offset >= 0 else offsets[0], (offsets + counts)[:-1])
        self._done.gaps += int(np.maximum(offsets - before, 0).sum())
        for place in np.flatnonzero((offsets < before) | (counts <= 0)):
            text = f"offset {offsets[place]}, {counts[place]} messages, comes after offset {before[place] - 1}"
            self._tell("order", first + int(real[place]), text)
        self._next_offset = self._done.offset_max = int((offsets + counts)[-1])

    def _tell(self, kind: str, number: int, text: str, position: int | None = None) -> None:
        path, at = self._queue.locate(number)
        fields: dict[str, Any] = {"topic": self._queue.topic, "queue": self._queue.queue_id}
        if not self._queue.is_batched:
            fields["offset"] = number
        self._done.faults.add(
            Fault(kind=kind, broker=self._task.broker, path=path, at=at, position=position, text=text, **fields)
        )
