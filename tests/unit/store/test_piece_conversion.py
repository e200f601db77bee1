from __future__ import annotations

import pytest
from tests.support.conversions import convert, fill, plain_disk
from tests.support.stores import SMALL

from holdfast.model.errors import StoreError
from holdfast.sim.disk import SimDisk
from holdfast.store.conversion_plan import PiecePlan, Plan, SourceQueue
from holdfast.store.index_conversion import IndexConversion
from holdfast.store.piece_conversion import Bytes, convert_piece


class Scribe:
    """A craft that writes letters, and says what it was asked."""

    def __init__(self, disk: SimDisk) -> None:
        self.asked: list[tuple[int, int]] = []
        self._disk = disk

    def convert(self, plan: Plan, piece: PiecePlan, queue: SourceQueue, old: bytes) -> Bytes:
        """Write one letter for each entry."""
        self.asked.append((piece.start, len(old)))
        return bytes([65 + piece.start]) * (piece.end - piece.start) * plan.target.entry_size

    def check(self, plan: Plan, piece: PiecePlan, queue: SourceQueue, old: bytes, new: bytes) -> None:
        """Require that it was written as it was given."""
        if new != self.convert(plan, piece, queue, old):
            raise StoreError("something else was read")


@pytest.fixture
def disk() -> SimDisk:
    disk = plain_disk()
    fill(disk, 12, queues=1)
    return disk


def test_a_piece_is_written_where_it_belongs(disk: SimDisk):
    """Over the ends of files, old and new; and read back from there."""
    plan = IndexConversion(disk, "orders", "batch", options=SMALL, piece_size=4).plan
    assert plan is not None
    scribe = Scribe(disk)

    convert_piece(disk, plan, plan.pieces[1], scribe)

    folder = f"{plan.built.folder}/0"
    data = b"".join(disk.read_file(f"{folder}/{at:020d}") or b"" for at in (0, 230, 460))
    assert data == bytes(4 * 46) + b"E" * 4 * 46 + bytes(7 * 46)
    assert scribe.asked == [(4, 80), (4, 80)]


def test_what_is_read_back_must_be_what_was_written(disk: SimDisk):
    """A disk may lie."""
    plan = IndexConversion(disk, "orders", "batch", options=SMALL, piece_size=4).plan
    assert plan is not None

    def spoil(call: str, path: str) -> None:
        if call == "sync":
            disk.after = None
            disk.open(path).write(50, [b"!"])

    disk.after = spoil

    with pytest.raises(StoreError, match="something else was read"):
        convert_piece(disk, plan, plan.pieces[0], Scribe(disk))


def test_the_first_piece_of_an_index_by_message_fills_its_file(disk: SimDisk):
    """Up to the first offset there is."""
    for name in disk.list("commitlog")[:1]:
        disk.remove(f"commitlog/{name}")
    convert(disk, "batch")
    plan = IndexConversion(disk, "orders", "simple", options=SMALL, piece_size=4).plan
    assert plan is not None
    first = plan.pieces[0].target
    assert first % 5

    convert_piece(disk, plan, plan.pieces[0], Scribe(disk))

    data = disk.read_file(f"{plan.built.folder}/0/{first // 5 * 100:020d}") or b""
    assert data[: first % 5 * 20] == (bytes(8) + b"\x7f\xff\xff\xff" + bytes(8)) * (first % 5)
