"""Files of one size as one address space."""

from __future__ import annotations

import pytest
from tests.support.stores import overwrite

from holdfast.model.errors import StoreError
from holdfast.sim.world.disk import SimDisk
from holdfast.store.base.log_file import LogFiles, file_name, parse_names


def a_chain(disk: SimDisk, numbers: tuple[int, ...], size: int = 100) -> LogFiles:
    for number in numbers:
        disk.create(f"log/{file_name(number * size)}", size, reserve=True)
    return LogFiles.load(disk, "log", 5000)


def test_names_are_addresses_of_twenty_digits():
    """What is no such name is none of ours."""
    assert file_name(1 << 30) == "00000000001073741824"
    assert parse_names(["00000000000000000200", "00000000000000000100", "x", "100", ".tmp", "sub/"]) == [100, 200]


def test_an_empty_folder_takes_the_size_it_is_given():
    """There is no file to ask."""
    files = LogFiles.load(SimDisk(), "log", 5000)

    assert (files.size, files.start, files.end) == (5000, 0, 0)


def test_sizes_are_found_from_the_files():
    """Whatever the options say."""
    files = a_chain(SimDisk(), (3, 4, 5))

    assert (files.size, files.start, files.end) == (100, 300, 600)
    assert [found.start if (found := files.find(at)) else None for at in (299, 300, 399, 400, 599, 600)] == [
        None,
        300,
        300,
        400,
        500,
        None,
    ]


def test_an_empty_last_file_is_removed():
    """A crash between making a file and sizing it."""
    disk = SimDisk()
    disk.create(f"log/{file_name(200)}", 0, reserve=True)

    files = a_chain(disk, (0, 1))

    assert files.end == 200
    assert disk.list("log") == [file_name(0), file_name(100)]


@pytest.mark.parametrize(("start", "size"), [(100, 99), (150, 100)])
def test_a_file_that_does_not_fit_is_named(start: int, size: int):
    """The text says which, and what to do."""
    disk = SimDisk()
    disk.create(f"log/{file_name(start)}", size, reserve=True)

    with pytest.raises(StoreError, match=f"{file_name(start)} has {size} bytes where files of 100.*restore"):
        a_chain(disk, (0, 2))


def test_files_before_a_gap_are_kept_but_not_used():
    """They cannot be reached by walking the log."""
    disk = SimDisk()

    files = a_chain(disk, (0, 1, 3, 4))

    assert (files.start, files.end) == (300, 500)
    assert files.unused == [f"log/{file_name(0)}", f"log/{file_name(100)}"]
    assert len(disk.list("log")) == 4


def test_files_are_made_when_they_are_needed():
    """Once."""
    disk = SimDisk()
    files = LogFiles.load(disk, "log", 100)

    assert files.ensure(2) is files.ensure(2)
    assert disk.list("log") == [file_name(200)]


def test_cutting_leaves_zeros_and_no_files_behind():
    """Hazard H1."""
    disk = SimDisk()
    files = a_chain(disk, (0, 1, 2))
    for number in range(3):
        overwrite(disk, f"log/{file_name(number * 100)}", 0, b"x" * 100)

    files.truncate(150)

    assert disk.list("log") == [file_name(0), file_name(100)]
    assert disk.open(f"log/{file_name(100)}").read(0, 100) == b"x" * 50 + bytes(50)


def test_the_first_file_can_be_removed():
    """What was viewed of it stays good."""
    disk = SimDisk()
    files = a_chain(disk, (0, 1))
    view = files.files[0].view(0, 10)

    assert files.remove_first() == f"log/{file_name(0)}"

    assert files.start == 100
    assert bytes(view) == bytes(10)
