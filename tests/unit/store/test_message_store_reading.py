"""The door of the log engine: what is found by time and by key, and what may be read without waiting."""

from __future__ import annotations

import pytest
from tests.support.stores import NOW_MS, append, finish, open_store, overwrite, stage

from holdfast.model.errors import CorruptRecord
from holdfast.sim.world.disk import SimDisk
from holdfast.store.message_store import MessageStore

# --- time


def test_offsets_are_found_by_time():
    """Exactly, between two, before the first, behind the last; equal times give the first or the last of them."""
    store = open_store()
    for seconds in (0, 10, 10, 10, 20):
        append(store, now_ms=NOW_MS + seconds * 1000)
    queue = store.queue("orders", 0)

    lower = [
        finish(store, store.offset_at_time(queue, NOW_MS + seconds * 1000)) for seconds in (-20, 0, 5, 10, 15, 20, 21)
    ]
    upper = [
        finish(store, store.offset_at_time(queue, NOW_MS + seconds * 1000, upper=True))
        for seconds in (-20, 0, 5, 10, 20, 21)
    ]

    assert lower == [0, 0, 1, 1, 4, 4, 5]
    assert upper == [0, 0, 0, 3, 4, 4]


def test_a_message_that_is_not_there_has_no_time():
    """Neither before nor behind the queue."""
    store = open_store()
    append(store)

    assert finish(store, store.store_time(store.queue("orders", 0), 1)) is None
    assert finish(store, store.store_time(store.queue("orders", 0), -1)) is None


# --- hot and cold


def reopened(disk: SimDisk, store: MessageStore, **changes: object) -> MessageStore:
    store.close(NOW_MS)
    return open_store(disk, **changes)


def test_what_this_process_wrote_is_hot():
    """It needs no second look."""
    store = open_store()
    position, _ = append(store)

    assert store.is_hot(position)
    assert store.hot_end(position) == store.written
    assert store.hot_view(position, 101) is not None


def test_a_block_is_checked_once_before_it_is_served():
    """After a restart old records are cold; once read and verified they are hot."""
    disk = SimDisk()
    store = open_store(disk)
    places = [append(store, b"%d" % number) for number in range(5)]
    store = reopened(disk, store)

    assert not store.is_hot(0)
    assert store.hot_view(0, 98) is None
    cold = store.cold_read(0, places[3][0])
    assert cold is not None
    file, start, end = cold
    assert store.verify(0, file.read(start, end)) == places[3][0]

    assert store.hot_end(0) == places[3][0]
    assert store.hot_view(0, places[3][0]) is not None
    assert store.hot_view(0, places[3][0] + 1) is None


def test_a_flipped_bit_is_reported_with_its_place_and_hides_only_its_record():
    """Those before and behind it are served."""
    disk = SimDisk()
    store = open_store(disk)
    places = [append(store, b"%d" % number)[0] for number in range(5)]
    store = reopened(disk, store)
    overwrite(disk, "commitlog/00000000000000000000", places[2] + 88, b"!")

    cold = store.cold_read(0, store.written)
    assert cold is not None
    with pytest.raises(CorruptRecord) as caught:
        store.verify(0, cold[0].read(cold[1], cold[2]))

    assert caught.value.position == places[2]
    assert [store.is_hot(position) for position in places] == [True, True, False, True, True]


def test_only_the_end_of_the_log_is_taken_to_be_in_memory():
    """Older records are cold although they are good; reading them makes them hot for a while."""
    store = open_store(hot_window=300)
    places = [append(store)[0] for _ in range(6)]

    assert not store.is_hot(places[0])
    assert store.is_hot(places[5])
    cold = store.cold_read(places[0], places[2])
    assert cold is not None
    store.verify(places[0], cold[0].read(cold[1], cold[2]))

    assert store.is_hot(places[1])
    assert not store.is_hot(places[2])


def test_a_cold_read_ends_with_its_file_and_with_what_is_confirmed():
    """One effect reads one file."""
    store = open_store()
    for _ in range(12):
        append(store)
    stage(store)
    store.write()

    first = store.cold_read(0, 5000)
    last = store.cold_read(1024, 5000)

    assert first is not None
    assert last is not None
    assert first[1:] == (0, 1024)
    assert last[1:] == (0, store.confirmed - 1024)
    assert store.cold_read(store.confirmed, 5000) is None


# --- keys


def test_messages_are_found_by_key_newest_first():
    """By each word of the keys and by the unique key, only in their topic, only in their time."""
    store = open_store()
    first, _ = append(store, keys="k1 k2", now_ms=NOW_MS)
    second, _ = append(store, keys="k2", now_ms=NOW_MS + 5000)
    append(store, topic="other", keys="k2", now_ms=NOW_MS + 5000)

    assert finish(store, store.find_by_key("orders", "k2", 10, 0, NOW_MS * 2)) == [second, first]
    assert finish(store, store.find_by_key("orders", "k2", 1, 0, NOW_MS * 2)) == [second]
    assert finish(store, store.find_by_key("orders", "k2", 10, 0, NOW_MS + 4999)) == [first]
    assert finish(store, store.find_by_key("orders", "k1", 10, NOW_MS + 1, NOW_MS * 2)) == []
    assert finish(store, store.find_by_key("orders", "k3", 10, 0, NOW_MS * 2)) == []


def test_keys_with_equal_hashes_are_told_apart():
    """Aa and BB have one hash in Java."""
    store = open_store()
    append(store, keys="Aa")
    second, _ = append(store, keys="BB")

    assert finish(store, store.find_by_key("orders", "BB", 10, 0, NOW_MS * 2)) == [second]


def test_topics_with_equal_hashes_are_told_apart():
    """The hash is of topic and key together."""
    store = open_store()
    first, _ = append(store, topic="Aa", keys="k")
    append(store, topic="BB", keys="k")

    assert finish(store, store.find_by_key("Aa", "k", 10, 0, NOW_MS * 2)) == [first]


def test_unconfirmed_messages_are_not_found_by_key():
    """Nobody sees what a crash could take."""
    store = open_store()
    stage(store, keys="k")
    store.write()

    assert finish(store, store.find_by_key("orders", "k", 10, 0, NOW_MS * 2)) == []
