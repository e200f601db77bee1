"""The log stops growing before the disk refuses."""

from tests.support.stores import append, bodies, open_store

from holdfast.model.errors import DiskFailed, DiskFull
from holdfast.sim.world.disk import SimDisk

NOW_MS = 1_700_000_000_000


class SmallDisk(SimDisk):
    """A disk whose space is what its files took, and which refuses what does not fit."""

    def create(self, path: str, size: int, *, reserve: bool = False):
        """Take the space of *size* bytes."""
        self.used += size if reserve else 0
        assert self.used <= self.total, f"no room for {path}"
        return super().create(path, size, reserve=reserve)


def test_the_share_that_is_kept_free_is_kept_however_fast_files_fill():
    """No timer has fired yet: the making of a file is looked at itself."""
    disk = SmallDisk(total=10_000)
    store = open_store(disk, log_file_size=200)

    count = 0
    while not store.is_disk_full:
        append(store, b"x" * 80)
        count += 1

    assert disk.used == 9_200, "the first file that passes 90 % is the last"
    assert count > 30
    assert store.is_writable


def test_without_room_for_another_file_the_last_one_is_not_filled_to_the_brim():
    """Files larger than the share that is kept free would meet the end of the disk first."""
    disk = SmallDisk(total=2_500)
    store = open_store(disk, log_file_size=1_000)
    while not store.is_disk_full:
        append(store, b"x" * 80)

    assert disk.used == 2_000
    assert 1_500 - 250 <= store.written <= 1_500 + 250
    assert store.is_writable


def test_writing_goes_on_when_there_is_room_again():
    """Somebody freed some: the next look of housekeeping finds it."""
    disk = SmallDisk(total=2_500)
    store = open_store(disk, log_file_size=1_000)
    while not store.is_disk_full:
        append(store, b"x" * 80)
    disk.used -= 1_000

    store.housekeep(NOW_MS)

    assert not store.is_disk_full
    append(store, b"x" * 80)


def test_the_oldest_file_goes_early_when_there_is_no_room_for_another():
    """The disk is not so full that its share says so, but the log could not go on."""
    disk = SmallDisk(total=2_500)
    store = open_store(disk, log_file_size=1_000)
    while not store.is_disk_full:
        append(store, b"x" * 80)

    removed = store.clean(NOW_MS)

    assert removed[0].startswith("commitlog/")
    assert disk.used * 100 < 85 * disk.total


def refuse_log_files(call: str, path: str) -> None:
    """Have no room, whatever `space` says: others may have taken it since, or it is kept for somebody else."""
    if call == "create" and path.startswith("commitlog/"):
        raise DiskFull(f"there is no room for {path}")


def test_a_file_that_is_refused_is_tried_again():
    """By every look, until it is there; meanwhile nothing is taken, and nothing was lost."""
    disk = SimDisk()
    store = open_store(disk, log_file_size=1_000)
    disk.before = refuse_log_files
    while store.reserve_space():
        append(store, b"x" * 80)

    store.housekeep(NOW_MS)
    assert not store.reserve_space()
    assert store.is_disk_full
    assert store.written <= 750, "what is under way has the rest"
    disk.before = None
    store.housekeep(NOW_MS)

    assert store.reserve_space()
    assert not store.is_disk_full
    count = len(bodies(store))
    for _ in range(10):
        append(store, b"y" * 80)
    assert bodies(store)[count:] == [b"y" * 80] * 10


def test_a_disk_that_fails_to_make_the_next_file_stops_writes():
    """Whatever it was, it was no want of room: trying again would not help."""
    disk = SimDisk()
    store = open_store(disk, log_file_size=1_000)

    def fail(call: str, path: str) -> None:
        raise DiskFailed("the disk is broken")

    while store.written < 600:
        append(store, b"x" * 80)
    disk.before = fail
    store.reserve_space()

    assert store.fault == "the disk is broken"
