"""The columns of an answer are what reading it message by message gives."""

import random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.client.messages.unpacking import read_messages
from holdfast.columns.message_columns import TYPES, RecordOrigin, RowSelection, schema_of, to_batches
from holdfast.model.errors import CorruptRecord
from holdfast.model.queue import MessageQueue
from holdfast.wire.records.batch import encode_items
from holdfast.wire.records.compression import Codec, compress, flag_of
from holdfast.wire.records.record import StoredRecord, encode_record

ALL = RowSelection(tuple(TYPES), 0, 1 << 62)
ORIGIN = RecordOrigin("orders", 3, "broker-b", 2, delta=1000)
QUEUE = MessageQueue("orders", "__syslo__global__", 3)

TEXT = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=20)
PROPERTIES = st.dictionaries(st.sampled_from(["KEYS", "TAGS", "__SHARDINGKEY", "UNIQ_KEY", "x", "ATAGS"]), TEXT).map(
    lambda found: "".join(f"{name}\x01{text}\x02" for name, text in found.items()).encode()
)
RAW = st.sampled_from([b"", b"\x02", b"\x01\x02", b"a\x01\x02", b"\x01b\x02", b"a\x01b", b"x\x02TAGS\x01q\x02y", b"a"])
ODD = st.sampled_from(
    [
        b"__SHARDINGKEY\x01\x02KEYS\x01z\x02",  # an empty key
        b"KEYS\x01\x02",
        b"TAGS\x01a\x02TAGS\x01b\x02",  # twice
        b"x\x01a\x01b\x02",
        b"a\x00b\x01\x00\x02",
        b"\xff\x01\xfe\x02TAGS\x01\xc3\xa4\x02",
        b"x\x01\xe2",  # together with the next one this is UTF-8, alone it is not
        b"\x82\xac\x01v\x02",
    ]
)


def a_record(offset: int, body: bytes = b"hello", properties: bytes = b"", **more: object) -> StoredRecord:
    fields = {"topic": "orders", "sys_flag": 0, "born_host": b"12345678", "store_host": b"12345678", **more}
    return StoredRecord(
        size=0, position=7, queue_id=0, offset=offset, flag=0, born_ms=5 + offset, store_ms=9 + offset,
        reconsume_times=0, prepared_position=0, body_crc=0, body=body, properties=properties, **fields,
    )  # fmt: skip


def to_batch(block: bytes, origin: RecordOrigin, wanted: RowSelection) -> pa.RecordBatch:
    """Return all batches of an answer as one."""
    made = pa.Table.from_batches(to_batches(block, origin, wanted), schema_of(wanted.columns)).combine_chunks()
    return next(iter(made.to_batches()), pa.RecordBatch.from_pylist([], made.schema))


def block_of(*records: StoredRecord) -> bytes:
    return b"".join(map(encode_record, records))


