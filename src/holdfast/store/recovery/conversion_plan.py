"""What a conversion of a topic's index has to do, and how far it is: both in files, for whoever goes on with it.

    holdfast/conversion/<topic>/progress.json   planning -> building -> switching -> done; which pieces are on disk
    holdfast/conversion/<topic>/plan.json       the queues as they were found, and the pieces
    holdfast/conversion/<topic>/new/<queue>/... the new index, until it is whole
    holdfast/conversion/<topic>/old/<queue>/... the old one, when it is not needed any more

A piece is some entries of one queue and the place where what they become begins. It depends on no other piece. Knows
what is in an index, but converts nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, TypeVar

import msgspec

from holdfast.model.errors import StoreError
from holdfast.store.base.disk import Disk
from holdfast.store.base.file_cache import FileCache
from holdfast.store.base.log_file import file_name
from holdfast.store.queues.batch_consume_queue import FOLDER as BATCH_FOLDER
from holdfast.store.queues.batch_consume_queue import UNIT_SIZE
from holdfast.store.queues.queue_files import ENTRY_SIZE, QueueFiles
from holdfast.store.queues.queue_files import FOLDER as QUEUE_FOLDER

FOLDER = "holdfast/conversion"
PIECE_SIZE = 65_536
"""Entries that are converted at a time: a few megabytes in memory."""
OPEN_FILES_MAX = 128

Target = Literal["batch", "simple"]
_T = TypeVar("_T")
State = Literal["planning", "building", "switching", "done"]


class SourceQueue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue as it is now: if it is found like that again, nobody has changed it meanwhile.

    Attributes:
        first: Number of the first entry whose record is still in the log.
        end: Behind the number of the last entry.
        is_gone: No record is left; the last entry alone tells where the queue goes on, and stays.
        last: The last entry.
        last_ms: Store time of the record that it points to: a log that lost its end and was written to again may have
            another record of the same size there.
    """

    queue_id: int
    first: int
    end: int
    is_gone: bool
    last: bytes
    last_ms: int


class PiecePlan(msgspec.Struct, frozen=True, array_like=True):
    """Entries [start, end) of the old index; what they become begins at entry *target* of the new one."""

    number: int
    queue_id: int
    start: int
    end: int
    target: int


class QueueFigures(msgspec.Struct, frozen=True, kw_only=True):
    """How much there is of one queue, in the old index and in the new one."""

    queue: int
    entries: int
    new_entries: int
    bytes: int
    new_bytes: int


