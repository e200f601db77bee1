"""An index by record: found by offset and by time, whatever lies between its entries and wherever they are."""

from __future__ import annotations

from random import Random

import pytest
from tests.support.stores import (
    NOW_MS,
    open_store,
    overwrite,
)

from holdfast.model.errors import DiskFailed
from holdfast.sim.world.disk import SimDisk
from holdfast.store.base.cold_reads import FileRange, Steps
from holdfast.store.base.file_cache import FileCache
from holdfast.store.queues.batch_consume_queue import FOLDER, RECORD_ENTRY_SIZE, RecordIndex
from holdfast.store.queues.queue_files import QueueFiles
from holdfast.store.queues.queue_table import find_entry_end

Span = tuple[int, int, int]
"""First offset, behind last, store time."""


def a_queue(disk: SimDisk, per_file: int) -> RecordIndex:
    files = QueueFiles(FileCache(disk, 2), per_file * RECORD_ENTRY_SIZE, 8, folder=FOLDER, entry_size=RECORD_ENTRY_SIZE)
    return RecordIndex(files, "orders", 0)


def add(queue: RecordIndex, spans: list[Span]) -> None:
    for number, (first, end, time_ms) in enumerate(spans, queue.entry_end):
        queue.append(RecordIndex.pack_entry(number * 200, 150, 7, time_ms, first, end - first))


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


def reopen(disk: SimDisk, queue: RecordIndex, per_file: int) -> RecordIndex:
    """The same queue as a later process finds it."""
    queue.flush()
    found = a_queue(disk, per_file)
    found.attach_files(queue.first_file, queue.file_end)
    found.set_end(queue.entry_end)
    return found


def check_all(queue: RecordIndex, spans: list[Span]) -> None:
    """Every offset, and those around, lead to the entry that a look at all of them finds."""
    assert (queue.offset_min, queue.offset_max) == (spans[0][0], spans[-1][1])
    for offset in {
        edge + shift for first, end, _ in spans for edge in (first, end, (first + end) // 2) for shift in (-1, 0, 1)
    }:
        behind = [span for span in spans if span[1] > offset]
        if not spans[0][0] <= offset < spans[-1][1]:
            assert queue.read_range(offset, 9) == (b"", [])
            continue
        raw, found = queue.read_range(offset, 1)
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
        wanted = steps.send(None)
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
        spans = queue.read_range(start, count)[1]
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
    disk.open(f"{queue.folder}/{0:020d}").write(
        number * RECORD_ENTRY_SIZE, [RecordIndex.pack_entry(400, 150, 7, NOW_MS, *span)]
    )

    for start in range(50):
        _, spans = queue.read_range(start, 100)
        assert spans
        ends = [end for _, end in spans]
        assert start < ends[0]
        assert ends == sorted(ends)


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
    assert queue.read_range(179, 1)[1] == [(178, 180)]


def test_the_file_of_the_last_entry_stays_where_an_empty_one_is_behind_it():
    """Only that entry knows where the queue goes on."""
    disk = SimDisk()
    table = open_store(disk)._table
    queue = a_queue(disk, 2)
    add(queue, [(at, at + 5, NOW_MS) for at in range(0, 20, 5)])
    queue.flush()
    disk.create(f"{queue.folder}/{4 * RECORD_ENTRY_SIZE:020d}", 2 * RECORD_ENTRY_SIZE)
    queue.file_end += 2 * RECORD_ENTRY_SIZE

    table.correct_min(queue, 1 << 40)

    assert disk.list(queue.folder) == [f"{2 * RECORD_ENTRY_SIZE:020d}", f"{4 * RECORD_ENTRY_SIZE:020d}"]
    assert (queue.offset_min, queue.offset_max) == (20, 20)


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
    assert queue.read_range(150, 1)[1] == [(150, 151)]


def test_an_entry_of_no_messages_is_the_end_of_an_index():
    """As upstream judges one: a place, a first offset and a count."""
    disk = SimDisk()
    queue = a_queue(disk, 10)
    add(queue, [(at, at + 10, NOW_MS) for at in range(0, 50, 10)])
    queue.flush()
    entry = RecordIndex.pack_entry(600, 150, 7, NOW_MS, 30, 0)
    overwrite(disk, f"{queue.folder}/{0:020d}", 3 * RECORD_ENTRY_SIZE, entry)
    entry = RecordIndex.pack_entry(800, 150, 7, NOW_MS, -1, 1)
    overwrite(disk, f"{queue.folder}/{0:020d}", 4 * RECORD_ENTRY_SIZE, entry)

    queue.attach_files(0, 10 * RECORD_ENTRY_SIZE)
    queue.set_end(find_entry_end(queue, lambda _, size: size > 0))

    assert (queue.entry_end, queue.offset_max) == (3, 30)


def test_a_queue_whose_entries_are_all_gone_has_no_last_entry():
    """Retention leaves their bytes in the file."""
    queue = a_queue(SimDisk(), 300)
    add(queue, [(0, 1, NOW_MS), (1, 2, NOW_MS)])
    queue.flush()
    assert RecordIndex.parse_span(queue.last_entry()) == (1, 2)

    queue.set_min(queue.offset_max)

    assert queue.last_entry() == b""
