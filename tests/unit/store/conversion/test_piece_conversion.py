from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.support.conversions import convert, damaged_disk, fill_store, index_files, plain_disk, read_served
from tests.support.stores import SMALL

from holdfast.model.errors import StoreError
from holdfast.sim.world.disk import SimDisk
from holdfast.store.conversion import piece_conversion
from holdfast.store.conversion.index_conversion import IndexConversion
from holdfast.store.conversion.piece_conversion import Bytes, OldPiece, convert_pieces
from holdfast.store.recovery.conversion_plan import ConversionPlan


class Scribe:
    """A craft that writes letters, and says what it was asked."""

    def __init__(self, disk: SimDisk) -> None:
        self.asked: list[tuple[int, int]] = []
        self.doubts = False
        self._disk = disk

    def convert(self, plan: ConversionPlan, olds: Sequence[OldPiece]) -> list[Bytes]:
        """Write one letter for each entry."""
        self.asked += [(old.piece.start, len(old.entries)) for old in olds]
        if self.doubts:
            raise StoreError("entry B is wrong")
        return [
            bytes([65 + old.piece.start]) * (old.piece.end - old.piece.start) * plan.target.entry_size for old in olds
        ]


@pytest.fixture
def disk() -> SimDisk:
    disk = plain_disk()
    fill_store(disk, 12, queues=1)
    return disk


def test_a_piece_is_written_where_it_belongs(disk: SimDisk):
    """Over the ends of files, old and new; and read back from there."""
    plan = IndexConversion(disk, "orders", "batch", options=SMALL, piece_size=4).plan
    assert plan is not None
    scribe = Scribe(disk)

    convert_pieces(disk, plan, [plan.pieces[1]], scribe)

    folder = f"{plan.built.folder}/0"
    data = b"".join(disk.read_file(f"{folder}/{at:020d}") or b"" for at in (0, 230, 460))
    assert data == bytes(4 * 46) + b"E" * 4 * 46 + bytes(7 * 46)
    assert scribe.asked == [(4, 80)]


def test_what_is_read_back_must_be_what_was_written(disk: SimDisk):
    """A disk may lie."""
    plan = IndexConversion(disk, "orders", "batch", options=SMALL, piece_size=4).plan
    assert plan is not None

    def spoil(call: str, path: str) -> None:
        if call == "sync":
            disk.after = None
            disk.open(path).write(50, [b"!"])

    disk.after = spoil

    with pytest.raises(StoreError, match="has not kept the 184 bytes"):
        convert_pieces(disk, plan, [plan.pieces[0]], Scribe(disk))


def test_the_first_piece_of_an_index_by_message_fills_its_file(disk: SimDisk):
    """Up to the first offset there is."""
    for name in disk.list("commitlog")[:1]:
        disk.remove(f"commitlog/{name}")
    convert(disk, "batch")
    plan = IndexConversion(disk, "orders", "simple", options=SMALL, piece_size=4).plan
    assert plan is not None
    first = plan.pieces[0].target
    assert first % 5

    convert_pieces(disk, plan, [plan.pieces[0]], Scribe(disk))

    data = disk.read_file(f"{plan.built.folder}/0/{first // 5 * 100:020d}") or b""
    assert data[: first % 5 * 20] == (bytes(8) + b"\x7f\xff\xff\xff" + bytes(8)) * (first % 5)


def test_what_cannot_be_proven_is_not_written(disk: SimDisk):
    """Nor what is made together with it."""
    plan = IndexConversion(disk, "orders", "batch", options=SMALL, piece_size=4).plan
    assert plan is not None
    scribe = Scribe(disk)
    scribe.doubts = True

    with pytest.raises(StoreError, match="entry B is wrong"):
        convert_pieces(disk, plan, plan.pieces, scribe)

    assert not any(any(disk.read_file(path) or b"") for path in plan.built_paths())


def test_a_piece_is_proven_to_its_last_entry(disk: SimDisk, monkeypatch: pytest.MonkeyPatch):
    """Slice by slice; nothing of it is written if the last one is wrong."""
    monkeypatch.setattr(piece_conversion, "SLICE_SIZE", 1)
    conversion = IndexConversion(disk, "orders", "batch", options=SMALL, piece_size=4)
    assert conversion.plan is not None
    disk.open("consumequeue/orders/0/00000000000000000000").write(3 * 20 + 10, [b"!"])

    with pytest.raises(StoreError, match="has message 3 at position"):
        conversion.convert(conversion.plan.pieces[0])

    assert not any(any(disk.read_file(path) or b"") for path in conversion.plan.built_paths())


@pytest.mark.parametrize("size", [1, 3, 4096])
def test_slices_of_a_piece_are_the_piece(size: int, monkeypatch: pytest.MonkeyPatch):
    """Also where offsets are missing, before a slice or in it, and on either way."""
    monkeypatch.setattr(piece_conversion, "SLICE_SIZE", size)
    disk = damaged_disk()
    before = index_files(disk, "consumequeue"), read_served(disk)

    convert(disk, "batch", piece_size=7)
    assert read_served(disk) == before[1]
    convert(disk, "simple", piece_size=7)

    assert index_files(disk, "consumequeue") == before[0]


def test_a_file_is_synced_once_for_many_pieces(disk: SimDisk):
    """A sync is what takes the time."""
    plan = IndexConversion(disk, "orders", "batch", options=SMALL, piece_size=1).plan
    assert plan is not None
    synced: list[str] = []
    disk.after = lambda call, path: synced.append(path) if call == "sync" else None

    convert_pieces(disk, plan, plan.pieces, Scribe(disk))

    assert sorted(synced) == list(plan.built_paths())
