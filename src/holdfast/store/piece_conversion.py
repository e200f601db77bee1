"""Pieces of an index: read, convert, prove, write, sync, read back.

Who converts and proves is a craft: `PieceCraft` here does it with what Python brings along; others may be quicker. All
of them make the same bytes of the same entries, so that a piece may be converted again, elsewhere, or by two at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from holdfast.model.errors import StoreError
from holdfast.store.conversion_plan import PiecePlan, Plan, SourceQueue
from holdfast.store.disk import Disk
from holdfast.store.entry_conversion import blanks_before, check_entries, check_units, to_entries, to_units
from holdfast.store.queue_files import QueueFiles
from holdfast.store.record_heads import Owner, RecordHeads
from holdfast.wire.record import crc32

SLICE_SIZE = 4096
"""Entries that are converted and proven at a time."""
_EVERYWHERE = 1 << 62  # Every file of the new index is there before anything is written into it.

Bytes = bytes | bytearray | memoryview


class Craft(Protocol):
    """Makes entries of one kind of others, and proves that they are right."""

    def convert(self, plan: Plan, piece: PiecePlan, queue: SourceQueue, old: bytes) -> Bytes:
        """Return what the entries of *piece*, which are *old*, become.

        Raises:
            StoreError: they cannot become anything.
        """
        ...

    def check(self, plan: Plan, piece: PiecePlan, queue: SourceQueue, old: bytes, new: Bytes) -> None:
        """Require that *new* is what became of *old*, and that the log says so too.

        Raises:
            StoreError: it is not, or does not; the text names the first that is wrong.
        """
        ...


class PieceCraft:
    """Does it without anything that is not everywhere."""

    def __init__(self, heads: RecordHeads) -> None:
        self._heads = heads

    def convert(self, plan: Plan, piece: PiecePlan, queue: SourceQueue, old: bytes) -> Bytes:
        """Return what the entries of *piece* become."""
        if plan.to == "batch":
            return to_units(old, piece.start, self._heads, is_gone=queue.is_gone)
        return to_entries(old, piece.target)

    def check(self, plan: Plan, piece: PiecePlan, queue: SourceQueue, old: bytes, new: Bytes) -> None:
        """Require that *new* is what became of *old*, and that the log says so too."""
        owner, made = Owner(plan.topic, piece.queue_id), bytes(new)
        if plan.to == "batch":
            check_units(made, old, piece.start, owner, self._heads, is_gone=queue.is_gone)
        else:
            check_entries(made, old, piece.target, owner, self._heads, is_gone=queue.is_gone)


class Written(NamedTuple):
    """What some pieces became: written, but perhaps not on disk.

    Attributes:
        files: The new index.
        parts: Folder, place, size and checksum of what was written.
    """

    files: QueueFiles
    parts: list[tuple[str, int, int, int]]

    def settle(self) -> None:
        """Bring it to disk, and read it back.

        Raises:
            StoreError: it is not what was written.
        """
        for path in self.files.unsynced:
            self.files.cache.open(path).sync()
        for folder, at, size, checksum in self.parts:
            if crc32(self.files.read(folder, at, size)) != checksum:
                raise StoreError(f"{folder} has not kept the {size} bytes that were written at {at}")


def convert_pieces(disk: Disk, plan: Plan, pieces: Sequence[PiecePlan], craft: Craft) -> None:
    """Convert some pieces of *plan*: when this returns they are on disk, and proven against the log.

    Raises:
        StoreError: an entry says what is not in the log; the text names it.
    """
    write_pieces(disk, plan, pieces, craft).settle()


def write_pieces(disk: Disk, plan: Plan, pieces: Sequence[PiecePlan], craft: Craft) -> Written:
    """Convert some pieces of *plan*, prove them against the log, and write them. They are not done until settled.

    Raises:
        StoreError: an entry says what is not in the log; the text names it.
    """
    source, built = plan.source.open(disk), plan.built.open(disk)
    written = Written(built, [])
    for piece in pieces:
        folder = f"{plan.built.folder}/{piece.queue_id}"
        for at, data in _convert(plan, piece, craft, source):
            built.write(folder, at, memoryview(data), _EVERYWHERE)
            written.parts.append((folder, at, len(data), crc32(data)))
    return written


def _convert(plan: Plan, piece: PiecePlan, craft: Craft, source: QueueFiles) -> Iterator[tuple[int, Bytes]]:
    """Yield what a piece becomes, proven, and where it belongs in the new index of its queue."""
    queue = plan.get_queue(piece.queue_id)
    old_size, new_size = plan.source.entry_size, plan.target.entry_size
    old = source.read(
        f"{plan.source.folder}/{piece.queue_id}", piece.start * old_size, (piece.end - piece.start) * old_size
    )
    if plan.to == "simple" and piece.start == queue.first:
        front = blanks_before(piece.target, plan.target_file_size)
        yield piece.target * new_size - len(front), front
    parts: list[Bytes] = []
    target = piece.target
    for start in range(piece.start, piece.end, SLICE_SIZE):
        # What the log says of a few entries is still in the processor's cache when they are proven.
        end = min(start + SLICE_SIZE, piece.end)
        part = PiecePlan(piece.number, piece.queue_id, start, end, target)
        rows = old[(start - piece.start) * old_size : (end - piece.start) * old_size]
        made = craft.convert(plan, part, queue, rows)
        craft.check(plan, part, queue, rows, made)
        parts.append(made)
        target += len(made) // new_size
    yield piece.target * new_size, b"".join(parts)
