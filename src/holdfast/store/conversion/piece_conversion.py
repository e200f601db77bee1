"""Convert pieces of an index: read, convert, verify, write, sync, read back.

A craft converts and verifies. `PieceCraft` in this module uses only the standard library; others may be faster. All of
them turn the same entries into the same bytes, so that a piece may be converted again, elsewhere, or by two runs at
once.
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
"""Entries that are converted and verified at once."""
TOGETHER = 16
"""Pieces that are made at once, so that entries of several queues for one place in the log are looked up together."""
_EVERYWHERE = 1 << 62  # A file end that no write reaches: all files of the new index exist before the first write.

Bytes = bytes | bytearray | memoryview


class OldPiece(NamedTuple):
    """A piece, its queue, and its entries in the old index."""

    piece: PiecePlan
    queue: SourceQueue
    entries: bytes


class Craft(Protocol):
    """Converts entries of one kind to the other, and verifies the result."""

    def make(self, plan: Plan, olds: Sequence[OldPiece]) -> Iterable[Bytes]:
        """Return the converted entries of each of *olds*, verified against the log. Each is valid until the next.

        Raises:
            StoreError: they cannot be converted, or the log disagrees; the text names the first wrong entry.
        """
        ...


class PieceCraft:
    """Converts with the standard library only."""

    def __init__(self, heads: RecordHeads) -> None:
        self._heads = heads

    def make(self, plan: Plan, olds: Sequence[OldPiece]) -> list[Bytes]:
        """Return the converted entries of each of *olds*, verified against the log."""
        return [self._make(plan, old) for old in olds]

    def _make(self, plan: Plan, old: OldPiece) -> Bytes:
        piece, made, width = old.piece, bytearray(), plan.source.entry_size
        for start in range(piece.start, piece.end, SLICE_SIZE):
            # In small slices the record heads are still in the processor's cache for the verification.
            end = min(start + SLICE_SIZE, piece.end)
            target = piece.target + len(made) // plan.target.entry_size
            part = PiecePlan(piece.number, piece.queue_id, start, end, target)
            rows = old.entries[(start - piece.start) * width : (end - piece.start) * width]
            made += self._make_slice(plan, OldPiece(part, old.queue, rows))
        return made

    def _make_slice(self, plan: Plan, old: OldPiece) -> bytearray:
        """Convert and verify a few entries. Conversion trusts the index, verification trusts only the log."""
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
    """Converted pieces: written, but perhaps not on disk.

    Attributes:
        files: The new index.
        parts: Folder, place, size and checksum of each write.
    """

    files: QueueFiles
    parts: list[tuple[str, int, int, int]]

    def settle(self) -> None:
        """Sync the written parts, and read them back.

        Raises:
            StoreError: the disk returns other bytes than were written.
        """
        for path in self.files.unsynced:
            self.files.cache.open(path).sync()
        for folder, at, size, checksum in self.parts:
            if crc32(self.files.read(folder, at, size)) != checksum:
                raise StoreError(f"{folder} has not kept the {size} bytes that were written at {at}")


def convert_pieces(disk: Disk, plan: Plan, pieces: Sequence[PiecePlan], craft: Craft) -> None:
    """Convert some pieces of *plan*: when this returns they are on disk, and verified against the log.

    Raises:
        StoreError: an entry does not match the log; the text names it.
    """
    write_pieces(disk, plan, pieces, craft).settle()


def write_pieces(disk: Disk, plan: Plan, pieces: Sequence[PiecePlan], craft: Craft) -> Written:
    """Convert some pieces of *plan*, verify them against the log, and write them. Call `settle` to make them durable.

    Raises:
        StoreError: an entry does not match the log; the text names it.
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
    """Yield the converted entries of a piece, and their places in the new index of its queue."""
    piece, size = old.piece, plan.target.entry_size
    if plan.to == "simple" and piece.start == old.queue.first:
        front = blanks_before(piece.target, plan.target_file_size)
        yield piece.target * size - len(front), front
    yield piece.target * size, made
