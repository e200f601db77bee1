"""The keys and ids of the messages in a batch, which is one record.

    outside   UNIQ_KEY of the batch, KEYS of all its messages      indexed as for any record
    ids       Outside, INNER_IDS states that the messages' ids follow the batch's, one by one: so they are known without
              opening the batch. They are indexed by block: an id without its last three digits
              ...0FFE | ...0FFF ...1000 ...1001       a batch of three with id 0FFE is indexed under ...0 and ...1
              Or INNER_IDS states that there are none: then the items are not read
    inside    If the producer states nothing outside, as Java's does not, the items are read, unless they are
              compressed

So all ids of a batch take only one or two index items if its producer states them outside.
"""

from __future__ import annotations

import re
from typing import Final

from holdfast.model import property_names as names
from holdfast.model.errors import RecordRefused, RemoteProtocolError
from holdfast.store.base.index_fields import INNER_BITS, KEYS, UNIQUE_KEY, VALUE_END, index_keys, inner_count
from holdfast.wire.records.batch import Piece, split_properties
from holdfast.wire.records.compression import COMPRESSED
from holdfast.wire.records.inner_batch import NO_IDS
from holdfast.wire.records.properties import find_by_marker
from holdfast.wire.records.record import StoredRecord

_IDS: Final = f"{names.INNER_IDS}\x01".encode()
_NO_IDS: Final = NO_IDS.encode()
_ID: Final = re.compile(rb"[0-9A-F]{8,}")
_KEY_AT: Final = len(UNIQUE_KEY)
_VALUE_END: Final = VALUE_END[0]
_COUNT_DIGITS: Final = 4  # at the end of an id: a counter that wraps around to 0
_BLOCK_DIGITS: Final = 3


def inner_keys(sys_flag: int, properties: bytes, body: Piece) -> list[bytes]:
    """Return the keys under which the messages of a batch are indexed, besides those in the batch's properties."""
    stated = find_by_marker(properties, _IDS, VALUE_END)
    if stated is not None:
        return [] if stated == _NO_IDS else _blocks(sys_flag, properties)
    if sys_flag & COMPRESSED:
        return []
    try:
        texts = split_properties(body)
    except RemoteProtocolError:
        return []  # The batch is corrupt: its readers get an error.
    # Usually an id is the only key, and comes first.
    return [
        key
        for text in texts
        for key in (
            (text[_KEY_AT : text.find(VALUE_END)],)
            if text.rfind(UNIQUE_KEY) == 0 and KEYS not in text and text[-1] == _VALUE_END
            else index_keys(text)
        )
        if key
    ]


def _blocks(sys_flag: int, properties: bytes) -> list[bytes]:
    """Return the blocks that contain the ids of a batch's messages."""
    span = _id_span(sys_flag, properties)
    if span is None:
        return []
    prefix, number, count = span
    first, last = number + 1 >> 4 * _BLOCK_DIGITS, number + count >> 4 * _BLOCK_DIGITS
    return [b"%s%X" % (prefix, block & 0xF) for block in range(first, last + 1)]


def block_of(key: bytes) -> bytes | None:
    """Return the block of an id; None if *key* is not an id."""
    return key[:-_BLOCK_DIGITS] if _ID.fullmatch(key) else None


def has_item_id(record: StoredRecord, message_id: bytes) -> bool:
    """Return whether *message_id* is the id of a message of a batch whose messages' ids follow its own."""
    properties = bytes(record.properties)
    span = _id_span(record.sys_flag, properties)
    if span is None or find_by_marker(properties, _IDS, VALUE_END) in (None, _NO_IDS):
        return False
    prefix, number, count = span
    if not _ID.fullmatch(message_id) or message_id[:-_COUNT_DIGITS] != prefix:
        return False
    return 1 <= (int(message_id[-_COUNT_DIGITS:], 16) - number & 0xFFFF) <= count


def has_item_key(record: StoredRecord, key: bytes) -> bool:
    """Return whether a message of a batch, whose items are read, has *key* among its keys."""
    if record.sys_flag & INNER_BITS != INNER_BITS or record.sys_flag & COMPRESSED or key not in bytes(record.body):
        return False
    return key in inner_keys(record.sys_flag, bytes(record.properties), record.body)


def _id_span(sys_flag: int, properties: bytes) -> tuple[bytes, int, int] | None:
    """Return a batch's id without its number, that number, and the count of ids that follow; None if it has none."""
    unique = find_by_marker(properties, UNIQUE_KEY, VALUE_END)
    if unique is None or sys_flag & INNER_BITS != INNER_BITS or not _ID.fullmatch(unique):
        return None
    try:
        count = inner_count(sys_flag, properties)
    except RecordRefused:
        return None
    return unique[:-_COUNT_DIGITS], int(unique[-_COUNT_DIGITS:], 16), count
