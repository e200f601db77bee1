"""Many pieces of one block of bytes as an Arrow column, without an object per piece.

    block     ....[piece]......[piece]..[piece]...
    views     (length, first 4 bytes, block, place)  x n      16 bytes each; up to 12 bytes stand in the view itself
    column    offsets + the pieces, one behind the other      Arrow copies them, in C

Pure: bytes in, arrays out. Every place was judged before it is given here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Places: TypeAlias = npt.NDArray[np.int64]

Block = bytes | memoryview

_INLINE_MAX: Final = 12
_VIEW: Final = np.dtype([("size", "<i4"), ("prefix", "<u4"), ("block", "<i4"), ("at", "<i4")])


def at_any_byte(block: Block, kind: str) -> npt.NDArray[Any]:
    """Return *block* as numbers of *kind*, one for every byte at which one may begin."""
    size = np.dtype(kind).itemsize
    return np.ndarray(shape=(max(0, len(block) - size + 1),), dtype=kind, buffer=block, strides=(1,))


def take_slices(blocks: Sequence[Block], block: Places | int, starts: Places, sizes: Places) -> pa.BinaryArray:
    """Return a column of pieces.

    Args:
        blocks: What they are pieces of.
        block: Which of the blocks each is in, or which one all are in.
        starts: Where each begins in its block.
        sizes: How long each is.
    """
    views = np.zeros(len(starts), dtype=_VIEW)
    views["size"] = sizes
    views["block"] = block
    views["at"] = starts
    is_short = sizes <= _INLINE_MAX
    for number, source in enumerate(blocks):
        is_here = views["block"] == number
        long, short = np.flatnonzero(is_here & ~is_short), np.flatnonzero(is_here & is_short)
        if len(long):
            views["prefix"][long] = at_any_byte(source, "<u4")[starts[long]]
        if len(short):
            views.view(np.uint8).reshape(-1, 16)[short, 4:] = _inline(source, starts[short], sizes[short])
    buffers = [None, pa.py_buffer(views), *(pa.py_buffer(source) for source in blocks)]
    return pa.Array.from_buffers(pa.binary_view(), len(starts), buffers).cast(pa.binary())


def _inline(block: Block, starts: Places, sizes: Places) -> npt.NDArray[np.uint8]:
    """Return short pieces as rows of 12 bytes, filled up with zeros."""
    if len(block) < _INLINE_MAX or int(starts.max()) > len(block) - _INLINE_MAX:
        block = bytes(block) + bytes(_INLINE_MAX)  # so that twelve bytes can be taken anywhere
    rows = np.empty((len(starts), 3), dtype="<u4")
    words = at_any_byte(block, "<u4")
    for column in range(3):
        rows[:, column] = words[starts + 4 * column]
        rows[:, column] &= _MASKS[column][sizes]
    return rows.view(np.uint8)


# By the size of a piece: which bytes of each of its three words belong to it.
_MASKS: Final = [
    np.array([(1 << 8 * min(max(size - 4 * word, 0), 4)) - 1 for size in range(_INLINE_MAX + 1)], dtype="<u4")
    for word in range(3)
]
