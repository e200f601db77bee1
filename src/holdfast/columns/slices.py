"""Slices of one block of bytes as an Arrow column, without one object per slice.

    block     ....[piece]......[piece]..[piece]...
    offsets       ^     ^      ^     ^  ^     ^       pieces and the gaps between them, as one column without a copy
    column    every second value of that column, concatenated: Arrow copies them, in C

Pure: bytes in, arrays out. The caller has validated every bound before it reaches this module.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Int64Array: TypeAlias = npt.NDArray[np.int64]

Block = bytes | memoryview


def view_unaligned(block: Block, kind: str | np.dtype[Any]) -> npt.NDArray[Any]:
    """Return a view of *block* as numbers of *kind*, with one element for every byte at which one may start."""
    size = np.dtype(kind).itemsize
    return np.ndarray(shape=(max(0, len(block) - size + 1),), dtype=kind, buffer=block, strides=(1,))


def copy_slices(block: Block, starts: Int64Array, ends: Int64Array) -> pa.BinaryArray:
    """Return a column of pieces of *block*. The pieces must be in order and must not overlap."""
    size = find_size(ends - starts)
    if size:
        return _copy_even(block, starts, size)
    return copy_every(split_at(block, [starts, ends]), 0, 2)


def find_size(sizes: Int64Array) -> int | None:
    """Return the size that all pieces share; None if the sizes differ or there is no piece."""
    return int(sizes[0]) if len(sizes) and (sizes == sizes[0]).all() else None


def _copy_even(block: Block, starts: Int64Array, size: int) -> pa.BinaryArray:
    """Return a column of pieces of one size. Copying each piece like a number needs two thirds of the time."""
    bounds = np.arange(0, (len(starts) + 1) * size, size, dtype=np.int32)
    pieces = view_unaligned(block, f"V{size}")[starts]
    return pa.Array.from_buffers(pa.binary(), len(starts), [None, pa.py_buffer(bounds), pa.py_buffer(pieces)])


def split_at(block: Block, bounds: list[Int64Array]) -> pa.BinaryArray:
    """Return *block*, cut at the bounds, as a column that shares its bytes.

    Args:
        block: The bytes to cut.
        bounds: Where the first, second, ... piece of every group begins: each group gets one piece per element.
    """
    step, count = len(bounds), len(bounds[0])
    offsets = np.zeros(step * count + 1, dtype=np.int32)
    for number, starts in enumerate(bounds):
        offsets[number:-1:step] = starts
    # The last piece of the last group is never used: leave it empty.
    offsets[-1] = offsets[-2] if count else 0
    return pa.Array.from_buffers(pa.binary(), step * count, [None, pa.py_buffer(offsets), pa.py_buffer(block)])


def copy_every(pieces: pa.Array, first: int, step: int) -> pa.Array:
    """Return a copy of every *step*-th piece, starting with piece *first*."""
    chosen = np.arange(first, len(pieces), step)
    return pieces.take(pa.Array.from_buffers(pa.int64(), len(chosen), [None, pa.py_buffer(chosen)]))


def bounds_and_bytes(column: pa.Array) -> tuple[Int64Array, npt.NDArray[np.uint8]]:
    """Return the bounds of the values of a text or binary column, and its bytes; the column must not be a slice."""
    _, offsets, content = column.buffers()
    assert column.offset == 0, "the column is whole"
    bounds = np.frombuffer(offsets, dtype=np.int32, count=len(column) + 1).astype(np.int64)
    raw = b"" if content is None else content
    return bounds, np.frombuffer(raw, dtype=np.uint8, count=int(bounds[-1]))


def bounds_of(column: pa.Array) -> Int64Array:
    """Return the start of every value of a large text or binary column in its block, and the end of the last one."""
    raw = column.buffers()[1]
    if raw is None or not len(column):
        return np.zeros(1, dtype=np.int64)
    bounds = np.frombuffer(raw, dtype=np.int64)[column.offset : column.offset + len(column) + 1]
    return bounds if bounds[0] == 0 else bounds - bounds[0]


def block_of(column: pa.Array) -> memoryview:
    """Return the concatenated values of a large text or binary column as a view of its memory."""
    ends, raw = column.buffers()[1:]
    if raw is None or not len(column):
        return memoryview(b"")
    bounds = np.frombuffer(ends, dtype=np.int64)
    return memoryview(raw)[bounds[column.offset] : bounds[column.offset + len(column)]]
