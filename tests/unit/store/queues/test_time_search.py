"""Time search against the plainest twin: a list of times."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.stores import NOW_MS, append, finish, open_store

from holdfast.store.queues.queue_index import BLANK_ENTRY_SIZE, ENTRY
from holdfast.wire.frames.host import pack_host


@given(st.lists(st.integers(0, 6), min_size=1, max_size=15), st.integers(-1, 40))
@settings(deadline=None, max_examples=60)
def test_time_search_agrees_with_a_list(steps: list[int], wanted: int):
    """Lower: the first at or after; upper: the last at or before; at the ends the nearest there is."""
    store = open_store()
    times = [NOW_MS + sum(steps[: number + 1]) for number in range(len(steps))]
    for time_ms in times:
        append(store, now_ms=time_ms)
    queue = store.queue("orders", 0)

    assert finish(store, store.offset_at_time(queue, NOW_MS + wanted)) == bisect_left(times, NOW_MS + wanted)
    assert finish(store, store.offset_at_time(queue, NOW_MS + wanted, upper=True)) == max(
        0, bisect_right(times, NOW_MS + wanted) - 1
    )


def test_times_are_read_behind_ipv6_hosts():
    """They shift the field."""
    store = open_store()
    append(store, host=pack_host("[::1]:1"), now_ms=NOW_MS + 5)

    assert finish(store, store.store_time(store.queue("orders", 0), 0)) == NOW_MS + 5


def test_blank_entries_have_no_time():
    """No message has that offset."""
    store = open_store()
    append(store)
    queue = store.queue("orders", 0)
    queue.tail += ENTRY.pack(0, BLANK_ENTRY_SIZE, 0)
    queue.publish_tail()

    assert finish(store, store.store_time(queue, 1)) is None
