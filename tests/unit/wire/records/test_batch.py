"""Many messages in one body."""

import struct
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import LocalProtocolError, RemoteProtocolError
from holdfast.wire.records.batch import (
    ITEM_OVERHEAD,
    count_items,
    encode_columns,
    encode_items,
    find_item_ends,
    split_items,
    split_properties,
)

# One item as Java writes it: body 010203, KEYS=k1, WAIT=true, TAGS=tagA.
GOLDEN = bytes.fromhex(
    "00000035 00000000 00000000 00000000 00000003 010203 001c4b455953016b3102 57414954017472756502 54414753017461674102"
)
PROPERTIES = b"KEYS\x01k1\x02WAIT\x01true\x02TAGS\x01tagA\x02"

ITEMS = st.lists(
    st.tuples(st.integers(min_value=-(2**31), max_value=2**31 - 1), st.binary(max_size=300), st.binary(max_size=100)),
    max_size=20,
)


def test_an_item_is_written_as_upstream_writes_it():
    """Golden bytes."""
    assert encode_items([(0, b"\x01\x02\x03", PROPERTIES)]) == GOLDEN


def test_items_of_upstream_are_read():
    """Two behind one another."""
    items = split_items(GOLDEN * 2)

    assert [(flag, bytes(body), properties) for flag, body, properties in items] == [
        (0, b"\x01\x02\x03", PROPERTIES)
    ] * 2


@given(ITEMS)
def test_what_is_written_is_read_again(items: list[tuple[int, bytes, bytes]]):
    """Any flags, bodies and properties."""
    read = split_items(memoryview(encode_items(items)))

    assert [(flag, bytes(body), properties) for flag, body, properties in read] == items


@given(ITEMS | ITEMS.map(lambda items: items[:1] * len(items)))
def test_columns_become_the_same_bytes(items: list[tuple[int, bytes, bytes]]):
    """However their properties are cut, and whether all items are of one size or not."""
    flags, bodies, texts = ([item[part] for item in items] for part in range(3))

    assert encode_columns(flags, bodies, texts) == encode_items(items)
    begins, ends = [text[: len(text) // 2] for text in texts], [text[len(text) // 2 :] for text in texts]
    assert encode_columns(flags, bodies, begins, ends) == encode_items(items)


def test_bodies_are_views_of_the_batch():
    """Splitting copies no body."""
    batch = bytearray(GOLDEN)
    ((_, body, _),) = split_items(batch)

    batch[20] = 0xFF

    assert bytes(body) == b"\xff\x02\x03"


@pytest.mark.parametrize("cut", range(1, len(GOLDEN)))
def test_a_batch_that_is_cut_short_is_refused(cut: int):
    """Wherever it is cut."""
    with pytest.raises(RemoteProtocolError):
        split_items(GOLDEN + GOLDEN[:cut])


@pytest.mark.parametrize(
    ("at", "value"), [(0, 52), (0, 54), (0, -1), (16, -1), (16, -20), (16, 2**31 - 1), (16, 4), (16, 2)]
)
def test_a_size_that_lies_is_refused(at: int, value: int):
    """The item's own, and its body's."""
    batch = bytearray(GOLDEN)
    struct.pack_into(">i", batch, at, value)

    with pytest.raises(RemoteProtocolError, match="batch item 0"):
        split_items(batch)


@given(st.binary(max_size=200))
def test_any_bytes_are_split_or_refused(data: bytes):
    """Nothing else happens."""
    try:
        items = split_items(data)
    except RemoteProtocolError:
        return
    assert sum(ITEM_OVERHEAD + len(body) + len(properties) for _, body, properties in items) == len(data)


def test_properties_that_do_not_fit_are_refused():
    """Their size field has fifteen bits."""
    with pytest.raises(LocalProtocolError, match="32768"):
        encode_items([(0, b"", bytes(32768))])
    with pytest.raises(LocalProtocolError):
        encode_columns([0, 0], [b"", b""], [b"", bytes(16384)], [b"", bytes(16384)])
    assert encode_columns([0, 0], [b"", b""], [b"", bytes(20_000)], [bytes(20_000), b""])


@given(ITEMS)
def test_items_end_where_the_next_begins(items: list[tuple[int, bytes, bytes]]):
    """The last one ends with the batch."""
    sizes = [ITEM_OVERHEAD + len(body) + len(properties) for _, body, properties in items]

    assert list(find_item_ends(encode_items(items), count_max=20)) == list(accumulate(sizes))


@pytest.mark.parametrize(
    ("at", "value"), [(0, 52), (0, 54), (0, -1), (16, -1), (16, -20), (16, 2**31 - 1), (16, 4), (16, 2)]
)
def test_an_item_end_that_its_sizes_contradict_is_refused(at: int, value: int):
    """The item's own size, and its body's; and a batch of more items than are allowed."""
    batch = bytearray(GOLDEN)
    struct.pack_into(">i", batch, at, value)

    with pytest.raises(RemoteProtocolError, match="batch item 0"):
        find_item_ends(bytes(batch), count_max=1)
    with pytest.raises(RemoteProtocolError, match="more than 1 items"):
        find_item_ends(GOLDEN * 2, count_max=1)


@given(ITEMS)
def test_items_are_counted_by_their_sizes(items: list[tuple[int, bytes, bytes]]):
    """As many as are split from it."""
    assert count_items(memoryview(encode_items(items)), count_max=20) == len(items)


@pytest.mark.parametrize("count", [1, 2, 500])
def test_items_of_one_size_are_counted_too(count: int):
    """Which is the quick way."""
    batch = encode_items([(0, b"%05d" % number, b"") for number in range(count)])

    assert count_items(batch, count_max=500) == count
    with pytest.raises(RemoteProtocolError, match="more than"):
        count_items(batch, count_max=count - 1)


def test_a_size_amid_items_of_one_size_that_is_another_is_seen():
    """The first and the length alone prove nothing."""
    even = bytearray(encode_items([(0, b"x" * 78, b"")] * 4))
    struct.pack_into(">i", even, 100, 200)  # one that covers two

    assert count_items(even, count_max=9) == 3
    struct.pack_into(">i", even, 100, 201)
    with pytest.raises(RemoteProtocolError, match="batch item 2"):
        count_items(even, count_max=9)


@pytest.mark.parametrize(
    "batch", [GOLDEN[:-1], GOLDEN[:3], GOLDEN + b"\0", b"\0" * 60, b"\xff" * 60, struct.pack(">i", 21) * 21]
)
def test_sizes_that_do_not_add_up_are_not_counted(batch: bytes):
    """Cut short, too long, none at all, negative, smaller than any item."""
    with pytest.raises(RemoteProtocolError, match="batch item"):
        count_items(batch, count_max=100)


@given(ITEMS)
def test_properties_alone_are_those_of_the_items(items: list[tuple[int, bytes, bytes]]):
    """Who wants nothing else need not wait for the rest."""
    assert split_properties(memoryview(encode_items(items))) == [text for _, _, text in items]


@given(st.binary(max_size=200) | st.tuples(st.integers(0, len(GOLDEN) - 1), st.integers(0, 255)).map(
    lambda change: GOLDEN + GOLDEN[: change[0]] + bytes([change[1]]) + GOLDEN[change[0] + 1 :]
))  # fmt: skip
def test_properties_are_read_where_items_are(batch: bytes):
    """What is no batch for the one is none for the other."""
    try:
        expected = [text for _, _, text in split_items(batch)]
    except RemoteProtocolError:
        with pytest.raises(RemoteProtocolError):
            split_properties(batch)
    else:
        assert split_properties(batch) == expected
