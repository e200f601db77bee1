"""Feeding the key index in slices."""

from __future__ import annotations

from tests.support.stores import NOW_MS, append, open_store

from holdfast.sim.disk import SimDisk
from holdfast.store.indexer import SLICE_RECORDS
from holdfast.wire.record import TRANSACTION_ROLLBACK

FOREVER = (0, 1 << 62)


def test_one_call_indexes_a_bounded_number_of_records():
    """Sends come first; the rest is done by later calls."""
    store = open_store(index_items=10_000)
    for number in range(SLICE_RECORDS + 10):
        append(store, keys=f"k{number}")

    unseen = store.queue("orders", 0).get_entry(SLICE_RECORDS)[0]

    assert store.housekeep(NOW_MS).behind
    assert store.index_behind == store.written - unseen
    assert not store.housekeep(NOW_MS).behind

    assert store.index_behind == 0


def test_sends_do_not_feed_the_index():
    """Not one byte of it is touched."""
    calls: list[str] = []
    disk = SimDisk(before=lambda call, path: calls.append(path))
    store = open_store(disk)

    append(store, keys="k")

    assert not any(path.startswith("index") for path in calls if path != "index")


def test_indexing_goes_on_where_it_ended():
    """After an orderly end, with records that had no time to be indexed, and without counting any twice."""
    disk = SimDisk()
    store = open_store(disk)
    first, _ = append(store, keys="k")
    store.housekeep(NOW_MS)
    second, _ = append(store, keys="k")
    append(store)
    store.close(NOW_MS)

    again = open_store(disk)
    assert again.index_behind == 0
    assert again.find_by_key("orders", "k", 10, *FOREVER) == [second, first]


def test_an_index_that_was_lost_is_made_again():
    """All of it."""
    disk = SimDisk()
    store = open_store(disk)
    placed = [append(store, keys="k")[0] for _ in range(30)]
    store.close(NOW_MS)
    disk.remove("index")

    again = open_store(disk)

    assert again.find_by_key("orders", "k", 100, *FOREVER) == placed[::-1]


def test_rollbacks_are_not_found():
    """As upstream does."""
    store = open_store()
    append(store, keys="k", sys_flag=TRANSACTION_ROLLBACK)

    assert store.find_by_key("orders", "k", 10, *FOREVER) == []


def test_the_index_can_be_switched_off():
    """Then nothing is written and nothing is found."""
    disk = SimDisk()
    store = open_store(disk, key_index=False)
    append(store, keys="k")

    assert not store.housekeep(NOW_MS).behind
    assert store.find_by_key("orders", "k", 10, *FOREVER) == []
    assert disk.list("index") == []
