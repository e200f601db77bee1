"""The disk that tears and forgets."""

from __future__ import annotations

from random import Random

import pytest

from holdfast.model.errors import DiskFailed
from holdfast.sim.world.disk import PAGE_SIZE, SimDisk


def after_crashes(write: bytes, *, is_synced: bool) -> set[bytes]:
    """Return what a page of letters may hold after *write* and a power cut, over many seeds."""
    outcomes = set()
    for seed in range(60):
        disk = SimDisk()
        file = disk.create("f", PAGE_SIZE)
        file.write(0, [b"o" * PAGE_SIZE])
        file.sync()
        file.write(0, [write])
        if is_synced:
            file.sync()
        disk.crash(Random(seed))
        outcomes.add(disk.open("f").read(0, PAGE_SIZE))
    return outcomes


def test_what_was_synced_stays():
    """In every case."""
    assert after_crashes(b"n" * PAGE_SIZE, is_synced=True) == {b"n" * PAGE_SIZE}


def test_what_was_not_synced_is_old_new_or_torn_between_sectors():
    """Each of these happens."""
    outcomes = after_crashes(b"n" * PAGE_SIZE, is_synced=False)

    assert {b"o" * PAGE_SIZE, b"n" * PAGE_SIZE} < outcomes
    for outcome in outcomes:
        sectors = {outcome[at : at + 512] for at in range(0, PAGE_SIZE, 512)}
        assert sectors <= {b"o" * 512, b"n" * 512}


def test_files_are_sparse():
    """A gigabyte costs what is written of it; what was never written is zeros."""
    file = SimDisk().create("f", 1 << 40)

    file.write((1 << 39) + 100, [b"a", bytearray(b"b"), memoryview(b"c")])

    assert file.read((1 << 39) + 99, (1 << 39) + 104) == b"\0abc\0"
    file.erase((1 << 39) + 101, 1 << 40)
    assert bytes(file.view((1 << 39) + 99, (1 << 39) + 104)) == b"\0a\0\0\0"


@pytest.mark.parametrize(("start", "end"), [(-1, 5), (5, 11), (6, 5)])
def test_nothing_reaches_outside_a_file(start: int, end: int):
    """A mistake of ours is noticed here, not on a real disk."""
    file = SimDisk().create("f", 10)

    with pytest.raises(DiskFailed):
        file.read(start, end)
    with pytest.raises(DiskFailed):
        file.write(8, [b"abc"])


def test_a_new_name_may_be_lost_until_it_is_synced():
    """Unless space was reserved for it."""
    left = set()
    for seed in range(20):
        disk = SimDisk()
        disk.create("plain", 10)
        disk.create("reserved", 10, reserve=True)
        disk.create("synced", 10).sync()
        disk.crash(Random(seed))
        left.add(tuple(disk.list("")))

    assert left == {("plain", "reserved", "synced"), ("reserved", "synced")}


def test_a_removed_file_may_be_back_until_its_folder_is_synced():
    """A replaced or new neighbour syncs it."""
    back = set()
    for seed in range(20):
        for is_synced in (False, True):
            disk = SimDisk()
            disk.create("folder/f", 10).sync()
            disk.remove("folder")
            if is_synced:
                disk.replace("folder/other", b"x")
            disk.crash(Random(seed))
            back.add((is_synced, disk.find_size("folder/f")))

    assert back == {(False, None), (False, 10), (True, None)}


def test_a_sync_of_the_disk_makes_everything_last():
    """Pages, new names and removals, of all files."""
    for seed in range(30):
        disk = SimDisk()
        disk.replace("a/gone", b"x")
        for name in ("a/f", "b/c/g"):
            disk.create(name, PAGE_SIZE).write(0, [b"n" * PAGE_SIZE])
        disk.remove("a/gone")

        assert disk.can_sync
        disk.sync()
        disk.crash(Random(seed))

        assert (disk.list("a"), disk.list("b/c")) == (["f"], ["g"])
        assert {disk.read_file(name) for name in ("a/f", "b/c/g")} == {b"n" * PAGE_SIZE}


def test_replacing_lasts():
    """All of it, at once."""
    disk = SimDisk()
    disk.now_ms = 5
    disk.replace("a/b", b"one")
    disk.replace("a/b", b"three")
    disk.crash(Random(1))

    assert (disk.read_file("a/b"), disk.read_file("c"), disk.modified_ms("a/b")) == (b"three", None, 5)


def test_folders_are_listed_with_a_slash():
    """Sorted; what is not there is empty."""
    disk = SimDisk()
    for path in ("b", "a/x", "a/y/z"):
        disk.create(path, 1)

    assert disk.list("") == ["a/", "b"]
    assert disk.list("a") == ["x", "y/"]
    assert disk.list("nowhere") == []
    disk.rename("b", "a/b")
    assert disk.list("") == ["a/"]


def test_hooks_see_every_call():
    """Before it counts and after it did."""
    seen: list[str] = []
    disk = SimDisk(
        before=lambda call, path: seen.append(f"{call} {path}"), after=lambda call, path: seen.append("done")
    )

    disk.create("f", 10).write(0, [b"x"])

    assert seen == ["create f", "done", "write f", "done"]


def test_a_file_that_is_not_there_cannot_be_opened():
    """As on any disk."""
    with pytest.raises(DiskFailed, match="nowhere does not exist"):
        SimDisk().open("nowhere")


def test_space_is_what_it_was_set_to():
    """Tests fill it as they like."""
    disk = SimDisk(total=100)
    disk.used = 7

    assert disk.space() == (7, 100)
