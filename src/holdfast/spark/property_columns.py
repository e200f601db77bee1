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

from holdfast.spark.slices import Places, at_any_byte, take_slices

_NAME_END: Final = 1
_VALUE_END: Final = 2


@dataclass(frozen=True, slots=True)
class Properties:
    """The properties of some rows, one behind the other.

    Attributes:
        row_count: How many rows there are.
        rows: Which row each property belongs to; never falls.
        block: The text of all of them.
        starts: Where each begins in the block.
        middles: Where its 0x01 is.
        ends: Where its 0x02 is, or the end of its row.
    """

    row_count: int
    rows: Places
    block: bytes
    starts: Places
    middles: Places
    ends: Places

    def find(self, name: str) -> pa.Array:
        """Return the value of one property of every row; null where there is none. Of two the later one counts."""
        wanted = name.encode()
        places = np.flatnonzero(self.middles - self.starts == len(wanted))
        for kind, at in _words(len(wanted)):
            value = int.from_bytes(wanted[at : at + np.dtype(kind).itemsize], "little")
            places = places[at_any_byte(self.block, kind)[self.starts[places] + at] == value]
        found = to_text(
            take_slices([self.block], 0, self.middles[places] + 1, self.ends[places] - self.middles[places] - 1)
        )
        if len(places) == self.row_count and np.array_equal(self.rows[places], np.arange(self.row_count)):
            return found
        chosen = np.full(self.row_count, -1, dtype=np.int64)
        chosen[self.rows[places]] = np.arange(len(places))
        return found.take(pa.array(chosen, mask=chosen < 0))

    def to_map(self) -> pa.Array:
        """Return everything as a map of each row."""
        names = to_text(take_slices([self.block], 0, self.starts, self.middles - self.starts))
        values = to_text(take_slices([self.block], 0, self.middles + 1, self.ends - self.middles - 1))
        offsets = np.searchsorted(self.rows, np.arange(self.row_count + 1)).astype(np.int32)
        return pa.MapArray.from_arrays(pa.array(offsets), names, values)


def _words(size: int) -> list[tuple[str, int]]:
    """Return words that cover a name of *size* bytes: their kind, and where each begins."""
    kind, step = ("<u8", 8) if size >= 8 else ("<u4", 4) if size >= 4 else ("u1", 1)
    return [(kind, min(at, size - step)) for at in range(0, size, step)]


def split_properties(texts: pa.BinaryArray) -> Properties:
    """Return the properties that stand in *texts*, a row each."""
    row_count = len(texts)
    _, offset_buffer, value_buffer = texts.buffers()
    bounds = np.frombuffer(offset_buffer, dtype=np.int32, count=row_count + 1).astype(np.int64)
    block = b"" if value_buffer is None else value_buffer.to_pybytes()
    content = np.frombuffer(block, dtype=np.uint8)
    ends = np.flatnonzero(content == _VALUE_END)
    rows = np.repeat(np.arange(row_count), np.diff(np.searchsorted(ends, bounds)))
    # The last mark of a row may be missing: then its end takes its place.
    is_open = bounds[1:] > bounds[:-1]
    is_open[is_open] = content[bounds[1:][is_open] - 1] != _VALUE_END
    if is_open.any():
        rows = np.concatenate((rows, np.flatnonzero(is_open)))
        ends = np.concatenate((ends, bounds[1:][is_open]))
        order = np.lexsort((ends, rows))
        rows, ends = rows[order], ends[order]
    starts = bounds[rows]
    is_next = np.zeros(len(rows), dtype=np.bool_)
    is_next[1:] = rows[1:] == rows[:-1]
    starts[is_next] = ends[np.flatnonzero(is_next) - 1] + 1
    middles = np.flatnonzero(content == _NAME_END)
    if len(middles) != len(starts) or not ((middles >= starts) & (middles < ends)).all():
        separators = np.append(middles, len(block))
        middles = separators[np.searchsorted(middles, starts)]
    is_whole = (middles > starts) & (middles + 1 < ends)
    if is_whole.all():
        return Properties(row_count, rows, block, starts, middles, ends)
    return Properties(row_count, rows[is_whole], block, starts[is_whole], middles[is_whole], ends[is_whole])


def to_text(pieces: pa.BinaryArray) -> pa.Array:
    """Return *pieces* as text. What is no UTF-8 must not keep a message from being read: it is replaced."""
    try:
        return pieces.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([piece.as_py().decode("utf-8", "replace") for piece in pieces], type=pa.string())
