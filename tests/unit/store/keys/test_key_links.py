"""New keys into a slot table: both kinds, also on tables that are damaged."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.accelerated import KINDS, implementation, needs_native

from holdfast.store.keys.key_links import ITEM, pack_numbers, unpack_keys

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
KEYS = st.lists(st.tuples(st.integers(0, 60) | st.integers(0, (1 << 31) - 1), INT64, INT64), max_size=40)


def pack(keys: list[tuple[int, int, int]]) -> bytes:
    return pack_numbers([number for key in keys for number in key])


def link(kind: str, table: bytearray, dirty: bytearray, block: int, *arguments: Any) -> Any:
    return implementation("link_keys", kind)(memoryview(table), dirty, block, *arguments)


def test_packed_keys_come_back():
    """Three numbers each, of 64 bits."""
    keys = [(1, -(1 << 63), (1 << 63) - 1), (2, 3, 4)]

    assert list(unpack_keys(pack(keys))) == keys


@pytest.mark.parametrize("kind", KINDS)
def test_keys_of_one_slot_form_a_chain(kind: str):
    """The slot has the newest, each item the one before it; the blocks with changed slots are marked."""
    table, dirty = bytearray(4 * 10), bytearray(5)

    items, used = link(kind, table, dirty, 2, pack([(13, 500, 1000), (7, 600, 2999), (23, 700, 3000)]), 1, 1000)

    assert list(ITEM.iter_unpack(items)) == [(13, 500, 0, 0), (7, 600, 1, 0), (23, 700, 2, 1)]
    assert used == 2
    assert [int.from_bytes(table[at : at + 4], "big") for at in range(0, 40, 4)] == [0, 0, 0, 3, 0, 0, 0, 2, 0, 0]
    assert dirty == bytes([0, 1, 0, 1, 0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_that_no_earlier_item_can_have_is_empty(kind: str):
    """The table may be damaged: an item never refers to itself or to a later one."""
    table = bytearray(b"\x00\x00\x00\x05\x00\x00\x00\x04\xff\xff\xff\xff")

    items, used = link(kind, table, bytearray(3), 1, pack([(0, 1, 0), (1, 2, 0), (2, 3, 0)]), 5, 0)

    assert [previous for _, _, _, previous in ITEM.iter_unpack(items)] == [0, 4, 0]
    assert used == 2


@needs_native()
@given(
    table=st.binary(min_size=4, max_size=160).map(lambda raw: raw[: len(raw) // 4 * 4]),
    block=st.integers(1, 16),
    keys=KEYS,
    known=st.integers(1, 1 << 30),
    begin_ms=INT64,
)
def test_both_link_alike(table: bytes, block: int, keys: list[tuple[int, int, int]], known: int, begin_ms: int):
    """Whatever is in the table."""
    results = []
    for kind in ("python", "native"):
        changed, dirty = bytearray(table), bytearray(len(table) // 4)
        results.append((*link(kind, changed, dirty, block, pack(keys), known, begin_ms), changed, dirty))

    assert results[0] == results[1]


@needs_native()
@pytest.mark.parametrize(
    ("slots", "blocks", "block", "keys", "known"),
    [
        (0, 1, 1, pack([(1, 1, 1)]), 1),
        (4, 3, 1, pack([(1, 1, 1)]), 1),
        (4, 4, 0, pack([(1, 1, 1)]), 1),
        (4, 4, 1, pack([(1, 1, 1)])[:-1], 1),
        (4, 4, 1, pack([(1 << 31, 1, 1)]), 1),
        (4, 4, 1, pack([(1, 1, 1)] * 2), (1 << 31) - 2),
        (4, 4, 1, pack([(1, 1, 1)]), 0),
    ],
)
def test_arguments_that_do_not_fit_change_nothing(slots: int, blocks: int, block: int, keys: bytes, known: int):
    """The compiled function refuses them: it never writes outside the table."""
    table, dirty = bytearray(4 * slots), bytearray(blocks)

    with pytest.raises((ValueError, BufferError)):
        link("native", table, dirty, block, keys, known, 0)

    assert (table, dirty) == (bytes(4 * slots), bytes(blocks))


@needs_native()
def test_one_buffer_cannot_be_both():
    """Two views of the same bytes would be changed under each other."""
    shared = bytearray(64)

    with pytest.raises(BufferError):
        implementation("link_keys", "native")(
            memoryview(shared)[:40], memoryview(shared)[36:], 1, pack([(1, 1, 1)]), 1, 0
        )
    with pytest.raises(BufferError):
        implementation("link_keys", "native")(memoryview(bytes(8)), bytearray(2), 1, pack([(1, 1, 1)]), 1, 0)
