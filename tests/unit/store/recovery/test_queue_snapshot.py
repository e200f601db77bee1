"""The files that upstream does not know."""

from __future__ import annotations

import pytest

from holdfast.sim.world.disk import SimDisk
from holdfast.store.queues.batch_consume_queue import RecordIndex
from holdfast.store.queues.consume_queue import MessageIndex
from holdfast.store.recovery.queue_snapshot import (
    DELETED_PATH,
    QUEUES_PATH,
    QueueSnapshot,
    load_deleted,
    load_snapshot,
    save_deleted,
    save_snapshot,
)

SNAPSHOT = QueueSnapshot(
    log_start=1,
    log_end=9,
    closed_ms=5,
    bounds={MessageIndex: {"t": {0: (1, 2), 7: (0, 3)}}, RecordIndex: {"b": {0: (1, 20, 0, 2)}}},
)


def test_bounds_survive_a_round_trip():
    """Byte for byte as every version writes them. Queue numbers are keys of a JSON object, so they are text."""
    disk = SimDisk()

    save_snapshot(disk, SNAPSHOT)

    assert load_snapshot(disk) == SNAPSHOT
    assert disk.read_file(QUEUES_PATH) == (
        b'{"logStart":1,"logEnd":9,"closedMs":5,"queues":{"t":{"0":[1,2],"7":[0,3]}},'
        b'"batchQueues":{"b":{"0":[1,20,0,2]}}}'
    )


def test_a_kind_without_queues_is_left_out_unless_it_is_the_default():
    """So the file is the same as before there was another kind."""
    disk = SimDisk()

    save_snapshot(disk, QueueSnapshot(log_start=1, log_end=9, closed_ms=5, bounds={}))

    assert disk.read_file(QUEUES_PATH) == b'{"logStart":1,"logEnd":9,"closedMs":5,"queues":{}}'


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"{", b"[]", b'{"logStart":"x"}', b"\xff", b'{"logStart":1,"logEnd":9,"closedMs":5,"queues":[]}'),
        b'{"logStart":1,"logEnd":9,"closedMs":5,"batchQueues":{}}',
        b'{"logStart":1,"logEnd":9,"closedMs":5,"queues":{"t":{"0":[1,2,3]}}}',
        b'{"logStart":1,"logEnd":9,"closedMs":5,"queues":{},"batchQueues":{"t":{"0":[1,2]}}}',
    ],
)
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
