"""What is removed, and when writes are refused."""

from __future__ import annotations

import pytest
from tests.support.stores import NOW_MS, append, bodies, finish, open_store, run_housekeeping, stage

from holdfast.sim.world.disk import SimDisk
from holdfast.store.log.retention import RETENTION_HOLD_PATH
from holdfast.store.message_store import MessageStore

HOUR_MS = 3_600_000
LOG = "commitlog"


def one_per_file(disk: SimDisk, count: int, **options: object) -> MessageStore:
    """A store with one message per log file, one stored each hour."""
    store = open_store(disk, log_file_size=200, retention_ms=72 * HOUR_MS, **options)
    for number in range(count):
        append(store, b"%02d" % number, keys=f"k{number}", now_ms=NOW_MS + number * HOUR_MS)
    return store


def test_fifteen_expired_files_go_ten_and_five():
    """A file goes when the first record behind it is old enough; a bounded number at a time."""
    disk = SimDisk()
    store = one_per_file(disk, 55)
    now_ms = NOW_MS + (15 + 72) * HOUR_MS

    removed = [len([path for path in store.clean(now_ms) if path.startswith(LOG)]) for _ in range(3)]

    assert removed == [10, 5, 0]
    assert store.start == 15 * 200


def test_queues_and_key_index_follow_the_log():
    """First offsets move, files that are only of what is gone go too, and what is left is all there."""
    disk = SimDisk()
    store = one_per_file(disk, 55)
    run_housekeeping(store, NOW_MS + 60 * HOUR_MS)
    queue_files, index_files = len(disk.list("consumequeue/orders/0")), len(disk.list("index"))

    removed = store.clean(NOW_MS + (10 + 72) * HOUR_MS) + store.clean(NOW_MS + (20 + 72) * HOUR_MS)
    run_housekeeping(store, NOW_MS + 93 * HOUR_MS)

    assert store.queue("orders", 0).offset_min == 20
    assert bodies(store) == [b"%02d" % number for number in range(20, 55)]
    assert len(disk.list("consumequeue/orders/0")) == queue_files - 20 // 5
    assert len(disk.list("index")) == index_files - 1
    assert len([path for path in removed if path.startswith("index")]) == 1
    assert finish(store, store.find_by_key("orders", "k3", 10, 0, 1 << 62)) == []


def test_the_file_that_is_written_to_never_goes():
    """Nor the one created ahead of it, however old."""
    store = one_per_file(SimDisk(), 3, clean_forced_percent=-1)
    store.housekeep(NOW_MS)

    store.clean(NOW_MS + 10_000 * HOUR_MS)

    assert bodies(store)[-1] == b"02"
    assert store.start == 2 * 200
    assert store.clean(NOW_MS + 20_000 * HOUR_MS) == []


def test_a_disk_that_is_too_full_loses_its_oldest_files_whatever_their_age():
    """Above one limit the oldest files go, above the next writes are refused too; below both nothing happens."""
    disk = SimDisk(total=100_000)
    store = one_per_file(disk, 55)

    disk.used = 85_000
    assert store.clean(NOW_MS) == []
    disk.used = 86_000
    assert len(store.clean(NOW_MS)) == 10
    assert not store.is_disk_full
    disk.used = 91_000
    assert len(store.clean(NOW_MS)) == 10
    assert store.is_disk_full
    disk.used = 50_000
    store.clean(NOW_MS)

    assert not store.is_disk_full
    assert store.start == 20 * 200


def test_touching_files_does_not_make_them_young():
    """Hazard H7: time is taken from records."""
    disk = SimDisk()
    one_per_file(disk, 5).close(NOW_MS)
    disk.now_ms = NOW_MS + 1000 * HOUR_MS
    for name in disk.list(LOG):
        file = disk.open(f"{LOG}/{name}")
        file.write(0, [file.read(0, 1)])

    store = open_store(disk, retention_ms=72 * HOUR_MS)

    assert len(store.clean(NOW_MS + 1000 * HOUR_MS)) == 4


def test_reading_what_was_cleaned_finds_nothing():
    """A puller that is late gets None, not an error."""
    store = one_per_file(SimDisk(), 20)
    store.clean(NOW_MS + (10 + 72) * HOUR_MS)

    assert store.view(0, 100) is None
    assert store.read_record(0) is None
    assert store.cold_read(0, 100) is None
    assert finish(store, store.store_time(store.queue("orders", 0), 0)) is None


