"""The end of the log: staging, writing, and what is handed on."""

from __future__ import annotations

from tests.support.stores import HOST, NOW_MS, append, batched_disk, open_store, stage

from holdfast.sim.world.disk import SimDisk
from holdfast.wire.records.record import decode_record


def test_one_event_is_one_write():
    """However many records it brings."""
    calls: list[str] = []
    disk = SimDisk(before=lambda call, path: calls.append(call + " " + path))
    store = open_store(disk)
    calls.clear()

    for _ in range(5):
        stage(store)
    store.write()

    assert calls == ["write commitlog/00000000000000000000"]


def test_nothing_staged_is_nothing_written():
    """No call reaches the disk."""
    calls: list[str] = []
    disk = SimDisk(before=lambda call, path: calls.append(call))
    store = open_store(disk)
    calls.clear()

    store.write()

    assert calls == []
    assert store.files_to_sync() == ()


def test_bodies_may_be_views_of_a_buffer_that_is_used_again():
    """They are written before the event ends, and never kept."""
    store = open_store()
    buffer = bytearray(b"first body")
    queue = store.queue("orders", 0)

    store.stage(queue, memoryview(buffer)[:5], b"", 0, 0, NOW_MS, bytes(8), 0, NOW_MS)
    store.write()
    buffer[:] = bytes(10)
    store.confirm(store.written)

    record = store.read_record(0)
    assert record is not None
    assert record.body == b"first"


def test_files_are_handed_out_for_syncing_once():
    """A file that is written again is handed out again; a roll hands out both."""
    store = open_store()
    append(store)
    (first,) = store.files_to_sync()
    assert store.files_to_sync() == ()

    for _ in range(12):
        stage(store)
    store.write()

    files = store.files_to_sync()
    assert files[0] is first
    assert [file.path[-5:] for file in files] == ["00000", "01024"]


def test_every_field_is_stored():
    """As it was given."""
    store = open_store(store_host=bytes(range(8)))

    store.stage(store.queue("t", 9), b"B", b"p\x01v\x02", 11, 0x101, 22, bytes(8), 33, 44, 5, 66)
    store.write()

    record = decode_record(store.log.files.files[0].view(0, 1024))
    assert (record.topic, record.queue_id, record.offset, record.position) == ("t", 9, 0, 0)
    assert (record.flag, record.sys_flag, record.born_ms, record.born_host) == (11, 0x101, 22, bytes(8))
    assert (record.store_ms, record.store_host) == (44, bytes(range(8)))
    assert (record.reconsume_times, record.prepared_position, record.body) == (5, 66, b"B")
    assert record.properties == b"p\x01v\x02"
    store.confirm(store.written)
    assert store.queue("t", 9).get_entry(0) == (0, record.size, 33)


def test_a_run_may_go_to_queues_of_both_kinds():
    """Across the end of a file, in any order: each record has its place, its offset and an entry of its kind."""
    disk = batched_disk("batched")
    store = open_store(disk)
    batched, simple = store.queue("batched", 0), store.queue("orders", 0)
    many = b"INNER_NUM\x017\x02"
    drafts = []
    for number in range(12):
        queue, flag, properties = [(simple, 0, b""), (batched, 0xC0, many), (batched, 0, b"")][number % 3]
        host = HOST if number % 2 else bytes(16) + HOST[4:]
        drafts.append((queue, b"%d" % number, properties, 0, flag, NOW_MS, host, 5, 0, 0))

    staged = store.stage_run(drafts, NOW_MS)
    store.write()
    store.confirm(store.written)

    assert [offset for _, offset in staged] == [0, 0, 7, 1, 8, 15, 2, 16, 23, 3, 24, 31]
    assert store.written > store.log_file_size
    assert (batched.next_offset, batched.offset_max, simple.offset_max) == (32, 32, 4)
    for number, (position, offset) in enumerate(staged):
        record = store.read_record(position)
        assert record is not None
        assert (record.body, record.offset, record.store_ms) == (b"%d" % number, offset, NOW_MS)
        assert drafts[number][0].get_entry(offset) == (position, record.size, 5)
    died = open_store(disk)
    assert died.recovered.damages == []
    for queue in (batched, simple):
        found = died.queue(queue.topic, 0)
        assert (found.offset_min, found.offset_max) == (queue.offset_min, queue.offset_max)
        # A replay takes the tag from the record.
        assert [entry[:2] for entry in found.entries(0, 99)] == [entry[:2] for entry in queue.entries(0, 99)]
