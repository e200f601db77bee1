"""Plan and progress of a conversion of a topic's index, both in files, so that a later run can continue it.

    holdfast/conversion/<topic>/progress.json   planning -> building -> switching -> done; which pieces are on disk
    holdfast/conversion/<topic>/plan.json       the state of the queues, and the pieces
    holdfast/conversion/<topic>/new/<queue>/... the new index, until it is complete
    holdfast/conversion/<topic>/old/<queue>/... the old one, when it is no longer needed

A piece is a range of entries of one queue, with the number of its first converted entry. It depends on no other piece.
This module knows the layout of an index, but converts nothing. There are conversions between two kinds of index.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, TypeVar

import msgspec

from holdfast.model.errors import StoreError
from holdfast.model.topic import QUEUE_TYPES
from holdfast.store.base.disk import Disk
from holdfast.store.base.file_cache import FileCache
from holdfast.store.base.log_file import file_name
from holdfast.store.queues.index_kinds import IndexKind, find_kind
from holdfast.store.queues.queue_files import QueueFiles

FOLDER = "holdfast/conversion"
PIECE_SIZE = 65_536
"""Entries that are converted at once: a few megabytes in memory."""
OPEN_FILES_MAX = 128

ConvertedKind = Literal["batch", "simple"]
"""A kind of index that can be converted to the other one, by the name that users give."""
_T = TypeVar("_T")
ConversionState = Literal["planning", "building", "switching", "done"]


def index_kind(name: ConvertedKind) -> IndexKind:
    """Return the kind of index of that name."""
    return find_kind(QUEUE_TYPES[name])


def kind_before(to: ConvertedKind) -> IndexKind:
    """Return the kind of index that a conversion to *to* begins with."""
    return index_kind("simple" if to == "batch" else "batch")


class SourceQueue(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a queue: if it is found unchanged later, the plan is still valid.

    Attributes:
        first: Number of the first entry whose record is still in the log.
        end: The number after the last entry.
        is_gone: No record is left. Only the last entry holds the next offset of the queue, so it stays.
        last: The last entry.
        last_ms: Store time of its record: a log that lost its end and was written again may have another record of the
            same size there.
    """

    queue_id: int
    first: int
    end: int
    is_gone: bool
    last: bytes
    last_ms: int


class PiecePlan(msgspec.Struct, frozen=True, array_like=True):
    """Entries [start, end) of the old index. Their conversion begins at entry *target* of the new one."""

    number: int
    queue_id: int
    start: int
    end: int
    target: int


class QueueFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The size of one queue in the old index and in the new one."""

    queue: int
    entries: int
    new_entries: int
    bytes: int
    new_bytes: int


class ConversionPlan(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Everything needed to convert a piece.

    Attributes:
        spans: For each queue the numbers [first, end) of the entries of its new index.
    """

    topic: str
    to: ConvertedKind
    source_file_size: int
    target_file_size: int
    queues: list[SourceQueue]
    spans: dict[int, tuple[int, int]]
    pieces: list[PiecePlan]

    @property
    def source(self) -> IndexLayout:
        """The place from which the old index is served."""
        return IndexLayout.of(kind_before(self.to), self.topic, self.source_file_size)

    @property
    def target(self) -> IndexLayout:
        """The place from which the new index will be served."""
        return IndexLayout.of(index_kind(self.to), self.topic, self.target_file_size)

    @property
    def built(self) -> IndexLayout:
        """The place where the new index is built."""
        return msgspec.structs.replace(self.target, folder=f"{FOLDER}/{self.topic}/new")

    def get_queue(self, queue_id: int) -> SourceQueue:
        """Return the queue with that number."""
        return next(queue for queue in self.queues if queue.queue_id == queue_id)

    def restricted_to(self, pieces: Iterable[PiecePlan]) -> ConversionPlan:
        """Return only the part needed to convert *pieces*, because it may be sent over the network."""
        queue_ids = {piece.queue_id for piece in pieces}
        queues = [queue for queue in self.queues if queue.queue_id in queue_ids]
        return msgspec.structs.replace(self, queues=queues, spans={}, pieces=[])

    def figures(self) -> list[QueueFigures]:
        """Return the size of each queue, before and after."""
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
        """Yield the path of every file of the new index, where it is built."""
        per_file = self.target_file_size // self.target.entry_size
        for queue_id, (first, end) in self.spans.items():
            for number in range(first // per_file, (end + per_file - 1) // per_file):
                yield f"{self.built.folder}/{queue_id}/{file_name(number * self.target_file_size)}"


class IndexLayout(msgspec.Struct, frozen=True):
    """The folder of a topic's index, and the sizes of its entries and files."""

    folder: str
    entry_size: int
    file_size: int

    @classmethod
    def of(cls, kind: IndexKind, topic: str, file_size: int) -> IndexLayout:
        """Return the place of a topic's index of one kind."""
        return cls(f"{kind.kind_folder}/{topic}", kind.entry_size, file_size)

    def open(self, disk: Disk) -> QueueFiles:
        """Return the files of the index, which are addressed by the folder of a queue."""
        cache = FileCache(disk, OPEN_FILES_MAX)
        return QueueFiles(cache, self.file_size, 8, folder=self.folder.rpartition("/")[0], entry_size=self.entry_size)


class ConversionProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a conversion.

    Attributes:
        done: Ranges of the numbers of pieces that are on disk.
    """

    topic: str
    to: ConvertedKind
    state: ConversionState
    done: list[tuple[int, int]] = []

    def missing(self, count: int) -> list[int]:
        """Return the numbers below *count* of the pieces that are not done, in order."""
        done = {number for start, end in self.done for number in range(start, end)}
        return [number for number in range(count) if number not in done]

    def with_done(self, numbers: Iterable[int]) -> ConversionProgress:
        """Return this progress with more pieces done."""
        ranges: list[tuple[int, int]] = []
        for start, end in sorted([*self.done, *((number, number + 1) for number in numbers)]):
            if ranges and start <= ranges[-1][1]:
                ranges[-1] = (ranges[-1][0], max(end, ranges[-1][1]))
            else:
                ranges.append((start, end))
        return msgspec.structs.replace(self, done=ranges)

    def save(self, disk: Disk) -> None:
        """Persist the progress."""
        disk.replace(f"{FOLDER}/{self.topic}/progress.json", msgspec.json.encode(self))


def load_progress(disk: Disk, topic: str) -> ConversionProgress | None:
    """Return the progress of a conversion of *topic*; None if there is none."""
    return _load(disk, f"{FOLDER}/{topic}/progress.json", ConversionProgress)


def load_plan(disk: Disk, topic: str) -> ConversionPlan | None:
    """Return the plan of a conversion of *topic*; None if there is none."""
    return _load(disk, f"{FOLDER}/{topic}/plan.json", ConversionPlan)


def save_plan(disk: Disk, plan: ConversionPlan) -> None:
    """Persist the plan."""
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
    """Refuse a folder with a topic whose index is half switched from the old one to the new one.

    Raises:
        StoreError: there is such a topic; the text says how to finish the switch.
    """
    for name in disk.list(FOLDER):
        progress = load_progress(disk, name.removesuffix("/"))
        if progress is not None and progress.state == "switching":
            raise StoreError(
                f"the index of topic {progress.topic} is half switched, because the conversion was interrupted: run "
                f"`holdfast index convert {progress.topic} --to {progress.to} --store DIR` on this folder once more"
            )
