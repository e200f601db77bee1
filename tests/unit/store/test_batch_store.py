"""Queues that are indexed by record, as a store adds to them, recovers and cleans them."""

from __future__ import annotations

from random import Random

import pytest
from tests.support.stores import (
    HOST,
    INNER_BATCH,
    NOW_MS,
    append,
    append_batch,
    batched_disk,
    finish,
    finish_without_reads,
    open_store,
    overwrite,
    run_housekeeping,
)

from holdfast.model.errors import RecordRefused
from holdfast.store.base.cold_reads import FileRange
from holdfast.store.message_store import MessageStore
from holdfast.store.queues.batch_consume_queue import RECORD_ENTRY, RECORD_ENTRY_SIZE


def test_the_bytes_are_those_of_upstream():
    """46 bytes: place, tag, store time, offsets, no place of compaction, nothing."""
    disk = batched_disk()
    store = open_store(disk)
    append(store, tags="a", now_ms=NOW_MS)
    position, offset = append_batch(store, 300, now_ms=NOW_MS + 5)
    queue = store.queue("orders", 0)
    queue.flush()

    (path,) = disk.list("batchconsumequeue/orders/0")

    stored = disk.open(f"batchconsumequeue/orders/0/{path}").read(0, 5 * RECORD_ENTRY_SIZE)
    record = store.read_record(position)
    assert record is not None
    assert list(RECORD_ENTRY.iter_unpack(stored))[:3] == [
        (0, position, 97, NOW_MS, 0, 1, -1, 0),
        (position, record.size, 0, NOW_MS + 5, 1, 300, -1, 0),
        (0, 0, 0, 0, 0, 0, 0, 0),
    ]
    assert (path, offset, record.offset) == ("0" * 20, 1, 1)
    assert record.properties == b"UNIQ_KEY\x01u\x02INNER_NUM\x01300\x02INNER_BASE\x011\x02"
    assert (queue.offset_max, queue.next_offset) == (301, 301)


@pytest.mark.parametrize("count", [b"0", b"-1", b"32768", b"many", b"1" * 5000])
def test_a_count_that_no_index_can_hold_is_refused(count: bytes):
    """Nothing of the record is staged, and the next one gets its offset."""
    store = open_store(batched_disk())
    queue = store.queue("orders", 0)

    with pytest.raises(RecordRefused, match="a batch may hold 1 to 32767 messages"):
        store.stage(queue, b"", b"INNER_NUM\x01%s\x02" % count, 0, INNER_BATCH, NOW_MS, HOST, 0, NOW_MS)

    assert append_batch(store, 32767) == (0, 0)
    assert (queue.offset_max, queue.next_offset) == (32767, 32767)


def test_properties_that_leave_no_room_for_the_first_offset_are_refused():
    """Their length is a signed 16-bit number."""
    store = open_store(batched_disk(), log_file_size=1 << 17)
    queue = store.queue("orders", 0)
    properties = b"INNER_NUM\x012\x02K\x01".ljust(32767, b"x")

    with pytest.raises(RecordRefused, match="properties have"):
        store.stage(queue, b"", properties, 0, INNER_BATCH, NOW_MS, HOST, 0, NOW_MS)

    assert queue.next_offset == 0


def test_a_first_offset_that_the_sender_made_up_does_not_count():
    """Whoever reads the record takes the last of a name."""
    disk = batched_disk()
    store = open_store(disk)
    properties = b"INNER_NUM\x012\x02INNER_BASE\x01777\x02"
    store.stage(store.queue("orders", 0), b"", properties, 0, INNER_BATCH, NOW_MS, HOST, 0, NOW_MS)
    store.write()

    again = open_store(disk)

    assert again.recovered.damages == []
    assert again.queue("orders", 0).entries(0, 9) != []
    assert (again.queue("orders", 0).offset_min, again.queue("orders", 0).offset_max) == (0, 2)


def test_halves_of_transactions_have_no_place_in_it():
    """As in the other kind."""
    store = open_store(batched_disk())

    assert append(store, sys_flag=4)[1] == 0

    assert store.queue("orders", 0).next_offset == 0
    assert append_batch(store, 3)[1] == 0