RECORDS = st.lists(
    st.builds(
        dict,
        body=st.binary(min_size=1, max_size=40)
        | st.integers(1, 70_000).map(lambda size: b"%d " % size * (size // 5 + 1)),
        codec=st.none() | st.sampled_from([*Codec]),
        properties=PROPERTIES | RAW | ODD,
        topic=st.sampled_from(["orders", "t" * 200]),
        born_host=st.sampled_from([b"12345678", b"x" * 20]),
        store_host=st.sampled_from([b"12345678", b"y" * 20]),
    ),
    min_size=1,
    max_size=30,
)


ALIKE = st.lists(st.tuples(TEXT, TEXT, TEXT), min_size=1, max_size=30).map(
    lambda rows: [
        {"body": b"x", "properties": f"UNIQ_KEY\x01{one}\x02KEYS\x01{two}\x02TAGS\x01{three}\x02".encode()}
        for one, two, three in rows
    ]
)
"""What one producer sends: the same names in every row."""


def written_as(offset: int, *, codec: Codec | None = None, body: bytes, **fields: object) -> StoredRecord:
    if codec is None:
        return a_record(offset, body, **fields)
    return a_record(offset, compress(body, codec), sys_flag=flag_of(codec), **fields)


def rows_of(block: bytes) -> list[dict[str, object]]:
    """Return the rows as the client library's messages have them."""
    return [
        {
            "key": message.key or message.properties.get("KEYS"),
            "body": message.body,
            "tags": message.tags,
            "topic": "orders",
            "queue": 3,
            "offset": message.offset,
            "storeTimestamp": message.stored_ms,
            "bornTimestamp": message.born_ms,
            "properties": dict(message.properties),
            "generation": 2,
            "broker": "broker-b",
        }
        for message in read_messages(block, QUEUE, offset_delta=1000)
    ]


def shown(batch: pa.RecordBatch) -> list[dict[str, object]]:
    rows = batch.to_pylist()
    for row in rows:
        for name in ("storeTimestamp", "bornTimestamp"):
            row[name] = round(row[name].timestamp() * 1000)
        row["properties"] = dict(row["properties"])
    return rows


@given(RECORDS | ALIKE)
def test_columns_are_what_messages_are(written: list[dict[str, object]]):
    """Any bodies, compressed or not, any properties, any hosts, any length of topic."""
    block = block_of(*(written_as(offset, **fields) for offset, fields in enumerate(written)))

    batch = to_batch(block, ORIGIN, ALL)

    assert batch.schema.names == list(TYPES)
    assert shown(batch) == rows_of(block)


@pytest.mark.parametrize(
    "texts",
    [
        [b"a\x02bc\x01"],
        [b"TAGS\x01a\x02TAGS\x01b\x02"] * 3,
        [b"TAGS\x01a\x02", b"KEYS\x01b\x02"],
        [b"ab\x01c", b"de\x02"],
        [b"KEYS\x01a\x02TAGS\x01b\x02", b"x\x01y\x02", b"TAGS\x01c\x02KEYS\x01d\x02x\x01y\x02"],
        [b"", b"KEYS\x01a\x02TAGS\x01b\x02"],
        [b"x\x01y\x02", b""],
    ],
)
def test_texts_that_look_regular_are_read_as_what_they_are(texts: list[bytes]):
    """Marks in another order, a name twice, other names of the same length, a mark in the next row, uneven rows."""
    block = block_of(*(a_record(offset, properties=text) for offset, text in enumerate(texts)))

    assert shown(to_batch(block, ORIGIN, ALL)) == rows_of(block)


def test_neighbours_of_one_size_and_of_many_sizes_are_found():
    """Both ways of walking through a block, one after the other and back again."""
    choose = random.Random(1)
    sizes = [100] * 50 + [choose.randrange(1, 300) for _ in range(1500)] + [7] * 100
    block = block_of(*(a_record(offset, b"x" * size) for offset, size in enumerate(sizes)))

    batch = to_batch(block, ORIGIN, ALL)

    assert [len(row["body"]) for row in batch.to_pylist()] == sizes


def test_compressed_bodies_are_opened_beside_plain_ones():
    """Our producer compresses large bodies by default."""
    large = b"large " * 1000
    block = block_of(
        a_record(0, b"plain"),
        a_record(1, compress(large, Codec.ZLIB), sys_flag=flag_of(Codec.ZLIB)),
        a_record(2, b"no such thing", sys_flag=flag_of(Codec.ZLIB)),
        a_record(3, compress(b"short", Codec.LZ4), sys_flag=flag_of(Codec.LZ4)),
    )

    bodies = to_batch(block, ORIGIN, ALL)["body"].to_pylist()

    assert bodies == [b"plain", large, b"no such thing", b"short"]


def test_a_batch_that_was_kept_whole_is_a_row_for_each_message():
    """With the offsets of each, and only those that are wanted."""
    inner = encode_items([(0, b"one", b"TAGS\x01a\x02"), (0, b"two", b""), (0, b"three", b"")])
    block = block_of(a_record(0), a_record(1, inner, b"INNER_NUM\x013\x02", sys_flag=0xC0))

    rows = to_batch(block, ORIGIN, RowSelection(("offset", "body", "tags"), 1001, 1003)).to_pylist()

    assert rows == [
        {"offset": 1001, "body": b"one", "tags": "a"},
        {"offset": 1002, "body": b"two", "tags": None},
    ]


def test_only_wanted_rows_and_columns_are_there():
    """Offsets outside the range and other tags are left out; a tag is compared as a whole."""
    tags = [b"TAGS\x01a\x02", b"TAGS\x01ab\x02", b"", b"TAGS\x01a\x02", b"TAGS\x01a\x02"]
    block = block_of(*(a_record(offset, properties=text) for offset, text in enumerate(tags)))

    batch = to_batch(block, ORIGIN, RowSelection(("offset",), 1000, 1004, frozenset({"a"})))

    assert batch.to_pydict() == {"offset": [1000, 1003]}


def test_a_body_that_nobody_asks_for_is_not_looked_at():
    """That is what makes choosing columns worth while."""
    block = block_of(a_record(0)).replace(b"hello", b"hellO")

    assert to_batch(block, ORIGIN, RowSelection(("offset",), 0, 1 << 62)).num_rows == 1
    with pytest.raises(CorruptRecord, match="checksum"):
        to_batch(block, ORIGIN, ALL)


@given(st.data())
def test_broken_bytes_are_an_error_and_nothing_else(data: st.DataObject):
    """They come from strangers."""
    block = bytearray(block_of(*(a_record(offset, properties=b"TAGS\x01a\x02") for offset in range(4))))
    for _ in range(data.draw(st.integers(1, 3))):
        block[data.draw(st.integers(0, len(block) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(block[: data.draw(st.integers(0, len(block)))])

    try:
        batch = to_batch(cut, ORIGIN, ALL)
    except CorruptRecord:
        return

    assert batch.num_rows <= 4


@pytest.mark.parametrize("damaged", [1 << 40, 2, -7])
@pytest.mark.parametrize("sys_flag", [0, 0xC0])
def test_a_damaged_offset_in_the_middle_brings_no_row_that_was_not_asked_for(damaged: int, sys_flag: int):
    """No checksum covers it: such a record has no row, whatever the first and the last one say."""
    body = encode_items([(0, b"item", b"")]) if sys_flag else b"hello"
    offsets = [10, 11, damaged, 13]
    block = block_of(*(a_record(offset, body, sys_flag=sys_flag) for offset in offsets))
    origin = RecordOrigin("orders", 3, "broker-b", 2)

    rows = to_batch(block, origin, RowSelection(("offset",), 10, 14))

    assert rows.column("offset").to_pylist() == [10, 11, 13]
