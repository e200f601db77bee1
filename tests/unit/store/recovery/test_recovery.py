"""What a start makes of what the last end left."""

from __future__ import annotations

from random import Random

import pytest
from tests.support.stores import HOST, NOW_MS, append, bodies, finish, open_store, overwrite, run_housekeeping

from holdfast.sim.world.disk import SimDisk
from holdfast.store.base.options import DELAY_LEVELS_MS
from holdfast.store.message_store import MessageStore
from holdfast.store.recovery.checkpoint import Checkpoint, format_checkpoint

FIRST = "commitlog/00000000000000000000"
SIZE = 91 + len("orders") + 1
"""Of a record with a body of one byte."""


def letters(count: int) -> list[bytes]:
    return [bytes((97 + number,)) for number in range(count)]


def filled(disk: SimDisk, count: int = 5, **fields: object) -> MessageStore:
    """A store with one-letter messages a, b, c, ... on disk."""
    store = open_store(disk)
    for letter in letters(count):
        append(store, letter, **fields)
    sync_log(store)
    return store


def sync_log(store: MessageStore) -> None:
    for file in store.files_to_sync():
        file.sync()


def zeros_behind(disk: SimDisk, path: str, at: int) -> bool:
    file = disk.open(path)
    return not any(file.read(at, file.size))


# --- the three cases of upstream's testRecover


def test_an_orderly_end_keeps_everything():
    """Same end of the log, same queues, and writing goes on."""
    disk = SimDisk()
    store = filled(disk, 25)
    store.close(NOW_MS)

    again = open_store(disk)

    assert again.written == store.written
    assert bodies(again) == letters(25)
    assert append(again)[1] == 25


@pytest.mark.parametrize("end", ["orderly", "crash"])
def test_a_damaged_last_record_is_cut_off_in_log_and_queue(end: str):
    """Sixteen zeros over its topic: exactly that record goes, with and without an orderly end, and writing works."""
    disk = SimDisk()
    store = filled(disk)
    if end == "orderly":
        store.close(NOW_MS)
    overwrite(disk, FIRST, 4 * SIZE + 89, bytes(16))

    again = open_store(disk)

    assert again.written == 4 * SIZE
    assert bodies(again) == letters(4)
    assert append(again, b"!") == (4 * SIZE, 4)
    assert bodies(again) == [*letters(4), b"!"]


# --- where it starts


def test_after_an_orderly_end_only_the_last_record_is_read():
    """However long the log is."""
    disk = SimDisk()
    filled(disk, 25).close(NOW_MS)

    assert open_store(disk).recovered.records == 1


def test_after_a_crash_only_what_is_behind_the_mark_is_read():
    """The checkpoint says up to where log and queues are on disk."""
    disk = SimDisk()
    store = filled(disk, 20)
    run_housekeeping(store, NOW_MS + 20_000)
    for letter in (b"x", b"y"):
        append(store, letter)
    sync_log(store)
    disk.crash(Random(1))

    again = open_store(disk)

    assert not again.recovered.is_clean
    assert again.recovered.records <= 2 + 1
    assert bodies(again) == [*letters(20), b"x", b"y"]


def test_without_a_mark_the_times_of_the_checkpoint_decide():
    """A Java broker leaves only times: the replay starts at the last file that begins before them."""
    disk = SimDisk()
    store = open_store(disk)
    for number in range(30):
        append(store, b"m", now_ms=NOW_MS + number * 1000)
    sync_log(store)
    run_housekeeping(store, NOW_MS + 60_000)
    safe = NOW_MS + 15_000
    overwrite(disk, "checkpoint", 0, format_checkpoint(Checkpoint(physic_ms=safe + 3000, logics_ms=safe + 9000)))

    again = open_store(disk)

    record = again.read_record(again.recovered.start)
    assert again.recovered.start == 1024
    assert record is not None
    assert record.store_ms <= safe
    assert bodies(again) == [b"m"] * 30


def test_a_mark_that_a_java_broker_has_overtaken_is_void():
    """Its times differ from those that the mark was written with."""
    disk = SimDisk()
    store = filled(disk, 20)
    run_housekeeping(store, NOW_MS + 20_000)
    times = NOW_MS.to_bytes(8, "big")
    overwrite(disk, "checkpoint", 0, times + (NOW_MS + 1).to_bytes(8, "big"))

    assert open_store(disk).recovered.start == 0


@pytest.mark.parametrize("end", ["orderly", "crash", "crash without a checkpoint"])
def test_lost_queues_are_rebuilt_from_the_log(end: str):
    """With no queue file left at all, tags included."""
    disk = SimDisk()
    store = filled(disk, 25, tags="TagA")
    run_housekeeping(store, NOW_MS + 20_000)
    if end == "orderly":
        store.close(NOW_MS)
    elif end == "crash without a checkpoint":
        disk.remove("checkpoint")
    disk.remove("consumequeue")

    again = open_store(disk)

    assert bodies(again) == letters(25)
    assert again.queue("orders", 0).get_entry(7)[2] == 2598919


