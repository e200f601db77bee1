"""One sum over bodies of one size says what their checksums say one by one."""

import random
import zlib

import numpy as np
import numpy.typing as npt
import pytest

from holdfast.columns.checksums import SUMMED_COUNT_MIN, checksums_match
from holdfast.columns.message_columns import RecordOrigin, RowSelection, to_batches
from holdfast.model.errors import CorruptRecord
from holdfast.wire.records.record import StoredRecord, encode_record

SIZES = (1, 2, 3, 8, 100, 127, 1023, 1024, 1500)


def some_bodies(size: int, count: int) -> tuple[bytearray, npt.NDArray[np.int32]]:
    bodies = bytearray(random.Random(size * count).randbytes(size * count))
    crcs = [zlib.crc32(bodies[at : at + size]) & 0x7FFFFFFF for at in range(0, len(bodies), size)]
    return bodies, np.array(crcs, dtype=np.int32)


def judge(bodies: bytearray, size: int, crcs: npt.NDArray[np.int32]) -> bool:
    return checksums_match(np.frombuffer(bodies, dtype=np.uint8), size, crcs)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [1, 2, 3, 64, 1001])
def test_bodies_with_their_checksums_are_right(size: int, count: int):
    """Whatever their size, and however many: no good body is called wrong."""
    bodies, crcs = some_bodies(size, count)
    assert judge(bodies, size, crcs)


@pytest.mark.parametrize("size", SIZES)
def test_a_single_bit_anywhere_is_noticed(size: int):
    """One bit of one body, or of one checksum, the one that checksums do not have included."""
    bodies, crcs = some_bodies(size, 65)
    choose = random.Random(size)
    for _ in range(60):
        bit = choose.randrange(8 * len(bodies))
        bodies[bit // 8] ^= 1 << bit % 8
        assert not judge(bodies, size, crcs), bit
        bodies[bit // 8] ^= 1 << bit % 8
    for bit in range(32):
        wrong = crcs.view(np.uint32).copy()
        wrong[choose.randrange(65)] ^= np.uint32(1 << bit)
        assert not judge(bodies, size, wrong.view(np.int32)), bit
    assert judge(bodies, size, crcs)


def test_bodies_that_changed_places_are_noticed():
    """The sum depends on the order: each body has its own checksum."""
    bodies, crcs = some_bodies(100, 40)
    bodies[:100], bodies[100:200] = bodies[100:200], bodies[:100]
    assert not judge(bodies, 100, crcs)


@pytest.mark.parametrize("size", [100, 1024])
def test_the_one_record_among_many_that_is_damaged_is_named(size: int):
    """The sum says that one is; which one, is found out."""
    count = SUMMED_COUNT_MIN + 10
    body = random.Random(1).randbytes(size)
    records = [
        encode_record(
            StoredRecord(
                size=0, position=0, topic="orders", queue_id=0, offset=offset, flag=0, sys_flag=0, born_ms=1,
                born_host=bytes(8), store_ms=1, store_host=bytes(8), reconsume_times=0, prepared_position=0,
                body_crc=0, body=body, properties=b"",
            )
        )
        for offset in range(count)
    ]  # fmt: skip
    block = bytearray(b"".join(records))
    wanted = RowSelection(("body",), 0, count)
    (good,) = to_batches(bytes(block), RecordOrigin("orders", 0, "broker-a", 1), wanted)
    assert good["body"].to_pylist() == [body] * count
    bad_start = 37 * len(records[0]) + 88
    block[bad_start + 5] ^= 1
    with pytest.raises(CorruptRecord, match="checksum") as raised:
        list(to_batches(bytes(block), RecordOrigin("orders", 0, "broker-a", 1), wanted))
    assert raised.value.position == bad_start
