"""Parse the properties of many messages at once.

    row 0                           row 1
    name 1 value 2 name 1 value 2 | name 1 value 2 | ...      1 and 2 stand for the bytes 0x01 and 0x02

All rows lie in one buffer. One comparison of the whole buffer finds the separators; the names and values lie between
them. A piece without a name, a value or a 0x01 is ignored, as everywhere. Texts with such pieces are rare and use a
slower path.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.columns.slices import Block, Int64Array, bounds_and_bytes, copy_every, split_at, view_unaligned

_NAME_END: Final = 1
_VALUE_END: Final = 2


class Properties:
    """The properties of some rows, concatenated.

    Args:
        block: The property text of all rows.
        bounds: The number of the first property of each row, then the total number.
        starts: Where each property begins in the block.
        middles: Where its 0x01 is.
        ends: Where its 0x02 is, or the end of its row.
    """

    def __init__(
        self, block: Block, bounds: Int64Array, starts: Int64Array, middles: Int64Array, ends: Int64Array
    ) -> None:
        self._block = block
        self._bounds = bounds
        self._starts, self._middles = starts, middles
        # Alternately a value and the bytes between it and the next value.
        self._values = _to_text(split_at(block, [middles + 1, ends]), block)

    @cached_property
    def _names(self) -> pa.Array:
        if self._pattern is not None:
            return _repeat(self._pattern, len(self._bounds) - 1)
        return copy_every(_to_text(split_at(self._block, [self._starts, self._middles]), self._block), 0, 2)

    @cached_property
    def _pattern(self) -> list[str] | None:
        """The names of every row, when all rows have the same ones in the same order, as is usual."""
        rows = len(self._bounds) - 1
        count = int(self._bounds[1]) if rows else 0
        if not count or not np.array_equal(self._bounds, np.arange(0, rows * count + 1, count)):
            return None
        sizes = (self._middles - self._starts).reshape(rows, count)
        if not (sizes == sizes[0]).all():
            return None
        pattern: list[str] = []
        for number, size in enumerate(sizes[0].tolist()):
            found = view_unaligned(self._block, f"V{size}")[self._starts[number::count]]
            of_rows = found.view(np.uint8).reshape(rows, size)
            if not (of_rows == of_rows[0]).all():
                return None
            pattern.append(of_rows[0].tobytes().decode("utf-8", "replace"))
        return pattern

    def find(self, name: str) -> pa.Array:
        """Return one property's value in every row; null where missing. If it occurs twice, the last one counts."""
        pattern = self._pattern
        rows = len(self._bounds) - 1
        if pattern is not None and name in pattern:
            number = len(pattern) - 1 - pattern[::-1].index(name)
            return copy_every(self._values, 2 * number, 2 * len(pattern))
        if pattern is not None or not len(self._starts):
            return pa.nulls(rows, pa.string())
        matches = np.flatnonzero(self._is_named(name))
        chosen = np.full(rows, -1, dtype=np.int64)
        chosen[np.searchsorted(self._bounds, matches, side="right") - 1] = matches
        return self._values.take(pa.array(2 * chosen, mask=chosen < 0))

    def to_map(self) -> pa.Array:
        """Return all properties as one map per row."""
        bounds = pa.array(self._bounds.astype(np.int32))
        return pa.MapArray.from_arrays(bounds, self._names, copy_every(self._values, 0, 2))

    def _is_named(self, name: str) -> npt.NDArray[np.bool_]:
        offsets, text = bounds_and_bytes(self._names)
        encoded_name = np.frombuffer(name.encode(), dtype=np.uint8)
        is_match = np.diff(offsets) == len(encoded_name)
        candidates = np.flatnonzero(is_match)
        is_match[candidates] = (
            text[offsets[candidates, np.newaxis] + np.arange(len(encoded_name))] == encoded_name
        ).all(axis=1)
        return is_match


def split_properties(texts: pa.BinaryArray) -> Properties:
    """Return the properties of *texts*, one row each; the column must not be a slice."""
    bounds, content = bounds_and_bytes(texts)
    separators = np.flatnonzero(content <= _VALUE_END)
    kinds = content[separators]
    middles, ends = separators[0::2], separators[1::2]
    starts = np.zeros_like(ends)
    starts[1:] = ends[:-1] + 1
    firsts = _count_marks(ends, bounds)
    is_regular = (
        len(middles) == len(ends)
        and bool((kinds[0::2] == _NAME_END).all() and (kinds[1::2] == _VALUE_END).all())
        and bool((middles > starts).all() and (middles + 1 < ends).all())
        # Every row ends with a separator, or is empty.
        and bool((np.append(0, ends + 1)[firsts] == bounds).all())
    )
    return Properties(content.data, firsts, starts, middles, ends) if is_regular else _split_any(content, bounds)


def _count_marks(ends: Int64Array, bounds: Int64Array) -> Int64Array:
    """Return how many end marks precede each bound. A constant number per row, the usual case, needs no search."""
    each = len(ends) // max(1, len(bounds) - 1)
    guess = np.arange(len(bounds)) * each
    if not each or guess[-1] != len(ends):
        return np.searchsorted(ends, bounds)
    is_right = (ends[guess[1:] - 1] < bounds[1:]) & (ends[guess[:-1]] >= bounds[:-1])
    return guess if is_right.all() else np.searchsorted(ends, bounds)


def _split_any(content: npt.NDArray[np.uint8], bounds: Int64Array) -> Properties:
    """Return the properties of texts that may contain irregular pieces or lack the last end mark of a row."""
    ends = np.flatnonzero(content == _VALUE_END)
    # The last end mark of a row may be missing: then the end of the row replaces it.
    is_open = bounds[1:] > bounds[:-1]
    is_open[is_open] = content[bounds[1:][is_open] - 1] != _VALUE_END
    rows = np.searchsorted(bounds, ends, side="right") - 1
    rows = np.concatenate((rows, np.flatnonzero(is_open)))
    ends = np.concatenate((ends, bounds[1:][is_open]))
    order = np.lexsort((ends, rows))
    rows, ends = rows[order], ends[order]
    starts = bounds[rows]
    is_next = np.zeros(len(rows), dtype=np.bool_)
    is_next[1:] = rows[1:] == rows[:-1]
    starts[is_next] = ends[np.flatnonzero(is_next) - 1] + 1
    found = np.flatnonzero(content == _NAME_END)
    middles = np.append(found, len(content))[np.searchsorted(found, starts)]
    is_whole = (middles > starts) & (middles + 1 < ends)
    firsts = np.searchsorted(rows[is_whole], np.arange(len(bounds)))
    return Properties(content.data, firsts, starts[is_whole], middles[is_whole], ends[is_whole])


def _repeat(texts: list[str], rows: int) -> pa.Array:
    """Return a column that repeats *texts* for every row."""
    raw = [text.encode() for text in texts]
    of_row = b"".join(raw)
    starts = np.cumsum([0, *map(len, raw[:-1])])
    ends = np.append(np.add.outer(np.arange(rows) * len(of_row), starts), rows * len(of_row)).astype(np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(of_row * rows)]
    return pa.Array.from_buffers(pa.string(), rows * len(raw), buffers)


def _to_text(pieces: pa.BinaryArray, block: Block) -> pa.Array:
    """Return *pieces* of *block* as text. Invalid UTF-8 is replaced: it must not make a message unreadable."""
    if bytes(block).isascii():
        return pieces.view(pa.string())
    try:
        return pieces.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([piece.as_py().decode("utf-8", "replace") for piece in pieces], type=pa.string())
