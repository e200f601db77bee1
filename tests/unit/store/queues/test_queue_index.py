"""What both kinds of queues promise alike: whoever reads one need not know which it is."""

from __future__ import annotations

import pytest
from tests.support.stores import NOW_MS, append, batched_disk, bodies, finish, open_store, run_housekeeping

from holdfast.model.errors import StoreError
from holdfast.sim.world.disk import SimDisk
from holdfast.store.message_store import MessageStore

DAY_MS = 86_400_000

both_kinds = pytest.mark.parametrize("topics", [(), ("orders",)], ids=["by-message", "by-record"])


def disk_of(topics: tuple[str, ...]) -> SimDisk:
    return batched_disk(*topics) if topics else SimDisk()


def filled(disk: SimDisk, count: int) -> MessageStore:
    """A store with *count* messages, one every 10 ms."""
    store = open_store(disk)
    for number in range(count):
        append(store, b"m%d" % number, tags=f"t{number}", now_ms=NOW_MS + 10 * number)
    return store


@both_kinds
def test_an_empty_queue_begins_and_ends_at_0(topics: tuple[str, ...]):
    """Also for who looks for a time in it (hazard H10)."""
    store = open_store(disk_of(topics))
    queue = store.queue("orders", 0)

    assert queue.accepts_batches == bool(topics)
    assert (queue.offset_min, queue.offset_max, queue.next_offset) == (0, 0, 0)
    assert [len(queue.read_range(offset, 5)[0]) for offset in (-1, 0, 1)] == [0, 0, 0]
    for upper in (False, True):
        assert finish(store, store.offset_at_time(queue, NOW_MS, upper=upper)) == 0
    assert finish(store, store.store_time(queue, 0)) is None


@both_kinds
@pytest.mark.parametrize("is_reopened", [False, True])
def test_every_message_is_found_by_its_offset(topics: tuple[str, ...], *, is_reopened: bool):
    """One by one and in stretches, from memory and from files."""
    disk = disk_of(topics)
    store = filled(disk, 23)
    if is_reopened:
        store.close(NOW_MS)
        store = open_store(disk)

    queue = store.queue("orders", 0)

    assert store.recovered.damages == []
    assert (queue.offset_min, queue.offset_max, queue.next_offset) == (0, 23, 23)
    entries = [queue.get_entry(offset) for offset in range(23)]
    assert entries == queue.entries(0, 23)
    for start in range(23):
        for count in (1, 4, 30):
            raw, spans = queue.read_range(start, count)
            fetched = finish(store, queue.fetch_range(start, count, ahead=2))
            assert queue.entries(start, count) == entries[start : start + count]
            assert (raw, spans) == fetched
            assert spans is None or spans == [(at, at + 1) for at in range(start, min(start + count, 23))]
    assert bodies(store) == [b"m%d" % number for number in range(23)]
    assert all(len(queue.read_range(offset, 5)[0]) == 0 for offset in (-1, 23, 24))


@both_kinds
@pytest.mark.parametrize("is_reopened", [False, True])
def test_times_lead_to_the_same_offsets(topics: tuple[str, ...], *, is_reopened: bool):
    """The first at or after a time, the last at or before it; the end, or the beginning, where there is none."""
    disk = disk_of(topics)
    store = filled(disk, 9)
    for _ in range(3):
        append(store, now_ms=NOW_MS + 80)
    if is_reopened:
        store.close(NOW_MS)
        store = open_store(disk)
    queue = store.queue("orders", 0)

    def found(ms: int, *, upper: bool = False) -> int:
        return finish(store, store.offset_at_time(queue, NOW_MS + ms, upper=upper))

    assert [found(ms) for ms in (-5, 0, 1, 10, 79, 80, 81)] == [0, 0, 1, 1, 8, 8, 12]
    assert [found(ms, upper=True) for ms in (-5, 0, 1, 10, 79, 80, 81)] == [0, 0, 0, 1, 7, 11, 11]
    times = [finish(store, store.store_time(queue, offset)) for offset in (-1, 0, 3, 11, 12)]
    assert times == [None, NOW_MS, NOW_MS + 30, NOW_MS + 80, None]


