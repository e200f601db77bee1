"""Column by column the same bytes come out as entry by entry, and the same is refused."""

from collections.abc import Sequence
from contextlib import suppress

import msgspec
import pytest
from tests.support.conversions import HOST_V6, convert, damaged_disk, fill_store, plain_disk
from tests.support.stores import HOST, NOW_MS, SMALL, append, append_batch, batched_disk, open_store

from holdfast.model.errors import StoreError
from holdfast.pipeline.convert import numpy_conversion
from holdfast.pipeline.convert.numpy_conversion import NumpyConverter
from holdfast.sim.world.disk import SimDisk
from holdfast.store.base.log_file import LogFiles
from holdfast.store.conversion.index_conversion import IndexConversion
from holdfast.store.conversion.piece_conversion import Bytes, OldPiece, PythonConverter
from holdfast.store.conversion.record_headers import RecordHeaders
from holdfast.store.message_store import MessageStore
from holdfast.store.recovery.conversion_plan import ConversionPlan, IndexKind


def heads_of(disk: SimDisk) -> RecordHeaders:
    return RecordHeaders(LogFiles.load(disk, "commitlog", SMALL.log_file_size))


class Careful(PythonConverter):
    """Counts how often it is asked."""

    asked = 0

    def convert(self, plan: ConversionPlan, olds: Sequence[OldPiece]) -> list[Bytes]:
        self.asked += 1
        return super().convert(plan, olds)


def crafts(disk: SimDisk) -> tuple[PythonConverter, NumpyConverter, Careful]:
    craft, careful = NumpyConverter(heads_of(disk)), Careful(heads_of(disk))
    craft._slow_path = careful
    return PythonConverter(heads_of(disk)), craft, careful


def pieces(disk: SimDisk, to: IndexKind, size: int) -> tuple[ConversionPlan, list[OldPiece]]:
    plan = IndexConversion(disk, "orders", to, options=SMALL, piece_size=size).plan
    assert plan is not None
    files, width = plan.source.open(disk), plan.source.entry_size
    return plan, [
        OldPiece(
            piece,
            plan.get_queue(piece.queue_id),
            files.read(
                f"{plan.source.folder}/{piece.queue_id}", piece.start * width, (piece.end - piece.start) * width
            ),
        )
        for piece in plan.pieces
    ]


def changed(old: OldPiece, at: int, data: bytes) -> OldPiece:
    return old._replace(entries=old.entries[:at] + data + old.entries[at + len(data) :])


@pytest.fixture(params=["plain", "damaged", "gone"])
def disk(request: pytest.FixtureRequest) -> SimDisk:
    """With hosts of both kinds, and several files of the log; with lost offsets; with lost files."""
    if request.param == "damaged":
        return damaged_disk()
    disk = plain_disk()
    fill_store(disk, 31)
    if request.param == "gone":
        disk.remove(f"commitlog/{disk.list('commitlog')[0]}")
    return disk


@pytest.mark.parametrize("rows", [1, 3, 8192])
@pytest.mark.parametrize("dense", [0, 400])
@pytest.mark.parametrize("size", [4, 100])
def test_both_crafts_make_the_same_bytes(
    disk: SimDisk, size: int, dense: int, rows: int, monkeypatch: pytest.MonkeyPatch
):
    """There and back, whatever the pieces are, and however the log is read; gaps alone are left to the careful one."""
    monkeypatch.setattr(numpy_conversion, "DENSE_BYTES", dense)
    monkeypatch.setattr(numpy_conversion, "LOOKUP_ROWS", rows)
    for to in ("batch", "simple"):
        slow, quick, careful = crafts(disk)
        plan, olds = pieces(disk, to, size)
        assert [bytes(made) for made in quick.convert(plan, olds)] == slow.convert(plan, olds)
        if to == "batch":
            assert careful.asked == 0
        convert(disk, to)


