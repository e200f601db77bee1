"""Batches that a broker opened: single records in their place, kept for a while."""

import msgspec
import pytest
from tests.support.inner_batches import Item, make_items
from tests.support.stores import HOST

from holdfast.broker.messages.batch_cache import BatchCache, UnpackReason, unpack_batch
from holdfast.wire.records.batch import encode_items
from holdfast.wire.records.compression import Codec
from holdfast.wire.records.inner_batch import wrap_items
from holdfast.wire.records.record import StoredRecord, decode_records, encode_record

V6 = bytes(range(20))
RECORD = StoredRecord(0, 4096, "T", 3, 40, 9, 0, 11, HOST, 12, HOST, 0, 0, 0, b"", b"")


def a_batch(batch: list[Item], *, codec: Codec | None = None, **changes: object) -> StoredRecord:
    body = encode_items([(item.flag, item.body, item.properties) for item in batch])
    whole = wrap_items(body, len(batch), "B", codec=codec)
    return msgspec.structs.replace(
        RECORD, body=whole.body, sys_flag=whole.sys_flag, properties=whole.properties.encode(), **changes
    )


def record_at(number: int, *, codec: Codec | None = None, size: int = 3) -> StoredRecord:
    """Return a batch of ten messages."""
    return a_batch(make_items(0, 10, size=size), codec=codec, position=4096 * number)


@pytest.mark.parametrize("host", [HOST, V6])
@pytest.mark.parametrize("topic", ["T", "t" * 200])
def test_a_single_record_has_all_but_its_message_from_the_batch(host: bytes, topic: str) -> None:
    """Whatever the layout of the batch's record."""
    record = a_batch(make_items(0, 3), born_host=host, topic=topic)
    record = next(decode_records(encode_record(record)))

    opened = unpack_batch(record)

    singles = list(decode_records(opened.data(0, 3)))
    own = {"size", "offset", "flag", "sys_flag", "body", "body_crc", "properties"}
    for single in singles:
        shared = {name: value for name, value in msgspec.structs.asdict(single).items() if name not in own}
        assert shared == {name: value for name, value in msgspec.structs.asdict(record).items() if name not in own}
    assert [single.offset for single in singles] == [40, 41, 42]
    assert [opened.data(index) for index in range(3)] == [encode_record(single) for single in singles]
    assert [opened.record(index) for index in range(3)] == singles


def test_single_records_are_counted_by_what_they_take() -> None:
    """As many as fit, by the sizes that they will have; they are made only when they are asked for."""
    opened = unpack_batch(a_batch([Item(b"x" * size, f"U{size}") for size in (1, 50, 3, 700, 2)]))
    sizes = [len(opened.data(index)) for index in range(5)]

    for index in range(5):
        for room in range(0, sum(sizes) + 2, 7):
            count = opened.count_fitting(index, room)
            assert sum(sizes[index : index + count]) <= room
            assert index + count == 5 or sum(sizes[index : index + count + 1]) > room
    assert opened.data(1, 3) == b"".join(opened.data(index) for index in (1, 2, 3))


def test_what_was_asked_for_last_is_made_once() -> None:
    """Whoever waited for a batch wants the same of it as all the others."""
    opened = BatchCache()
    batch, other = unpack_batch(record_at(0)), unpack_batch(record_at(1))

    first = opened.data(batch, 2, 5)

    assert opened.data(batch, 2, 5) is first
    assert first == batch.data(2, 5)
    assert opened.data(batch, 2, 4) == batch.data(2, 4)
    assert opened.data(other, 2, 4) == other.data(2, 4) != batch.data(2, 4)


def test_messages_are_found_by_id_key_and_tag() -> None:
    """By whole texts, and never by a part of one."""
    batch = [Item(b"1", "U1", "a", "k1 k2"), Item(b"2", "U12", None, "k2"), Item(b"3", "U3", "a")]
    opened = unpack_batch(a_batch(batch))

    assert [opened.find_id(message_id) for message_id in ("U12", "U1", "U2", "", "k1")] == [1, 0, None, None, None]
    assert [opened.find_keyed(key) for key in ("k2", "k1", "k", "U3", "k1 k2")] == [[0, 1], [0], [], [2], []]
    assert opened.find_tagged(frozenset({ord("a")}), 0) == [0, 2]
    assert opened.find_tagged(frozenset({ord("a")}), 1) == [2]


def test_what_was_opened_is_kept_as_long_as_there_is_room() -> None:
    """What was used last stays; the newest does in any case."""
    opened = BatchCache(cached_size_max=2 * unpack_batch(record_at(0)).size)
    records = [record_at(number, codec=Codec.LZ4) for number in range(3)]
    for record in (*records[:2], records[0], records[2]):
        opened.unpack_cached(record, UnpackReason.SPLIT)
    assert (opened.unpacked[UnpackReason.SPLIT], opened.inflated[UnpackReason.SPLIT]) == (3, 3)

    opened.unpack_cached(records[0], UnpackReason.SPLIT)
    assert opened.unpacked[UnpackReason.SPLIT] == 3
    opened.unpack_cached(records[1], UnpackReason.SPLIT)
    assert opened.unpacked[UnpackReason.SPLIT] == 4

    large = record_at(9, size=1000)
    opened.unpack_cached(large, UnpackReason.SPLIT)
    opened.unpack_cached(large, UnpackReason.SPLIT)
    assert opened.unpacked[UnpackReason.SPLIT] == 5


def test_openings_are_counted_by_reason_and_only_what_was_compressed_as_inflated() -> None:
    """What is kept counts as neither."""
    opened = BatchCache()

    opened.unpack_cached(record_at(1, codec=Codec.ZSTD), UnpackReason.RETRY)
    opened.unpack_cached(record_at(2), UnpackReason.QUERY)
    opened.unpack_cached(record_at(1, codec=Codec.ZSTD), UnpackReason.SPLIT)

    assert opened.unpacked == {"split": 0, "retry": 1, "query": 1}
    assert opened.inflated == {"split": 0, "retry": 1, "query": 0}


def test_a_batch_of_another_broker_is_not_taken_for_one_of_this_log() -> None:
    """A position means something in one log only."""
    opened = BatchCache()
    own = record_at(1)
    opened.unpack_cached(own, UnpackReason.RETRY)

    far = opened.unpack(a_batch(make_items(50, 2), position=own.position), UnpackReason.RETRY)

    assert far is not None
    assert far.find_id("U50") == 0
    assert opened.unpack_cached(own, UnpackReason.RETRY) is not far
