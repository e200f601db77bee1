"""A bounded number of open files."""

from __future__ import annotations

from holdfast.sim.world.disk import SimDisk
from holdfast.store.base.file_cache import FileCache


def test_only_the_latest_files_are_kept_open():
    """Whoever was used last stays."""
    opened: list[str] = []
    disk = SimDisk(before=lambda call, path: opened.append(path) if call == "open" else None)
    cache = FileCache(disk, 2)
    for name in "abc":
        disk.create(name, 10)

    for name in ("a", "b", "a", "c", "a", "b"):
        cache.open(name)

    assert opened == ["a", "b", "c", "b"]


def test_what_was_created_is_open():
    """It is about to be written to."""
    opened: list[str] = []
    disk = SimDisk(before=lambda call, path: opened.append(path) if call == "open" else None)
    cache = FileCache(disk, 2)

    assert cache.create("a", 10) is cache.open("a")
    assert opened == []


def test_removed_files_are_forgotten():
    """A file, or a folder with all that is in it; a name that merely begins alike is another."""
    disk = SimDisk()
    cache = FileCache(disk, 9)
    kept = cache.create("topic2/0", 10)
    cache.create("topic/0", 10)

    cache.remove("topic")

    assert disk.list("topic") == []
    assert cache.open("topic2/0") is kept