def test_batches_that_were_staged_and_not_written_give_their_offsets_back():
    """All of them, down to the first."""
    store = open_store(batched_disk())
    append_batch(store, 10)
    queue = store.queue("orders", 0)
    for count in (5, 7):
        store.stage(queue, b"", b"INNER_NUM\x01%d\x02" % count, 0, INNER_BATCH, NOW_MS, HOST, 0, NOW_MS)
    assert queue.next_offset == 22

    store.discard()

    assert append_batch(store, 4)[1] == 10


def many(store: MessageStore, count: int) -> list[tuple[int, int, int]]:
    spans = []
    for number in range(count):
        time_ms = NOW_MS + 10 * number
        _, first = append_batch(store, 1 + number % 4, now_ms=time_ms)
        spans.append((first, first + 1 + number % 4, time_ms))
    return spans


def test_old_entries_are_read_between_steps_only():
    """Nobody waits for the disk on the loop; what is read ahead need not be asked for again."""
    disk = batched_disk()
    store = open_store(disk, batch_file_size=46 * 120, checkpoint_interval_ms=1 << 40)
    spans = many(store, 500)
    store.close(NOW_MS)
    store = open_store(disk)
    queue = store.queue("orders", 0)

    (_, found), asked = finish_without_reads(store, disk, queue.fetch_range(900, 8, ahead=50))

    assert found == [span[:2] for span in spans if span[1] > 900][: len(found or ())]
    assert 1 < asked < 12, "halving, and a block at last"
    assert not queue.is_cold(900, 50)
    assert queue.is_cold(0, 1)
    assert not queue.is_cold(queue.offset_max, 1)
    _, asked = finish_without_reads(store, disk, queue.find_at_time(spans[77][2], upper=False))
    assert asked > 1


def test_who_reads_old_entries_in_order_asks_once_a_stretch():
    """The end of what was read is where the next search begins."""
    disk = batched_disk()
    store = open_store(disk, batch_file_size=46 * 300, checkpoint_interval_ms=1 << 40)
    many(store, 900)
    store.close(NOW_MS)
    store = open_store(disk)
    queue = store.queue("orders", 0)

    offset = asked = 0
    while offset < queue.offset_max:
        if queue.is_cold(offset, 20):
            (_, spans), steps = finish_without_reads(store, disk, queue.fetch_range(offset, 20, ahead=100))
            asked += steps
        else:
            _, spans = queue.read_range(offset, 20)
        assert spans
        assert spans[0][0] == offset
        offset = spans[-1][1]

    assert asked < 900 // 100 * 4


def test_a_queue_that_lost_its_end_gets_it_back():
    """Cut, or all of it gone: the log has it, after an orderly end too (hazard H2)."""
    for lost in ("the last file", "every file"):
        disk = batched_disk()
        store = open_store(disk)
        spans = many(store, 13)
        store.close(NOW_MS)
        names = disk.list("batchconsumequeue/orders/0")
        for name in names[-1:] if lost == "the last file" else names:
            disk.remove(f"batchconsumequeue/orders/0/{name}")

        again = open_store(disk)

        assert again.queue("orders", 0).read_range(0, 1000)[1] == [span[:2] for span in spans]
        assert again.recovered.damages == []


def test_an_index_that_nobody_looked_after_is_brought_up_to_the_log():
    """An earlier version left queues of this kind alone: its notes of an orderly end do not have them."""
    disk = batched_disk()
    store = open_store(disk)
    spans = many(store, 13)
    store.close(NOW_MS)
    store = open_store(disk)
    append(store, topic="other", now_ms=NOW_MS + 1000)
    store.close(NOW_MS)
    notes = disk.read_file("holdfast/queues.json")
    assert notes is not None
    disk.replace("holdfast/queues.json", notes.partition(b',"batchQueues"')[0] + b"}")
    disk.remove(f"batchconsumequeue/orders/0/{disk.list('batchconsumequeue/orders/0')[-1]}")

    again = open_store(disk)

    assert again.queue("orders", 0).read_range(0, 1000)[1] == [span[:2] for span in spans]