def test_a_queue_whose_messages_are_all_gone_keeps_counting():
    """Min and max meet at the end; the next message follows, also after a restart and after a crash."""
    disk = SimDisk()
    store = open_store(disk, log_file_size=200, retention_ms=HOUR_MS)
    for _ in range(7):
        append(store)
    append(store, topic="other", now_ms=NOW_MS + HOUR_MS)
    append(store, topic="other", now_ms=NOW_MS + HOUR_MS)
    run_housekeeping(store, NOW_MS + HOUR_MS)

    store.clean(NOW_MS + 3 * HOUR_MS)
    run_housekeeping(store, NOW_MS + 3 * HOUR_MS)
    queue = store.queue("orders", 0)
    assert (queue.offset_min, queue.offset_max) == (7, 7)
    crashed = open_store(disk)
    crashed.close(NOW_MS)

    assert append(open_store(disk))[1] == 7


@pytest.mark.parametrize("free", [400, 401])
def test_the_next_file_is_created_ahead_only_when_there_is_room(free: int):
    """A full disk is no reason to refuse writes before the file that is there has become full; then it is one."""
    disk = SimDisk(total=2000)
    store = open_store(disk, log_file_size=400)
    disk.used = 2000 - free
    stage(store, b"x" * 10)
    store.write()
    store.housekeep(NOW_MS)
    assert not store.is_disk_full

    append(store, b"y" * 80)
    store.housekeep(NOW_MS)

    assert len(disk.list(LOG)) == 1 + (free > 400)
    assert store.is_disk_full == (free <= 400)
    assert store.is_writable


def test_a_log_that_is_told_to_goes_on_in_the_next_file():
    """Then the file before can go though it was not full, and everything is found again after a crash."""
    disk = SimDisk()
    store = open_store(disk, log_file_size=2_000, retention_ms=HOUR_MS)
    append(store, b"old")

    assert store.roll()
    append(store, b"new", now_ms=NOW_MS + HOUR_MS)

    again = open_store(disk, log_file_size=2_000, retention_ms=HOUR_MS)
    assert bodies(again) == [b"old", b"new"]
    assert again.written > 2_000
    assert again.clean(NOW_MS + 3 * HOUR_MS)
    run_housekeeping(again, NOW_MS + 3 * HOUR_MS)
    assert bodies(again)[-1:] == [b"new"]
    assert again.queue("orders", 0).offset_min == 1


def test_a_log_that_begins_a_file_anyway_is_not_told_to_twice():
    """Nor does it make an empty file when nothing follows."""
    store = open_store(SimDisk(), log_file_size=2_000)
    append(store, b"old")

    store.roll()
    store.discard()
    store.roll()
    store.roll()
    append(store, b"new")

    assert 2_000 < store.written < 4_000


def test_no_file_is_begun_where_there_is_no_room_for_it():
    """A write that the disk refuses would end all writing."""
    store = open_store(SimDisk(), log_file_size=2_000, disk_full_percent=-1)
    append(store, b"old")

    assert not store.roll()

    append(store, b"new")
    assert store.written < 2_000


@pytest.mark.parametrize("forced", [{}, {"clean_forced_percent": -1}])
def test_what_is_not_archived_yet_stays(forced: dict[str, int]):
    """However old it is, and however full the disk: a file goes when every archive has all of it."""
    disk = SimDisk()
    store = one_per_file(disk, 20, **forced)
    disk.replace(RETENTION_HOLD_PATH, b'{"positions": {"one": 1000, "other": 700}}')

    store.clean(NOW_MS + 1000 * HOUR_MS)

    assert store.start == 600

    disk.replace(RETENTION_HOLD_PATH, b'{"positions": {"one": 1000, "other": 1400}}')
    store.clean(NOW_MS + 1000 * HOUR_MS)

    assert store.start == 1000


def test_a_hold_that_cannot_be_read_holds_everything():
    """Somebody wanted the log to be kept: a damaged file must not be the end of it."""
    disk = SimDisk()
    store = one_per_file(disk, 20)
    disk.replace(RETENTION_HOLD_PATH, b'{"positions": ')

    store.clean(NOW_MS + 1000 * HOUR_MS)

    assert store.start == 0

    disk.remove(RETENTION_HOLD_PATH)
    store.clean(NOW_MS + 1000 * HOUR_MS)

    assert store.start > 0
