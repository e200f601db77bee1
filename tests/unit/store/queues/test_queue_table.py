"""Finding, shortening and cleaning queues."""

from __future__ import annotations

import pytest
from tests.support.stores import NOW_MS, append, open_store, overwrite

from holdfast.model.errors import StoreError
from holdfast.sim.world.disk import SimDisk
from holdfast.store.base.file_cache import FileCache
from holdfast.store.queues.batch_consume_queue import RecordIndex
from holdfast.store.queues.consume_queue import MessageIndex
from holdfast.store.queues.index_kinds import KINDS
from holdfast.store.queues.queue_files import QueueFiles
from holdfast.store.queues.queue_index import ENTRY
from holdfast.store.queues.queue_table import QueueTable

FOLDER = "consumequeue/t/0"


def a_table(disk: SimDisk) -> QueueTable:
    cache, unsynced, sizes = FileCache(disk, 4), dict[str, None](), {MessageIndex: 100, RecordIndex: 92}
    files = {
        kind: QueueFiles(cache, sizes[kind], 8, folder=kind.kind_folder, entry_size=kind.entry_size, unsynced=unsynced)
        for kind in KINDS
    }
    return QueueTable(disk, files, {"batched": RecordIndex})


def filled(disk: SimDisk, count: int) -> MessageIndex:
    """A queue whose records have 100 bytes each, all of it in files."""
    queue = a_table(disk).get("t", 0)
    for offset in range(count):
        queue.tail += ENTRY.pack(offset * 100, 100, 0)
    queue.publish_tail()
    queue.flush()
    return queue


def loaded(disk: SimDisk) -> tuple[QueueTable, MessageIndex]:
    table = a_table(disk)
    table.load()
    queue = table.find("t", 0)
    assert queue is not None
    return table, queue


@pytest.mark.parametrize("count", [1, 4, 5, 6, 10, 11])
def test_the_end_of_a_queue_is_found_in_its_files(count: int):
    """Full files, a file just begun, a last file that is still empty (hazard H4)."""
    disk = SimDisk()
    filled(disk, count)
    disk.create(f"{FOLDER}/{(count + 4) // 5 * 100:020d}", 100)

    _, queue = loaded(disk)

    assert (queue.offset_min, queue.offset_max, queue.next_offset) == (0, count, count)


def test_other_files_and_folders_are_passed_over():
    """Whatever lies about."""
    disk = SimDisk()
    filled(disk, 3)
    disk.create("consumequeue/file", 10)
    disk.create("consumequeue/t/x/00000000000000000000", 100)
    disk.create("consumequeue/t/file", 10)
    disk.create(f"{FOLDER}/notes.txt", 10)

    table, _ = loaded(disk)

    assert len(list(table)) == 1


def test_a_file_of_another_size_is_named():
    """And the text says how to get rid of it."""
    disk = SimDisk()
    disk.create(f"{FOLDER}/00000000000000000000", 80)

    with pytest.raises(StoreError, match="has 80 bytes where files of 100 are expected: remove the folder"):
        a_table(disk).load()


def test_a_queue_ends_where_a_file_is_missing():
    """What is behind is made again from the log."""
    disk = SimDisk()
    filled(disk, 15)
    disk.remove(f"{FOLDER}/00000000000000000100")

    _, queue = loaded(disk)

    assert queue.offset_max == 5
    assert disk.list(FOLDER) == ["00000000000000000000"]


@pytest.mark.parametrize(("position", "left"), [(1200, 12), (700, 7), (550, 6), (501, 6), (500, 5), (1, 1)])
def test_entries_behind_a_position_are_cut_off_on_disk_too(position: int, left: int):
    """Zeros and no files behind."""
    disk = SimDisk()
    filled(disk, 12)
    table, queue = loaded(disk)

    table.truncate(queue, position)

    assert queue.offset_max == left
    assert loaded(disk)[1].offset_max == left
    assert len(disk.list(FOLDER)) == left // 5 + 1


def test_cutting_everything_forgets_where_the_queue_began():
    """The log will tell."""
    disk = SimDisk()
    filled(disk, 12)
    table, queue = loaded(disk)

    table.truncate(queue, 0)

    assert (queue.offset_min, queue.offset_max) == (0, 0)
    assert disk.list(FOLDER) == []


@pytest.mark.parametrize(
    ("log_start", "offset_min", "files"),
    [(0, 0, 3), (100, 1, 3), (450, 5, 2), (1000, 10, 1), (1150, 12, 1), (9999, 12, 1)],
)
def test_the_first_offset_follows_the_log(log_start: int, offset_min: int, files: int):
    """To the first record still there, to the end when there is none; files before it go, the last one never."""
    disk = SimDisk()
    filled(disk, 12)
    table, queue = loaded(disk)

    table.correct_min(queue, log_start)
    table.correct_min(queue, log_start)

    assert (queue.offset_min, queue.offset_max) == (offset_min, 12)
    assert len(disk.list(FOLDER)) == files


def test_blanks_at_the_front_are_before_everything():
    """Even when the log begins at 0."""
    disk = SimDisk()
    queue = a_table(disk).get("t", 0)
    queue.begin_at(7)
    queue.tail += ENTRY.pack(0, 100, 0)
    queue.publish_tail()
    queue.flush()

    table, found = loaded(disk)
    table.correct_min(found, 0)

    assert (found.offset_min, found.offset_max) == (7, 8)


def test_bounds_noted_at_an_orderly_end_are_checked_against_the_files():
    """An entry that is not there, or a file, tells that the note is not true any more."""
    disk = SimDisk()
    filled(disk, 7)
    table = a_table(disk)

    assert table.restore(MessageIndex, "t", 0, (2, 7))
    assert not table.restore(MessageIndex, "t", 0, (2, 8))
    assert not table.restore(MessageIndex, "t", 0, (2, 11))
    assert not table.restore(MessageIndex, "u", 0, (0, 1))


def test_a_removed_topic_leaves_nothing():
    """But for the topic whose name merely begins alike."""
    disk = SimDisk()
    store = open_store(disk)
    for topic in ("a", "ab"):
        append(store, topic=topic)
        store.queue(topic, 0).flush()

    store.delete_topic("a")

    assert disk.list("consumequeue") == ["ab/"]
    store.close(NOW_MS)
    overwrite(disk, "checkpoint", 0, bytes(4096))
    assert [queue.topic for queue in open_store(disk).list_queues()] == ["ab"]
