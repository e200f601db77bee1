"""The fields and checksums of many records, in Python and compiled."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.accelerated import KINDS, for_each_kind, implementation, needs_native

from holdfast.columns import records
from holdfast.columns.records import Records, find_valid_bodies, read_records
from holdfast.model.errors import CorruptRecord
from holdfast.wire.records.record import StoredRecord, decode_records, encode_record

kind = for_each_kind((records, "measure_records"), (records, "match_bodies"))

HOSTS = st.sampled_from([bytes(range(8)), bytes(range(20))])
RECORDS = st.lists(
    st.builds(
        lambda offset, topic, born, store, body, properties, flags: StoredRecord(
            0, 7, topic, 1, offset, 2, flags, offset + 5, born, offset + 9, store, 0, 0, 0, body, properties
        ),
        st.integers(-(1 << 62), 1 << 62),
        st.sampled_from(["t", "thèmes", "x" * 127, "x" * 300]),
        HOSTS,
        HOSTS,
        st.binary(max_size=40),
        st.binary(max_size=20),
        st.sampled_from([0, 1, 8, 0xC0]),
    ),
    max_size=6,
)
CHANGES = st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=4)


def damage(block: bytes, changes: list[tuple[int, int]], cut: int) -> bytes:
    data = bytearray(block)
    for at, value in changes:
        if data:
            data[at % len(data)] = value
    return bytes(data[: len(data) - cut])


def as_bytes(found: Records | tuple[bytes, ...] | None) -> list[bytes] | None:
    if isinstance(found, Records):
        return [getattr(found, name).tobytes() for name in Records.__slots__]
    return None if found is None else [*found]


@given(RECORDS)
def test_every_field_is_that_of_the_record(stored: list[StoredRecord]):
    """Whatever the hosts and the length of the topic."""
    block = b"".join(map(encode_record, stored))

    found = read_records(block)

    decoded = list(decode_records(block))
    assert found.offsets.tolist() == [it.offset for it in decoded]
    assert found.flags.tolist() == [it.sys_flag for it in decoded]
    assert found.born_ms.tolist() == [it.born_ms for it in decoded]
    assert found.store_ms.tolist() == [it.store_ms for it in decoded]
    assert found.crcs.tolist() == [it.body_crc for it in decoded]
    bounds = zip(found.body_starts, found.body_starts + found.body_sizes, strict=True)
    assert [block[start:end] for start, end in bounds] == [it.body for it in decoded]
    bounds = zip(found.properties_starts, found.properties_starts + found.properties_sizes, strict=True)
    assert [block[start:end] for start, end in bounds] == [it.properties for it in decoded]


@needs_native()
@given(RECORDS, CHANGES, st.integers(0, 3))
def test_both_measure_the_same(stored: list[StoredRecord], changes: list[tuple[int, int]], cut: int):
    """Whole blocks, and damaged ones."""
    block = damage(b"".join(map(encode_record, stored)), changes, cut)

    native, python = (implementation("measure_records", kind)(block) for kind in ("native", "python"))

    assert as_bytes(native) == as_bytes(python)


def test_a_damaged_block_names_its_fault():
    """The first record that is none, and why."""
    record = encode_record(StoredRecord(0, 7, "t", 1, 2, 3, 0, 4, bytes(8), 5, bytes(8), 0, 0, 0, b"body", b""))
    block = bytearray(record * 3)
    block[len(record) + 4] ^= 1

    with pytest.raises(CorruptRecord, match="the magic number is wrong") as caught:
        read_records(bytes(block))

    assert caught.value.position == len(record)


def test_bodies_that_do_not_match_are_found():
    """Each of them, also in bytes that Arrow owns."""
    rng = random.Random(1)
    stored = [
        StoredRecord(0, 7, "t", 1, 2, 3, 0, 4, bytes(8), 5, bytes(8), 0, 0, 0, rng.randbytes(50 + number), b"")
        for number in range(20)
    ]
    block = bytearray(b"".join(map(encode_record, stored)))
    found = read_records(bytes(block))
    block[int(found.body_starts[3])] ^= 1
    block[int(found.body_starts[17]) + 66] ^= 0x80

    for view in (bytes(block), memoryview(block), memoryview(pa.py_buffer(bytes(block)))):
        assert np.flatnonzero(~find_valid_bodies(view, found)).tolist() == [3, 17]


@needs_native()
@pytest.mark.parametrize(
    ("starts", "sizes", "crcs"),
    [
        ([0], [9], [0]),
        ([-1], [1], [0]),
        ([5], [-1], [0]),
        ([1 << 62], [1 << 62], [0]),
        ([0, 0], [1], [0]),
        ([0], [1], []),
    ],
)
def test_bounds_outside_the_block_are_refused(starts: list[int], sizes: list[int], crcs: list[int]):
    """The compiled function never reads outside of it."""
    columns = [np.array(starts, dtype="i8"), np.array(sizes, dtype="i8"), np.array(crcs, dtype="i4")]

    with pytest.raises(ValueError, match="do not fit"):
        implementation("match_bodies", "native")(bytes(8), *[column.tobytes() for column in columns])


@pytest.mark.parametrize("number", KINDS)
def test_no_body_is_no_check(number: str):
    """Nothing to compare."""
    assert implementation("match_bodies", number)(b"", b"", b"", b"") == b""