def test_what_was_made_before_does_not_shine_through():
    """Memory is used again: for pieces that are shorter, of other queues, and of the other kind."""
    disk = plain_disk()
    fill_store(disk, 31)
    slow, quick, _ = crafts(disk)
    plan, olds = pieces(disk, "batch", 7)

    for some in (olds, olds[3:], olds[:2], [olds[-1], olds[0]], olds):
        assert [bytes(made) for made in quick.convert(plan, some)] == slow.convert(plan, some)


def test_no_wrong_byte_of_an_index_passes():
    """Whichever of an entry it is; but for the tag's hash, which no record has, and what the other kind has not."""
    for to, unproven in (("batch", {*range(12, 20)}), ("simple", {*range(12, 20), *range(38, 46)})):
        disk = plain_disk()
        fill_store(disk, 31)
        if to == "simple":
            convert(disk, "batch")
        slow, quick, careful = crafts(disk)
        plan, olds = pieces(disk, to, 10)
        width = plan.source.entry_size
        for at in sorted(set(range(width)) - unproven):
            bad = changed(olds[0], 3 * width + at, bytes([olds[0].entries[3 * width + at] ^ 0x10]))
            with pytest.raises(StoreError) as told:
                quick.convert(plan, [olds[1], bad])
            with pytest.raises(StoreError) as wanted:
                slow.convert(plan, [bad])
            assert str(told.value) == str(wanted.value)
        assert careful.asked == width - len(unproven)


def test_no_wrong_byte_of_a_record_passes():
    """Sizes, magic, queue, offset, position, the size of the body and the topic; the store time is taken from it."""
    disk = plain_disk()
    fill_store(disk, 31)
    slow, quick, _ = crafts(disk)
    plan, olds = pieces(disk, "batch", 10)
    log = disk.open("commitlog/00000000000000000000")
    start = int.from_bytes(olds[0].entries[:8], "big")
    body_size = int.from_bytes(log.read(start + 84, start + 88), "big")
    topic = range(88 + body_size, 88 + body_size + 7)
    for at in [*range(8), *range(12, 16), *range(20, 36), *range(84, 88), *topic]:
        good = log.read(start + at, start + at + 1)
        log.write(start + at, [bytes([good[0] ^ 0x10])])
        with pytest.raises(StoreError, match="message 0 at position"):
            quick.convert(plan, olds[:2])
        log.write(start + at, [good])
    assert [bytes(made) for made in quick.convert(plan, olds[:2])] == slow.convert(plan, olds[:2])


def test_a_flag_that_says_another_layout_or_a_batch_does_not_pass():
    """Hosts of other lengths than there are; many messages in one, which the careful one has to look at."""
    disk = plain_disk()
    fill_store(disk, 31)
    _, quick, careful = crafts(disk)
    plan, olds = pieces(disk, "batch", 10)
    log = disk.open("commitlog/00000000000000000000")
    at = int.from_bytes(olds[0].entries[:8], "big") + 39
    good = log.read(at, at + 1)
    for bits in (0x10, 0x20, 0x30):
        log.write(at, [bytes([good[0] ^ bits])])
        with pytest.raises(StoreError, match="message 0 at position"):
            quick.convert(plan, olds[:2])
    asked = careful.asked
    log.write(at, [bytes([good[0] | 0xC0])])
    with suppress(StoreError):
        quick.convert(plan, olds[:2])
    assert careful.asked == asked + 1


def test_a_body_of_less_than_nothing_is_left_to_the_careful_one():
    """Behind it there may be a topic: that of an earlier record."""
    disk = plain_disk()
    fill_store(disk, 3, queues=1)
    _, quick, careful = crafts(disk)
    plan, olds = pieces(disk, "batch", 10)
    log = disk.open("commitlog/00000000000000000000")
    first, second = (int.from_bytes(olds[0].entries[at : at + 8], "big") for at in (0, 20))
    topic = first + 88 + int.from_bytes(log.read(first + 84, first + 88), "big")
    log.write(second + 84, [(topic - second - 88).to_bytes(4, "big", signed=True)])

    quick.convert(plan, olds)

    assert careful.asked == 1