def test_a_gap_in_the_log_stays_one():
    """Lost records leave no blanks here; a reader in the gap goes on behind it."""
    disk = batched_disk()
    store = open_store(disk)
    placed = [append_batch(store, 10, body=b"x" * 100) for _ in range(4)]
    disk.open("commitlog/" + "0" * 20).write(placed[1][0], [bytes(8)])

    again = open_store(disk)

    queue = again.queue("orders", 0)
    assert len(again.recovered.damages) == 1
    assert queue.read_range(0, 100)[1] == [(0, 10), (20, 30), (30, 40)]
    assert queue.read_range(15, 1)[1] == [(20, 30)]
    assert queue.get_entry(15) == (placed[2][0], 0x7FFFFFFF, 0)
    assert finish(again, again.store_time(queue, 15)) is None
    assert append_batch(again, 2)[1] == 40
    third = open_store(disk)
    assert third.queue("orders", 0).read_range(0, 100)[1] == [(0, 10), (20, 30), (30, 40), (40, 42)]


@pytest.mark.parametrize(("before_end", "damage"), [(3, b"77"), (len("10_INNER_BASE_10_"), b"x0")])
def test_a_batch_whose_offsets_cannot_be_right_is_told_of(before_end: int, damage: bytes):
    """Properties have no checksum: the offset in the head of the record must agree, the count be one."""
    disk = batched_disk()
    store = open_store(disk)
    append_batch(store, 10)
    position, _ = append_batch(store, 10)
    record = store.read_record(position)
    assert record is not None
    end = position + record.size
    disk.open("commitlog/" + "0" * 20).write(end - before_end, [damage])

    again = open_store(disk)

    assert [damage.reason for damage in again.recovered.damages] == ["a batch with invalid offsets"]
    assert again.queue("orders", 0).offset_max == 10


def test_only_what_has_grown_is_synced():
    """A checkpoint asks for files of this kind too."""
    disk = batched_disk()
    store = open_store(disk)
    append_batch(store, 3)

    run_housekeeping(store, NOW_MS + 20_000)
    disk.crash(Random(1))

    assert open_store(disk).queue("orders", 0).offset_max == 3
    assert store.checkpoint_lag_bytes == 0


def test_a_last_entry_that_is_not_what_was_noted_is_made_again():
    """After an orderly end the bounds are known; the files must bear them out."""
    disk = batched_disk()
    store = open_store(disk)
    spans = many(store, 8)
    store.close(NOW_MS)
    overwrite(disk, f"batchconsumequeue/orders/0/{5 * RECORD_ENTRY_SIZE:020d}", 2 * RECORD_ENTRY_SIZE + 36, b"\0\1")

    again = open_store(disk)

    assert again.queue("orders", 0).read_range(0, 1000)[1] == [span[:2] for span in spans]
    assert again.recovered.damages == []


def test_a_gap_before_the_place_where_recovery_begins_is_filled_from_the_log():
    """Offsets may have gaps, but not every gap is one: here a file of the index was lost."""
    disk = batched_disk()
    store = open_store(disk)
    spans = many(store, 9)
    run_housekeeping(store, NOW_MS + 20_000)
    spans += [(offset, offset + 3, 0) for _, offset in [append_batch(store, 3, now_ms=NOW_MS + 30_000)]]
    disk.remove(f"batchconsumequeue/orders/0/{5 * RECORD_ENTRY_SIZE:020d}")

    again = open_store(disk)

    assert again.recovered.start == 0
    assert again.queue("orders", 0).read_range(0, 1000)[1] == [span[:2] for span in spans]


@pytest.mark.parametrize("added", [0, 3])
def test_a_queue_that_is_erased_while_it_is_read_ends_there(added: int):
    """Whoever waited for its entries gets none."""
    disk = batched_disk()
    store = open_store(disk)
    many(store, 5)
    store.close(NOW_MS)
    store = open_store(disk)
    many(store, added)
    steps = store.queue("orders", 0).fetch_range(3, 9, ahead=5)
    wanted = steps.send(None)
    assert isinstance(wanted, FileRange)
    data = wanted.file.read(wanted.start, wanted.end)

    store.erase_queue("orders", 0)

    with pytest.raises(StopIteration) as stop:
        steps.send(data)
    assert stop.value.value == (b"", [])
