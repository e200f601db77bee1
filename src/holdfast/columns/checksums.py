"""The checksums of many bodies of one size, by one sum.

A call for every small body costs several times what its bytes do. CRCs are linear, and one call over all bodies, which
lie one behind the other, tells the same:

    crc(body 1 | body 2 | body 3) = crc 1 shifted by two bodies ^ crc 2 shifted by one ^ crc 3

The right side is made of what the records say. They leave out the top bit of every checksum, which is the parity of
some bits of the body, the same ones for all bodies of one size.

One wrong body always makes a wrong sum, as shifting loses nothing: it is found as surely as by itself. That several
make up for each other is as unlikely as that a wrong body has the right checksum. The sum does not tell which is wrong.

Pure: bytes and numbers in, an answer out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from holdfast.wire.records.record import crc32

# Where the sum costs less than the calls. (Measured: half at 1 KiB, a sixth at 100 bytes; as much at 2 KiB.)
SUMMED_SIZE_MAX: Final = 1536
SUMMED_COUNT_MIN: Final = 512

_PARITY_BYTES: Final = 512 * 1024  # of bodies that are looked at together: they stay in the processor's cache
_goes_on: Final[Callable[[bytes, int], int]] = crc32  # type: ignore[assignment] # It takes the checksum so far, too.

Crcs = npt.NDArray[np.uint32]


def are_all_right(bodies: npt.NDArray[np.uint8], size: int, stored: npt.NDArray[np.int32]) -> bool:
    """Say whether all *bodies*, of *size* bytes each, have the checksums that are *stored* with them."""
    if (stored < 0).any():  # There are 31 bits in a checksum.
        return False
    crcs = stored.astype(np.uint32) | (_find_tops(bodies, size) << np.uint32(31))
    return _sum_up(crcs, size) == crc32(bodies.data)


def _sum_up(crcs: Crcs, size: int) -> int:
    """Return the checksum of bodies that have these checksums, one behind the other: of pairs, of pairs of these..."""
    doublings = 0
    while len(crcs) > 1:
        if len(crcs) % 2:
            crcs = np.concatenate((np.zeros(1, dtype=np.uint32), crcs))  # An empty body in front changes nothing.
        crcs = _shift_by(size, doublings)(crcs[0::2]) ^ crcs[1::2]
        doublings += 1
    return int(crcs[0])


def _find_tops(bodies: npt.NDArray[np.uint8], size: int) -> Crcs:
    """Return the top bit of the checksum of each body."""
    word = next(f"u{width}" for width in (8, 4, 2, 1) if size % width == 0)
    mask = _choose_bits(size).view(word)
    words = bodies.view(word).reshape(-1, len(mask))
    step = max(1, _PARITY_BYTES // size)
    folded = [np.bitwise_xor.reduce(words[at : at + step] & mask, axis=1) for at in range(0, len(words), step)]
    of_nothing = crc32(bytes(size)) >> 31
    return (np.bitwise_count(np.concatenate(folded)) & 1 ^ of_nothing).astype(np.uint32)


class _Shift:
    """What becomes of checksums when so many zeros follow.

    Args:
        images: What becomes of each of the 32 bits.
    """

    def __init__(self, images: Crcs) -> None:
        self._images = images
        self._tables = [_xor_all(images[first : first + 8]) for first in (0, 8, 16, 24)]

    def __call__(self, crcs: npt.NDArray[Any]) -> Crcs:
        first, second, third, fourth = self._tables
        low = first.take(crcs & 0xFF) ^ second.take(crcs >> 8 & 0xFF)
        return low ^ third.take(crcs >> 16 & 0xFF) ^ fourth.take(crcs >> 24)

    def twice(self) -> _Shift:
        return _Shift(self(self._images))


def _xor_all(images: Crcs) -> Crcs:
    """Return what becomes of every combination of bits."""
    table = np.zeros(1, dtype=np.uint32)
    for image in images:
        table = np.concatenate((table, table ^ image))
    return table


@lru_cache(maxsize=1024)
def _shift_by(size: int, doublings: int) -> _Shift:
    """Return the shift by *size* bytes, doubled so often."""
    if doublings:
        return _shift_by(size, doublings - 1).twice()
    zeros = bytes(size)
    of_nothing = crc32(zeros)
    return _Shift(np.array([_goes_on(zeros, 1 << bit) ^ of_nothing for bit in range(32)], dtype=np.uint32))


@lru_cache(maxsize=64)
def _choose_bits(size: int) -> npt.NDArray[np.uint8]:
    """Return the bits of a body of *size* bytes on which the top bit of its checksum depends."""
    of_nothing = crc32(b"\0")
    # What the bits of the last byte do to a checksum; bytes before it do the same, shifted.
    images = np.array([[crc32(bytes([1 << bit])) ^ of_nothing for bit in range(8)]], dtype=np.uint32)
    doublings = 0
    while len(images) < size:
        images = np.concatenate((_shift_by(1, doublings)(images), images))
        doublings += 1
    return np.packbits((images[-size:] >> 31).astype(np.uint8), axis=1, bitorder="little").ravel()
