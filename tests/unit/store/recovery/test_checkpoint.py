"""The checkpoint file: upstream's fields and our mark."""

from __future__ import annotations

import pytest

from holdfast.sim.world.disk import SimDisk
from holdfast.store.recovery.checkpoint import Checkpoint, CheckpointFile, format_checkpoint, parse_checkpoint

VALUE = Checkpoint(
    physic_ms=0xAABB,
    logics_ms=0xCCDD,
    index_ms=3,
    master_flushed=4,
    confirmed=5,
    logics_position=6,
    position=7,
    indexed=8,
)


def test_upstreams_fields_stand_where_it_has_them():
    """Six numbers of eight bytes."""
    data = format_checkpoint(VALUE)

    assert [int.from_bytes(data[at : at + 8], "big") for at in range(0, 48, 8)] == [0xAABB, 0xCCDD, 3, 4, 5, 6]


def test_a_checkpoint_survives_a_round_trip():
    """With its mark and without."""
    assert parse_checkpoint(format_checkpoint(VALUE)) == VALUE
    assert parse_checkpoint(format_checkpoint(Checkpoint(physic_ms=1))) == Checkpoint(physic_ms=1)


def test_three_seconds_are_left_as_a_margin():
    """The earlier of both times counts; never less than zero."""
    assert VALUE.safe_ms == 0xAABB - 3000
    assert Checkpoint(physic_ms=10, logics_ms=20).safe_ms == 0


@pytest.mark.parametrize("at", [*range(16), *range(64, 104)])
def test_a_mark_that_was_tampered_with_is_void(at: int):
    """Another time in upstream's fields, or any flipped byte."""
    data = bytearray(format_checkpoint(VALUE))
    data[at] ^= 0x40

    found = parse_checkpoint(bytes(data))

    assert (found.position, found.indexed) == (None, None)


@pytest.mark.parametrize("size", [0, 1, 40, 100])
def test_a_short_file_says_nothing(size: int):
    """It is made anew."""
    assert parse_checkpoint(bytes(size)) == Checkpoint()


def test_the_file_is_written_in_place_and_has_javas_size():
    """Java maps 4096 bytes."""
    disk = SimDisk()
    CheckpointFile(disk).write(VALUE)

    assert disk.find_size("checkpoint") == 4096
    assert CheckpointFile(disk).value == VALUE


def test_taking_the_mark_back_is_on_disk_when_it_returns():
    """And takes back what 5.5.0 would start from."""
    synced: list[str] = []
    disk = SimDisk(before=lambda call, path: synced.append(path) if call == "sync" else None)
    file = CheckpointFile(disk)
    file.write(VALUE)

    file.void_mark(2)

    found = CheckpointFile(disk).value
    assert (found.position, found.indexed, found.logics_position) == (2, 2, 2)
    assert synced == ["checkpoint"]