@both_kinds
def test_what_was_staged_and_not_written_gives_its_offset_back(topics: tuple[str, ...]):
    """The next message gets it."""
    store = filled(disk_of(topics), 2)
    queue = store.queue("orders", 0)
    for _ in range(2):
        store.stage(queue, b"", b"", 0, 0, NOW_MS, bytes(8), 0, NOW_MS)

    store.discard()

    assert queue.next_offset == 2
    assert append(store)[1] == 2


@both_kinds
@pytest.mark.parametrize("end", ["in order", "killed"])
def test_the_beginning_follows_the_log(topics: tuple[str, ...], end: str):
    """Retention takes records; the queue begins behind them, its files go too, and it ends where it did."""
    disk = disk_of(topics)
    store = filled(disk, 40)
    run_housekeeping(store, NOW_MS + 20_000)
    queue = store.queue("orders", 0)
    files = len(disk.list(queue.folder))

    store.clean(NOW_MS + 10 * DAY_MS)
    run_housekeeping(store, NOW_MS + 10 * DAY_MS)

    first = queue.offset_min
    assert 0 < first < queue.offset_max == 40
    assert queue.get_entry(first)[0] >= store.start > store.log_file_size
    for offset in range(first, 40):
        position = queue.get_entry(offset)[0]
        assert (queue.find_from(position), queue.find_from(position + 1)) == (offset, offset + 1)
    assert (queue.find_from(0), queue.find_from(store.written)) == (first, 40)
    assert len(disk.list(queue.folder)) < files
    if end == "in order":
        store.close(NOW_MS + 10 * DAY_MS)
    again = open_store(disk)
    found = again.queue("orders", 0)
    assert (found.offset_min, found.offset_max, found.next_offset) == (first, 40, 40)
    assert bodies(again) == [b"m%d" % number for number in range(first, 40)]


@both_kinds
def test_a_queue_whose_records_are_all_gone_goes_on_where_it_ended(topics: tuple[str, ...]):
    """No offset is given twice, whatever retention took."""
    disk = disk_of(topics)
    store = filled(disk, 12)
    while store.start <= store.queue("orders", 0).get_entry(11)[0]:
        for _ in range(20):
            append(store, topic="other", now_ms=NOW_MS + 200)
        store.clean(NOW_MS + 10 * DAY_MS)
    run_housekeeping(store, NOW_MS + 10 * DAY_MS)

    for _ in range(2):
        queue = store.queue("orders", 0)
        assert (queue.offset_min, queue.offset_max, queue.next_offset) == (12, 12, 12)
        assert finish(store, store.offset_at_time(queue, 0)) == 12
        store.close(NOW_MS)
        store = open_store(disk)

    assert append(store, b"on")[1] == 12
    assert bodies(store) == [b"on"]
    assert bodies(open_store(disk)) == [b"on"]


@both_kinds
def test_an_erased_queue_begins_at_0_again(topics: tuple[str, ...]):
    """And a start does not bring back what was in it."""
    disk = disk_of(topics)
    store = filled(disk, 7)

    store.erase_queue("orders", 0)
    append(store, b"new")

    assert bodies(store) == [b"new"]
    assert bodies(open_store(disk)) == [b"new"]


def test_indexes_of_both_kinds_for_one_topic_are_named():
    """One of them is wrong, and which one is not for the store to guess."""
    disk = SimDisk()
    store = filled(disk, 1)
    store.queue("orders", 0).flush()
    disk.replace("config/topics.json", b'{"topicConfigTable":{"orders":{"attributes":{"queue.type":"BatchCQ"}}}}')

    with pytest.raises(StoreError, match="consumequeue/orders/0 exists, but the index of topic orders is batch"):
        open_store(disk)
