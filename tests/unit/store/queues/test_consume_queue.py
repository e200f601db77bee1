"""20-byte entries: bytes as upstream has them, across memory and files."""

from __future__ import annotations

import pytest
from tests.support.stores import NOW_MS, append, finish, open_store

from holdfast.sim.world.disk import SimDisk
from holdfast.store.base.cold_reads import FileRange, LogRange
from holdfast.store.base.file_cache import FileCache
from holdfast.store.message_store import MessageStore
from holdfast.store.queues.consume_queue import MessageIndex
from holdfast.store.queues.queue_files import QueueFiles
from holdfast.store.queues.queue_index import ENTRY

FOLDER = "consumequeue/orders/3"


def a_queue(disk: SimDisk, *, entries_per_file: int = 5) -> MessageIndex:
    return MessageIndex(QueueFiles(FileCache(disk, 2), entries_per_file * 20, 8), "orders", 3)


def add(queue: MessageIndex, count: int) -> None:
    for _ in range(count):
        queue.tail += ENTRY.pack(1000 + queue.next_offset, 50, queue.next_offset)
        queue.next_offset += 1
    queue.publish_tail()


def test_an_entry_is_position_size_and_tags_code():
    """Big-endian, 20 bytes."""
    disk = SimDisk()
    queue = a_queue(disk)
    queue.tail += ENTRY.pack(1 << 33, 158, -2)
    queue.publish_tail()
    queue.flush()

    stored = disk.open(f"{FOLDER}/00000000000000000000").read(0, 40)
    assert stored.hex() == "0000000200000000" + "0000009e" + "fffffffffffffffe" + "00" * 20


@pytest.mark.parametrize("flushed", [0, 1, 4, 5, 6, 12])
def test_entries_are_the_same_wherever_they_are(flushed: int):
    """In memory, in a file, across files, across both; from each offset on."""
    queue = a_queue(SimDisk())
    add(queue, flushed)
    queue.flush()
    add(queue, 12 - flushed)

    for start in range(12):
        for count in (1, 3, 12, 100):
            found = queue.entries(start, count)
            assert found == [(1000 + at, 50, at) for at in range(start, min(start + count, 12))]


@pytest.mark.parametrize("start", [-1, 12, 13])
def test_there_is_nothing_outside_the_queue(start: int):
    """Neither before the first nor behind the last."""
    queue = a_queue(SimDisk())
    add(queue, 12)

    assert queue.raw_entries(start, 5) == b""


def test_many_entries_are_written_without_being_asked():
    """Memory holds at most one page of a queue."""
    queue = a_queue(SimDisk(), entries_per_file=1000)

    add(queue, 204)
    assert len(queue.tail) == 4080
    add(queue, 1)

    assert (len(queue.tail), queue.tail_number, queue.offset_max) == (0, 205, 205)


def test_files_are_made_with_their_first_entry_and_at_full_size():
    """Java refuses files of any other size."""
    disk = SimDisk()
    queue = a_queue(disk)
    assert disk.list(FOLDER) == []

    add(queue, 6)
    queue.flush()

    assert disk.list(FOLDER) == ["00000000000000000000", "00000000000000000100"]
    assert disk.find_size(f"{FOLDER}/00000000000000000100") == 100


def test_a_queue_that_begins_late_has_blanks_before():
    """As Java fills them: position 0, the largest size, no tag."""
    disk = SimDisk()
    queue = a_queue(disk)

    queue.begin_at(7)
    add(queue, 1)
    queue.flush()

    assert (queue.offset_min, queue.offset_max) == (7, 8)
    stored = disk.open(f"{FOLDER}/00000000000000000100").read(0, 60)
    assert list(ENTRY.iter_unpack(stored)) == [(0, 0x7FFFFFFF, 0), (0, 0x7FFFFFFF, 0), (1007, 50, 7)]


def fetch(
    store: MessageStore, queue: MessageIndex, start: int, count: int, ahead: int = 0
) -> tuple[list[int], list[int]]:
    """Return (first bytes of what was read, offsets that were read) of entries that were fetched."""
    asked: list[int] = []

    def read(wanted: LogRange | FileRange) -> bytes:
        assert isinstance(wanted, FileRange)
        base = int(wanted.file.path.rpartition("/")[2])
        asked.extend(range((base + wanted.start) // 20, (base + wanted.end) // 20))
        return wanted.file.read(wanted.start, wanted.end)

    raw = finish(store, queue.fetch_entries(start, count, ahead=ahead), read)
    assert raw == queue.raw_entries(start, count)
    return [position for position, _, _ in ENTRY.iter_unpack(raw)], asked


def test_entries_of_an_earlier_process_are_asked_for():
    """File by file; those that this process made are there."""
    disk = SimDisk()
    store = open_store(disk)
    positions = [append(store)[0] for _ in range(13)]
    store.close(NOW_MS)
    again = open_store(disk)
    positions += [append(again)[0] for _ in range(4)]
    queue = again.queue("orders", 0)

    assert fetch(again, queue, 3, 100) == (positions[3:], list(range(3, 13)))
    assert fetch(again, queue, 13, 2) == (positions[13:15], [])
    assert fetch(again, queue, 17, 2) == ([], [])


def test_who_reads_ahead_has_to_ask_only_now_and_then():
    """What was read is taken to be in memory for a while, of a bounded number of queues."""
    disk = SimDisk()
    store = open_store(disk, queue_file_size=20 * 100)
    positions = [append(store)[0] for _ in range(50)]
    store.close(NOW_MS)
    again = open_store(disk)
    queue = again.queue("orders", 0)

    assert fetch(again, queue, 0, 5, ahead=20) == (positions[:5], list(range(25)))
    assert not queue.is_cold(5, 20)
    assert fetch(again, queue, 5, 20, ahead=20) == (positions[5:25], [])
    assert queue.is_cold(20, 6)
    assert fetch(again, queue, 20, 6, ahead=20) == (positions[20:26], list(range(20, 46)))
    assert queue.is_cold(0, 1), "the last range counts"
    assert not queue.is_cold(50, 1)
