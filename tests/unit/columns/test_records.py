"""Where records begin in a block, whatever their sizes: found from many places at once, and the same as one by one."""

import random
import struct
from itertools import accumulate

import pytest

from holdfast.columns import records
from holdfast.columns.records import find_starts, follow_sizes
from holdfast.model.errors import CorruptRecord
from holdfast.wire.records.record import MAGIC_V1, RECORD_SIZE_MIN

HEAD = struct.Struct(">ii")
COUNT = 1500


def a_block(sizes: list[int], body: bytes = b"") -> bytearray:
    """Return records of these sizes, of which nothing is told but that; each is filled with *body* over and over."""
    filler = body * (max(sizes) // max(1, len(body)) + 1) or bytes(max(sizes))
    return bytearray(b"".join(HEAD.pack(size, MAGIC_V1) + filler[: size - HEAD.size] for size in sizes))


def sizes_of_many_kinds(least: int = RECORD_SIZE_MIN, most: int = 2000) -> list[int]:
    rng = random.Random(7)
    return [rng.randint(least, most) for _ in range(COUNT)]


def starts_of(sizes: list[int]) -> list[int]:
    return [0, *accumulate(sizes)][:-1]


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records were gone through one by one, each time."""
    found: list[int] = []
    walk = records._walk

    def watched(block: memoryview, at: int) -> object:
        starts, end = walk(block, at)
        found.append(len(starts))
        return starts, end

    monkeypatch.setattr(records, "_walk", watched)
    return found


def test_records_of_many_sizes_are_found_from_many_places_at_once(walks: list[int]):
    """Only what is behind the last of these places is gone through one by one."""
    sizes = sizes_of_many_kinds()

    assert find_starts(memoryview(a_block(sizes))).tolist() == starts_of(sizes)
    assert 0 < sum(walks) < COUNT / 10


def test_a_body_that_looks_like_a_record_leads_nobody_astray(walks: list[int], monkeypatch: pytest.MonkeyPatch):
    """Bodies are of strangers, who may have read how records are found. They are not tried that way again and again."""
    sizes, tries = sizes_of_many_kinds(least=900), []
    in_lanes = records._walk_in_lanes
    monkeypatch.setattr(records, "_walk_in_lanes", lambda block, at: (tries.append(at), in_lanes(block, at))[1])

    assert find_starts(memoryview(a_block(sizes, body=HEAD.pack(100, MAGIC_V1)))).tolist() == starts_of(sizes)
    assert sum(walks) > COUNT / 2
    assert len(tries) == 1


@pytest.mark.parametrize("least", [900, 6000])
def test_a_block_that_ends_within_a_record_is_followed_up_to_it(least: int):
    """So large ranges of a log are read; also of records that are too large to be found from many places."""
    sizes = sizes_of_many_kinds(least, least + 1100)

    starts, stop = follow_sizes(memoryview(a_block(sizes))[:-1])

    assert starts.tolist() == starts_of(sizes)[:-1]
    assert stop == starts_of(sizes)[-1]


@pytest.mark.parametrize("size", [0, 1, -1, -(1 << 31), (1 << 31) - 1, RECORD_SIZE_MIN - 1])
def test_a_size_that_cannot_be_is_named(size: int):
    """As if everything had been gone through from the beginning."""
    sizes = sizes_of_many_kinds()
    block, wrong = a_block(sizes), starts_of(sizes)[COUNT // 2]
    struct.pack_into(">i", block, wrong, size)

    with pytest.raises(CorruptRecord, match=f"size is {size}") as raised:
        find_starts(memoryview(block))

    assert raised.value.position == wrong


def test_a_size_that_leads_into_another_record_is_followed():
    """What is there is for others to judge: here only sizes count."""
    sizes = sizes_of_many_kinds(least=900)
    block, wrong = a_block(sizes), starts_of(sizes)[COUNT // 2]
    struct.pack_into(">i", block, wrong, 500)

    with pytest.raises(CorruptRecord) as raised:
        find_starts(memoryview(block))

    assert raised.value.position == wrong + 500


def test_a_size_below_all_is_named_though_what_follows_leads_on():
    """Nothing of a record fits in so few bytes, wherever they lead."""
    sizes = sizes_of_many_kinds(least=900)
    block, wrong = a_block(sizes), starts_of(sizes)[COUNT // 2]
    struct.pack_into(">i", block, wrong, 20)
    struct.pack_into(">i", block, wrong + 20, sizes[COUNT // 2] - 20)

    with pytest.raises(CorruptRecord, match="size is 20") as raised:
        find_starts(memoryview(block))

    assert raised.value.position == wrong
