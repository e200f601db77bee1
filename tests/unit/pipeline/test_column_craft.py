"""Column by column the same bytes come out as entry by entry, and the same is refused."""

from collections.abc import Iterator

import pytest
from tests.support.conversions import convert, damaged_disk, fill, plain_disk
from tests.support.stores import SMALL, append_batch, batched_disk, open_store

from holdfast.model.errors import StoreError
from holdfast.pipeline.column_craft import ColumnCraft
from holdfast.sim.disk import SimDisk
from holdfast.store.conversion_plan import PiecePlan, Plan, Target
from holdfast.store.index_conversion import IndexConversion
from holdfast.store.log_file import LogFiles
from holdfast.store.piece_conversion import PieceCraft
from holdfast.store.record_heads import RecordHeads


def heads_of(disk: SimDisk) -> RecordHeads:
    return RecordHeads(LogFiles.load(disk, "commitlog", SMALL.log_file_size))


class Careful(PieceCraft):
    """Counts how often it is asked."""

    asked = 0

    def check(self, *arguments: object) -> None:
        self.asked += 1
        super().check(*arguments)  # type: ignore[arg-type]


def crafts(disk: SimDisk) -> tuple[PieceCraft, ColumnCraft, Careful]:
    craft, careful = ColumnCraft(heads_of(disk)), Careful(heads_of(disk))
    craft._careful = careful
    return PieceCraft(heads_of(disk)), craft, careful


def pieces(disk: SimDisk, to: Target, size: int) -> Iterator[tuple[Plan, PiecePlan, bytes]]:
    plan = IndexConversion(disk, "orders", to, options=SMALL, piece_size=size).plan
    assert plan is not None
    for piece in plan.pieces:
        files, width = plan.source.open(disk), plan.source.entry_size
        folder = f"{plan.source.folder}/{piece.queue_id}"
        yield plan, piece, files.read(folder, piece.start * width, (piece.end - piece.start) * width)


@pytest.fixture(params=["plain", "damaged", "gone"])
def disk(request: pytest.FixtureRequest) -> SimDisk:
    """With hosts of both kinds, and several files of the log; with lost offsets; with lost files."""
    if request.param == "damaged":
        return damaged_disk()
    disk = plain_disk()
    fill(disk, 31)
    if request.param == "gone":
        disk.remove(f"commitlog/{disk.list('commitlog')[0]}")
    return disk


@pytest.mark.parametrize("size", [4, 100])
def test_both_crafts_make_the_same_bytes(disk: SimDisk, size: int):
    """There and back, whatever the pieces are; and the quick one needs the careful one for nothing but gaps."""
    for to in ("batch", "simple"):
        slow, quick, careful = crafts(disk)
        for plan, piece, old in pieces(disk, to, size):
            queue = plan.get_queue(piece.queue_id)
            made = bytes(quick.convert(plan, piece, queue, old))
            assert made == slow.convert(plan, piece, queue, old)
            quick.check(plan, piece, queue, old, made)
        assert careful.asked == 0
        convert(disk, to)


@pytest.mark.parametrize("to", ["batch", "simple"])
def test_no_wrong_byte_passes(to: Target):
    """Whichever of an entry it is, in the middle of a piece; the text is that of the careful one."""
    disk = plain_disk()
    fill(disk, 31)
    if to == "simple":
        convert(disk, "batch")
    slow, quick, careful = crafts(disk)
    plan, piece, old = next(pieces(disk, to, 10))
    queue, width = plan.get_queue(piece.queue_id), plan.target.entry_size
    good = slow.convert(plan, piece, queue, old)
    for at in range(width):
        bad = bytearray(good)
        bad[3 * width + at] ^= 0x10
        with pytest.raises(StoreError):
            quick.check(plan, piece, queue, old, bytes(bad))
    assert careful.asked == width
    with pytest.raises(StoreError, match="messages here"):
        quick.check(plan, piece, queue, old, bytes(good[:-width]))


@pytest.mark.parametrize("position", [5, 1000, 1_000_000])
def test_a_source_that_the_log_does_not_bear_out_is_named(position: int):
    """Where no record begins, at the end of a file, behind the log."""
    disk = plain_disk()
    fill(disk, 31)
    _, quick, _ = crafts(disk)
    plan, piece, old = next(pieces(disk, "batch", 1))
    queue = plan.get_queue(piece.queue_id)
    lie = position.to_bytes(8, "big") + old[8:]

    with pytest.raises(StoreError, match=f"position {position}"):
        quick.check(plan, piece, queue, lie, bytes(quick.convert(plan, piece, queue, lie)))


def test_batches_are_refused_on_the_way_back():
    """By the careful one, which names them."""
    disk = batched_disk()
    store = open_store(disk)
    append_batch(store, 1)
    store.close(0)
    _, quick, careful = crafts(disk)
    plan, piece, old = next(pieces(disk, "simple", 10))
    queue = plan.get_queue(0)

    with pytest.raises(StoreError, match="is a batch, though of one message"):
        quick.check(plan, piece, queue, old, bytes(quick.convert(plan, piece, queue, old)))
    assert careful.asked == 1


def test_a_record_that_is_gone_is_left_to_the_careful_one():
    """There is one at most in a queue."""
    disk = plain_disk()
    fill(disk, 3, queues=1)
    slow, quick, careful = crafts(disk)
    plan, piece, old = next(pieces(disk, "batch", 1))
    queue = plan.get_queue(0)
    gone = type(queue)(queue_id=0, first=0, end=1, is_gone=True, last=old, last_ms=0)

    made = bytes(quick.convert(plan, piece, gone, old))
    quick.check(plan, piece, gone, old, made)

    assert made == slow.convert(plan, piece, gone, old)
    assert careful.asked == 1


def test_an_address_in_the_place_of_a_tag_is_refused():
    """By the careful one."""
    disk = plain_disk()
    fill(disk, 31)
    _, quick, _ = crafts(disk)
    plan, piece, old = next(pieces(disk, "batch", 1))
    queue = plan.get_queue(piece.queue_id)
    referring = old[:12] + (-1 << 40).to_bytes(8, "big", signed=True)

    with pytest.raises(StoreError, match="refers to consumequeue_ext"):
        quick.check(plan, piece, queue, referring, bytes(quick.convert(plan, piece, queue, referring)))
