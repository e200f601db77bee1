"""A batch that stays one record: closed by its producer, opened by its consumer, and by nobody in between.

    sys flag     0x40 and 0x80: the body is items (`wire.batch`); the bits of `wire.compression` speak of all of them
    properties   UNIQ_KEY   of the batch; each item has its own
                 INNER_NUM  how many items
                 KEYS       every key of every item, each once
                 TAGS       the tag of the items, if all have the same one
                 INNER_IDS  `next`: the ids of the items follow that of the batch, one by one; `none`: they have none
                 INNER_BASE the offset of the first; the broker adds it. Item i has the offset of the record + i

So a broker knows all that it needs without looking inside, which it could not do if the batch is compressed. Java's
producer says neither count nor keys nor tags; its broker counts the items.

What others closed is not trusted: neither how large it says it is, nor how many items it says it has.
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
from holdfast.wire.records.batch import Piece, measure_items, split_items
from holdfast.wire.records.compression import DECOMPRESSED_SIZE_MAX, Codec, compress, decompress, flag_of
from holdfast.wire.records.properties import PROPERTIES_SIZE_MAX, find_property

INNER_BATCH: Final = 0x40 | 0x80
"""Both bits of the sys flag: a batch, kept whole."""
COUNT_MAX: Final = 0x7FFF
"""An index entry has 16 bits for the count."""
OPENED_SIZE_MAX: Final = 15 * 1024 * 1024
"""How large the items may be together: whoever opens a batch for others hands an item on in a frame."""
NO_IDS: Final = "none"
"""Said of the ids of items that have none."""
OPENS_FIELD: Final = "opensBatches"
"""In a request: what whoever asks makes of a batch. See `Opening`."""
# What brokers add to the properties of a record: INNER_BASE, the region, the cluster and such.
_BROKERS_SHARE: Final = 1024
KEYS_SIZE_MAX: Final = PROPERTIES_SIZE_MAX - _BROKERS_SHARE - 1024
"""How much room there is for the keys of all items, with their blanks, beside what else is said outside."""

_COUNT: Final = names.INNER_COUNT.encode()


class Opening(Enum):
    """What a reader makes of a batch that was kept whole. The texts are those of the field.

    Attributes:
        NONE: Nothing: it gets single messages.
        ALL: It opens it and takes everything that is in it, also what is before the offset that it asked for.
        WANTED: It opens it and takes what it asked for.
    """

    NONE = "false"
    ALL = "all"
    WANTED = "true"


class InnerBatch(msgspec.Struct, frozen=True, gc=False):
    """A batch as its request carries it."""

    body: bytes
    sys_flag: int
    properties: str


def is_inner_batch(sys_flag: int) -> bool:
    """Say whether a record with *sys_flag* is a batch that was kept whole."""
    return sys_flag & INNER_BATCH == INNER_BATCH


def wrap_items(
    items: bytes,
    count: int,
    batch_id: str,
    *,
    keys: Iterable[str] = (),
    tags: Collection[str | None] = (),
    codec: Codec | None = None,
    ids_follow: bool = False,
    has_ids: bool = True,
) -> InnerBatch:
    """Return *items*, which `wire.batch` encoded, as one record.

    Args:
        items: The items.
        count: How many.
        batch_id: The unique key of the batch.
        keys: All keys of all items.
        tags: All tags of all items; None stands for those without.
        codec: How to compress them together, if that makes them smaller; None for not at all.
        ids_follow: Say that the ids of the items follow *batch_id* one by one, so that they are found by them.
        has_ids: False says that the items have none, so that nobody looks for them inside.

    Raises:
        LocalProtocolError: they are too many or too large, or their keys need more room than properties have.
    """
    if not 1 <= count <= COUNT_MAX:
        raise LocalProtocolError(f"an inner batch holds 1 to {COUNT_MAX} messages, not {count}")
    if len(items) > OPENED_SIZE_MAX:
        raise LocalProtocolError(f"an inner batch holds up to {OPENED_SIZE_MAX} bytes, not {len(items)}")
    text = f"{names.UNIQUE_KEY}\x01{batch_id}\x02{names.INNER_COUNT}\x01{count}\x02"
    if ids_follow:
        text += f"{names.INNER_IDS}\x01next\x02"
    elif not has_ids:
        text += f"{names.INNER_IDS}\x01{NO_IDS}\x02"
    all_keys = " ".join(dict.fromkeys(keys))
    if all_keys:
        text += f"{names.KEYS}\x01{all_keys}\x02"
    the_tags = set(tags)
    if len(the_tags) == 1 and (tag := the_tags.pop()):
        text += f"{names.TAGS}\x01{tag}\x02"
    if len(text) * 4 > PROPERTIES_SIZE_MAX - _BROKERS_SHARE:
        size = len(text.encode())
        if size > PROPERTIES_SIZE_MAX - _BROKERS_SHARE:
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
        size_max: How large the items may be together. More never comes to be in memory.

    Raises:
        RemoteProtocolError: it cannot be uncompressed, is too large, its sizes do not add up, or it does not hold as
            many items as it says. Nothing of it is to be used: the index counts what it says.
    """
    said = _count_all(properties)
    items = split_items(decompress(body, sys_flag, size_max=size_max), count_max=said)
    _check_count(said, len(items))
    return items


def unwrap_some(
    body: Piece, sys_flag: int, properties: bytes, *, size_max: int = DECOMPRESSED_SIZE_MAX
) -> tuple[bytes, array[int]]:
    """Return the items as they stand, and where each ends, for whoever wants a few of them at a time.

    Raises:
        RemoteProtocolError: as `unwrap_items`; and the properties of one are larger than those of a record can be.
    """
    said = _count_all(properties)
    items = decompress(body, sys_flag, size_max=size_max)
    ends = measure_items(items, count_max=said)
    _check_count(said, len(ends))
    return items, ends


def _count_all(properties: bytes) -> int:
    return count_said(properties) or 1  # Java's broker takes one that does not say, and counts one.


def _check_count(said: int, found: int) -> None:
    if said != found:
        raise RemoteProtocolError(f"an inner batch says that it holds {said} messages, and holds {found}")


def count_said(properties: bytes) -> int | None:
    """Return how many items an inner batch says that it holds; None when it does not say.

    Raises:
        RemoteProtocolError: it is no number of items.
    """
    text = find_property(properties, _COUNT)
    if text is None:
        return None
    count = parse_count(text.decode("latin-1"), 0)
    if not 1 <= count <= COUNT_MAX:
        raise RemoteProtocolError(f"an inner batch says that it holds {text[:20]!r} messages")
    return count
