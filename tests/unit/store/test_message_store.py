"""The door of the log engine: what a broker may rely on."""

from __future__ import annotations

import tracemalloc

import pytest
from tests.support.stores import (
    HOST,
    NOW_MS,
    append,
    append_batch,
    batched_disk,
    bodies,
    finish,
    open_store,
    overwrite,
    run_housekeeping,
    stage,
)

from holdfast.model.errors import CorruptRecord, DiskFailed, DiskFull, RecordRefused, StoreError
from holdfast.model.topic import BATCH_QUEUE
from holdfast.sim.world.disk import SimDisk
from holdfast.wire.frames.host import pack_host
from holdfast.wire.records.record import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK

V6 = pack_host("[::1]:1234")


def test_offsets_count_messages_and_positions_count_bytes():
    """Each queue counts from 0; a record begins where the one before ends."""
    store = open_store()

    placed = [append(store, b"x" * 10), append(store, b"y"), append(store, b"z", queue_id=1)]

    size = 91 + len("orders")
    assert placed == [(0, 0), (size + 10, 1), (2 * size + 11, 0)]
    assert bodies(store) == [b"x" * 10, b"y"]
    assert bodies(store, queue_id=1) == [b"z"]


def test_a_queue_that_nothing_was_stored_in_is_not_there():
    """Asking for it to write makes it, empty; asking whether it is there does not."""
    store = open_store()

    assert store.find_queue("orders", 0) is None
    queue = store.queue("orders", 0)

    assert (queue.offset_min, queue.offset_max, queue.next_offset) == (0, 0, 0)
    assert store.queue("orders", 0) is queue


def test_ten_records_of_158_bytes_are_written_before_they_are_readable():
    """With a sync that does not come, the log has 1580 bytes and the queue none of them."""
    store = open_store(log_file_size=4096)
    for _ in range(10):
        stage(store, b"Once, there was a chance for me!", topic="FooBar", tags="TAG1", keys="1234567890123")
    store.write()

    queue = store.queue("FooBar", 0)
    assert (store.written, store.confirmed) == (1580, 0)
    assert (queue.offset_max, queue.next_offset) == (0, 10)
    assert store.view(0, 158) is None
    assert queue.raw_entries(0, 10) == b""

    assert store.confirm(1580) == [queue]
    assert (queue.offset_max, len(queue.raw_entries(0, 32))) == (10, 200)


def test_confirming_a_part_shows_that_part():
    """Three are confirmed, five are written: readers see three, the next message is the sixth."""
    store = open_store()
    for _ in range(3):
        append(store)
    confirmed = store.written
    for _ in range(2):
        stage(store)
        store.write()

    store.confirm(confirmed)

    queue = store.queue("orders", 0)
    assert (queue.offset_max, queue.next_offset) == (3, 5)


def test_confirm_names_each_queue_that_grew_once_and_in_order():
    """That is who is woken."""
    store = open_store()
    for queue_id in (2, 0, 2, 1):
        stage(store, queue_id=queue_id)
    store.write()

    assert [queue.queue_id for queue in store.confirm(store.written)] == [2, 0, 1]
    assert store.confirm(store.written) == []


def test_properties_that_are_too_long_are_refused_and_take_no_offset():
    """The limit itself is allowed, one more byte is not, and the next message gets the offset."""
    store = open_store(log_file_size=1 << 17)
    queue = store.queue("orders", 0)

    with pytest.raises(RecordRefused, match="32768 bytes"):
        store.stage(queue, b"", b"p" * 32768, 0, 0, NOW_MS, HOST, 0, NOW_MS)

    assert queue.next_offset == 0
    assert store.stage(queue, b"", b"p" * 32767, 0, 0, NOW_MS, HOST, 0, NOW_MS) == (0, 0)


def test_a_body_of_the_limit_is_taken_and_one_more_byte_is_not():
    """The limit counts the body alone."""
    store = open_store(body_size_max=100)

    append(store, b"b" * 100)
    with pytest.raises(RecordRefused, match="at most 100"):
        stage(store, b"b" * 101)

    assert bodies(store) == [b"b" * 100]


