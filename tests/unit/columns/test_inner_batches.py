"""Batches that were kept whole become the rows that opening them message by message gives, or a typed error."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.columns.test_message_columns import (
    ALL,
    ORIGIN,
    PROPERTIES,
    QUEUE,
    RAW,
    a_record,
    block_of,
    rows_of,
    shown,
    to_batch,
)

from holdfast.client.messages.unpacking import read_messages
from holdfast.columns import inner_batches
from holdfast.columns.message_columns import RowSelection, to_batches
from holdfast.model.errors import CorruptRecord, UnreadableBatch
from holdfast.wire.records.batch import encode_items
from holdfast.wire.records.compression import DECOMPRESSED_SIZE_MAX, Codec, compress, flag_of
from holdfast.wire.records.inner_batch import INNER_BATCH, wrap_items
from holdfast.wire.records.record import StoredRecord

Item = tuple[int, bytes, bytes]

BODY = st.binary(max_size=30)
EVEN = st.tuples(st.binary(min_size=1, max_size=1), st.integers(1, 30)).map(
    lambda found: [(0, found[0] * 9, b"TAGS\x01a\x02")] * found[1]
)
"""Items of one size."""
ITEMS = EVEN | st.lists(st.tuples(st.integers(0, 9), BODY, PROPERTIES | RAW), min_size=1, max_size=8)
STORED = st.lists(st.tuples(ITEMS, st.booleans(), st.none() | st.sampled_from(Codec)))
Parts = list[tuple[list[Item], bool, Codec | None]]
"""Items, whether they are one record, and how they are compressed then."""


def a_batch(offset: int, items: list[Item], codec: Codec | None = None) -> StoredRecord:
    whole = wrap_items(encode_items(items), len(items), f"{offset:032X}", codec=codec)
    return a_record(offset, whole.body, whole.properties.encode(), sys_flag=whole.sys_flag)


def stored(parts: Parts) -> bytes:
    """Return items, singly or in batches, at offsets that follow each other."""
    records: list[StoredRecord] = []
    offset = 0
    for items, is_whole, codec in parts:
        if is_whole:
            records.append(a_batch(offset, items, codec))
        else:
            records += (a_record(offset + n, body, text) for n, (_, body, text) in enumerate(items))
        offset += len(items)
    return block_of(*records)


@given(STORED, st.sampled_from([1, 3, 1000]), st.integers(1, 200) | st.just(10_000))
def test_rows_are_the_messages_of_records_and_batches(parts: Parts, in_step: int, part_size: int):
    """Any mixture of both, in one part or more; batches followed in step, alone, and first so, then so."""
    block = stored(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inner_batches, "_IN_STEP_MIN", in_step)
        patch.setattr(inner_batches, "_PLAIN_BYTES", part_size)

        assert shown(to_batch(block, ORIGIN, ALL)) == rows_of(block)


def test_no_part_is_larger_than_one_batch_needs(monkeypatch: pytest.MonkeyPatch):
    """Of three batches that are too large together, each is a part."""
    monkeypatch.setattr(inner_batches, "_PLAIN_BYTES", 1000)
    large = [(0, b"x" * 500, b"")] * 2
    block = stored([(large, True, Codec.ZSTD)] * 3 + [([(0, b"y", b"")], False, None)])

    assert [batch.num_rows for batch in to_batches(block, ORIGIN, ALL)] == [2, 2, 2, 1]


def test_only_wanted_items_are_rows():
    """A pull from the middle of a batch gets all of it, and one up to the middle, too."""
    items = [(0, b"%d" % number, b"TAGS\x01%d\x02" % (number % 2)) for number in range(10)]
    block = block_of(a_batch(0, items), a_batch(10, items, Codec.LZ4), a_record(20, properties=b"TAGS\x011\x02"))

    middle = to_batch(block, ORIGIN, RowSelection(("offset", "body"), 1004, 1013))
    tagged = to_batch(block, ORIGIN, RowSelection(("offset",), 1004, 1099, frozenset({"1"})))

    assert middle["offset"].to_pylist() == list(range(1004, 1013))
    assert middle["body"].to_pylist() == [b"%d" % (number % 10) for number in range(4, 13)]
    assert tagged["offset"].to_pylist() == [*range(1005, 1020, 2), 1020]


def test_a_batch_behind_the_end_is_not_opened():
    """It may be broken: that is for whoever reads so far to find out."""
    broken = a_record(1, b"no items", sys_flag=INNER_BATCH)
    block = block_of(a_batch(0, [(0, b"x", b"")]), broken)

    assert to_batch(block, ORIGIN, RowSelection(("body",), 0, 1001)).num_rows == 1
    with pytest.raises(UnreadableBatch):
        to_batch(block, ORIGIN, RowSelection(("body",), 0, 1002))


def test_a_batch_that_was_changed_is_not_opened():
    """Its checksum is compared even if nobody wants a body: sizes and offsets stand there, too."""
    block = block_of(a_batch(0, [(0, b"hello", b"")])).replace(b"hello", b"hellO")

    with pytest.raises(CorruptRecord, match="checksum"):
        to_batch(block, ORIGIN, RowSelection(("offset",), 0, 1 << 62))


TWO = encode_items([(0, b"one", b""), (0, b"three", b"")])
ALIKE = encode_items([(0, b"one", b""), (0, b"two", b"")])
LARGE = encode_items([(0, b"x" * 80, b""), (0, b"y" * 90, b"")])
NONE = encode_items([(0, b"", b"")])


def lie(body: bytes, said: int | None = 2, *, flag: int = 0) -> bytes:
    """Return records that are whole, among them some whose body is not what it should be."""
    properties = b"" if said is None else b"INNER_NUM\x01%d\x02" % said
    lies = [a_record(1 + n, body, properties, sys_flag=INNER_BATCH | flag) for n in range(3)]
    return block_of(a_record(0), *lies, a_batch(4, [(0, b"x", b"")]), a_record(5))


def changed(at: int, value: int, size: int = 4, items: bytes = TWO) -> bytes:
    """Return items with another number somewhere."""
    return items[:at] + value.to_bytes(size, "big", signed=True) + items[at + size :]


@pytest.mark.parametrize("in_step", [1, 3, 1000])
@pytest.mark.parametrize(
    ("block", "said"),
    [
        (lie(TWO, 3), "as many messages as it says"),
        (lie(TWO + b"x" * 20, 3), "as many messages as it says"),
        (lie(ALIKE * 2, 3), "as many messages as it says"),
        (lie(LARGE, 3), "as many messages as it says"),
        (lie(TWO, 1), "as many messages as it says"),
        (lie(TWO, None), "as many messages as it says"),
        (lie(ALIKE, 1), "as many messages as it says"),
        (lie(TWO, 99999), "declares b'99999' messages"),
        (lie(b"", 1), "as many messages as it says"),
        (lie(NONE * 2, 3), "as many messages as it says"),
        (lie(TWO[:-1]), "as many messages as it says"),
        (lie(TWO + b"x"), "as many messages as it says"),
        (lie(ALIKE + b"x"), "as many messages as it says"),
        (lie(changed(0, 0)), "wrong size"),
        (lie(changed(0, -1)), "wrong size"),
        (lie(changed(0, 21)), "wrong size"),
        (lie(changed(0, -(1 << 31))), "wrong size"),
        (lie(changed(0, 1 << 30)), "wrong size"),
        (lie(changed(25, 0)), "wrong size"),
        (lie(changed(16, -1)), "body of one of its messages does not fit"),
        (lie(changed(16, 4)), "body of one of its messages does not fit"),
        (lie(changed(16, 2)), "do not add up"),
        (lie(changed(23, 1, 2)), "do not add up"),
        (lie(changed(16, 2, items=ALIKE)), "do not add up"),
        (lie(compress(TWO, Codec.LZ4)[:-4], flag=flag_of(Codec.LZ4)), "compressed body"),
        (lie(TWO, flag=flag_of(Codec.ZSTD)), "compressed body cannot be read"),
        (lie(TWO, flag=flag_of(Codec.ZSTD) | 0x400), "codec 6, which is unknown"),
    ],
)
def test_a_lie_is_found_and_others_are_read(block: bytes, said: str, in_step: int, monkeypatch: pytest.MonkeyPatch):
    """About the count, the size of an item or its parts, the end, the format. All that is not a lie is there."""
    monkeypatch.setattr(inner_batches, "_IN_STEP_MIN", in_step)
    found: list[UnreadableBatch] = []

    rows = [row for batch in to_batches(block, ORIGIN, ALL, found) for row in batch["offset"].to_pylist()]

    assert rows == [1000, 1004, 1005]
    assert [error.offset for error in found] == [1001, 1002, 1003]
    assert all(said in str(error) for error in found)
    with pytest.raises(UnreadableBatch, match=f"offset 1001 .*{said}"):
        to_batch(block, ORIGIN, ALL)


@pytest.mark.parametrize("in_step", [1, 1000])
def test_a_count_is_not_believed_beyond_the_bytes(in_step: int, monkeypatch: pytest.MonkeyPatch):
    """Neither room is made for as many as are said, nor is anything looked for behind the last byte of an answer."""
    monkeypatch.setattr(inner_batches, "_IN_STEP_MIN", in_step)
    empty = [a_record(offset, b"", b"", topic="", sys_flag=INNER_BATCH) for offset in range(3)]
    found: list[UnreadableBatch] = []

    assert [batch.num_rows for batch in to_batches(block_of(*empty), ORIGIN, ALL, found)] == [0]
    assert ["too short for as many messages" in str(error) for error in found] == [True] * 3


def test_what_an_item_says_is_not_uncompressed():
    """The batch was; a body that looks as if it were is its sender's own."""
    body = compress(b"own " * 100, Codec.ZLIB)

    assert (
        to_batch(block_of(a_batch(0, [(0, body, b"")] * 50, Codec.ZLIB)), ORIGIN, ALL)["body"].to_pylist()
        == [body] * 50
    )


