"""An index by record: found by offset and by time, whatever lies between its entries and wherever they are."""

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
    finish_blind,
    keep_house,
    open_store,
    overwrite,
)

from holdfast.model.errors import DiskFailed, RecordRefused
from holdfast.sim.disk import SimDisk
from holdfast.store.batch_queue import FOLDER, UNIT, UNIT_SIZE, BatchQueue, pack_unit
from holdfast.store.file_cache import FileCache
from holdfast.store.message_store import MessageStore
from holdfast.store.queue_files import QueueFiles
from holdfast.store.queue_table import find_entry_end
from holdfast.store.steps import FileRange, Steps

Span = tuple[int, int, int]
"""First offset, behind last, store time."""


def a_queue(disk: SimDisk, per_file: int) -> BatchQueue:
    files = QueueFiles(FileCache(disk, 2), per_file * UNIT_SIZE, 8, folder=FOLDER, entry_size=UNIT_SIZE)
    return BatchQueue(files, "orders", 0)


def add(queue: BatchQueue, spans: list[Span]) -> None:
    for number, (first, end, time_ms) in enumerate(spans, queue.entry_end):
        queue.append(pack_unit(number * 200, 150, 7, time_ms, first, end - first))


def random_spans(random: Random, count: int) -> list[Span]:
    """Batches and single messages, with gaps between some, and times of which some are equal."""
    spans: list[Span] = []
    offset, time_ms = random.choice((0, 1000)), NOW_MS
    for _ in range(count):
        offset += random.choice((0, 0, 0, 1, 40))
        end = offset + random.choice((1, 1, 2, 10, 1000))
        time_ms += random.choice((0, 0, 1, 7))
        spans.append((offset, end, time_ms))
        offset = end
    return spans


def reopen(disk: SimDisk, queue: BatchQueue, per_file: int) -> BatchQueue:
    """The same queue as a later process finds it."""
    queue.flush()
    found = a_queue(disk, per_file)
    found.adopt(queue.first_file, queue.file_end)
    found.set_end(queue.entry_end)
    return found


