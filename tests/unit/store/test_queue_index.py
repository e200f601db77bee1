"""The one index there is fits the room made for indexes."""

from __future__ import annotations

from tests.support.stores import append, open_store

from holdfast.store.queue_index import QueueIndex


def test_a_queue_can_be_read_without_knowing_its_kind():
    """Bounds, entries, and writing what is in memory."""
    store = open_store()
    append(store)
    append(store)

    index: QueueIndex = store.queue("orders", 0)
    index.flush()

    assert (index.topic, index.queue_id) == ("orders", 0)
    assert (index.offset_min, index.offset_max, index.next_offset) == (0, 2, 2)
    assert len(index.raw_entries(1, 10)) == 20
