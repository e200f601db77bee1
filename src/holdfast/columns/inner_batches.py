"""Expand batches that were stored whole into one row per message.

    records   single | batch of 3         | single | batch of 2
    rows      single | item | item | item | single | item | item       item i has the offset of its record + i

First, a block is built in which compressed batches are decompressed, so that all rows lie in one block, in order. Then
each size leads to the next item. If all items of a batch have one size, the usual case, their sizes are compared at
once. Counts and sizes are validated before they are used, because the bytes are not trusted. A corrupt batch does not
prevent the others from being read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from holdfast.columns.records import Records, check_bodies
from holdfast.columns.slices import Block, Int64Array, view_unaligned
from holdfast.model.errors import RemoteProtocolError, UnreadableBatch
from holdfast.wire.records.batch import ITEM_OVERHEAD
from holdfast.wire.records.compression import CODEC_MASK, COMPRESSED, decompress
from holdfast.wire.records.inner_batch import INNER_BATCH, declared_count

_unpack_size: Final = struct.Struct(">i").unpack_from
_BODY_SIZE_AT: Final = 16
_BODY_AT: Final = 20
_IN_STEP_MIN: Final = 32  # batches to follow in step
# Decompressed batches are yielded at this size: an answer of a few megabytes may decompress to gigabytes.
_PLAIN_BYTES: Final = 8 * 1024 * 1024
_MISCOUNTED: Final = "it does not hold as many messages as it says, or one has a wrong size"


def are_batches(records: Records) -> npt.NDArray[np.bool_]:
    """Return for each record whether it is a batch that was stored whole, or for each row whether it was in one."""
    return records.flags & INNER_BATCH == INNER_BATCH


def open_batches(block: Block, records: Records, unreadable: list[UnreadableBatch]) -> Iterator[tuple[Block, Records]]:
    """Yield one row per message of *records* with the block that holds the rows; in several parts if it is large.

    Rows from a batch are marked as such: the checksum belongs to the whole batch and is already verified.

    Args:
        block: The bytes that hold the records.
        records: Single records and batches.
        unreadable: Receives an entry for every batch that cannot be opened: such a batch yields no rows.

    Raises:
        CorruptRecord: a batch does not match its checksum.
    """
    check_bodies(block, records.select(are_batches(records)))
    for plain, part in _uncompress(block, records, unreadable):
        try:
            rows = _to_rows(plain, part)
        except RemoteProtocolError:
            rows = _to_rows(plain, _without_unreadable(plain, part, unreadable))
        yield plain, rows


def _without_unreadable(block: Block, records: Records, unreadable: list[UnreadableBatch]) -> Records:
    """Return the *records* that can be opened; each batch is checked separately."""
    is_readable = np.ones(len(records), dtype=np.bool_)
    for number in np.flatnonzero(are_batches(records)).tolist():
        single = records.select(slice(number, number + 1))
        try:
            _to_rows(block, single)
        except RemoteProtocolError as error:
            is_readable[number] = False
            unreadable.append(UnreadableBatch(int(single.offsets[0]), str(error)))
    return records.select(is_readable)


def _uncompress(block: Block, records: Records, unreadable: list[UnreadableBatch]) -> Iterator[tuple[Block, Records]]:
    """Yield *records* in parts, each with a block in which no batch is compressed."""
    compressed = np.flatnonzero(are_batches(records) & ((records.flags & COMPRESSED) != 0)).tolist()
    if not compressed:
        yield block, records
        return
    first = size = 0
    plain: dict[int, bytes | None] = {}
    for number in compressed:
        body = plain[number - first] = _uncompress_one(block, records, number, unreadable)
        size += 0 if body is None else len(body)
        if size >= _PLAIN_BYTES:
            yield _replace_bodies(block, records.select(slice(first, number + 1)), plain)
            first, size, plain = number + 1, 0, {}
    if first < len(records):
        yield _replace_bodies(block, records.select(slice(first, None)), plain)


def _uncompress_one(block: Block, records: Records, number: int, unreadable: list[UnreadableBatch]) -> bytes | None:
    start, size = int(records.body_starts[number]), int(records.body_sizes[number])
    try:
        return decompress(block[start : start + size], int(records.flags[number]))
    except RemoteProtocolError as error:
        unreadable.append(UnreadableBatch(int(records.offsets[number]), str(error)))
        return None


def _replace_bodies(block: Block, records: Records, plain: dict[int, bytes | None]) -> tuple[Block, Records]:
    """Return *records* and their block with the *plain* bodies, by record number, in place; None drops the record."""
    at = int(records.body_starts[0])
    pieces: list[Block] = []
    growth = np.zeros(len(records), dtype=np.int64)
    flags, is_readable = records.flags.copy(), np.ones(len(records), dtype=np.bool_)
    for number, body in plain.items():
        start, size = int(records.body_starts[number]), int(records.body_sizes[number])
        pieces += (block[at:start], body or b"")
        growth[number] = len(body or b"") - size
        flags[number] &= ~(COMPRESSED | CODEC_MASK)
        is_readable[number] = body is not None
        at = start + size
    pieces.append(block[at : int(records.properties_starts[-1] + records.properties_sizes[-1])])
    shifts = np.cumsum(growth) - records.body_starts[0]  # of the parts after each body
    moved = replace(
        records,
        flags=flags,
        body_starts=records.body_starts + shifts - growth,
        body_sizes=records.body_sizes + growth,
        properties_starts=records.properties_starts + shifts,
    )
    return b"".join(pieces), moved.select(is_readable)


def _to_rows(block: Block, records: Records) -> Records:
    """Return one row per message; no batch may be compressed."""
    is_batch = are_batches(records)
    items, item_counts = _find_items(block, records.select(is_batch))
    i4, u2 = view_unaligned(block, ">i4"), view_unaligned(block, ">u2")
    sizes = i4[items].astype(np.int64)
    body_sizes = i4[items + _BODY_SIZE_AT].astype(np.int64)
    _validate((body_sizes >= 0) & (body_sizes <= sizes - ITEM_OVERHEAD), "the body of one of its messages does not fit")
    properties_starts = items + ITEM_OVERHEAD + body_sizes
    properties_sizes = u2[properties_starts - 2].astype(np.int64)
    _validate(ITEM_OVERHEAD + body_sizes + properties_sizes == sizes, "the parts of one of its messages do not add up")
    counts = np.ones(len(records), dtype=np.int64)
    counts[is_batch] = item_counts
    is_item = np.repeat(is_batch, counts)

    def spread(of_records: npt.NDArray[Any], of_items: Int64Array | None = None) -> npt.NDArray[Any]:
        if of_items is not None and is_batch.all():
            return of_items
        rows = np.repeat(of_records, counts)
        if of_items is not None:
            rows[is_item] = of_items
        return rows

    return Records(
        offsets=spread(records.offsets) + _number_members(counts),
        flags=spread(records.flags),
        born_ms=spread(records.born_ms),
        store_ms=spread(records.store_ms),
        crcs=spread(records.crcs),
        body_starts=spread(records.body_starts, items + _BODY_AT),
        body_sizes=spread(records.body_sizes, body_sizes),
        properties_starts=spread(records.properties_starts, properties_starts),
        properties_sizes=spread(records.properties_sizes, properties_sizes),
    )


def _find_items(block: Block, batches: Records) -> tuple[Int64Array, Int64Array]:
    """Return where each item of *batches* begins, and the number of items per batch. No item exceeds its batch."""
    ends = (batches.properties_starts + batches.properties_sizes).tolist()
    texts = (bytes(block[start:end]) for start, end in zip(batches.properties_starts.tolist(), ends, strict=True))
    counts = np.fromiter((declared_count(text) or 1 for text in texts), dtype=np.int64, count=len(batches))
    _validate(batches.body_sizes >= counts * ITEM_OVERHEAD, "it is too short for as many messages as it says")
    items, is_even = _find_even(block, batches, counts)
    if not is_even.all():
        uneven = batches.select(~is_even)
        found = _follow_sizes(block, uneven.body_starts, uneven.body_starts + uneven.body_sizes, counts[~is_even])
        items = np.sort(np.concatenate((items, found)))
    return items, counts


def _find_even(block: Block, batches: Records, counts: Int64Array) -> tuple[Int64Array, npt.NDArray[np.bool_]]:
    """Return the items of the batches whose items all have one size, and a mask of these batches."""
    sizes, rest = np.divmod(batches.body_sizes, counts)
    is_even = rest == 0
    counts = np.where(is_even, counts, 0)
    of_batch = np.repeat(np.arange(len(batches)), counts)
    items = batches.body_starts[of_batch] + _number_members(counts) * sizes[of_batch]
    is_wrong = view_unaligned(block, ">i4")[items] != sizes[of_batch]
    if is_wrong.any():
        is_even[of_batch[is_wrong]] = False
        items = items[is_even[of_batch]]
    return items, is_even


def _follow_sizes(block: Block, starts: Int64Array, ends: Int64Array, counts: Int64Array) -> Int64Array:
    """Return where the items of batches begin, by following their sizes in many batches in step.

    When few batches are left, each is followed alone: a step over a few costs more than they do one by one.
    """
    i4 = view_unaligned(block, ">i4")
    found: list[Int64Array] = []
    at = starts
    while len(at) >= _IN_STEP_MIN:
        found.append(at)
        sizes = i4[at]  # Within the block: the rest of a record follows its body.
        at = at + sizes
        is_over = counts == len(found)
        _validate((sizes >= ITEM_OVERHEAD) & np.where(is_over, at == ends, at < ends), _MISCOUNTED)
        if is_over.any():
            at, ends, counts = at[~is_over], ends[~is_over], counts[~is_over]
    single_starts: list[int] = []
    for start, end, count in zip(at.tolist(), ends.tolist(), (counts - len(found)).tolist(), strict=True):
        _follow_single(block, start, end, count, single_starts)
    return np.concatenate((*found, np.array(single_starts, dtype=np.int64)))


def _follow_single(block: Block, at: int, end: int, count: int, found: list[int]) -> None:
    """Append the start of every item of one batch to *found*."""
    for _ in range(count):
        size = _unpack_size(block, at)[0] if at < end else 0
        if size < ITEM_OVERHEAD:
            raise RemoteProtocolError(_MISCOUNTED)
        found.append(at)
        at += size
    if at != end:
        raise RemoteProtocolError(_MISCOUNTED)


def _number_members(counts: Int64Array) -> Int64Array:
    """Return the numbers 0, 1, ... of the members of each of many groups."""
    ends = np.cumsum(counts)
    return np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)


def _validate(is_valid: npt.NDArray[np.bool_], fault: str) -> None:
    if not is_valid.all():
        raise RemoteProtocolError(fault)
