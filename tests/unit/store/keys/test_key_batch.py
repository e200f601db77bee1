"""Taking keys off the log: the quick way and the plain one."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.store.base.index_fields import has_keys, index_keys, key_hash
from holdfast.store.keys import key_batch
from holdfast.store.keys.key_batch import KeyCollector
from holdfast.store.keys.key_index import IndexKey
from holdfast.wire.frames.host import pack_host
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


def scan(data: bytes, records_max: int = 1000) -> tuple[list[IndexKey], int, int]:
    batch = KeyCollector()
    position, count = batch.scan(memoryview(data), BASE, records_max)
    return batch.pop_keys(), position - BASE, count


@given(
    st.lists(
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
)
@settings(deadline=None, max_examples=300)
def test_the_quick_way_finds_what_the_plain_one_does(records: list[dict[str, object]]):
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

    assert scan(data) == (expected, len(data), len(records))


@pytest.mark.parametrize(
    "odd",
    [{"born_host": V6}, {"store_host": V6}, {"topic": "x" * 128}],
)
def test_records_of_another_kind_are_left_to_the_caller(odd: dict[str, object]):
    """The scan stops before them."""
    data = a_log([{"properties": b"KEYS\x01a\x02"}, odd, {}])

    keys, end, count = scan(data)

    assert (len(keys), end, count) == (1, len(a_record(0, properties=b"KEYS\x01a\x02")), 1)


def test_a_scan_takes_no_more_than_it_is_allowed():
    """Others wait."""
    one = len(a_record(0))

    assert scan(a_log([{}] * 5), 3)[1:] == (one * 3, 3)


def test_the_rest_of_a_record_that_is_cut_off_is_not_looked_for():
    """It ends before it."""
    data = a_log([{}, {}])

    assert scan(data[:-1])[1:] == (len(data) // 2, 1)
    assert scan(data[: len(data) // 2 + 50])[1:] == (len(data) // 2, 1)


@pytest.mark.parametrize("seed", range(60))
def test_any_bytes_are_survived(seed: int):
    """Nothing but a stop, or keys that no query will believe."""
    random = Random(seed)
    data = bytearray(a_log([{"properties": b"UNIQ_KEY\x01A0\x02KEYS\x01b c\x02"}] * 6))
    for _ in range(random.randint(1, 10)):
        data[random.randrange(len(data))] = random.randrange(256)

    _, end, count = scan(bytes(data))

    assert 0 <= end <= len(data)
    assert count <= 6


def test_topics_are_forgotten_when_they_are_too_many(monkeypatch: pytest.MonkeyPatch):
    """Strangers may name as many as they like; hashes stay right."""
    monkeypatch.setattr(key_batch, "TOPICS_MAX", 3)
    batch = KeyCollector()

    for number in range(20):
        batch.add(b"t%d" % (number % 5), [b"k"], number, 0)

    assert batch.pop_keys() == [(key_hash(b"t%d" % (number % 5), b"k"), number, 0) for number in range(20)]
    assert len(batch._topics) <= 3