def test_a_record_larger_than_a_file_is_refused():
    """It could never be placed; a blank would be written for nothing."""
    store = open_store()

    with pytest.raises(RecordRefused, match="does not fit"):
        stage(store, b"b" * 1000)

    assert append(store) == (0, 0)


def test_records_never_cross_files_and_a_blank_ends_each_file():
    """What does not fit, with eight bytes to spare, goes to the next file."""
    disk = SimDisk()
    store = open_store(disk)
    overhead = 91 + len("orders")

    append(store, b"a" * (1024 - overhead - overhead - 7))  # leaves one byte too few for an empty body
    position, _ = append(store, b"")
    end, _ = append(store, b"b" * (1024 - overhead - 8 - overhead))  # fills the second file to the last byte
    after, _ = append(store, b"c")

    assert (position, end, after) == (1024, 1024 + overhead, 2048)
    tail = disk.open("commitlog/00000000000000000000").read(0, 1024)[-overhead - 7 :][:8]
    assert tail == (overhead + 7).to_bytes(4, "big") + bytes.fromhex("cbd43194")
    assert [len(body or b"") for body in bodies(store)] == [1024 - 2 * overhead - 7, 0, 1024 - 2 * overhead - 8, 1]


def test_many_records_staged_at_once_roll_over_several_files():
    """One event may fill more than one file."""
    store = open_store()
    wanted = [b"%d" % number * 100 for number in range(20)]

    for body in wanted:
        stage(store, body)
    store.write()
    store.confirm(store.written)

    assert bodies(store) == wanted


def test_ipv6_hosts_are_stored_and_flagged():
    """Either host may be of either family; the flag says which, whatever the sender claimed."""
    store = open_store(store_host=V6)

    append(store, b"four", sys_flag=0x10)
    append(store, b"six", host=V6)

    four, six = (store.read_record(position) for position, _, _ in store.queue("orders", 0).entries(0, 2))
    assert four is not None
    assert six is not None
    assert (four.born_host, four.store_host, four.sys_flag) == (HOST, V6, 0x20)
    assert (six.born_host, six.store_host, six.sys_flag) == (V6, V6, 0x30)


def test_topics_of_more_than_127_bytes_make_version_2_records():
    """They are read back like others."""
    store = open_store()

    append(store, b"long", topic="t" * 128)

    assert bodies(store, "t" * 128) == [b"long"]


@pytest.mark.parametrize(("flag", "offsets"), [(TRANSACTION_PREPARED, [0]), (TRANSACTION_ROLLBACK, [0])])
def test_prepared_and_rollback_records_have_no_place_in_a_queue(flag: int, offsets: list[int]):
    """They carry offset 0, whatever the queue holds; a commit record counts as any other."""
    store = open_store()
    append(store)

    position, offset = append(store, b"half", sys_flag=flag)
    _, next_offset = append(store, b"committed", sys_flag=TRANSACTION_COMMIT)

    record = store.read_record(position)
    assert record is not None
    assert [record.offset, offset] == [0, 0]
    assert next_offset == 1
    assert bodies(store) == [b"body", b"committed"]


def test_store_times_never_go_back():
    """A clock that does is not followed: time search needs order."""
    store = open_store()

    append(store, now_ms=NOW_MS)
    append(store, now_ms=NOW_MS - 5000)

    assert finish(store, store.store_time(store.queue("orders", 0), 1)) == NOW_MS
    assert store.last_store_ms == NOW_MS


def test_a_failed_write_gives_offsets_back_and_stops_writes():
    """Nothing of it is confirmed, reads go on, and only a restart takes writes again."""
    disk = SimDisk()
    store = open_store(disk)
    append(store, b"kept")
    stage(store, b"lost")

    def fail(call: str, path: str) -> None:
        if call == "write":
            raise DiskFailed("no space left")

    disk.before = fail
    with pytest.raises(DiskFailed):
        store.write()
    disk.before = None

    assert not store.is_writable
    assert store.queue("orders", 0).next_offset == 1
    with pytest.raises(RecordRefused, match="no space left"):
        stage(store)
    assert bodies(store) == [b"kept"]
    assert append(open_store(disk), b"again")[1] == 1