class Plan(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Everything that whoever converts a piece has to know.

    Attributes:
        spans: Of each queue the numbers [first, end) of the entries of its new index.
    """

    topic: str
    to: Target
    source_file_size: int
    target_file_size: int
    queues: list[SourceQueue]
    spans: dict[int, tuple[int, int]]
    pieces: list[PiecePlan]

    @property
    def source(self) -> IndexPlace:
        """Where the old index is served from."""
        return IndexPlace.of("simple" if self.to == "batch" else "batch", self.topic, self.source_file_size)

    @property
    def target(self) -> IndexPlace:
        """Where the new index will be served from."""
        return IndexPlace.of(self.to, self.topic, self.target_file_size)

    @property
    def built(self) -> IndexPlace:
        """Where the new index is put together."""
        return msgspec.structs.replace(self.target, folder=f"{FOLDER}/{self.topic}/new")

    def get_queue(self, queue_id: int) -> SourceQueue:
        """Return the queue with that number."""
        return next(queue for queue in self.queues if queue.queue_id == queue_id)

    def only(self, pieces: Iterable[PiecePlan]) -> Plan:
        """Return as much of it as whoever converts *pieces* has to know: it may have to travel."""
        wanted = {piece.queue_id for piece in pieces}
        queues = [queue for queue in self.queues if queue.queue_id in wanted]
        return msgspec.structs.replace(self, queues=queues, spans={}, pieces=[])

    def figures(self) -> list[QueueFigures]:
        """Return how much there is of each queue, before and afterwards."""
        return [
            QueueFigures(
                queue=queue.queue_id,
                entries=queue.end - queue.first,
                new_entries=(new := self.spans[queue.queue_id][1] - self.spans[queue.queue_id][0]),
                bytes=(queue.end - queue.first) * self.source.entry_size,
                new_bytes=new * self.target.entry_size,
            )
            for queue in self.queues
        ]

    def built_paths(self) -> Iterator[str]:
        """Yield the path of every file of the new index, where it is put together."""
        per_file = self.target_file_size // self.target.entry_size
        for queue_id, (first, end) in self.spans.items():
            for number in range(first // per_file, (end + per_file - 1) // per_file):
                yield f"{self.built.folder}/{queue_id}/{file_name(number * self.target_file_size)}"


class IndexPlace(msgspec.Struct, frozen=True):
    """The folder of a topic's index, and how its files are made."""

    folder: str
    entry_size: int
    file_size: int

    @classmethod
    def of(cls, kind: Target, topic: str, file_size: int) -> IndexPlace:
        """Return where the index of one kind belongs."""
        is_batched = kind == "batch"
        parent = BATCH_FOLDER if is_batched else QUEUE_FOLDER
        return cls(f"{parent}/{topic}", UNIT_SIZE if is_batched else ENTRY_SIZE, file_size)

    def open(self, disk: Disk) -> QueueFiles:
        """Return its files, to be read and written by the folder of a queue."""
        cache = FileCache(disk, OPEN_FILES_MAX)
        return QueueFiles(cache, self.file_size, 8, folder=self.folder.rpartition("/")[0], entry_size=self.entry_size)


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far it is.

    Attributes:
        done: Ranges of numbers of pieces that are on disk.
    """

    topic: str
    to: Target
    state: State
    done: list[tuple[int, int]] = []

    def missing(self, count: int) -> list[int]:
        """Return those of *count* pieces that are not done, in order."""
        done = {number for start, end in self.done for number in range(start, end)}
        return [number for number in range(count) if number not in done]

    def with_done(self, numbers: Iterable[int]) -> Progress:
        """Return the same with more pieces done."""
        ranges: list[tuple[int, int]] = []
        for start, end in sorted([*self.done, *((number, number + 1) for number in numbers)]):
            if ranges and start <= ranges[-1][1]:
                ranges[-1] = (ranges[-1][0], max(end, ranges[-1][1]))
            else:
                ranges.append((start, end))
        return msgspec.structs.replace(self, done=ranges)

    def save(self, disk: Disk) -> None:
        """Write it durably."""
        disk.replace(f"{FOLDER}/{self.topic}/progress.json", msgspec.json.encode(self))


def load_progress(disk: Disk, topic: str) -> Progress | None:
    """Return how far a conversion of *topic* is; None when there is none."""
    return _load(disk, f"{FOLDER}/{topic}/progress.json", Progress)


def load_plan(disk: Disk, topic: str) -> Plan | None:
    """Return what a conversion of *topic* has to do; None when nobody has planned one."""
    return _load(disk, f"{FOLDER}/{topic}/plan.json", Plan)


def save_plan(disk: Disk, plan: Plan) -> None:
    """Write it durably."""
    disk.replace(f"{FOLDER}/{plan.topic}/plan.json", msgspec.json.encode(plan))


def _load(disk: Disk, path: str, kind: type[_T]) -> _T | None:
    data = disk.read_file(path)
    if data is None:
        return None
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreError(
            f"{path} cannot be read: {error}; remove it if no conversion of this topic is wanted"
        ) from error


def refuse_half_switched(disk: Disk) -> None:
    """Let nobody serve a topic whose index is neither the old one nor the new one.

    Raises:
        StoreError: there is one; the text says how it becomes whole.
    """
    for name in disk.list(FOLDER):
        progress = load_progress(disk, name.removesuffix("/"))
        if progress is not None and progress.state == "switching":
            raise StoreError(
                f"the index of topic {progress.topic} is about to be switched, and who did that was stopped: run "
                f"`holdfast index convert {progress.topic} --to {progress.to} --store DIR` on this folder once more"
            )
