"""Records for clients that know no offset delta: queue id and queue offset as the logical queue has them.

    size i32 | magic i32 | body crc i32 | queue id i32 | flag i32 | queue offset i64 | ...
                                          ^ logical                 ^ + delta

The log keeps physical numbers, so this costs a copy. Body checksums do not cover what is changed.
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


def restamp(pieces: Iterable[Piece], queue_id: int, delta: int) -> tuple[bytearray, int]:
    """Return the records in *pieces*, which stand one behind the other, with the numbers of their logical queue.

    Beside them, where the last one begins; -1 when there is none.
    """
    data = bytearray()
    for piece in pieces:
        data += piece
    at, last = 0, -1
    while at + RECORD_SIZE_MIN <= len(data):
        (size,) = _SIZE.unpack_from(data, at)
        if size < RECORD_SIZE_MIN:
            break  # What another broker sent is no record: that is for the client to find out.
        (offset,) = _OFFSET.unpack_from(data, at + _OFFSET_AT)
        _QUEUE_ID.pack_into(data, at + _QUEUE_ID_AT, queue_id)
        _OFFSET.pack_into(data, at + _OFFSET_AT, offset + delta)
        last = at
        at += size
    return data, last


def find_last(records: Piece) -> int:
    """Return where the last of some records begins, which stand one behind the other; -1 when there is none."""
    at, last = 0, -1
    while at + RECORD_SIZE_MIN <= len(records):
        (size,) = _SIZE.unpack_from(records, at)
        if size < RECORD_SIZE_MIN:
            break
        last = at
        at += size
    return last


def read_queue_id(record: Piece) -> int:
    """Return the queue that a whole record says it is of."""
    (queue_id,) = _QUEUE_ID.unpack_from(record, _QUEUE_ID_AT)
    return int(queue_id)
