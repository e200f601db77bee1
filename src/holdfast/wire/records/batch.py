"""Many messages in one body: the body of a batch send (320) or of an inner batch record.

    size i32 | 0 i32 | 0 i32 | flag i32 | body size i32 | body | properties size i16 | properties

Items follow each other without a count. `size` covers the whole item. The two zeros are a magic and a checksum that no
reader inspects. Topic, queue and times are those of the request that carries the batch.

Pure struct work on the hot path; does not interpret the properties.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from functools import partial, reduce
from operator import add
from typing import Final

from holdfast.model.errors import LocalProtocolError, RemoteProtocolError

Piece = bytes | bytearray | memoryview

_HEAD = struct.Struct(">iiiii")
_SIZE = struct.Struct(">i")
_SIZE_BYTES: Final = range(_SIZE.size)
_SIZES = struct.Struct(">i12xi")  # of an item and of its body
_PROPERTIES_SIZE = struct.Struct(">H")
ITEM_OVERHEAD: Final = _HEAD.size + _PROPERTIES_SIZE.size
"""The size of an item without its body and properties."""
_PROPERTIES_SIZE_MAX: Final = 0x7FFF


def encode_items(items: Iterable[tuple[int, Piece, bytes]]) -> bytes:
    """Return the body of a batch of (flag, body, properties).

    Raises:
        LocalProtocolError: the properties of an item exceed their size field.
    """
    pieces: list[Piece] = []
    # A producer's messages are mostly alike: heads are packed again only when a size or flag changes.
    last: tuple[int, int, int] | None = None
    head = properties_head = b""
    for flag, body, properties in items:
        sizes = (flag, len(body), len(properties))
        if sizes != last:
            _, body_size, properties_size = last = sizes
            if properties_size > _PROPERTIES_SIZE_MAX:
                raise LocalProtocolError(f"properties of {properties_size} bytes; at most {_PROPERTIES_SIZE_MAX} fit")
            head = _HEAD.pack(ITEM_OVERHEAD + body_size + properties_size, 0, 0, flag, body_size)
            properties_head = _PROPERTIES_SIZE.pack(properties_size)
        pieces += (head, body, properties_head, properties)
    return b"".join(pieces)


def encode_columns(flags: Sequence[int], bodies: Sequence[Piece], *properties: Sequence[bytes]) -> bytes:
    """Return the body of a batch whose flags, bodies and pieces of properties come in separate columns.

    Each column has one value per item. Columns are copied by slice: items of equal size need no work per item.

    Raises:
        LocalProtocolError: the properties of an item exceed their size field.
    """
    count = len(bodies)
    if not count:
        return b""
    body_sizes = [*map(len, bodies)]
    properties_sizes = [*reduce(partial(map, add), (map(len, column) for column in properties))]
    if (largest := max(properties_sizes)) > _PROPERTIES_SIZE_MAX:
        raise LocalProtocolError(f"properties of {largest} bytes; at most {_PROPERTIES_SIZE_MAX} fit")
    width = 3 + len(properties)
    pieces: list[Piece] = [b""] * (count * width)
    if len({*flags}) == len({*body_sizes}) == len({*properties_sizes}) == 1:
        size = ITEM_OVERHEAD + body_sizes[0] + largest
        pieces[0::width] = [_HEAD.pack(size, 0, 0, flags[0], body_sizes[0])] * count
        pieces[2::width] = [_PROPERTIES_SIZE.pack(largest)] * count
    else:
        pieces[0::width] = [
            _HEAD.pack(ITEM_OVERHEAD + body_size + properties_size, 0, 0, flag, body_size)
            for flag, body_size, properties_size in zip(flags, body_sizes, properties_sizes, strict=True)
        ]
        pieces[2::width] = map(_PROPERTIES_SIZE.pack, properties_sizes)
    pieces[1::width] = bodies
    for slot, column in enumerate(properties, 3):
        pieces[slot::width] = column
    return b"".join(pieces)


def count_items(body: Piece, *, count_max: int) -> int:
    """Return the number of items in a batch, reading only their sizes.

    Raises:
        RemoteProtocolError: the sizes do not add up, or there are more than *count_max*.
    """
    view = memoryview(body)
    end = len(view)
    unpack = _SIZE.unpack_from
    if end >= ITEM_OVERHEAD:
        # Items often have equal sizes. Then each size field holds the same value, at a fixed distance.
        (size,) = unpack(view, 0)
        count = end // size if size >= ITEM_OVERHEAD and end % size == 0 else 0
        if 0 < count <= count_max and all(
            view[at::size].tobytes() == view[at : at + 1].tobytes() * count for at in _SIZE_BYTES
        ):
            return count
    at = 0
    for count in range(count_max + 1):
        remaining = end - at
        if not remaining:
            return count
        size = unpack(view, at)[0] if remaining >= ITEM_OVERHEAD else 0
        if not ITEM_OVERHEAD <= size <= remaining:
            raise RemoteProtocolError(f"batch item {count}: {remaining} bytes are left, but its size is {size}")
        at += size
    raise RemoteProtocolError(f"a batch holds more than {count_max} items")


def split_properties(body: Piece) -> list[bytes]:
    """Return the properties of every item, in a third of the time that decoding whole items takes.

    Raises:
        RemoteProtocolError: the sizes do not add up.
    """
    data = bytes(body)
    end = len(data)
    found: list[bytes] = []
    at = 0
    unpack = _SIZES.unpack_from
    while at < end:
        size, body_size = unpack(data, at) if end - at >= ITEM_OVERHEAD else (0, 0)
        start, at = at + ITEM_OVERHEAD + body_size, at + size
        if body_size < 0 or start > at or at > end or data[start - 2] << 8 | data[start - 1] != at - start:
            raise RemoteProtocolError(f"batch item {len(found)}: its sizes do not add up")
        found.append(data[start:at])
    return found


def find_item_ends(body: bytes, *, count_max: int) -> array[int]:
    """Return the end of each item of a batch, for callers that read a few items at a time.

    Raises:
        RemoteProtocolError: the sizes do not add up, there are more than *count_max* items, or the properties of an
            item are larger than a record allows.
    """
    end = len(body)
    ends = array("I")
    at = 0
    unpack, add_end = _SIZES.unpack_from, ends.append
    while at < end:
        size, body_size = unpack(body, at) if end - at >= ITEM_OVERHEAD else (0, 0)
        start, at = at + ITEM_OVERHEAD + body_size, at + size
        if (
            body_size < 0
            or not 0 <= at - start <= _PROPERTIES_SIZE_MAX
            or at > end
            or body[start - 2] << 8 | body[start - 1] != at - start
        ):
            raise RemoteProtocolError(f"batch item {len(ends)}: its sizes do not add up")
        add_end(at)
        if len(ends) > count_max:
            raise RemoteProtocolError(f"a batch holds more than {count_max} items")
    return ends


def split_items(body: Piece, *, count_max: int | None = None) -> list[tuple[int, memoryview, bytes]]:
    """Return every item of a batch as (flag, body, properties). The bodies are views of *body*.

    Raises:
        RemoteProtocolError: the sizes do not add up, or there are more than *count_max* items. The whole batch is then
            invalid.
    """
    view = memoryview(body)
    end = len(view)
    items: list[tuple[int, memoryview, bytes]] = []
    at = 0
    unpack_head, unpack_size = _HEAD.unpack_from, _PROPERTIES_SIZE.unpack_from
    while at < end:
        if end - at < ITEM_OVERHEAD:
            raise RemoteProtocolError(f"batch item {len(items)}: {end - at} bytes are too few")
        size, _, _, flag, body_size = unpack_head(view, at)
        body_start = at + 20
        body_end = body_start + body_size
        if body_size < 0 or body_end + 2 > end:
            raise RemoteProtocolError(f"batch item {len(items)}: body of {body_size} bytes does not fit")
        item_end = body_end + 2 + unpack_size(view, body_end)[0]
        if item_end > end or item_end - at != size:
            raise RemoteProtocolError(f"batch item {len(items)}: size is {size}, parts add up to {item_end - at}")
        if len(items) == count_max:
            raise RemoteProtocolError(f"a batch holds more than {count_max} items")
        items.append((flag, view[body_start:body_end], bytes(view[body_end + 2 : item_end])))
        at = item_end
    return items
