"""A batch that stays one record: its producer packs it, its consumer unpacks it, and brokers never open it.

    sys flag     0x40 and 0x80: the body is items (`records.batch`), compressed together (bits: `records.compression`)
    properties   UNIQ_KEY   of the batch; each item has its own
                 INNER_NUM  the number of items
                 KEYS       every distinct key of the items
                 TAGS       the tag of the items, if all have the same one
                 INNER_IDS  `next`: the items' ids follow the id of the batch, one by one; `none`: they have no ids
                 INNER_BASE the offset of the first item; the broker adds it. Item i has this offset + i

So a broker need not open the body, which it could not do if the batch is compressed. Java's producer sends neither
count nor keys nor tags; Java's broker counts the items.

Batches from other peers are untrusted: both the declared size and the declared number of items are validated.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable
from enum import Enum
from typing import Final

import msgspec

from holdfast.model import property_names as names
from holdfast.model.errors import LocalProtocolError, RemoteProtocolError
from holdfast.model.numbers import parse_count
from holdfast.wire.records.batch import Piece, find_item_ends, split_items
from holdfast.wire.records.compression import DECOMPRESSED_SIZE_MAX, Codec, compress, decompress, flag_of
from holdfast.wire.records.properties import PROPERTIES_SIZE_MAX, find_property

INNER_BATCH: Final = 0x40 | 0x80
"""Both sys flag bits of an inner batch."""
COUNT_MAX: Final = 0x7FFF
"""An index entry has 16 bits for the count."""
UNPACKED_SIZE_MAX: Final = 15 * 1024 * 1024
"""Limit for the items together: a client that unpacks a batch for others passes the items on in one frame."""
NO_IDS: Final = "none"
"""The value of INNER_IDS if the items have no ids."""
BATCH_SUPPORT_FIELD: Final = "opensBatches"
"""The request field in which a reader says how it handles inner batches. See `BatchSupport`."""
# Reserved for what brokers add to the properties of a record: INNER_BASE, the region, the cluster and others.
_BROKER_PROPERTIES_SIZE: Final = 1024
KEYS_SIZE_MAX: Final = PROPERTIES_SIZE_MAX - _BROKER_PROPERTIES_SIZE - 1024
"""Limit for the keys of all items, with separators, beside the other properties of the batch."""

_COUNT: Final = names.INNER_COUNT.encode()


class BatchSupport(Enum):
    """How a reader handles an inner batch. The values are those of the request field.

    Attributes:
        NONE: It does not open batches: the broker sends it single messages.
        ALL: It opens a batch and uses every item, also items before the requested offset.
        REQUESTED: It opens a batch and uses only the requested items.
    """

    NONE = "false"
    ALL = "all"
    REQUESTED = "true"


class InnerBatch(msgspec.Struct, frozen=True, gc=False):
    """A batch as a send request carries it."""

    body: bytes
    sys_flag: int
    properties: str


def is_inner_batch(sys_flag: int) -> bool:
    """Return whether a record with *sys_flag* is an inner batch."""
    return sys_flag & INNER_BATCH == INNER_BATCH


def wrap_items(
    items: bytes,
    count: int,
    batch_id: str,
    *,
    keys: Iterable[str] = (),
    tags: Collection[str | None] = (),
    codec: Codec | None = None,
    has_sequential_ids: bool = False,
    has_ids: bool = True,
) -> InnerBatch:
    """Return *items*, encoded by `records.batch`, as one record.

    Args:
        items: The encoded items.
        count: The number of items.
        batch_id: The unique key of the batch.
        keys: All keys of all items.
        tags: All tags of all items; None stands for an item without a tag.
        codec: How to compress the items together, if that makes them smaller; None for no compression.
        has_sequential_ids: Declare that the items' ids follow *batch_id* one by one, so that lookups by id work.
        has_ids: False declares that the items have no ids, so that no reader searches the body for them.

    Raises:
        LocalProtocolError: there are too many items, they are too large, or their keys do not fit into the properties.
    """
    if not 1 <= count <= COUNT_MAX:
        raise LocalProtocolError(f"an inner batch holds 1 to {COUNT_MAX} messages, not {count}")
    if len(items) > UNPACKED_SIZE_MAX:
        raise LocalProtocolError(f"an inner batch holds up to {UNPACKED_SIZE_MAX} bytes, not {len(items)}")
    text = f"{names.UNIQUE_KEY}\x01{batch_id}\x02{names.INNER_COUNT}\x01{count}\x02"
    if has_sequential_ids:
        text += f"{names.INNER_IDS}\x01next\x02"
    elif not has_ids:
        text += f"{names.INNER_IDS}\x01{NO_IDS}\x02"
    all_keys = " ".join(dict.fromkeys(keys))
    if all_keys:
        text += f"{names.KEYS}\x01{all_keys}\x02"
    distinct_tags = set(tags)
    if len(distinct_tags) == 1 and (tag := distinct_tags.pop()):
        text += f"{names.TAGS}\x01{tag}\x02"
    if len(text) * 4 > PROPERTIES_SIZE_MAX - _BROKER_PROPERTIES_SIZE:
        size = len(text.encode())
        if size > PROPERTIES_SIZE_MAX - _BROKER_PROPERTIES_SIZE:
            raise LocalProtocolError(f"the keys of {count} messages make properties of {size} bytes, which is too much")
    if codec is not None and len(smaller := compress(items, codec)) < len(items):
        return InnerBatch(smaller, INNER_BATCH | flag_of(codec), text)
    return InnerBatch(items, INNER_BATCH, text)


def unwrap_items(
    body: Piece, sys_flag: int, properties: bytes, *, size_max: int = DECOMPRESSED_SIZE_MAX
) -> list[tuple[int, memoryview, bytes]]:
    """Return the items of an inner batch as (flag, body, properties).

    Args:
        body: The body of the record.
        sys_flag: Its sys flag.
        properties: Its properties.
        size_max: Limit for the items together. No more than that is ever held in memory.

    Raises:
        RemoteProtocolError: it cannot be decompressed, is too large, its sizes do not add up, or its number of items
            differs from the declared one. The whole batch is then invalid: the index relies on the declared count.
    """
    declared = _declared_or_one(properties)
    items = split_items(decompress(body, sys_flag, size_max=size_max), count_max=declared)
    _check_count(declared, len(items))
    return items


def unwrap_encoded(
    body: Piece, sys_flag: int, properties: bytes, *, size_max: int = DECOMPRESSED_SIZE_MAX
) -> tuple[bytes, array[int]]:
    """Return the encoded items and the end of each, for callers that read a few items at a time.

    Raises:
        RemoteProtocolError: as for `unwrap_items`; or the properties of an item are larger than a record allows.
    """
    declared = _declared_or_one(properties)
    items = decompress(body, sys_flag, size_max=size_max)
    ends = find_item_ends(items, count_max=declared)
    _check_count(declared, len(ends))
    return items, ends


def _declared_or_one(properties: bytes) -> int:
    return (
        declared_count(properties) or 1
    )  # Java's broker accepts a batch without a count, and counts it as one message.


def _check_count(declared: int, found: int) -> None:
    if declared != found:
        raise RemoteProtocolError(f"an inner batch declares {declared} messages, but holds {found}")


def declared_count(properties: bytes) -> int | None:
    """Return the number of items that an inner batch declares; None if it declares none.

    Raises:
        RemoteProtocolError: the declared count is invalid.
    """
    text = find_property(properties, _COUNT)
    if text is None:
        return None
    count = parse_count(text.decode("latin-1"), 0)
    if not 1 <= count <= COUNT_MAX:
        raise RemoteProtocolError(f"an inner batch declares {text[:20]!r} messages; not a valid count")
    return count
