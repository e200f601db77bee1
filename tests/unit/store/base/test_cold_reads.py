"""What may not be in memory is asked for, never fetched where others wait."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.support.stores import NOW_MS, append, finish, finish_without_reads, open_store

from holdfast.sim.world.disk import SimDisk
from holdfast.store.base.cold_reads import FileRange, LogRange, Steps
from holdfast.store.message_store import MessageStore

FOREVER = (0, 1 << 62)

Query = Callable[[MessageStore], Steps[object]]
QUERIES: list[Query] = [
    lambda store: store.find_by_key("orders", "k3", 10, *FOREVER),
    lambda store: store.find_by_key("orders", "nobody", 10, *FOREVER),
    lambda store: store.offset_at_time(store.queue("orders", 0), NOW_MS + 17),
    lambda store: store.offset_at_time(store.queue("orders", 0), NOW_MS + 17, upper=True),
    lambda store: store.store_time(store.queue("orders", 0), 0),
    lambda store: store.store_time(store.queue("orders", 0), 29),
    lambda store: store.store_time(store.queue("orders", 0), 30),
]


@pytest.mark.parametrize("query", QUERIES)
def test_a_store_that_was_just_opened_reads_nothing_by_itself(query: Query):
    """Neither records nor indexes: all of it may be on disk only. The answers are those of before."""
    disk = SimDisk()
    store = open_store(disk, queue_file_size=20 * 100)
    for number in range(30):
        append(store, b"%d" % number, keys=f"k{number % 5}", now_ms=NOW_MS + number)
    expected = finish(store, query(store))
    store.close(NOW_MS)
    again = open_store(disk)

    result, asked = finish_without_reads(again, disk, query(again))

    assert result == expected
    assert asked > 0 or expected in (None, [])


def test_what_this_process_wrote_is_found_without_asking_for_indexes():
    """They are in memory: only records are asked for, and those can be viewed at once."""
    store = open_store()
    for number in range(30):
        append(store, keys=f"k{number}", now_ms=NOW_MS + number)

    def look(wanted: LogRange | FileRange) -> bytes:
        assert isinstance(wanted, LogRange)
        view = store.hot_view(wanted.position, wanted.size)
        assert view is not None
        return bytes(view)

    assert finish(store, store.offset_at_time(store.queue("orders", 0), NOW_MS + 9), look) == 9
    assert len(finish(store, store.find_by_key("orders", "k9", 10, *FOREVER), look)) == 1