@pytest.mark.parametrize("lost", ["consumequeue/orders/1", "consumequeue/orders/1/00000000000000000100"])
def test_one_queue_that_lost_its_end_is_repaired_although_others_did_not(lost: str):
    """Hazard H2: the newest entry of all queues says nothing about the others."""
    disk = SimDisk()
    store = open_store(disk)
    for letter in letters(8):
        append(store, letter, queue_id=1)
    append(store, b"later", queue_id=0)
    store.close(NOW_MS)
    disk.remove(lost)

    again = open_store(disk)

    assert bodies(again, queue_id=1) == letters(8)
    assert bodies(again) == [b"later"]


@pytest.mark.parametrize("is_deleted", [False, True])
def test_one_queue_that_got_lost_is_made_again_after_a_crash(is_deleted: bool):  # noqa: FBT001 - a case
    """The mark says that its entries were on disk, but they are not: unless its topic was deleted, they must be."""
    disk = SimDisk()
    store = open_store(disk)
    for letter in letters(8):
        append(store, letter, topic="rare")
    store.close(NOW_MS)
    store = open_store(disk)
    append(store, b"later")
    run_housekeeping(store, NOW_MS + 20_000)
    if is_deleted:
        store.delete_topic("rare")
    else:
        disk.remove("consumequeue/rare")

    again = open_store(disk)

    assert bodies(again, "rare") == ([] if is_deleted else letters(8))
    assert bodies(again) == [b"later"]


def test_a_gap_in_a_queue_makes_the_replay_start_earlier():
    """A crash that took more of a queue than its checkpoint says is noticed by the next record of that queue."""
    disk = SimDisk()
    store = filled(disk, 20)
    run_housekeeping(store, NOW_MS + 20_000)
    append(store, b"x")
    sync_log(store)
    disk.open("consumequeue/orders/0/00000000000000000200").erase(0, 100)
    disk.remove("consumequeue/orders/0/00000000000000000300")

    again = open_store(disk)

    assert bodies(again) == [*letters(20), b"x"]


def test_a_replay_below_the_mark_takes_the_mark_back_first():
    """Else a second crash would trust entries that were never synced again."""
    disk = SimDisk()
    store = filled(disk, 20)
    run_housekeeping(store, NOW_MS + 20_000)
    append(store, b"x")
    sync_log(store)
    disk.remove("consumequeue/orders/0")
    open_store(disk)

    for seed in range(20):
        disk.crash(Random(seed))
        assert bodies(open_store(disk)) == [*letters(20), b"x"]


def test_a_queue_whose_older_messages_are_gone_begins_where_the_log_does():
    """Its first file is filled with blanks up to there, as Java does."""
    disk = SimDisk()
    store = open_store(disk)
    for letter in letters(20):
        append(store, letter)
    sync_log(store)
    disk.remove("consumequeue")
    disk.remove(FIRST)
    disk.remove("checkpoint")

    again = open_store(disk)

    queue = again.queue("orders", 0)
    assert (queue.offset_min, queue.offset_max) == (10, 20)
    assert bodies(again) == letters(20)[10:]
    again.close(NOW_MS)
    assert bodies(open_store(disk)) == letters(20)[10:]


def test_entries_of_delayed_messages_carry_the_time_of_delivery():
    """As the broker stored them: the level is a property, the delay a setting."""
    disk = SimDisk()
    store = open_store(disk)
    queue = store.queue("SCHEDULE_TOPIC_XXXX", 2)
    due = NOW_MS + DELAY_LEVELS_MS[2]
    store.stage(queue, b"later", b"DELAY\x013\x02TAGS\x01a\x02", 0, 0, NOW_MS, HOST, due, NOW_MS)
    store.write()
    sync_log(store)

    again = open_store(disk)

    assert again.queue("SCHEDULE_TOPIC_XXXX", 2).get_entry(0)[2] == due


def test_a_topic_made_anew_by_java_counts_with_its_later_life():
    """Java notes no deletion: the queue's offsets simply start again."""
    disk = SimDisk()
    store = filled(disk, 4)
    store.delete_topic("orders")
    append(store, b"new")
    sync_log(store)
    for path in ("holdfast", "checkpoint", "consumequeue"):
        disk.remove(path)

    assert bodies(open_store(disk)) == [b"new"]


# --- damage


def test_what_is_cut_off_becomes_zeros():
    """Hazard H1: a record that stayed behind the end could come back to life."""
    disk = SimDisk()
    filled(disk, 5)
    overwrite(disk, FIRST, 3 * SIZE, b"\xff" * SIZE)
    overwrite(disk, FIRST, 4 * SIZE + 50, b"\xff" * 60)

    again = open_store(disk)

    assert bodies(again) == letters(3)
    assert zeros_behind(disk, FIRST, 3 * SIZE)


def test_queue_entries_behind_the_end_become_zeros():
    """The same hazard in the index: Java takes every entry with a size for a message."""
    disk = SimDisk()
    store = filled(disk, 8)
    store.queue("orders", 0).flush()
    overwrite(disk, FIRST, 6 * SIZE, bytes(1024 - 6 * SIZE))

    again = open_store(disk)
    run_housekeeping(again, NOW_MS + 40_000)

    assert bodies(again) == letters(6)
    assert zeros_behind(disk, "consumequeue/orders/0/00000000000000000100", 20)