@pytest.mark.parametrize("codec", list(Codec))
def test_a_bomb_is_refused(codec: Codec):
    """Nobody makes room for what a few bytes claim to be."""
    bomb = compress(bytes(DECOMPRESSED_SIZE_MAX + 1), codec)

    with pytest.raises(UnreadableBatch, match="would be"):
        to_batch(lie(bomb, flag=flag_of(codec)), ORIGIN, ALL)


@given(st.data())
def test_broken_items_are_refused_as_they_are_one_by_one(data: st.DataObject):
    """The checksum is right: their sender sent them like that."""
    body = bytearray(encode_items(data.draw(ITEMS)) * data.draw(st.integers(1, 3)))
    for _ in range(data.draw(st.integers(0, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255) | st.just(0))
    said = data.draw(st.none() | st.integers(1, 9) | st.just(body.count(b"TAGS\x01a\x02") or 1))
    block = lie(bytes(body[: data.draw(st.integers(0, len(body)) | st.just(len(body)))]), said)

    theirs: list[UnreadableBatch] = []
    ours: list[UnreadableBatch] = []
    wanted = [message.offset for message in read_messages(block, QUEUE, offset_delta=1000, unreadable=theirs)]
    found = [row for batch in to_batches(block, ORIGIN, ALL, ours) for row in batch["offset"].to_pylist()]

    assert [error.offset for error in ours] == [error.offset for error in theirs]
    assert found == wanted
    if not theirs:
        assert shown(to_batch(block, ORIGIN, ALL)) == rows_of(block)


def test_batches_of_many_sizes_are_found_in_step():
    """As many as an answer holds, of unequal lengths: the last ones are followed alone."""
    sizes = np.random.default_rng(1).integers(1, 90, 200).tolist()
    block = stored([([(0, b"x" * (n % 7), b"")] * 1 + [(0, b"y" * n, b"")] * n, True, None) for n in sizes])

    assert shown(to_batch(block, ORIGIN, ALL)) == rows_of(block)
