"""Files that queues of one kind share."""

from __future__ import annotations

import pytest
from tests.support.stores import open_store

from holdfast.model.errors import StoreError
from holdfast.sim.world.disk import SimDisk
from holdfast.store.base.file_cache import FileCache
from holdfast.store.queues import queue_files
from holdfast.store.queues.queue_files import QueueFiles


@pytest.mark.parametrize("size", [0, 19, -20])
def test_files_hold_whole_entries(size: int):
    """Any other size is a mistake in the settings."""
    with pytest.raises(StoreError, match="cannot hold entries"):
        QueueFiles(FileCache(SimDisk(), 2), size, 8)


def test_the_number_of_queues_read_ahead_is_bounded(monkeypatch: pytest.MonkeyPatch):
    """Whoever was read last stays."""
    monkeypatch.setattr(queue_files, "WARM_QUEUES_MAX", 2)
    store = open_store()
    queues = [store.queue("orders", number) for number in range(3)]
    files = queues[0].files

    for queue in (*queues, queues[1]):
        files.note_warm(queue, 0, 1)

    assert list(files.warm) == [queues[2], queues[1]]


def test_what_waits_for_a_sync_is_one_list_for_both_kinds():
    """A checkpoint claims all of it."""
    files = QueueFiles(FileCache(SimDisk(), 2), 100, 8)
    others = QueueFiles(files.cache, 50, 8, folder="other", entry_size=10, unsynced=files.unsynced)

    others.write("other/t/0", 0, memoryview(b"x"), 0)
    files.write("consumequeue/t/0", 0, memoryview(b"x"), 0)
    others.forget_unsynced("other/t")

    assert list(files.unsynced) == ["consumequeue/t/0/00000000000000000000"]
    assert others.unsynced is files.unsynced
