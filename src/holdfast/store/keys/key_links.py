"""New keys into the slot table of the key index.

    keys    hash i64 | position of the record i64 | its store time i64 | ...       in memory only: native byte order
    table   newest item of each chain i32 | ...                                    a file's slots, byte for byte
    dirty   a byte per block of slots: 1 if a slot of the block is newer than in the file
    items   key hash i32 | position i64 | seconds since begin time i32 | previous item of the chain i32 | ...

*table* and *dirty* are changed in place. Everything on disk is big-endian.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from typing import Final

from holdfast.native import accelerated

KEY_SIZE: Final = 24
SLOT: Final = struct.Struct(">i")
ITEM: Final = struct.Struct(">iqii")
_SECONDS_MAX: Final = (1 << 31) - 1

IndexKey = tuple[int, int, int]
"""(hash, position of the record, its store time)."""


def pack_numbers(numbers: Sequence[int]) -> bytes:
    """Return keys, three numbers each, packed."""
    return array("q", numbers).tobytes()


def unpack_keys(keys: bytes) -> Iterator[IndexKey]:
    """Yield the keys in *keys*."""
    numbers = iter(array("q", keys))
    return zip(numbers, numbers, numbers, strict=True)


@accelerated
def link_keys(
    table: memoryview, dirty: bytearray, block_slots: int, keys: bytes, known: int, begin_ms: int
) -> tuple[bytes, int]:
    """Make *keys* the newest of their chains. Return their items, and the number of slots that were empty before.

    Args:
        table: The slots. A head that no item before the key's can have counts as empty.
        dirty: The blocks of the table.
        block_slots: The number of slots in a block.
        keys: The keys, packed.
        known: The number of the first new item.
        begin_ms: The time from which the items count seconds.
    """
    slots = len(table) // SLOT.size
    used = 0
    items: list[bytes] = []
    add, pack, unpack_head, pack_head = items.append, ITEM.pack, SLOT.unpack_from, SLOT.pack_into
    seconds, seconds_of = 0, begin_ms
    for number, (key_hash, position, store_ms) in enumerate(unpack_keys(keys), known):
        slot = key_hash % slots
        (previous,) = unpack_head(table, 4 * slot)
        if not 0 < previous < number:
            previous = 0
            used += 1
        if store_ms != seconds_of:
            seconds, seconds_of = min(max(store_ms - begin_ms, 0) // 1000, _SECONDS_MAX), store_ms
        pack_head(table, 4 * slot, number)
        dirty[slot // block_slots] = 1
        add(pack(key_hash, position, seconds, previous))
    return b"".join(items), used
