"""The records of a batch that is split: every item becomes a record, one after the other.

    item    size .. flag .. body size | body | properties size | properties
    record  head                      | body | topic | properties size | properties

Only plain batches: see `pack_items`. Everything else is staged message by message.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

from holdfast.model import property_names as names
from holdfast.model.java_hash import java_hash
from holdfast.native import accelerated
from holdfast.store.base.disk import Piece
from holdfast.store.base.index_fields import VALUE_END
from holdfast.store.queues.queue_index import ENTRY
from holdfast.wire.records.batch import ITEM_OVERHEAD
from holdfast.wire.records.properties import PROPERTIES_SIZE_MAX
from holdfast.wire.records.record import CRC_MASK, LAYOUTS, crc32

PackedItems = tuple[list[Piece], list[bytes], list[int], int]
"""The pieces of the records, the entry and the position of each record, and the size of all bodies."""

_ITEM_HEAD: Final = struct.Struct(">i8xii")  # Size, flag, body size.
_TAGS: Final = f"{names.TAGS}\x01".encode()
_INNER_COUNT: Final = f"{names.INNER_COUNT}\x01".encode()
_VALUE_END: Final = VALUE_END[0]


@accelerated
def pack_items(
    batch: Piece, head: bytes, topic_part: bytes, offset: int, position: int, end: int, size_max: int
) -> PackedItems | None:
    """Return the records of a batch; None if it is not plain: then the caller finds out why, message by message.

    A batch is plain if it has items, its sizes add up, no item is too large, none has the property of an inner batch
    or an unusual tag, and all records fit before *end*.

    Args:
        batch: The items. The pieces may be views of it.
        head: The fixed part of a record, with zeros where records differ.
        topic_part: The topic as records store it.
        offset: The offset of the first record in its queue.
        position: Its position in the log.
        end: The end of the space for the records.
        size_max: The largest body.
    """
    layout = LAYOUTS[head[39] >> 4 & 3]
    (_, magic, _, queue, _, _, _, sys_flag, born_ms, born_host, store_ms, store_host, times, prepared, _) = (
        layout.unpack(head)
    )
    view = memoryview(batch)
    total, overhead = len(view), len(head) + len(topic_part)
    pieces: list[Piece] = []
    entries: list[bytes] = []
    positions: list[int] = []
    unpack, pack, pack_entry = _ITEM_HEAD.unpack_from, layout.pack, ENTRY.pack
    at = bodies = 0
    while at < total:
        if total - at < ITEM_OVERHEAD:
            return None
        item_size, flag, body_size = unpack(view, at)
        body_at = at + 20
        body_end, at = body_at + body_size, at + item_size
        if not 0 <= body_size <= size_max or not 2 <= at - body_end <= PROPERTIES_SIZE_MAX + 2 or at > total:
            return None
        tail = view[body_end:at].tobytes()  # The record ends like this, too.
        tags_code = _find_tags_code(tail) if _TAGS in tail else 0
        if tail[0] << 8 | tail[1] != len(tail) - 2 or tail.find(_INNER_COUNT, 2) >= 0 or tags_code is None:
            return None
        size = overhead + body_size + len(tail)
        if position + size > end:
            return None
        body = view[body_at:body_end]
        pieces += (
            pack(
                size, magic, crc32(body) & CRC_MASK, queue, flag, offset, position, sys_flag, born_ms, born_host,
                store_ms, store_host, times, prepared, body_size,
            ),
            body,
            topic_part + tail,
        )  # fmt: skip
        entries.append(pack_entry(position, size, tags_code))
        positions.append(position)
        bodies += body_size
        offset += 1
        position += size
    return (pieces, entries, positions, bodies) if entries else None


def _find_tags_code(tail: bytes) -> int | None:
    """Return the hash of the tag, 0 without one; None if the last mark of a tag is not a property with a value.

    *tail* begins with the two bytes of its size.
    """
    at = tail.rfind(_TAGS, 2)
    if at < 0:
        return 0
    value = tail[at + len(_TAGS) :].partition(VALUE_END)[0]
    return _hash_tags(value) if value and (at == 2 or tail[at - 1] == _VALUE_END) else None


@lru_cache(512)
def _hash_tags(tags: bytes) -> int:
    return java_hash(tags.decode(errors="replace"))
