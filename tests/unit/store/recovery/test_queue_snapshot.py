"""The files that upstream does not know."""

from __future__ import annotations

import pytest

from holdfast.sim.world.disk import SimDisk
from holdfast.store.recovery.queue_snapshot import (
    DELETED_PATH,
    QUEUES_PATH,
    QueueSnapshot,
    load_deleted,
    load_snapshot,
    save_deleted,
    save_snapshot,
)

SNAPSHOT = QueueSnapshot(log_start=1, log_end=9, closed_ms=5, queues={"t": {0: (1, 2), 7: (0, 3)}})


def test_bounds_survive_a_round_trip():
    """Queue numbers are keys of a JSON object, so they are text in the file."""
    disk = SimDisk()

    save_snapshot(disk, SNAPSHOT)

    assert load_snapshot(disk) == SNAPSHOT
    assert b'"7":[0,3]' in (disk.read_file(QUEUES_PATH) or b"")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"logStart":"x"}', b"\xff"])
def test_files_that_cannot_be_read_say_nothing(data: bytes):
    """They only save work."""
    disk = SimDisk()
    disk.replace(QUEUES_PATH, data)
    disk.replace(DELETED_PATH, data)

    assert load_snapshot(disk) is None
    assert load_deleted(disk, 0) == {}


def test_deletions_are_remembered_as_long_as_their_records_are_in_the_log():
    """Behind that there is nothing to keep out."""
    disk = SimDisk()
    assert load_deleted(disk, 0) == {}

    save_deleted(disk, {"old": 100, "new": 300})

    assert load_deleted(disk, 200) == {"new": 300}
