"""Many pieces of one block of bytes as an Arrow column, without an object per piece.

    block     ....[piece]......[piece]..[piece]...
    views     (length, first 4 bytes, block, place)  x n      16 bytes each; up to 12 bytes stand in the view itself
    column    offsets + the pieces, one behind the other      Arrow copies them, in C

Pure: bytes in, arrays out. Every place was judged before it is given here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Places = npt.NDArray[np.int64]

_INLINE_MAX: Final = 12
_VIEW: Final = np.dtype([("size", "<i4"), ("prefix", "<u4"), ("block", "<i4"), ("at", "<i4")])


def at_any_byte(block: bytes, kind: str) -> npt.NDArray[Any]:
    """Return *block* as numbers of *kind*, one for every byte at which one may begin."""
    size = np.dtype(kind).itemsize
    return np.ndarray(shape=(max(0, len(block) - size + 1),), dtype=kind, buffer=block, strides=(1,))


def take_slices(blocks: Sequence[bytes], block: Places | int, starts: Places, sizes: Places) -> pa.BinaryArray:
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
    for number, source in enumerate(blocks):
        here = np.flatnonzero(views["block"] == number) if len(blocks) > 1 else np.arange(len(starts))
        long = here[sizes[here] > _INLINE_MAX]
        short = here[sizes[here] <= _INLINE_MAX]
        if len(long):
            views["prefix"][long] = at_any_byte(source, "<u4")[starts[long]]
        if len(short):
            views.view(np.uint8).reshape(-1, 16)[short, 4:] = _inline(source, starts[short], sizes[short])
    buffers = [None, pa.py_buffer(views), *(pa.py_buffer(source) for source in blocks)]
    return pa.Array.from_buffers(pa.binary_view(), len(starts), buffers).cast(pa.binary())


def _inline(block: bytes, starts: Places, sizes: Places) -> npt.NDArray[np.uint8]:
    """Return short pieces as rows of 12 bytes, filled up with zeros."""
    if not len(block):
        return np.zeros((len(starts), _INLINE_MAX), dtype=np.uint8)
    column = np.arange(_INLINE_MAX)
    places = np.minimum(starts[:, None] + column, len(block) - 1)
    found = np.frombuffer(block, dtype=np.uint8)[places]
    return np.where(column < sizes[:, None], found, 0).astype(np.uint8)
