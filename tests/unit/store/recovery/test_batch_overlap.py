"""Two records claim the same offsets: whose fault it is."""

import pytest
from tests.support.batch_bytes import batch_messages, compress, encode_messages
from tests.support.stores import HOST, NOW_MS, batched_disk, open_store

from holdfast.store.message_store import MessageStore
from holdfast.store.queues.batch_consume_queue import RecordIndex
from holdfast.store.recovery.batch_overlap import count_messages, find_overlap
from holdfast.wire.records.record import INNER_BATCH


def a_record(store: MessageStore, body: bytes, flag: int) -> int:
    """Store *body* and return its position."""
    queue = store.queue("orders", 0)
    position, _ = store.stage(queue, body, b"INNER_NUM\x013\x02", 0, flag, NOW_MS, HOST, 0, NOW_MS)
    store.write()
    return position


@pytest.mark.parametrize(
    ("body", "flag", "count"),
    [
        (encode_messages(batch_messages(3)), INNER_BATCH | 0x40, 3),
        (compress(encode_messages(batch_messages(3)), "lz4"), INNER_BATCH | 0x40 | 0x101, 3),
        (b"one message", 0, 1),
        (b"no items", INNER_BATCH | 0x40, None),
        (b"not compressed", INNER_BATCH | 0x40 | 0x101, None),
    ],
)
def test_messages_are_counted_by_the_body(body: bytes, flag: int, count: int | None) -> None:
    """Whatever the record says."""
    store = open_store(batched_disk())

    assert count_messages(store.log.files, a_record(store, body, flag)) == count


@pytest.mark.parametrize(("said", "is_damaged"), [(3, False), (9, True), (2, False)])
def test_only_a_record_that_holds_fewer_than_it_says_is_damaged(said: int, *, is_damaged: bool) -> None:
    """And only where it reaches into a later one."""
    store = open_store(batched_disk())
    position = a_record(store, encode_messages(batch_messages(3)), INNER_BATCH | 0x40)
    entry = RecordIndex.pack_entry(position, 200, 0, NOW_MS, 10, said)
    queue = store.queue("orders", 0)

    assert (find_overlap(store.log.files, queue, entry, 12) is not None) == is_damaged
    assert find_overlap(store.log.files, queue, entry, 10 + said) is None
