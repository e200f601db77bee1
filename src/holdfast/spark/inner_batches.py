"""The messages of batches that were kept whole, as rows beside those of single records.

    records   single | batch of 3         | single | batch of 2
    rows      single | item | item | item | single | item | item       item i has the offset of its record + i

A compressed batch is first put in its place uncompressed, so that all rows lie in one block, in order. Then the sizes
lead from item to item; of batches whose items are all of one size, the usual case, all sizes are compared at once.
Whatever was copied, counted or added up by its sender is judged, as everywhere: bytes come from strangers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from holdfast.model.errors import RemoteProtocolError
from holdfast.spark.records import Records, check_bodies
from holdfast.spark.slices import Block, Places, at_any_byte
from holdfast.wire.batch import ITEM_OVERHEAD
from holdfast.wire.compression import CODEC_MASK, COMPRESSED, decompress
from holdfast.wire.inner_batch import COUNT_MAX, INNER_BATCH, count_said

_unpack_size: Final = struct.Struct(">i").unpack_from
_BODY_SIZE_AT: Final = 16
_BODY_AT: Final = 20
_IN_STEP_MIN: Final = 32  # batches that are followed in step
# What comes out of compressed batches is handed on when there is so much of it: an answer of a few megabytes may hold
# gigabytes.
_PLAIN_BYTES: Final = 8 * 1024 * 1024


def are_batches(records: Records) -> npt.NDArray[np.bool_]:
    """Say of each of *records* whether it is a batch that was kept whole, or of each row whether it was in one."""
    return records.flags & INNER_BATCH == INNER_BATCH


def open_batches(block: Block, records: Records) -> Iterator[tuple[Block, Records]]:
    """Yield the rows that *records* are, one for each message, and the block that they lie in: in parts, if many.

    Rows that were in a batch are marked as such: their checksum, which was the batch's, was compared.

    Raises:
        CorruptRecord: a batch is not what was written.
        RemoteProtocolError: one cannot be uncompressed, is too large, its sizes do not add up, or it does not hold as
            many messages as it says.
    """
    check_bodies(block, records.select(are_batches(records)))
    for plain, part in _uncompress(block, records):
        yield plain, _to_rows(plain, part)


def _uncompress(block: Block, records: Records) -> Iterator[tuple[Block, Records]]:
    """Yield *records* in parts, each with a block in which no batch is compressed."""
    compressed = np.flatnonzero(are_batches(records) & ((records.flags & COMPRESSED) != 0)).tolist()
    if not compressed:
        yield block, records
        return
    first = size = 0
    plain: dict[int, bytes] = {}
    for number in compressed:
        start, end = int(records.body_starts[number]), int(records.body_starts[number] + records.body_sizes[number])
        plain[number - first] = decompress(block[start:end], int(records.flags[number]))
        size += len(plain[number - first])
        if size >= _PLAIN_BYTES:
            yield _put_in_place(block, records.select(slice(first, number + 1)), plain)
            first, size, plain = number + 1, 0, {}
    if first < len(records):
        yield _put_in_place(block, records.select(slice(first, None)), plain)


def _put_in_place(block: Block, records: Records, plain: dict[int, bytes]) -> tuple[Block, Records]:
    """Return *records* and their block with what is *plain* now, by number, where it was compressed."""
    at = int(records.body_starts[0])
    pieces: list[Block] = []
    growth = np.zeros(len(records), dtype=np.int64)
    flags = records.flags.copy()
    for number, body in plain.items():
        start, size = int(records.body_starts[number]), int(records.body_sizes[number])
        pieces += (block[at:start], body)
        growth[number] = len(body) - size
        flags[number] &= ~(COMPRESSED | CODEC_MASK)
        at = start + size
    pieces.append(block[at : int(records.properties_starts[-1] + records.properties_sizes[-1])])
    shifts = np.cumsum(growth) - records.body_starts[0]  # of what lies behind each body
    return b"".join(pieces), replace(
        records,
        flags=flags,
        body_starts=records.body_starts + shifts - growth,
        body_sizes=records.body_sizes + growth,
        properties_starts=records.properties_starts + shifts,
    )


def _to_rows(block: Block, records: Records) -> Records:
    """Return a row for each message; no batch is compressed."""
    is_batch = are_batches(records)
    items, inside = _find_items(block, records.select(is_batch))
    i4, u2 = at_any_byte(block, ">i4"), at_any_byte(block, ">u2")
    sizes = i4[items].astype(np.int64)
    body_sizes = i4[items + _BODY_SIZE_AT].astype(np.int64)
    _judge((body_sizes >= 0) & (body_sizes <= sizes - ITEM_OVERHEAD), items, "its body does not fit")
    properties_starts = items + ITEM_OVERHEAD + body_sizes
    properties_sizes = u2[properties_starts - 2].astype(np.int64)
    _judge(ITEM_OVERHEAD + body_sizes + properties_sizes == sizes, items, "the sizes of its parts do not add up")
    counts = np.ones(len(records), dtype=np.int64)
    counts[is_batch] = inside
    is_item = np.repeat(is_batch, counts)

    def spread(of_records: npt.NDArray[Any], of_items: Places | None = None) -> npt.NDArray[Any]:
        if of_items is not None and is_batch.all():
            return of_items
        rows = np.repeat(of_records, counts)
        if of_items is not None:
            rows[is_item] = of_items
        return rows

    return Records(
        offsets=spread(records.offsets) + _number(counts),
        flags=spread(records.flags),
        born_ms=spread(records.born_ms),
        store_ms=spread(records.store_ms),
        crcs=spread(records.crcs),
        body_starts=spread(records.body_starts, items + _BODY_AT),
        body_sizes=spread(records.body_sizes, body_sizes),
        properties_starts=spread(records.properties_starts, properties_starts),
        properties_sizes=spread(records.properties_sizes, properties_sizes),
    )


def _find_items(block: Block, batches: Records) -> tuple[Places, Places]:
    """Return where each item of *batches* begins, and how many there are in each; no item leads out of its batch."""
    texts = zip(*_bounds(batches.properties_starts, batches.properties_sizes), strict=True)
    said = np.array([count_said(bytes(block[start:end])) or 0 for start, end in texts], dtype=np.int64)
    limits = np.where(said, said, COUNT_MAX)
    items, counts, is_even = _find_even(block, batches, limits)
    if not is_even.all():
        others = batches.select(~is_even)
        found = _follow(block, others.body_starts, others.body_starts + others.body_sizes, limits[~is_even])
        items = np.sort(np.concatenate((items, found)))
        counts = np.diff(np.searchsorted(items, batches.body_starts), append=len(items))
    is_right = (counts == said) | (said == 0)
    if not is_right.all():
        wrong = int(np.argmin(is_right))
        raise RemoteProtocolError(
            f"an inner batch says that it holds {said[wrong]} messages, and holds {counts[wrong]}"
        )
    return items, counts


def _find_even(block: Block, batches: Records, limits: Places) -> tuple[Places, Places, npt.NDArray[np.bool_]]:
    """Return the items of the batches whose items all have one size; how many; and which batches these are."""
    i4 = at_any_byte(block, ">i4")
    sizes = np.zeros(len(batches), dtype=np.int64)  # of the first item of each
    is_even = batches.body_sizes >= ITEM_OVERHEAD
    sizes[is_even] = i4[batches.body_starts[is_even]]
    is_even &= sizes >= ITEM_OVERHEAD
    counts = np.zeros(len(batches), dtype=np.int64)
    counts[is_even], rest = np.divmod(batches.body_sizes[is_even], sizes[is_even])
    is_even[is_even] = rest == 0
    is_even &= counts <= limits
    counts[~is_even] = 0
    of_batch = np.repeat(np.arange(len(batches)), counts)
    items = batches.body_starts[of_batch] + _number(counts) * sizes[of_batch]
    is_wrong = i4[items] != sizes[of_batch]
    if is_wrong.any():
        is_even[of_batch[is_wrong]] = False
        counts[~is_even] = 0
        items = items[is_even[of_batch]]
    return items, counts, is_even


def _follow(block: Block, starts: Places, ends: Places, limits: Places) -> Places:
    """Return where the items of batches begin, by following their sizes, of many batches in step.

    When few are left under way, each is followed alone: a step of few costs more than they do one by one.
    """
    i4 = at_any_byte(block, ">i4")
    found: list[Places] = []
    at, is_under_way = starts, starts < ends
    while True:
        if not is_under_way.all():
            at, ends, limits = at[is_under_way], ends[is_under_way], limits[is_under_way]
        if len(at) < _IN_STEP_MIN:
            break
        if (limits <= len(found)).any():
            raise _holds_too_many(int(limits.min()))
        found.append(at)
        sizes = i4[at]  # Behind every body its record goes on: there are four bytes.
        at = at + sizes
        if not ((sizes >= ITEM_OVERHEAD) & (at <= ends)).all():
            raise _is_torn()
        is_under_way = at < ends
    alone: list[int] = []
    for start, end, limit in zip(at.tolist(), ends.tolist(), (limits - len(found)).tolist(), strict=True):
        _follow_alone(block, start, end, limit, alone)
    return np.concatenate((*found, np.array(alone, dtype=np.int64)))


def _follow_alone(block: Block, at: int, end: int, count_max: int, found: list[int]) -> None:
    """Add to *found* where the items of one batch begin."""
    for _ in range(count_max):
        (size,) = _unpack_size(block, at)
        if size < ITEM_OVERHEAD:
            raise _is_torn()
        found.append(at)
        at += size
        if at >= end:
            break
    if at < end:
        raise _holds_too_many(count_max)
    if at > end:
        raise _is_torn()


def _is_torn() -> RemoteProtocolError:
    return RemoteProtocolError("an inner batch does not end where its last message does")


def _holds_too_many(count_max: int) -> RemoteProtocolError:
    return RemoteProtocolError(f"an inner batch holds more than {count_max} messages")


def _number(counts: Places) -> Places:
    """Return for each of many groups the numbers from 0 on."""
    behind = np.cumsum(counts)
    return np.arange(int(behind[-1]) if len(behind) else 0) - np.repeat(behind - counts, counts)


def _bounds(starts: Places, sizes: Places) -> tuple[list[int], list[int]]:
    return starts.tolist(), (starts + sizes).tolist()


def _judge(is_right: npt.NDArray[np.bool_], items: Places, fault: str) -> None:
    if not is_right.all():
        raise RemoteProtocolError(f"a message of an inner batch at byte {items[int(np.argmin(is_right))]}: {fault}")
