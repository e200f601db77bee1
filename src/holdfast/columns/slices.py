"""Many pieces of one block of bytes as an Arrow column, without an object per piece.

    block     ....[piece]......[piece]..[piece]...
    offsets       ^     ^      ^     ^  ^     ^       pieces and what lies between them, as one column without a copy
    column    every second of them, one behind the other: Arrow copies, in C

Pure: bytes in, arrays out. Every place was judged before it is given here.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Places: TypeAlias = npt.NDArray[np.int64]

Block = bytes | memoryview


def at_any_byte(block: Block, kind: str | np.dtype[Any]) -> npt.NDArray[Any]:
    """Return *block* as numbers of *kind*, one for every byte at which one may begin."""
    size = np.dtype(kind).itemsize
    return np.ndarray(shape=(max(0, len(block) - size + 1),), dtype=kind, buffer=block, strides=(1,))


def take_slices(block: Block, starts: Places, ends: Places) -> pa.BinaryArray:
    """Return a column of pieces of *block*, which follow each other and do not overlap."""
    return take_every(cut(block, [starts, ends]), 0, 2)


def cut(block: Block, bounds: list[Places]) -> pa.BinaryArray:
    """Return *block*, cut at the bounds, as a column that shares its bytes.

    Args:
        block: What is cut.
        bounds: Where the first, second, ... piece of every group begins: as many pieces come out for each group.
    """
    step, count = len(bounds), len(bounds[0])
    offsets = np.zeros(step * count + 1, dtype=np.int32)
    for number, places in enumerate(bounds):
        offsets[number:-1:step] = places
    # The last piece of the last group is of no use to anybody: it is empty.
    offsets[-1] = offsets[-2] if count else 0
    return pa.Array.from_buffers(pa.binary(), step * count, [None, pa.py_buffer(offsets), pa.py_buffer(block)])


def take_every(pieces: pa.Array, first: int, step: int) -> pa.Array:
    """Return a copy of every *step*-th piece, beginning with number *first*."""
    return pieces.take(pa.array(np.arange(first, len(pieces), step)))


def bounds_of(column: pa.Array) -> Places:
    """Return where the values of a column of large texts or bytes begin in its block, and where the last one ends."""
    raw = column.buffers()[1]
    if raw is None or not len(column):
        return np.zeros(1, dtype=np.int64)
    places = np.frombuffer(raw, dtype=np.int64)[column.offset : column.offset + len(column) + 1]
    return places if places[0] == 0 else places - places[0]


def block_of(column: pa.Array) -> memoryview:
    """Return all values of a column of large texts or bytes, one behind the other, as they lie in memory."""
    ends, raw = column.buffers()[1:]
    if raw is None or not len(column):
        return memoryview(b"")
    places = np.frombuffer(ends, dtype=np.int64)
    return memoryview(raw)[places[column.offset] : places[column.offset + len(column)]]
