from __future__ import annotations

from tests.support.conversions import convert, damaged_disk, fill_store, plain_disk
from tests.support.stores import NOW_MS, SMALL, append

from holdfast.sim.world.disk import SimDisk
from holdfast.store.base.log_file import LogFiles
from holdfast.store.conversion.conversion_survey import plan_pieces, survey
from holdfast.store.conversion.record_headers import RecordHeaders
from holdfast.store.message_store import MessageStore
from holdfast.store.recovery.conversion_plan import IndexLayout

OLD = IndexLayout("consumequeue/orders", 20, 100)
NEW = IndexLayout("batchconsumequeue/orders", 46, 230)


def heads_of(disk: SimDisk) -> RecordHeaders:
    return RecordHeaders(LogFiles.load(disk, "commitlog", SMALL.log_file_size))


def test_every_queue_is_found_with_its_bounds():
    """Also those beyond nine; what is no queue is passed over."""
    disk = plain_disk()
    fill_store(disk, 30, queues=11)
    disk.create("consumequeue/orders/notes/x", 1)
    disk.create("consumequeue/orders/12/0x", 1)

    queues = survey(disk, OLD, "batch", heads_of(disk))

    assert [(queue.queue_id, queue.first, queue.end) for queue in queues] == [
        (number, 0, 3 if number < 8 else 2) for number in range(11)
    ]
    assert queues[2].last_ms == NOW_MS + 24 * 3


def test_nothing_is_surveyed_twice_differently():
    """A folder that nobody changed is known again."""
    disk = plain_disk()
    fill_store(disk, 30)
    queues = survey(disk, OLD, "batch", heads_of(disk))
    assert survey(disk, OLD, "batch", heads_of(disk)) == queues

    store = MessageStore.open(disk, SMALL, NOW_MS)
    append(store, queue_id=1)
    store.close(NOW_MS)

    assert survey(disk, OLD, "batch", heads_of(disk)) != queues


def test_pieces_follow_the_log():
    """Whichever queue they are of; together they are all entries, each once, and numbered."""
    disk = plain_disk()
    fill_store(disk, 31)
    queues = survey(disk, OLD, "batch", heads_of(disk))

    plan = plan_pieces(disk, OLD, NEW, "batch", queues, 4)

    assert [piece.number for piece in plan.pieces] == list(range(8))
    assert [piece.queue_id for piece in plan.pieces] == [0, 1] * 4
    for queue_id, count in ((0, 16), (1, 15)):
        spans = [(piece.start, piece.end) for piece in plan.pieces if piece.queue_id == queue_id]
        assert spans == [(start, min(start + 4, count)) for start in range(0, 16, 4)]
    assert plan.spans == {0: (0, 16), 1: (0, 15)}


def test_blanks_have_no_place_by_record_and_gaps_have_one_by_message():
    """Every piece knows where what it becomes begins."""
    disk = damaged_disk()
    plan = plan_pieces(disk, OLD, NEW, "batch", survey(disk, OLD, "batch", heads_of(disk)), 4)
    assert [(piece.start, piece.target) for piece in plan.pieces] == [(0, 0), (4, 3), (8, 6)]
    assert plan.spans == {0: (0, 10)}

    convert(disk, "batch")
    plan = plan_pieces(disk, NEW, OLD, "simple", survey(disk, NEW, "simple", heads_of(disk)), 3)

    assert [(piece.start, piece.target) for piece in plan.pieces] == [(0, 0), (3, 3), (6, 8), (9, 11)]
    assert plan.spans == {0: (0, 12)}
