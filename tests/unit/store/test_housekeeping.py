"""Rounds: everything written, everything synced, then the mark."""

from __future__ import annotations

from tests.support.stores import NOW_MS, append, keep_house, open_store, stage

from holdfast.model.errors import DiskFailed
from holdfast.sim.disk import SimDisk
from holdfast.store.checkpoint import CheckpointFile
from holdfast.store.housekeeping import QUEUES_PER_CALL, SYNC_FILES_MAX

LATER_MS = NOW_MS + 10_000


def mark(disk: SimDisk) -> int | None:
    return CheckpointFile(disk).value.position


def test_the_mark_moves_only_after_everything_is_synced():
    """Log, queues and key index first, then the checkpoint, then that is synced too."""
    disk = SimDisk()
    store = open_store(disk)
    append(store, keys="k")

    work = store.housekeep(LATER_MS)
    assert {file.path.split("/")[0] for file in work.files} == {"commitlog", "consumequeue", "index"}
    assert mark(disk) is None
    assert store.housekeep(LATER_MS).files == ()  # That sync is still under way.
    store.checkpoint(LATER_MS)

    assert mark(disk) == store.written
    assert [file.path for file in store.housekeep(LATER_MS).files] == ["checkpoint"]
    store.checkpoint(LATER_MS)
    assert not store.housekeep(LATER_MS).behind


def test_a_round_is_due_after_an_interval_or_many_bytes():
    """And when there is nothing new, never."""
    store = open_store(checkpoint_bytes=500)
    append(store)
    assert store.housekeep(NOW_MS).files == ()

    assert store.housekeep(NOW_MS + 9_999).files == ()
    for _ in range(5):
        append(store)
    assert store.housekeep(NOW_MS + 9_999).files != ()
    keep_house(store, LATER_MS)
    store.checkpoint(LATER_MS)
    keep_house(store, LATER_MS)

    assert store.housekeep(NOW_MS * 2).files == ()


def test_what_comes_during_a_round_waits_for_the_next():
    """The mark says what was true when the round began."""
    disk = SimDisk()
    store = open_store(disk)
    append(store)
    begun = store.written
    store.housekeep(LATER_MS)
    append(store)

    store.checkpoint(LATER_MS)

    assert mark(disk) == begun


def test_many_queues_are_written_and_synced_in_bounded_pieces():
    """Neither one call nor one sync takes long, however many there are."""
    disk = SimDisk()
    store = open_store(disk, log_file_size=1 << 20)
    count = QUEUES_PER_CALL + 50
    for queue_id in range(count):
        append(store, queue_id=queue_id)

    first = store.housekeep(LATER_MS)
    assert (first.files, first.behind) == ((), True)
    syncs = []
    while mark(disk) is None:
        work = store.housekeep(LATER_MS)
        syncs.append(len(work.files))
        store.checkpoint(LATER_MS)

    assert max(syncs) <= SYNC_FILES_MAX + 10
    assert sum(syncs) >= count
    assert len(disk.list("consumequeue/orders")) == count


def test_a_topic_deleted_during_a_round_does_not_disturb_it():
    """Its files are gone, and nobody asks for them."""
    disk = SimDisk()
    store = open_store(disk)
    for queue_id in range(SYNC_FILES_MAX + 20):
        append(store, queue_id=queue_id)
    append(store, topic="stays")
    store.housekeep(LATER_MS)
    store.checkpoint(LATER_MS)

    store.delete_topic("orders")
    keep_house(store, LATER_MS)

    assert store.writable
    assert mark(disk) is not None


def test_a_failing_disk_stops_writes():
    """It is told by `fault`, not raised into the broker's timer."""
    disk = SimDisk()
    store = open_store(disk)
    append(store)

    def fail(call: str, path: str) -> None:
        raise DiskFailed("gone")

    disk.before = fail
    store.housekeep(LATER_MS)

    assert store.fault == "gone"


def test_an_end_during_a_round_syncs_everything_again():
    """Whether the files that were handed out were synced is not known."""
    synced: list[str] = []
    disk = SimDisk(before=lambda call, path: synced.append(path) if call == "sync" else None)
    store = open_store(disk)
    append(store, keys="k")
    handed_out = {file.path for file in store.housekeep(LATER_MS).files}
    synced.clear()

    store.close(LATER_MS)

    assert handed_out <= set(synced)


def test_an_end_while_the_log_is_being_synced_syncs_it_again():
    """The files were handed out, but nobody said that they are on disk."""
    synced: list[str] = []
    disk = SimDisk(before=lambda call, path: synced.append(path) if call == "sync" else None)
    store = open_store(disk)
    for _ in range(15):
        stage(store)
    store.write()
    handed_out = {file.path for file in store.files_to_sync()}
    synced.clear()

    store.close(LATER_MS)

    assert len(handed_out) == 2
    assert handed_out <= set(synced)