def test_what_was_staged_can_be_discarded():
    """An event that fails halfway leaves no trace."""
    store = open_store()
    append(store)

    for _ in range(20):
        stage(store, b"x" * 100)
    store.discard()
    store.write()

    assert append(store)[1] == 1
    assert len(bodies(store)) == 2


@pytest.mark.parametrize(("position", "size"), [(0, 10_000), (97, 200), (5000, 1), (1 << 60, 8)])
def test_bytes_that_are_not_there_are_not_viewed(position: int, size: int):
    """Behind the confirmed end, across files, nowhere at all."""
    store = open_store()
    append(store)

    assert store.view(position, size) is None


def test_a_record_is_found_at_its_position_only():
    """Anywhere else there is none, or the bytes are refused."""
    store = open_store()
    append(store, b"first")
    last, _ = append(store, b"last")

    found = store.read_record(last)
    assert found is not None
    assert found.body == b"last"
    assert store.read_record(store.written) is None
    assert store.read_record(-1) is None
    for elsewhere in range(1, last):
        try:
            assert store.read_record(elsewhere) is None
        except CorruptRecord as error:
            assert error.position == elsewhere  # noqa: PT017 - either answer will do


# --- topics


def test_a_deleted_topic_begins_again_at_0():
    """Also after a crash that makes the log be replayed from its start."""
    disk = SimDisk()
    store = open_store(disk)
    for _ in range(3):
        append(store, b"old")
    append(store, b"other", topic="stays")
    stage(store, b"waiting")
    store.write()

    store.delete_topic("orders")
    store.confirm(store.written)
    assert store.find_queue("orders", 0) is None
    append(store, b"new")
    store.log.files.files[0].sync()
    disk.remove("checkpoint")
    disk.remove("consumequeue")

    replayed = open_store(disk)
    assert bodies(replayed) == [b"new"]
    assert bodies(replayed, "stays") == [b"other"]


def test_a_topic_may_be_deleted_in_the_event_that_sends_to_it():
    """What was staged before is written, and belongs to the topic's earlier life."""
    disk = SimDisk()
    store = open_store(disk)
    append(store, b"old")
    stage(store, b"too late")

    store.delete_topic("orders")
    assert stage(store, b"new")[1] == 0
    store.write()
    store.confirm(store.written)

    assert bodies(store) == [b"new"]
    disk.remove("checkpoint")
    disk.remove("consumequeue")
    assert bodies(open_store(disk)) == [b"new"]


def test_an_erased_queue_begins_at_0_again():
    """Its handle stays good, other queues of the topic keep what they have, and a replay brings nothing back."""
    disk = SimDisk()
    store = open_store(disk)
    for number in range(7):
        append(store, b"old-%d" % number)
    append(store, b"other", queue_id=1)
    queue = store.queue("orders", 0)

    store.erase_queue("orders", 0)
    assert (queue.offset_min, queue.offset_max, queue.next_offset) == (0, 0, 0)
    assert append(store, b"new")[1] == 0

    assert bodies(store) == [b"new"]
    disk.remove("checkpoint")
    disk.remove("consumequeue")
    replayed = open_store(disk)
    assert bodies(replayed) == [b"new"]
    assert bodies(replayed, queue_id=1) == [b"other"]


def test_a_queue_that_is_empty_need_not_be_erased():
    """Nothing is written for it."""
    disk = SimDisk()
    store = open_store(disk)
    store.queue("orders", 0)

    store.erase_queue("orders", 0)
    store.erase_queue("nowhere", 3)

    assert disk.find_size("holdfast/deleted.json") is None


def test_a_life_that_ended_behind_the_lost_end_of_the_log_ends_there():
    """Power was cut before the log was synced: what is written in its place later must not count as of before."""
    disk = SimDisk()
    store = open_store(disk)
    append(store, b"kept")
    store.log.files.files[0].sync()
    kept_end = store.written
    append(store, b"lost, and long enough for two of those that come after it" * 2)
    store.delete_topic("orders")
    overwrite(disk, "commitlog/00000000000000000000", kept_end, bytes(store.written - kept_end))

    append(open_store(disk), b"new")
    disk.remove("consumequeue")
    disk.remove("checkpoint")

    assert bodies(open_store(disk)) == [b"new"]


