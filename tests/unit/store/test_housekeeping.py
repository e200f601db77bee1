"""Rounds: everything written, everything synced, then the mark."""

from __future__ import annotations

from tests.support.stores import NOW_MS, append, open_store, run_housekeeping, stage

from holdfast.model.errors import DiskFailed
from holdfast.sim.world.disk import SimDisk
from holdfast.store.base.disk import Syncable
from holdfast.store.housekeeping import QUEUES_PER_CALL, SYNC_FILES_MAX
from holdfast.store.message_store import MessageStore
from holdfast.store.recovery.checkpoint import CheckpointFile

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
    assert not store.housekeep(LATER_MS).has_more_work


def test_how_far_the_mark_is_behind_counts_until_the_mark_itself_is_on_disk():
    """A crash between the mark's write and its sync may bring the old one back."""
    store = open_store()
    assert store.checkpoint_lag_bytes == 0
    append(store)
    store.housekeep(LATER_MS)
    store.checkpoint(LATER_MS)
    assert store.checkpoint_lag_bytes == store.written
    store.housekeep(LATER_MS)

    store.checkpoint(LATER_MS)

    assert store.checkpoint_lag_bytes == 0
    append(store)
    assert 0 < store.checkpoint_lag_bytes < store.written


def test_a_restart_knows_how_far_its_mark_is_behind():
    """Stopped in order it is not; after a crash it is until the next round."""
    disk = SimDisk()
    store = open_store(disk)
    append(store)

    crashed = open_store(disk)
    assert crashed.checkpoint_lag_bytes == crashed.written > 0
    crashed.close(NOW_MS)

    assert open_store(disk).checkpoint_lag_bytes == 0


def test_a_round_is_due_after_an_interval_or_many_bytes():
    """And when there is nothing new, never."""
    store = open_store(checkpoint_bytes=500)
    append(store)
    assert store.housekeep(NOW_MS).files == ()

    assert store.housekeep(NOW_MS + 9_999).files == ()
    for _ in range(5):
        append(store)
    assert store.housekeep(NOW_MS + 9_999).files != ()
    run_housekeeping(store, LATER_MS)
    store.checkpoint(LATER_MS)
    run_housekeeping(store, LATER_MS)

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


class OldDisk(SimDisk):
    """One that cannot sync everything at once."""

    @property
    def can_sync(self) -> bool:
        """Say so."""
        return False


def sync_rounds(store: MessageStore, disk: SimDisk) -> list[tuple[Syncable, ...]]:
    """Keep house until the mark has moved; return what was to be synced, call by call."""
    syncs = []
    while mark(disk) is None:
        syncs.append(store.housekeep(LATER_MS).files)
        store.checkpoint(LATER_MS)
    return syncs


def test_many_queues_are_written_and_synced_in_bounded_pieces():
    """Neither one call nor one sync takes long, however many there are."""
    disk = OldDisk()
    store = open_store(disk, log_file_size=1 << 20)
    count = QUEUES_PER_CALL + SYNC_FILES_MAX + 50
    for queue_id in range(count):
        append(store, queue_id=queue_id)

    first = store.housekeep(LATER_MS)
    assert (first.files, first.has_more_work) == ((), True)
    syncs = [len(files) for files in sync_rounds(store, disk)]

    assert max(syncs) <= SYNC_FILES_MAX + 10
    assert sum(syncs) >= count
    assert len(disk.list("consumequeue/orders")) == count


def test_very_many_queues_are_synced_at_once():
    """Where the disk can: thousands of syncs would take a minute."""
    disk = SimDisk()
    store = open_store(disk, log_file_size=1 << 20)
    for queue_id in range(SYNC_FILES_MAX + 1):
        append(store, queue_id=queue_id)

    syncs = [files for files in sync_rounds(store, disk) if files]

    assert syncs == [(disk,)]


def test_few_queues_are_synced_by_themselves():
    """A sync of everything would wait for what others write to the same disk."""
    disk = SimDisk()
    store = open_store(disk, log_file_size=1 << 20)
    for queue_id in range(SYNC_FILES_MAX):
        append(store, queue_id=queue_id)

    syncs = sync_rounds(store, disk)

    assert not any(disk in files for files in syncs)


def test_an_end_syncs_very_many_queues_at_once():
    """Their files are not even opened for it."""
    calls: list[tuple[str, str]] = []
    disk = SimDisk(before=lambda call, path: calls.append((call, path)))
    store = open_store(disk, log_file_size=1 << 20)
    for queue_id in range(SYNC_FILES_MAX + 1):
        append(store, queue_id=queue_id)
    calls.clear()

    store.close(LATER_MS)

    assert ("sync", "") in calls
    assert not any(call in {"open", "sync"} and path.startswith("consumequeue") for call, path in calls)


def test_a_store_at_rest_does_nothing():
    """However many queues it has."""
    calls: list[str] = []
    disk = SimDisk(before=lambda call, path: calls.append(call))
    store = open_store(disk, log_file_size=1 << 20)
    for queue_id in range(300):
        append(store, queue_id=queue_id, keys="k")
    run_housekeeping(store, LATER_MS)
    calls.clear()

    for minute in range(1, 60):
        work = store.housekeep(LATER_MS + minute * 60_000)
        assert (work.files, work.read, work.has_more_work) == ((), None, False)

    assert calls == []


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
    run_housekeeping(store, LATER_MS)

    assert store.is_writable
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
