"""Opening folders of all kinds."""

from __future__ import annotations

import pytest
from tests.support.stores import NOW_MS, append, bodies, finish, open_store, overwrite, run_housekeeping

from holdfast.model.errors import StoreError
from holdfast.sim.world.disk import SimDisk
from holdfast.store.recovery.queue_snapshot import QUEUES_PATH


def test_sizes_of_existing_files_are_kept_whatever_the_options_say():
    """Log files and queue files."""
    disk = SimDisk()
    store = open_store(disk)
    for _ in range(30):
        append(store)
    store.close(NOW_MS)

    again = open_store(disk, log_file_size=1 << 20, queue_file_size=2000)
    for _ in range(30):
        append(again)
    again.close(NOW_MS)

    assert {disk.find_size(f"commitlog/{name}") for name in disk.list("commitlog")} == {1024}
    assert {disk.find_size(f"consumequeue/orders/0/{name}") for name in disk.list("consumequeue/orders/0")} == {100}
    assert len(bodies(open_store(disk))) == 60


def test_files_of_others_do_not_matter():
    """What a 5.5.0 broker keeps beside."""
    disk = SimDisk()
    for path in ("timerwheel", "timerlog/00000000000000000000", "rocksdbstore/CURRENT", "compaction/x", "abort.bak"):
        disk.create(path, 100)
    disk.create("index/notanindex", 100)
    disk.create("index/20231114221320000", 10)

    assert append(open_store(disk)) == (0, 0)


def test_a_note_about_queues_that_is_not_true_any_more_is_not_believed():
    """Queues are then found in their folders."""
    disk = SimDisk()
    store = open_store(disk)
    append(store, b"a")
    store.close(NOW_MS)
    note = disk.read_file(QUEUES_PATH) or b""
    store = open_store(disk)
    append(store, b"b")
    store.close(NOW_MS)
    disk.replace(QUEUES_PATH, note)

    assert bodies(open_store(disk)) == [b"a", b"b"]


def test_a_folder_that_cannot_be_a_log_is_refused_with_advice():
    """The text names the file and what to do."""
    disk = SimDisk()
    store = open_store(disk)
    for _ in range(30):
        append(store)
    disk.create("commitlog/00000000000000001024", 77)

    with pytest.raises(StoreError, match=r"00000000000000001024 has 77 bytes .* restore it"):
        open_store(disk)


def test_a_checkpoint_of_zeros_is_no_obstacle():
    """Then everything is read again."""
    disk = SimDisk()
    store = open_store(disk)
    append(store, b"a")
    for file in store.files_to_sync():
        file.sync()
    overwrite(disk, "checkpoint", 0, bytes(4096))

    assert bodies(open_store(disk)) == [b"a"]


def test_an_orderly_end_makes_the_next_start_look_at_each_queue_once():
    """With ten thousand of them, that is what a start takes."""
    opened: list[str] = []
    disk = SimDisk()
    store = open_store(disk, log_file_size=1 << 20)
    for number in range(60):
        append(store, queue_id=number % 20)
    store.close(NOW_MS)
    disk.before = lambda call, path: opened.append(path) if call == "open" else None

    again = open_store(disk)

    queues = [path for path in opened if path.startswith("consumequeue")]
    assert len(set(queues)) == 20
    assert len(queues) <= 21, "and the last record's once more"
    assert [queue.offset_max for queue in again.list_queues()] == [3] * 20


def test_before_the_first_checkpoint_no_key_index_is_believed():
    """A power cut may have taken any page of any file, not only of the last one."""
    disk = SimDisk()
    store = open_store(disk)
    placed = [append(store, keys=f"k{number}")[0] for number in range(30)]
    run_housekeeping(store)
    first, *others = disk.list("index")
    assert len(others) == 1
    overwrite(disk, f"index/{first}", 40 + 4 * 10 + 20 * 7, bytes(20 * 5))

    again = open_store(disk)
    run_housekeeping(again)

    for number, position in enumerate(placed):
        assert finish(again, again.find_by_key("orders", f"k{number}", 9, 0, 1 << 62)) == [position]


def test_a_record_whose_keys_lie_in_two_files_is_entered_again_when_the_second_is_lost():
    """A file gets full in the middle of them; what a crash may have torn is made again from the log."""
    disk = SimDisk()
    store = open_store(disk, index_items=10)
    placed = [append(store, keys=" ".join(f"k{number}-{part}" for part in range(4)))[0] for number in range(6)]
    run_housekeeping(store)
    for _ in range(2):  # What is to be synced, and that it was.
        later_ms = NOW_MS + 3_600_000
        for file in store.housekeep(later_ms).files:
            file.sync()
        store.checkpoint(later_ms)
    assert len(disk.list("index")) == 3

    again = open_store(disk, index_items=10)
    run_housekeeping(again)

    for number, position in enumerate(placed):
        for part in range(4):
            assert finish(again, again.find_by_key("orders", f"k{number}-{part}", 9, 0, 1 << 62)) == [position]
