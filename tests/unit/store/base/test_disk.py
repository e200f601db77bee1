"""What both disks promise: the log engine cannot tell them apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.model.errors import DiskFailed
from holdfast.runtime.posix_disk import PosixDisk
from holdfast.sim.world.disk import SimDisk
from holdfast.store.base.disk import Disk


@pytest.fixture(params=["posix", "sim"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return PosixDisk(tmp_path) if request.param == "posix" else SimDisk()


def test_a_new_file_is_zeros_and_keeps_its_size(disk: Disk):
    """Reserved or not, however much is written into it."""
    for name, reserve in (("a", False), ("b", True)):
        file = disk.create(f"folder/{name}", 5000, reserve=reserve)
        assert file.read(0, 5000) == bytes(5000)

        file.write(4990, [b"0123456789"])

        assert (file.size, disk.find_size(f"folder/{name}")) == (5000, 5000)


def test_what_was_written_is_read_by_everyone(disk: Disk):
    """By views, by copies, through another handle, after closing."""
    file = disk.create("f", 10_000)

    file.write(4090, [b"across ", bytearray(b"the "), memoryview(b"page")])

    other = disk.open("f")
    assert bytes(file.view(4090, 4105)) == b"across the page"
    assert other.read(4090, 4105) == b"across the page"
    other.sync()
    file.close()
    other.close()
    assert disk.open("f").read(4097, 4100) == b"the"


def test_an_erased_range_is_zeros_and_nothing_else_is(disk: Disk):
    """To the byte."""
    file = disk.create("f", 10_000)
    file.write(0, [b"x" * 10_000])

    file.erase(4000, 9000)

    assert file.read(0, 10_000) == b"x" * 4000 + bytes(5000) + b"x" * 1000


def test_creating_a_file_again_empties_it(disk: Disk):
    """It is a new file."""
    disk.create("f", 10).write(0, [b"old"])

    assert disk.create("f", 20).read(0, 20) == bytes(20)


def test_reading_behind_the_end_fails(disk: Disk):
    """And is not taken for zeros."""
    file = disk.create("f", 10)

    with pytest.raises(DiskFailed):
        file.read(5, 15)


def test_names_come_and_go(disk: Disk):
    """Files, folders, replaced and renamed ones."""
    disk.create("log/1", 10)
    disk.replace("config/a.json", b"{}")
    disk.replace("config/a.json", b"{1}")
    disk.rename("config/a.json", "config/b.json")
    disk.create("queues.new/topic/0/file", 10)
    disk.rename("queues.new/topic", "queues/topic")
    disk.create("queues.old/topic/0/file", 10)
    with pytest.raises(DiskFailed):
        disk.rename("queues/topic", "queues.old/topic")
    disk.remove("queues.old")

    assert disk.list("queues.new") == []
    disk.remove("queues.new")
    assert disk.list("") == ["config/", "log/", "queues/"]
    assert disk.list("queues/topic") == ["0/"]
    assert disk.read_file("config/b.json") == b"{1}"
    assert disk.read_file("config/a.json") is None
    for path in ("queues", "log/1", "nowhere"):
        disk.remove(path)
    assert disk.list("queues/topic") == []
    assert disk.find_size("log/1") is None
    with pytest.raises(DiskFailed):
        disk.open("log/1")