def test_a_topic_has_an_index_by_record_if_it_is_said_so():
    """By its folder, by its configuration, or by the one who makes it."""
    disk = SimDisk()
    disk.create("batchconsumequeue/inner/0/00000000000000000000", 460)
    disk.replace(
        "config/topics.json", b'{"topicConfigTable":{"conf":{"attributes":{"queue.type":"BatchCQ"}},"plain":{}}}'
    )
    store = open_store(disk)

    store.set_queue_type("told", BATCH_QUEUE)

    for topic in ("inner", "conf", "told"):
        assert store.queue(topic, 0).accepts_batches
        assert store.queue(topic, 0).files.file_size == 460
    assert not store.queue("plain", 0).accepts_batches


def test_a_topic_with_messages_keeps_the_kind_of_its_index():
    """It would have two of them, and neither whole."""
    store = open_store()
    append(store)

    with pytest.raises(StoreError, match="has queues of the type SimpleCQ"):
        store.set_queue_type("orders", BATCH_QUEUE)


def test_a_topic_that_is_deleted_may_come_back_with_another_kind_of_index():
    """Nothing is left that could say what it was, and the records of its earlier life stay dead."""
    disk = batched_disk()
    store = open_store(disk)
    append_batch(store, 3)
    store.queue("orders", 0).flush()
    disk.replace("config/topics.json", b"{}")
    store.delete_topic("orders")

    append(store, b"new")

    assert disk.list("batchconsumequeue") == []
    assert not store.queue("orders", 0).accepts_batches
    for opened in (store, open_store(disk)):
        assert bodies(opened) == [b"new"]


# --- ends


def test_an_orderly_end_takes_the_abort_file_away():
    """While the store is open it is there."""
    disk = SimDisk()
    store = open_store(disk)
    append(store)
    assert disk.find_size("abort") == 0

    store.close(NOW_MS)

    assert disk.find_size("abort") is None
    assert open_store(disk).recovered.is_clean


def test_closing_confirms_what_was_written():
    """A sync that was under way is done; nothing written is forgotten."""
    disk = SimDisk()
    store = open_store(disk)
    stage(store, b"written")
    store.write()
    stage(store, b"only staged")

    store.close(NOW_MS)

    assert bodies(open_store(disk)) == [b"written"]


def test_after_a_fault_the_end_is_not_orderly():
    """The next start must look for itself."""
    disk = SimDisk()
    store = open_store(disk)
    append(store)
    store.fail("sync failed")

    store.close(NOW_MS)

    assert not open_store(disk).recovered.is_clean


def test_an_index_that_cannot_be_written_stops_writes_but_not_reads():
    """The entries stay in memory, and in the log."""
    disk = SimDisk()
    store = open_store(disk)

    def fail(call: str, path: str) -> None:
        if path.startswith("consumequeue"):
            raise DiskFailed("index disk is gone")

    disk.before = fail
    for number in range(300):
        if store.is_writable:
            append(store, b"%d" % number)
    disk.before = None

    assert store.fault == "index disk is gone"
    assert len(bodies(store)) == store.queue("orders", 0).offset_max > 200
    assert len(bodies(open_store(disk))) == len(bodies(store))


def test_idle_queues_are_small():
    """Ten thousand of them must not cost more than thirty megabytes, nor a file each."""
    disk = SimDisk()
    store = open_store(disk)
    tracemalloc.start()
    for queue_id in range(2000):
        store.queue("orders", queue_id)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert used / 2000 < 1000
    run_housekeeping(store)
    assert disk.list("consumequeue") == []


def test_an_end_on_a_full_disk_is_not_orderly():
    """What could not be written is made again by the next start; the store says why it takes nothing more."""
    disk = SimDisk()
    store = open_store(disk)
    append(store)

    def refuse(call: str, path: str) -> None:
        if call in {"create", "write"} and path.startswith("consumequeue/"):
            raise DiskFull(f"no space for {path}")

    disk.before = refuse
    store.close(NOW_MS)
    disk.before = None

    assert "no space for consumequeue/" in (store.shortage or "")
    again = open_store(disk)
    assert not again.recovered.is_clean
    assert bodies(again) == [b"body"]
