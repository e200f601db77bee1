"""The properties of many messages at once.

    row 0                           row 1
    name 1 value 2 name 1 value 2 | name 1 value 2 | ...      1 and 2 stand for the bytes 0x01 and 0x02

All rows lie in one buffer. The separators are found by two comparisons of the whole buffer; what lies between them are
the names and the values. A piece without a name, a value or a 0x01 means nothing and is dropped, as everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.spark.slices import Places, take_slices

_NAME_END: Final = 1
_VALUE_END: Final = 2


@dataclass(frozen=True, slots=True)
class Properties:
    """The properties of some rows, one behind the other.

    Attributes:
        row_count: How many rows there are.
        rows: Which row each property belongs to; never falls.
    """

    row_count: int
    rows: Places
    names: pa.Array
    values: pa.Array

    def find(self, name: str) -> pa.Array:
        """Return the value of one property of every row; null where there is none. Of two the later one counts."""
        has_name = pc.equal(self.names, name).to_numpy(zero_copy_only=False)
        places = np.flatnonzero(has_name)
        chosen = np.full(self.row_count, -1, dtype=np.int64)
        chosen[self.rows[places]] = places
        return self.values.take(pa.array(chosen, mask=chosen < 0))

    def to_map(self) -> pa.Array:
        """Return everything as a map of each row."""
        offsets = np.searchsorted(self.rows, np.arange(self.row_count + 1)).astype(np.int32)
        return pa.MapArray.from_arrays(pa.array(offsets), self.names, self.values)


def split_properties(texts: pa.BinaryArray) -> Properties:
    """Return the properties that stand in *texts*, a row each."""
    row_count = len(texts)
    _, offset_buffer, value_buffer = texts.buffers()
    bounds = np.frombuffer(offset_buffer, dtype=np.int32, count=row_count + 1).astype(np.int64)
    block = b"" if value_buffer is None else value_buffer.to_pybytes()
    content = np.frombuffer(block, dtype=np.uint8)
    marks = np.flatnonzero(content == _VALUE_END)
    mark_rows = np.searchsorted(bounds[1:], marks, side="right")
    # The last mark of a row may be missing: then its end takes its place.
    row_ends = bounds[1:]
    is_open = row_ends > bounds[:-1]
    is_open[is_open] = content[row_ends[is_open] - 1] != _VALUE_END
    open_rows = np.flatnonzero(is_open)
    rows = np.concatenate((mark_rows, open_rows))
    ends = np.concatenate((marks, row_ends[open_rows]))
    if len(open_rows):
        order = np.lexsort((ends, rows))
        rows, ends = rows[order], ends[order]
    starts = bounds[rows]
    is_next = np.zeros(len(rows), dtype=np.bool_)
    is_next[1:] = rows[1:] == rows[:-1]
    starts[is_next] = ends[np.flatnonzero(is_next) - 1] + 1
    return _cut(block, content == _NAME_END, rows, starts, ends, row_count)


def _cut(
    block: bytes, is_separator: np.ndarray[tuple[int], np.dtype[np.bool_]], rows: Places, starts: Places, ends: Places,
    row_count: int,
) -> Properties:  # fmt: skip
    separators = np.append(np.flatnonzero(is_separator), len(block))
    middles = separators[np.searchsorted(separators[:-1], starts)]
    is_whole = (middles > starts) & (middles + 1 < ends)
    rows, starts, middles, ends = rows[is_whole], starts[is_whole], middles[is_whole], ends[is_whole]
    return Properties(
        row_count,
        rows,
        to_text(take_slices([block], 0, starts, middles - starts)),
        to_text(take_slices([block], 0, middles + 1, ends - middles - 1)),
    )


def to_text(pieces: pa.BinaryArray) -> pa.Array:
    """Return *pieces* as text. What is no UTF-8 must not keep a message from being read: it is replaced."""
    try:
        return pieces.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([piece.as_py().decode("utf-8", "replace") for piece in pieces], type=pa.string())
