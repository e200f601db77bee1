"""Convert pieces of an index: read, convert, verify, write, sync, read back.

A converter converts and verifies. `PythonConverter` in this module uses only the standard library; others may be
faster. All of them turn the same entries into the same bytes, so that a piece may be converted again, elsewhere, or by
two runs at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from holdfast.model.errors import StoreError
from holdfast.store.base.disk import Disk
from holdfast.store.conversion.entry_conversion import (
    blanks_before,
    check_message_entries,
    check_record_entries,
    to_message_entries,
    to_record_entries,
)
from holdfast.store.conversion.record_headers import Owner, RecordHeaders
from holdfast.store.queues.queue_files import QueueFiles
from holdfast.store.recovery.conversion_plan import ConversionPlan, PiecePlan, SourceQueue
from holdfast.wire.records.record import crc32

SLICE_SIZE = 4096
"""Entries that are converted and verified at once."""
PIECES_AT_ONCE = 16
"""Pieces that are made at once, so that entries of several queues that are close in the log are looked up together."""
_NO_FILE_END = 1 << 62  # A file end that no write reaches: all files of the new index exist before the first write.

Bytes = bytes | bytearray | memoryview


class OldPiece(NamedTuple):
    """A piece, its queue, and its entries in the old index."""

    piece: PiecePlan
    queue: SourceQueue
    entries: bytes


class PieceConverter(Protocol):
    """Converts entries of one kind to the other, and verifies the result."""

    def convert(self, plan: ConversionPlan, olds: Sequence[OldPiece]) -> Iterable[Bytes]:
        """Return the converted entries of each of *olds*, verified against the log. Each is valid until the next.

        Raises:
            StoreError: they cannot be converted, or the log disagrees; the text names the first wrong entry.
        """
        ...


class PythonConverter:
    """Converts with the standard library only."""

    def __init__(self, headers: RecordHeaders) -> None:
        self._headers = headers

    def convert(self, plan: ConversionPlan, olds: Sequence[OldPiece]) -> list[Bytes]:
        """Return the converted entries of each of *olds*, verified against the log."""
        return [self._convert_piece(plan, old) for old in olds]

    def _convert_piece(self, plan: ConversionPlan, old: OldPiece) -> Bytes:
        piece, converted, width = old.piece, bytearray(), plan.source.entry_size
        for start in range(piece.start, piece.end, SLICE_SIZE):
            # In small slices the record headers are still in the processor's cache for the verification.
            end = min(start + SLICE_SIZE, piece.end)
            target = piece.target + len(converted) // plan.target.entry_size
            part = PiecePlan(piece.number, piece.queue_id, start, end, target)
            rows = old.entries[(start - piece.start) * width : (end - piece.start) * width]
            converted += self._convert_slice(plan, OldPiece(part, old.queue, rows))
        return converted

    def _convert_slice(self, plan: ConversionPlan, old: OldPiece) -> bytearray:
        """Convert and verify a few entries. Conversion trusts the index, verification trusts only the log."""
        piece, queue, entries = old
        owner = Owner(plan.topic, piece.queue_id)
        if plan.to == "batch":
            converted = to_record_entries(entries, piece.start, self._headers, is_gone=queue.is_gone)
            check_record_entries(converted, entries, piece.start, owner, self._headers, is_gone=queue.is_gone)
        else:
            converted = to_message_entries(entries, piece.target)
            check_message_entries(converted, entries, piece.target, owner, self._headers, is_gone=queue.is_gone)
        return converted


class WrittenPieces(NamedTuple):
    """Converted pieces: written, but perhaps not on disk.

    Attributes:
        files: The new index.
        parts: Folder, first byte, size and checksum of each write.
    """

    files: QueueFiles
    parts: list[tuple[str, int, int, int]]

    def sync_and_verify(self) -> None:
        """Sync the written parts, and read them back.

        Raises:
            StoreError: the disk returns other bytes than were written.
        """
        for path in self.files.unsynced:
            self.files.cache.open(path).sync()
        for folder, at, size, checksum in self.parts:
            if crc32(self.files.read(folder, at, size)) != checksum:
                raise StoreError(f"{folder} has not kept the {size} bytes that were written at {at}")


def convert_pieces(disk: Disk, plan: ConversionPlan, pieces: Sequence[PiecePlan], converter: PieceConverter) -> None:
    """Convert some pieces of *plan*: when this returns they are on disk, and verified against the log.

    Raises:
        StoreError: an entry does not match the log; the text names it.
    """
    write_pieces(disk, plan, pieces, converter).sync_and_verify()


def write_pieces(
    disk: Disk, plan: ConversionPlan, pieces: Sequence[PiecePlan], converter: PieceConverter
) -> WrittenPieces:
    """Convert some pieces of *plan*, verify them against the log, and write them.

    Call `sync_and_verify` of the result to make them durable.

    Raises:
        StoreError: an entry does not match the log; the text names it.
    """
    source, built = plan.source.open(disk), plan.built.open(disk)
    written = WrittenPieces(built, [])
    for at in range(0, len(pieces), PIECES_AT_ONCE):
        group = pieces[at : at + PIECES_AT_ONCE]
        olds = [OldPiece(piece, plan.get_queue(piece.queue_id), _read(plan, piece, source)) for piece in group]
        for old, converted in zip(olds, converter.convert(plan, olds), strict=True):
            folder = f"{plan.built.folder}/{old.piece.queue_id}"
            for start, data in _locate(plan, old, converted):
                built.write(folder, start, memoryview(data), _NO_FILE_END)
                written.parts.append((folder, start, len(data), crc32(data)))
    return written


def _read(plan: ConversionPlan, piece: PiecePlan, source: QueueFiles) -> bytes:
    size = plan.source.entry_size
    return source.read(f"{plan.source.folder}/{piece.queue_id}", piece.start * size, (piece.end - piece.start) * size)


def _locate(plan: ConversionPlan, old: OldPiece, converted: Bytes) -> Iterator[tuple[int, Bytes]]:
    """Yield the converted entries of a piece, and where they begin in the new index of its queue."""
    piece, size = old.piece, plan.target.entry_size
    if plan.to == "simple" and piece.start == old.queue.first:
        front = blanks_before(piece.target, plan.target_file_size)
        yield piece.target * size - len(front), front
    yield piece.target * size, converted
