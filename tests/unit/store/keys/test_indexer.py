"""Feeding the key index in slices."""

from __future__ import annotations

import pytest
from tests.support.stores import NOW_MS, append, finish, finish_without_reads, open_store, run_housekeeping

from holdfast.sim.world.disk import SimDisk
from holdfast.store import housekeeping
from holdfast.store.keys import key_index
from holdfast.store.keys.indexer import SLICE_RECORDS
from holdfast.wire.records.record import TRANSACTION_ROLLBACK

FOREVER = (0, 1 << 62)


def test_one_call_indexes_a_bounded_number_of_records():
    """Sends come first; the rest is done by later calls."""
    store = open_store(index_items=10_000)
    for number in range(SLICE_RECORDS + 10):
        append(store, keys=f"k{number}")

    unseen = store.queue("orders", 0).get_entry(SLICE_RECORDS)[0]

    assert store.housekeep(NOW_MS).has_more_work
    assert store.index_lag_bytes == store.written - unseen
    assert not store.housekeep(NOW_MS).has_more_work

    assert store.index_lag_bytes == 0


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
    assert again.index_lag_bytes == 0
    assert finish(again, again.find_by_key("orders", "k", 10, *FOREVER)) == [second, first]


def test_an_index_that_was_lost_is_made_again():
    """All of it."""
    disk = SimDisk()
    store = open_store(disk)
    placed = [append(store, keys="k")[0] for _ in range(30)]
    store.close(NOW_MS)
    disk.remove("index")

    again = open_store(disk)
    run_housekeeping(again)

    assert finish(again, again.find_by_key("orders", "k", 100, *FOREVER)) == placed[::-1]


def test_rollbacks_are_not_found():
    """As upstream does."""
    store = open_store()
    append(store, keys="k", sys_flag=TRANSACTION_ROLLBACK)

    assert finish(store, store.find_by_key("orders", "k", 10, *FOREVER)) == []


def test_the_index_can_be_switched_off():
    """Then nothing is written and nothing is found."""
    disk = SimDisk()
    store = open_store(disk, key_index=False)
    append(store, keys="k")

    assert not store.housekeep(NOW_MS).has_more_work
    assert finish(store, store.find_by_key("orders", "k", 10, *FOREVER)) == []
    assert disk.list("index") == []


def test_what_may_not_be_in_memory_is_read_before_it_is_indexed():
    """Off the loop: the log of an earlier process, and the slots that it wrote."""
    disk = SimDisk()
    store = open_store(disk, index_items=100)
    for number in range(30):
        append(store, keys=f"k{number}")
    store.close(NOW_MS)
    disk.remove("index")
    again = open_store(disk, index_items=100)
    disk.before = lambda call, path: reads.append(path) if call == "read" else None
    reads: list[str] = []

    first = again.housekeep(NOW_MS)
    assert first.read is not None
    assert first.read.file.path.startswith("commitlog")
    assert again.housekeep(NOW_MS).read is None, "one at a time"
    assert reads == []
    again.note_warmed()
    again.housekeep(NOW_MS)

    assert reads
    run_housekeeping(again)
    assert len(finish(again, again.find_by_key("orders", "k29", 10, *FOREVER))) == 1


def test_a_query_does_not_index_what_may_not_be_in_memory():
    """It finds what is indexed."""
    disk = SimDisk()
    store = open_store(disk, index_items=100)
    for number in range(30):
        append(store, keys=f"k{number}")
    store.close(NOW_MS)
    disk.remove("index")
    again = open_store(disk, index_items=100)

    assert finish_without_reads(again, disk, again.find_by_key("orders", "k3", 10, *FOREVER)) == ([], 0)

    run_housekeeping(again)
    assert len(finish(again, again.find_by_key("orders", "k3", 10, *FOREVER))) == 1


def test_slots_of_an_earlier_process_are_read_before_keys_are_added(monkeypatch: pytest.MonkeyPatch):
    """Piece by piece; the keys of both are found then."""
    monkeypatch.setattr(key_index, "WARM_SIZE", 12)
    disk = SimDisk()
    store = open_store(disk, index_items=100)
    first, _ = append(store, keys="k")
    store.close(NOW_MS)
    again = open_store(disk, index_items=100)
    second, _ = append(again, keys="k")
    pieces = []

    while again.index_lag_bytes:
        work = again.housekeep(NOW_MS)
        if work.read is not None:
            pieces.append((work.read.start, work.read.end))
            again.note_warmed()

    assert pieces == [(40, 52), (52, 64), (64, 76), (76, 80)]
    assert finish(again, again.find_by_key("orders", "k", 10, *FOREVER)) == [second, first]


def test_an_index_that_cannot_keep_up_gets_more_time(monkeypatch: pytest.MonkeyPatch):
    """Otherwise it would fall behind for as long as sends come in."""
    store = open_store(index_items=10_000)
    for _ in range(SLICE_RECORDS * 3):
        append(store, keys="k")

    delays = [store.housekeep(NOW_MS).delay_ms]
    monkeypatch.setattr(housekeeping, "INDEX_LAG_HIGH", 1)
    append(store)
    delays.append(store.housekeep(NOW_MS).delay_ms)
    delays.append(store.housekeep(NOW_MS).delay_ms)

    assert delays == [housekeeping.BUSY_MS, housekeeping.INDEX_LAG_HIGH_MS, housekeeping.EAGER_MS]
