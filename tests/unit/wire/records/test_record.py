"""The stored record: sizes and values that upstream's tests fix, both address families, both versions, and damage."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.errors import CorruptRecord
from holdfast.wire.frames.host import pack_host
from holdfast.wire.records.record import (
    MAGIC_V1,
    MAGIC_V2,
    StoredRecord,
    body_crc,
    decode_record,
    decode_records,
    encode_record,
)

V4, V6 = pack_host("127.0.0.1:10911"), pack_host("[::1]:10911")


def a_record(**changes: object) -> StoredRecord:
    record = StoredRecord(
        size=0,
        position=4096,
        topic="FooBar",
        queue_id=3,
        offset=7,
        flag=5,
        sys_flag=0,
        born_ms=1_700_000_000_000,
        born_host=V4,
        store_ms=1_700_000_000_123,
        store_host=V4,
        reconsume_times=2,
        prepared_position=11,
        body_crc=0,
        body=b"Once, there was a chance for me!",
        properties=b"TAGS\x01TAG1\x02KEYS\x011234567890123\x02",
    )
    return msgspec.structs.replace(record, **changes)


def test_a_record_has_the_size_that_upstream_expects():
    """Topic FooBar, 32 bytes of body, a tag and a key of 13 digits make 158 bytes."""
    assert len(encode_record(a_record())) == 158


def test_checksums_have_31_bits():
    """Two values of the handbook."""
    assert body_crc(b"body") == 1_537_739_698
    assert body_crc(b"Once, there was a chance for me!") == 151_131_488


@pytest.mark.parametrize(
    ("changes", "overhead", "magic"),
    [
        ({}, 91, MAGIC_V1),
        ({"topic": "t" * 127}, 91, MAGIC_V1),
        ({"topic": "t" * 128}, 92, MAGIC_V2),
        ({"born_host": V6}, 103, MAGIC_V1),
        ({"store_host": V6}, 103, MAGIC_V1),
        ({"born_host": V6, "store_host": V6}, 115, MAGIC_V1),
    ],
)
def test_overhead_follows_hosts_and_version(changes: dict[str, object], overhead: int, magic: int):
    """Each IPv6 host adds 12 bytes, version 2 one."""
    record = a_record(**changes)

    data = encode_record(record)

    assert len(data) == overhead + len(record.topic) + len(record.body) + len(record.properties)
    assert int.from_bytes(data[4:8], "big", signed=True) == magic


_i32 = st.integers(-(1 << 31), (1 << 31) - 1)
_i64 = st.integers(-(1 << 63), (1 << 63) - 1)
_hosts = st.one_of(st.binary(min_size=8, max_size=8), st.binary(min_size=20, max_size=20))
records = st.builds(
    StoredRecord,
    size=st.just(0),
    position=_i64,
    topic=st.text(st.characters(codec="utf-8"), max_size=150),
    queue_id=_i32,
    offset=_i64,
    flag=_i32,
    sys_flag=st.integers(0, 0x7FF),
    born_ms=_i64,
    born_host=_hosts,
    store_ms=_i64,
    store_host=_hosts,
    reconsume_times=_i32,
    prepared_position=_i64,
    body_crc=st.just(0),
    body=st.binary(max_size=300),
    properties=st.binary(max_size=300),
)


@given(st.lists(records, max_size=4))
def test_records_survive_a_round_trip(many: list[StoredRecord]):
    """Any fields, one record behind the other; size, checksum and host bits are computed."""
    data = b"".join(map(encode_record, many))

    decoded = list(decode_records(data))

    assert sum(record.size for record in decoded) == len(data)
    for before, after in zip(many, decoded, strict=True):
        hosts = (len(before.born_host) == 20) << 4 | (len(before.store_host) == 20) << 5
        expected = msgspec.structs.replace(
            before, size=after.size, body_crc=body_crc(before.body), sys_flag=before.sys_flag & ~0x30 | hosts
        )
        assert after == expected


@given(records, st.data())
@settings(max_examples=300)
def test_damaged_bytes_are_refused_or_decoded_but_nothing_else(record: StoredRecord, data: st.DataObject):
    """A cut, a tail or a flip in the body raises `CorruptRecord`; what is decoded has the bytes that were read."""
    raw = bytearray(encode_record(record))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, len(raw) - 1))

    body_at = 88 + 12 * ((len(record.born_host) == 20) + (len(record.store_host) == 20))
    is_in_body = body_at <= at < body_at + len(record.body)
    try:
        (decoded,) = decode_records(raw)
    except CorruptRecord:
        decoded = None
    assert decoded is None or (not is_in_body and encode_record(decoded) == raw)
    for damaged in (raw[:cut], raw + b"tail"):
        if damaged:
            with pytest.raises(CorruptRecord):
                list(decode_records(damaged))


def test_a_flipped_bit_in_the_body_is_noticed():
    """That is what the checksum is for."""
    raw = bytearray(encode_record(a_record()))
    raw[90] ^= 1

    with pytest.raises(CorruptRecord, match="checksum"):
        decode_record(raw)
    assert decode_record(raw, check_body=False).offset == 7


@pytest.mark.parametrize("size", [0, -1, 90, 157, 159, 1 << 30])
def test_a_lying_size_is_refused(size: int):
    """The size must be the sum of the parts, and within what is there."""
    raw = bytearray(encode_record(a_record()))
    raw[:4] = size.to_bytes(4, "big", signed=True)

    with pytest.raises(CorruptRecord):
        decode_record(raw)


@pytest.mark.parametrize("cut", range(158))
def test_a_record_that_is_cut_is_refused(cut: int):
    """Anywhere."""
    with pytest.raises(CorruptRecord):
        decode_record(encode_record(a_record())[:cut])
