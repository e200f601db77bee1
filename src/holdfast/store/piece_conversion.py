"""One piece of an index: read, convert, write, sync, read back, prove.

Who converts and proves is a craft: `PieceCraft` here does it with what Python brings along; others may be quicker. All
of them make the same bytes of the same entries, so that a piece may be converted again, elsewhere, or by two at a time.
"""

from __future__ import annotations

from typing import Protocol

from holdfast.store.conversion_plan import PiecePlan, Plan, SourceQueue
from holdfast.store.disk import Disk
from holdfast.store.entry_conversion import blanks_before, check_entries, check_units, to_entries, to_units
from holdfast.store.record_heads import Owner, RecordHeads

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

    def check(self, plan: Plan, piece: PiecePlan, queue: SourceQueue, old: bytes, new: bytes) -> None:
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

    def check(self, plan: Plan, piece: PiecePlan, queue: SourceQueue, old: bytes, new: bytes) -> None:
        """Require that *new* is what became of *old*, and that the log says so too."""
        owner = Owner(plan.topic, piece.queue_id)
        if plan.to == "batch":
            check_units(new, old, piece.start, owner, self._heads, is_gone=queue.is_gone)
        else:
            check_entries(new, old, piece.target, owner, self._heads, is_gone=queue.is_gone)


def convert_piece(disk: Disk, plan: Plan, piece: PiecePlan, craft: Craft) -> None:
    """Convert one piece of *plan*: when this returns it is on disk, and proven against the log.

    Raises:
        StoreError: an entry says what is not in the log; the text names it.
    """
    source, built = plan.source, plan.built
    queue = plan.get_queue(piece.queue_id)
    at, size = piece.start * source.entry_size, (piece.end - piece.start) * source.entry_size
    old = source.open(disk).read(f"{source.folder}/{piece.queue_id}", at, size)
    new = craft.convert(plan, piece, queue, old)
    files, folder, at = built.open(disk), f"{built.folder}/{piece.queue_id}", piece.target * built.entry_size
    files.write(folder, at, memoryview(new), _EVERYWHERE)
    if plan.to == "simple" and piece.start == queue.first:
        front = blanks_before(piece.target, plan.target_file_size)
        files.write(folder, at - len(front), memoryview(front), _EVERYWHERE)
    for path in files.unsynced:
        files.cache.open(path).sync()
    craft.check(plan, piece, queue, old, files.read(folder, at, len(new)))