def test_a_flipped_bit_in_the_middle_is_reported_and_what_follows_is_kept():
    """The damaged message is named; its offset stays its own, and readers pass over it."""
    disk = SimDisk()
    filled(disk, 5)
    overwrite(disk, FIRST, 2 * SIZE + 88, b"!")

    again = open_store(disk)

    assert [(damage.position, damage.size) for damage in again.recovered.damages] == [(2 * SIZE, SIZE)]
    assert again.recovered.damages[0].reason == "the checksum of the body is wrong: orders/0 offset 2"
    assert bodies(again) == [b"a", b"b", None, b"d", b"e"]


def test_garbage_in_the_middle_is_covered_and_what_follows_is_kept():
    """Two records become one filler that every walk passes; their offsets stay theirs, blank."""
    disk = SimDisk()
    filled(disk, 6)
    overwrite(disk, FIRST, 2 * SIZE + 2, b"\xff" * SIZE)

    again = open_store(disk)

    assert [(damage.position, damage.size) for damage in again.recovered.damages] == [(2 * SIZE, 2 * SIZE)]
    assert bodies(again) == [b"a", b"b", None, None, b"e", b"f"]
    assert append(again, b"g")[1] == 6
    sync_log(again)
    once_more = open_store(disk)
    assert once_more.recovered.damages == []
    assert bodies(once_more) == [b"a", b"b", None, None, b"e", b"f", b"g"]


def test_a_lost_end_of_a_file_does_not_lose_the_next_file():
    """The blank that led there is written again."""
    disk = SimDisk()
    filled(disk, 15)
    overwrite(disk, FIRST, 8 * SIZE, bytes(1024 - 8 * SIZE))

    again = open_store(disk)

    assert bodies(again) == [*letters(8), None, None, *letters(15)[10:]]
    assert again.recovered.damages[0].position == 8 * SIZE


def test_a_log_without_queues_and_queues_without_a_log():
    """No log at all means that nothing is stored, whatever the indexes say."""
    disk = SimDisk()
    filled(disk, 15).close(NOW_MS)
    disk.remove("commitlog")

    again = open_store(disk)

    assert again.written == 0
    assert bodies(again) == []
    assert append(again) == (0, 0)


@pytest.mark.parametrize("seed", range(60))
def test_any_damage_to_any_file_is_survived(seed: int):
    """Flipped bytes anywhere: no crash, no hang, every entry leads to its message or to none, and writing works."""
    random = Random(seed)
    disk = SimDisk()
    store = open_store(disk)
    for number in range(40):
        append(store, b"%d" % number, queue_id=number % 3, keys=f"k{number}", now_ms=NOW_MS + number)
        if number == 20:
            run_housekeeping(store, NOW_MS + 20_000)
    if random.random() < 0.5:
        store.close(NOW_MS)
    for path in list(disk._files):
        size = disk.find_size(path) or 0
        if size and random.random() < 0.5:
            for _ in range(random.randint(1, 8)):
                overwrite(disk, path, random.randrange(size), random.randbytes(1))

    again = open_store(disk)

    for queue in list(again.list_queues()):
        for position, size, _ in queue.entries(queue.offset_min, min(1000, queue.offset_max - queue.offset_min)):
            again.view(position, size)
    run_housekeeping(again, NOW_MS + 60_000)
    finish(again, again.find_by_key("orders", "k3", 10, 0, 1 << 62))
    _, offset = append(again, b"new", queue_id=7)
    assert bodies(again, queue_id=7)[-1] == b"new"
    assert offset == again.queue("orders", 7).offset_max - 1
    again.close(NOW_MS)
    open_store(disk)


def test_what_a_killed_process_left_is_synced_before_it_is_shown():
    """It was only in the page cache; readers see it from now on, so a power cut must not take it back."""
    for seed in range(20):
        disk = SimDisk()
        store = open_store(disk)
        for letter in letters(12):
            append(store, letter)
        open_store(disk)

        disk.crash(Random(seed))

        assert bodies(open_store(disk)) == letters(12)


def test_a_message_that_says_to_be_a_batch_is_one_message_where_the_index_is_by_message():
    """It had its offset when it was stored, and keeps it after a crash."""
    disk = SimDisk()
    store = open_store(disk)
    append(store, b"0")
    append(store, b"1", sys_flag=0x80 | 0x40)
    append(store, b"2")

    assert bodies(open_store(disk)) == [b"0", b"1", b"2"]


def test_a_queue_that_lost_its_first_file_but_not_a_later_empty_one_is_made_again():
    """The name of that file says offset 5, but the log says 0."""
    disk = SimDisk()
    store = open_store(disk)
    for number in range(3):
        append(store, b"m%d" % number)
    disk.create(f"consumequeue/orders/0/{100:020d}", 100)

    again = open_store(disk)

    assert again.recovered.damages == []
    assert bodies(again) == [b"m0", b"m1", b"m2"]