def check_all(queue: BatchQueue, spans: list[Span]) -> None:
    """Every offset, and those around, lead to the entry that a look at all of them finds."""
    assert (queue.offset_min, queue.offset_max) == (spans[0][0], spans[-1][1])
    for offset in {
        edge + shift for first, end, _ in spans for edge in (first, end, (first + end) // 2) for shift in (-1, 0, 1)
    }:
        behind = [span for span in spans if span[1] > offset]
        if not spans[0][0] <= offset < spans[-1][1]:
            assert queue.stretch(offset, 9) == (b"", [])
            continue
        raw, found = queue.stretch(offset, 1)
        assert found == [behind[0][:2]]
        number = len(spans) - len(behind)
        assert queue.get_entry(offset) == (
            (number * 200, 150, 7) if behind[0][0] <= offset else (number * 200, 0x7FFFFFFF, 0)
        )
        assert len(raw) == 20
        assert drive(queue.find_time(offset)) == (behind[0][2] if behind[0][0] <= offset else None)
    for time_ms in {time_ms + shift for _, _, time_ms in spans for shift in (-1, 0, 1)}:
        first = min((span[0] for span in spans if span[2] >= time_ms), default=spans[-1][1])
        last = max((span[1] - 1 for span in spans if span[2] <= time_ms), default=spans[0][0])
        assert drive(queue.find_at_time(time_ms, upper=False)) == first
        assert drive(queue.find_at_time(time_ms, upper=True)) == last


def drive(steps: Steps[int | None]) -> int | None:
    """Give *steps* what they ask for."""
    try:
        wanted = next(steps)
        while True:
            assert isinstance(wanted, FileRange)
            wanted = steps.send(wanted.file.read(wanted.start, wanted.end))
    except StopIteration as stop:
        found: int | None = stop.value
        return found


@pytest.mark.parametrize("seed", range(10))
def test_offsets_and_times_are_found_over_all_files(seed: int):
    """In memory, in files of this process and of an earlier one; gaps and equal times included (hazards H10, H11)."""
    random = Random(seed)
    spans = random_spans(random, random.choice((1, 2, 5, 70, 200)))
    disk, per_file = SimDisk(), random.choice((1, 3, 50, 300))
    queue = a_queue(disk, per_file)
    half = random.randint(0, len(spans))

    add(queue, spans[:half])
    if half:
        queue = reopen(disk, queue, per_file)
    add(queue, spans[half:])

    check_all(queue, spans)
    check_all(reopen(disk, queue, per_file), spans)


def test_the_first_entry_ever_is_where_the_queue_begins():
    """It need not have offset 0."""
    queue = a_queue(SimDisk(), 5)

    add(queue, [(1000, 1010, NOW_MS)])

    assert (queue.offset_min, queue.offset_max, queue.next_offset) == (1000, 1010, 1010)


def test_a_stretch_holds_as_many_messages_as_are_wanted():
    """Records are never cut: one at least, no more once they hold too many. What is before the start does not count."""
    queue = a_queue(SimDisk(), 5)
    add(queue, [(at, at + 20, NOW_MS) for at in range(0, 200, 20)])

    def found(start: int, count: int) -> list[int]:
        spans = queue.stretch(start, count)[1]
        assert spans is not None
        return [first for first, _ in spans]

    assert found(5, 1) == [0]
    assert found(0, 39) == [0]
    assert found(0, 40) == [0, 20]
    assert found(5, 35) == [0, 20]
    assert found(5, 60) == [0, 20, 40]
    assert found(190, 1000) == [180]
    assert found(0, 1000) == list(range(0, 200, 20))


@pytest.mark.parametrize("span", [(3, -5), (-1, 1), (1 << 60, 9), (0, 32767)])
@pytest.mark.parametrize("number", range(5))
def test_a_damaged_entry_sends_no_reader_back(span: tuple[int, int], number: int):
    """Whatever its numbers are, a stretch only goes forward."""
    disk = SimDisk()
    queue = a_queue(disk, 10)
    add(queue, [(at, at + 10, NOW_MS) for at in range(0, 50, 10)])
    queue.flush()
    disk.open(f"{queue.folder}/{0:020d}").write(number * UNIT_SIZE, [pack_unit(400, 150, 7, NOW_MS, *span)])

    for start in range(50):
        _, spans = queue.stretch(start, 100)
        assert spans
        ends = [end for _, end in spans]
        assert start < ends[0]
        assert ends == sorted(ends)


def test_the_bytes_are_those_of_upstream():
    """46 bytes: place, tag, store time, offsets, no place of compaction, nothing."""
    disk = batched_disk()
    store = open_store(disk)
    append(store, tags="a", now_ms=NOW_MS)
    position, offset = append_batch(store, 300, now_ms=NOW_MS + 5)
    queue = store.queue("orders", 0)
    queue.flush()

    (path,) = disk.list("batchconsumequeue/orders/0")

    stored = disk.open(f"batchconsumequeue/orders/0/{path}").read(0, 5 * UNIT_SIZE)
    record = store.read_record(position)
    assert record is not None
    assert list(UNIT.iter_unpack(stored))[:3] == [
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


def many(store: MessageStore, count: int) -> list[Span]:
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

    (_, found), asked = finish_blind(store, disk, queue.fetch_stretch(900, 8, ahead=50))

    assert found == [span[:2] for span in spans if span[1] > 900][: len(found or ())]
    assert 1 < asked < 12, "halving, and a block at last"
    assert not queue.is_cold(900, 50)
    assert queue.is_cold(0, 1)
    assert not queue.is_cold(queue.offset_max, 1)
    _, asked = finish_blind(store, disk, queue.find_at_time(spans[77][2], upper=False))
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
            (_, spans), steps = finish_blind(store, disk, queue.fetch_stretch(offset, 20, ahead=100))
            asked += steps
        else:
            _, spans = queue.stretch(offset, 20)
        assert spans
        assert spans[0][0] == offset
        offset = spans[-1][1]

    assert asked < 900 // 100 * 4


def test_entries_stay_readable_when_they_cannot_be_written():
    """In memory, as in the other kind."""
    disk = SimDisk()
    queue = a_queue(disk, 500)

    def refuse(call: str, path: str) -> None:
        raise DiskFailed("planted")

    disk.before = refuse
    with pytest.raises(DiskFailed):
        add(queue, [(at, at + 2, NOW_MS) for at in range(0, 400, 2)])
    disk.before = None

    assert queue.offset_max == 180
    assert queue.stretch(179, 1)[1] == [(178, 180)]


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

        assert again.queue("orders", 0).stretch(0, 1000)[1] == [span[:2] for span in spans]
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

    assert again.queue("orders", 0).stretch(0, 1000)[1] == [span[:2] for span in spans]


def test_a_gap_in_the_log_stays_one():
    """Lost records leave no blanks here; a reader in the gap goes on behind it."""
    disk = batched_disk()
    store = open_store(disk)
    placed = [append_batch(store, 10, body=b"x" * 100) for _ in range(4)]
    disk.open("commitlog/" + "0" * 20).write(placed[1][0], [bytes(8)])

    again = open_store(disk)

    queue = again.queue("orders", 0)
    assert len(again.recovered.damages) == 1
    assert queue.stretch(0, 100)[1] == [(0, 10), (20, 30), (30, 40)]
    assert queue.stretch(15, 1)[1] == [(20, 30)]
    assert queue.get_entry(15) == (placed[2][0], 0x7FFFFFFF, 0)
    assert finish(again, again.store_time(queue, 15)) is None
    assert append_batch(again, 2)[1] == 40
    third = open_store(disk)
    assert third.queue("orders", 0).stretch(0, 100)[1] == [(0, 10), (20, 30), (30, 40), (40, 42)]


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

    assert [damage.reason for damage in again.recovered.damages] == ["a batch whose offsets cannot be right"]
    assert again.queue("orders", 0).offset_max == 10


def test_the_file_of_the_last_entry_stays_where_an_empty_one_is_behind_it():
    """Only that entry knows where the queue goes on."""
    disk = SimDisk()
    table = open_store(disk)._table
    queue = a_queue(disk, 2)
    add(queue, [(at, at + 5, NOW_MS) for at in range(0, 20, 5)])
    queue.flush()
    disk.create(f"{queue.folder}/{4 * UNIT_SIZE:020d}", 2 * UNIT_SIZE)
    queue.file_end += 2 * UNIT_SIZE

    table.correct_min(queue, 1 << 40)

    assert disk.list(queue.folder) == [f"{2 * UNIT_SIZE:020d}", f"{4 * UNIT_SIZE:020d}"]
    assert (queue.offset_min, queue.offset_max) == (20, 20)


def test_only_what_has_grown_is_synced():
    """A checkpoint asks for files of this kind too."""
    disk = batched_disk()
    store = open_store(disk)
    append_batch(store, 3)

    keep_house(store, NOW_MS + 20_000)
    disk.crash(Random(1))

    assert open_store(disk).queue("orders", 0).offset_max == 3
    assert store.checkpoint_behind == 0


def test_a_last_entry_that_is_not_what_was_noted_is_made_again():
    """After an orderly end the bounds are known; the files must bear them out."""
    disk = batched_disk()
    store = open_store(disk)
    spans = many(store, 8)
    store.close(NOW_MS)
    overwrite(disk, f"batchconsumequeue/orders/0/{5 * UNIT_SIZE:020d}", 2 * UNIT_SIZE + 36, b"\0\1")

    again = open_store(disk)

    assert again.queue("orders", 0).stretch(0, 1000)[1] == [span[:2] for span in spans]
    assert again.recovered.damages == []


def test_a_gap_before_the_place_where_recovery_begins_is_filled_from_the_log():
    """Offsets may have gaps, but not every gap is one: here a file of the index was lost."""
    disk = batched_disk()
    store = open_store(disk)
    spans = many(store, 9)
    keep_house(store, NOW_MS + 20_000)
    spans += [(offset, offset + 3, 0) for _, offset in [append_batch(store, 3, now_ms=NOW_MS + 30_000)]]
    disk.remove(f"batchconsumequeue/orders/0/{5 * UNIT_SIZE:020d}")

    again = open_store(disk)

    assert again.recovered.start == 0
    assert again.queue("orders", 0).stretch(0, 1000)[1] == [span[:2] for span in spans]


def test_what_was_cut_off_leaves_no_trace_in_searches():
    """Other batches take its place, in memory too."""
    disk = SimDisk()
    queue = a_queue(disk, 300)
    add(queue, [(at, at + 1, NOW_MS) for at in range(250)])
    queue.flush()
    spans = [(at, at + 1, NOW_MS) for at in range(100)]

    queue.set_end(100)
    spans += [(at, at + 100, NOW_MS) for at in range(100, 20_000, 100)]
    add(queue, spans[100:])

    check_all(queue, spans)


def test_what_retention_took_is_not_kept_in_memory():
    """Marks of entries that are gone go with them."""
    queue = a_queue(SimDisk(), 300)
    add(queue, [(at, at + 1, NOW_MS) for at in range(250)])

    queue.set_min(150)

    assert queue._mark_numbers == [192]
    assert queue.stretch(150, 1)[1] == [(150, 151)]


def test_an_entry_of_no_messages_is_the_end_of_an_index():
    """As upstream judges one: a place, a first offset and a count."""
    disk = SimDisk()
    queue = a_queue(disk, 10)
    add(queue, [(at, at + 10, NOW_MS) for at in range(0, 50, 10)])
    queue.flush()
    overwrite(disk, f"{queue.folder}/{0:020d}", 3 * UNIT_SIZE, pack_unit(600, 150, 7, NOW_MS, 30, 0))
    overwrite(disk, f"{queue.folder}/{0:020d}", 4 * UNIT_SIZE, pack_unit(800, 150, 7, NOW_MS, -1, 1))

    queue.adopt(0, 10 * UNIT_SIZE)
    queue.set_end(find_entry_end(queue, lambda _, size: size > 0))

    assert (queue.entry_end, queue.offset_max) == (3, 30)


@pytest.mark.parametrize("added", [0, 3])
def test_a_queue_that_is_erased_while_it_is_read_ends_there(added: int):
    """Whoever waited for its entries gets none."""
    disk = batched_disk()
    store = open_store(disk)
    many(store, 5)
    store.close(NOW_MS)
    store = open_store(disk)
    many(store, added)
    steps = store.queue("orders", 0).fetch_stretch(3, 9, ahead=5)
    wanted = next(steps)
    assert isinstance(wanted, FileRange)
    data = wanted.file.read(wanted.start, wanted.end)

    store.erase_queue("orders", 0)

    with pytest.raises(StopIteration) as stop:
        steps.send(data)
    assert stop.value.value == (b"", [])
