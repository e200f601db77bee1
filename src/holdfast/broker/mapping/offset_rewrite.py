"""Rewrites queue ids and offsets in records to those of the logical queue, for clients without offset deltas.

    size i32 | magic i32 | body crc i32 | queue id i32 | flag i32 | queue offset i64 | ...
                                          ^ logical                 ^ + delta

The log contains physical numbers, so this requires a copy. Body checksums do not cover the rewritten fields.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from holdfast.wire.records.record import RECORD_SIZE_MIN, Piece

_SIZE = struct.Struct(">i")
_QUEUE_ID = struct.Struct(">i")
_QUEUE_ID_AT = 12
_OFFSET = struct.Struct(">q")
_OFFSET_AT = 20


def rewrite_offsets(pieces: Iterable[Piece], queue_id: int, delta: int) -> tuple[bytearray, int | None]:
    """Return a copy of the consecutive records in *pieces* with the queue id and offsets of their logical queue.

    The second value is the position of the last record in the copy; None if there is none.
    """
    data = bytearray()
    for piece in pieces:
        data += piece
    at = 0
    last = None
    while at + RECORD_SIZE_MIN <= len(data):
        (size,) = _SIZE.unpack_from(data, at)
        if size < RECORD_SIZE_MIN:
            break  # Another broker sent an invalid record: the client's decoder will report it.
        (offset,) = _OFFSET.unpack_from(data, at + _OFFSET_AT)
        _QUEUE_ID.pack_into(data, at + _QUEUE_ID_AT, queue_id)
        _OFFSET.pack_into(data, at + _OFFSET_AT, offset + delta)
        last = at
        at += size
    return data, last


def find_last(records: Piece) -> int | None:
    """Return the position of the last of consecutive records; None if there is none."""
    at = 0
    last = None
    while at + RECORD_SIZE_MIN <= len(records):
        (size,) = _SIZE.unpack_from(records, at)
        if size < RECORD_SIZE_MIN:
            break
        last = at
        at += size
    return last


def read_queue_id(record: Piece) -> int:
    """Return the queue id in a record."""
    (queue_id,) = _QUEUE_ID.unpack_from(record, _QUEUE_ID_AT)
    return int(queue_id)
