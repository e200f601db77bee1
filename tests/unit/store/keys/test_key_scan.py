"""Taking keys off the log: the quick way and the plain one, in Python and compiled."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.accelerated import KINDS, implementation, needs_native

from holdfast.store.base.index_fields import INNER_BITS, has_keys, index_keys, key_hash
from holdfast.store.keys.key_links import IndexKey, unpack_keys
from holdfast.store.keys.key_scan import TOPICS_MAX, KeyCollector, hash_topic
from holdfast.wire.frames.host import pack_host
from holdfast.wire.records.batch import encode_items
from holdfast.wire.records.record import TRANSACTION_ROLLBACK, StoredRecord, decode_record, encode_record

V4, V6 = pack_host("1.2.3.4:5"), pack_host("[::1]:5")
BASE = 1000

# Made of the very pieces that matter, so that names, values and separators meet in every order.
PIECES = st.sampled_from(
    [
        b"UNIQ_KEY",
        b"KEYS",
        b"XKEYS",
        b"UNIQ_KEYS",
        b"\x01",
        b"\x02",
        b"7F00A1",
        b"k",
        b" ",
        b"\xc3\xa4",
        b"\xff",
        b"\x02",
    ]
)
PROPERTIES = st.one_of(
    st.lists(PIECES, max_size=12).map(b"".join),
    st.text("0123456789ABCDEF", min_size=1, max_size=32).map(lambda key: b"UNIQ_KEY\x01" + key.encode() + b"\x02"),
)


def a_record(position: int, **changes: object) -> bytes:
    record = StoredRecord(0, position, "t", 1, 2, 3, 0, 4, V4, 5, V4, 6, 7, 0, b"body", b"")  # fmt: skip
    return encode_record(msgspec.structs.replace(record, **changes))


def a_log(records: list[dict[str, object]]) -> bytes:
    data = b""
    for changes in records:
        data += a_record(BASE + len(data), **changes)
    return data


def scan(kind: str, data: bytes, records_max: int = 1000) -> tuple[list[IndexKey], int, int]:
    keys, position, count = implementation("scan_keys", kind)(memoryview(data), BASE, records_max)
    return list(unpack_keys(keys)), position - BASE, count


RECORDS = st.lists(
    st.fixed_dictionaries(
        {
            "topic": st.sampled_from(["t", "TopicTest", "thèmes", "x" * 127]),
            "properties": PROPERTIES,
            "sys_flag": st.sampled_from([0, 1, 4, 8, TRANSACTION_ROLLBACK]),
            "store_ms": st.integers(0, 1 << 40),
            "body": st.binary(max_size=20),
        }
    ),
    max_size=8,
)
BATCH_PROPERTIES = st.lists(
    st.sampled_from(
        [
            b"UNIQ_KEY\x017F0000010FFE\x02",
            b"UNIQ_KEY\x01ABCDEF00FFFF\x02",
            b"UNIQ_KEY\x01short\x02",
            b"KEYS\x01a b\x02",
            b"INNER_NUM\x0140\x02",
            b"INNER_NUM\x0132768\x02",
            b"INNER_NUM\x01007\x02",
            b"INNER_NUM\x01\xd9\xa3\x02",
            b"INNER_IDS\x01next\x02",
            b"INNER_IDS\x01none\x02",
            b"INNER_IDS\x01\x02",
            b"\x02",
        ]
    ),
    max_size=5,
).map(b"".join)
BATCHES = st.lists(
    st.fixed_dictionaries(
        {
            "properties": BATCH_PROPERTIES,
            "sys_flag": st.sampled_from([INNER_BITS, INNER_BITS | 1, INNER_BITS | TRANSACTION_ROLLBACK]),
            "body": st.lists(st.tuples(st.integers(0, 9), st.binary(max_size=9), PROPERTIES), max_size=5).map(
                encode_items
            )
            | st.binary(max_size=60),
        }
    ),
    max_size=4,
)
CHANGES = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=6)


@needs_native()
@given(st.tuples(RECORDS, BATCHES).map(lambda both: both[0] + both[1]), CHANGES, st.integers(0, 12), st.integers(0, 9))
def test_both_find_the_same(
    records: list[dict[str, object]], changes: list[tuple[int, int]], records_max: int, cut: int
):
    """Single records and batches, whole, cut off or with damaged bytes."""
    data = bytearray(a_log(records))
    for at, value in changes:
        if data:
            data[at % len(data)] = value
    data = data[: len(data) - cut]

    assert scan("native", bytes(data), records_max) == scan("python", bytes(data), records_max)


@needs_native()
@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=3), st.binary(max_size=30))
def test_both_find_the_same_where_lengths_are_damaged(changes: list[tuple[int, int]], key: bytes):
    """The bytes that matter are few: most changes hit one of them."""
    one = {"properties": b"UNIQ_KEY\x01" + key + b"\x02KEYS\x01a b\x02", "body": b""}
    batch = {"properties": b"", "sys_flag": INNER_BITS, "body": encode_items([(0, b"", b"KEYS\x01c\x02")] * 2)}
    data = bytearray(a_log([one, batch, one]))
    for at, value in changes:
        data[at % len(data)] = value

    assert scan("native", bytes(data)) == scan("python", bytes(data))


@pytest.mark.parametrize("kind", KINDS)
@given(RECORDS)
@settings(deadline=None, max_examples=300)
def test_the_quick_way_finds_what_the_plain_one_does(kind: str, records: list[dict[str, object]]):
    """Whatever the properties look like."""
    data = a_log(records)
    expected: list[IndexKey] = []
    at = 0
    while at < len(data):
        record = decode_record(data, at)
        if has_keys(record.sys_flag):
            topic = record.topic.encode()
            expected += [(key_hash(topic, key), BASE + at, record.store_ms) for key in index_keys(record.properties)]
        at += record.size

    assert scan(kind, data) == (expected, len(data), len(records))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "odd",
    [{"born_host": V6}, {"store_host": V6}, {"topic": "x" * 128}],
)
def test_records_of_another_kind_are_left_to_the_caller(kind: str, odd: dict[str, object]):
    """The scan stops before them."""
    data = a_log([{"properties": b"KEYS\x01a\x02"}, odd, {}])

    keys, end, count = scan(kind, data)

    assert (len(keys), end, count) == (1, len(a_record(0, properties=b"KEYS\x01a\x02")), 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_scan_takes_no_more_than_it_is_allowed(kind: str):
    """Others wait."""
    one = len(a_record(0))

    assert scan(kind, a_log([{}] * 5), 3)[1:] == (one * 3, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_the_rest_of_a_record_that_is_cut_off_is_not_looked_for(kind: str):
    """It ends before it."""
    data = a_log([{}, {}])

    assert scan(kind, data[:-1])[1:] == (len(data) // 2, 1)
    assert scan(kind, data[: len(data) // 2 + 50])[1:] == (len(data) // 2, 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(60))
def test_any_bytes_are_survived(kind: str, seed: int):
    """Nothing but a stop, or keys that no query will believe."""
    random = Random(seed)
    data = bytearray(a_log([{"properties": b"UNIQ_KEY\x01A0\x02KEYS\x01b c\x02"}] * 6))
    for _ in range(random.randint(1, 10)):
        data[random.randrange(len(data))] = random.randrange(256)

    _, end, count = scan(kind, bytes(data))

    assert 0 <= end <= len(data)
    assert count <= 6


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("at", "value"), [(88 + 4, 0), (88 + 4, 3), (88 + 4, 255), (88 + 4 + 3, 9), (88 + 4 + 2, 1)])
def test_a_record_whose_parts_do_not_add_up_has_no_keys(kind: str, at: int, value: int):
    """A damaged length of the topic or of the properties: the caller decides what to do about the rest."""
    one = a_record(BASE, properties=b"UNIQ_KEY\x01A0\x02")
    data = bytearray(one + a_record(BASE + len(one), properties=b"UNIQ_KEY\x01A0\x02"))
    assert bytes(data[88 + 4 : 88 + 8]) == b"\x01t\x00\x0c"
    data[len(one) + at] = value

    assert scan(kind, bytes(data)) == ([(key_hash(b"t", b"A0"), BASE, 5)], len(one), 1)


def test_topics_are_forgotten_when_they_are_too_many():
    """Strangers may name as many as they like; hashes stay right."""
    collector = KeyCollector()

    for number in range(TOPICS_MAX + 10):
        collector.add(b"t%d" % number, [b"k"], number, 0)

    assert list(unpack_keys(collector.pack())) == [
        (key_hash(b"t%d" % number, b"k"), number, 0) for number in range(TOPICS_MAX + 10)
    ]
    assert hash_topic.cache_info().currsize == TOPICS_MAX
