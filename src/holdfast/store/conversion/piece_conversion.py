"""Pieces of an index: read, convert, prove, write, sync, read back.

Who converts and proves is a craft: `PieceCraft` here does it with what Python brings along; others may be quicker. All
of them make the same bytes of the same entries, so that a piece may be converted again, elsewhere, or by two at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from holdfast.model.errors import StoreError
from holdfast.store.base.disk import Disk
from holdfast.store.conversion.entry_conversion import blanks_before, check_entries, check_units, to_entries, to_units
from holdfast.store.conversion.record_headers import Owner, RecordHeads
from holdfast.store.queues.queue_files import QueueFiles
from holdfast.store.recovery.conversion_plan import PiecePlan, Plan, SourceQueue
from holdfast.wire.records.record import crc32

SLICE_SIZE = 4096
"""Entries that are converted and proven at a time."""
TOGETHER = 16
"""Pieces that are made at a time: what several queues have in one place of the log is looked up together."""
_EVERYWHERE = 1 << 62  # Every file of the new index is there before anything is written into it.

Bytes = bytes | bytearray | memoryview


class OldPiece(NamedTuple):
    """A piece, the queue that it is of, and the entries that it has now."""

    piece: PiecePlan
    queue: SourceQueue
    entries: bytes


class Craft(Protocol):
    """Makes entries of one kind of others, and proves that they are right."""

    def make(self, plan: Plan, olds: Sequence[OldPiece]) -> Iterable[Bytes]:
        """Return what each of *olds* becomes, proven: the log says so too. It may change when the next is taken.

        Raises:
            StoreError: they cannot become anything, or the log says other things; the text names the first that is
                wrong.
        """
        ...


class PieceCraft:
    """Does it without anything that is not everywhere."""

    def __init__(self, heads: RecordHeads) -> None:
        self._heads = heads

    def make(self, plan: Plan, olds: Sequence[OldPiece]) -> list[Bytes]:
        """Return what each of *olds* becomes."""
        return [self._make(plan, old) for old in olds]

    def _make(self, plan: Plan, old: OldPiece) -> Bytes:
        piece, made, width = old.piece, bytearray(), plan.source.entry_size
        for start in range(piece.start, piece.end, SLICE_SIZE):
            # What the log says of a few entries is still in the processor's cache when they are proven.
            end = min(start + SLICE_SIZE, piece.end)
            target = piece.target + len(made) // plan.target.entry_size
            part = PiecePlan(piece.number, piece.queue_id, start, end, target)
            rows = old.entries[(start - piece.start) * width : (end - piece.start) * width]
            made += self._make_slice(plan, OldPiece(part, old.queue, rows))
        return made

    def _make_slice(self, plan: Plan, old: OldPiece) -> bytearray:
        """Return what a few entries become. Conversion believes the index, the proof believes only the log."""
        piece, queue, entries = old
        owner = Owner(plan.topic, piece.queue_id)
        if plan.to == "batch":
            made = to_units(entries, piece.start, self._heads, is_gone=queue.is_gone)
            check_units(made, entries, piece.start, owner, self._heads, is_gone=queue.is_gone)
        else:
            made = to_entries(entries, piece.target)
            check_entries(made, entries, piece.target, owner, self._heads, is_gone=queue.is_gone)
        return made


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
    for at in range(0, len(pieces), TOGETHER):
        mine = pieces[at : at + TOGETHER]
        olds = [OldPiece(piece, plan.get_queue(piece.queue_id), _read(plan, piece, source)) for piece in mine]
        for old, made in zip(olds, craft.make(plan, olds), strict=True):
            folder = f"{plan.built.folder}/{old.piece.queue_id}"
            for place, data in _place(plan, old, made):
                built.write(folder, place, memoryview(data), _EVERYWHERE)
                written.parts.append((folder, place, len(data), crc32(data)))
    return written


def _read(plan: Plan, piece: PiecePlan, source: QueueFiles) -> bytes:
    size = plan.source.entry_size
    return source.read(f"{plan.source.folder}/{piece.queue_id}", piece.start * size, (piece.end - piece.start) * size)


def _place(plan: Plan, old: OldPiece, made: Bytes) -> Iterator[tuple[int, Bytes]]:
    """Yield what a piece became, and where it belongs in the new index of its queue."""
    piece, size = old.piece, plan.target.entry_size
    if plan.to == "simple" and piece.start == old.queue.first:
        front = blanks_before(piece.target, plan.target_file_size)
        yield piece.target * size - len(front), front
    yield piece.target * size, made