def test_positions_far_behind_the_log_take_no_memory():
    """The log is not cut into files up to there."""
    disk = plain_disk()
    fill_store(disk, 31)
    _, quick, _ = crafts(disk)
    plan, olds = pieces(disk, "batch", 10)

    with pytest.raises(StoreError, match=f"position {1 << 60}"):
        quick.convert(plan, [changed(olds[0], 9 * 20, (1 << 60).to_bytes(8, "big"))])


@pytest.mark.parametrize("store_host", [HOST, HOST_V6])
@pytest.mark.parametrize("host", [HOST, HOST_V6])
def test_records_with_hosts_of_any_kind_are_made_quickly(host: bytes, store_host: bytes):
    """Each of the four layouts has its store time and its topic elsewhere."""
    disk = plain_disk()
    options = msgspec.structs.replace(SMALL, store_host=store_host)
    store = MessageStore.open(disk, options, NOW_MS)
    for number in range(9):
        append(store, b"%d" % number, host=host, now_ms=NOW_MS + number * 3)
    store.close(NOW_MS)
    slow, quick, careful = crafts(disk)
    plan, olds = pieces(disk, "batch", 4)

    assert [bytes(made) for made in quick.convert(plan, olds)] == slow.convert(plan, olds)
    assert careful.asked == 0


@pytest.mark.parametrize("position", [5, 1000, 1_000_000])
def test_a_source_that_the_log_does_not_bear_out_is_named(position: int):
    """Where no record begins, at the end of a file, behind the log."""
    disk = plain_disk()
    fill_store(disk, 31)
    _, quick, _ = crafts(disk)
    plan, olds = pieces(disk, "batch", 1)

    with pytest.raises(StoreError, match=f"position {position}"):
        quick.convert(plan, [changed(olds[0], 0, position.to_bytes(8, "big"))])


def test_positions_that_do_not_rise_are_named():
    """Both records are there, and in each other's place."""
    disk = plain_disk()
    fill_store(disk, 31)
    _, quick, careful = crafts(disk)
    plan, olds = pieces(disk, "batch", 10)
    first, second = olds[0].entries[:20], olds[0].entries[20:40]

    with pytest.raises(StoreError, match="message 0 at position"):
        quick.convert(plan, [changed(olds[0], 0, second + first)])
    assert careful.asked == 1


def test_batches_are_refused_on_the_way_back():
    """By the careful one, which names them."""
    disk = batched_disk()
    store = open_store(disk)
    append_batch(store, 1)
    store.close(0)
    _, quick, careful = crafts(disk)
    plan, olds = pieces(disk, "simple", 10)

    with pytest.raises(StoreError, match="is a batch, though of one message"):
        quick.convert(plan, olds)
    assert careful.asked == 1


def test_a_record_that_is_gone_is_left_to_the_careful_one():
    """There is one at most in a queue; those of other queues are made quickly."""
    disk = plain_disk()
    fill_store(disk, 3, queues=1)
    slow, quick, careful = crafts(disk)
    plan, olds = pieces(disk, "batch", 1)
    queue = olds[0].queue
    gone = type(queue)(queue_id=0, first=0, end=1, is_gone=True, last=olds[0].entries, last_ms=0)
    some = [olds[0]._replace(queue=gone), olds[1]]

    made = quick.convert(plan, some)

    assert [bytes(each) for each in made] == slow.convert(plan, some)
    assert careful.asked == 1


def test_an_address_in_the_place_of_a_tag_is_refused():
    """By the careful one."""
    disk = plain_disk()
    fill_store(disk, 31)
    _, quick, _ = crafts(disk)
    plan, olds = pieces(disk, "batch", 1)

    with pytest.raises(StoreError, match="refers to consumequeue_ext"):
        quick.convert(plan, [changed(olds[0], 12, (-1 << 40).to_bytes(8, "big", signed=True))])
