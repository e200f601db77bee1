"""Verify the checksums of many bodies of one size with one CRC call.

A CRC call for a small body costs several times more than its bytes do. CRCs are linear, so one call over all bodies,
concatenated, verifies the same:

    crc(body 1 | body 2 | body 3) = crc 1 shifted by two bodies ^ crc 2 shifted by one ^ crc 3

The right side is computed from the checksums that the records store. They lack the top bit, which is the parity of some
bits of the body; these are the same bits for all bodies of one size.

One wrong body always makes the combined checksum wrong, because shifting loses nothing. Several wrong bodies cancel out
with the same low probability with which one wrong body matches its checksum. The combined checksum does not show which
body is wrong.

Pure: bytes and numbers in, a boolean out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from holdfast.wire.records.record import crc32

# Within these bounds one sum is cheaper than single calls. (Measured cost: half at 1 KiB, a sixth at 100 bytes, equal
# at 2 KiB.)
SUMMED_SIZE_MAX: Final = 1536
SUMMED_COUNT_MIN: Final = 512

_PARITY_BYTES: Final = 512 * 1024  # of bodies that are processed together: they stay in the processor's cache
_continue_crc: Final[Callable[[bytes, int], int]] = crc32  # type: ignore[assignment] # It also accepts a start value.

Crcs = npt.NDArray[np.uint32]


def checksums_match(bodies: npt.NDArray[np.uint8], size: int, stored: npt.NDArray[np.int32]) -> bool:
    """Return whether all *bodies*, of *size* bytes each, match their *stored* checksums."""
    if (stored < 0).any():  # A stored checksum has 31 bits.
        return False
    crcs = stored.astype(np.uint32) | (_find_top_bits(bodies, size) << np.uint32(31))
    return _combine_crcs(crcs, size) == crc32(bodies.data)


def _combine_crcs(crcs: Crcs, size: int) -> int:
    """Return the checksum of the concatenated bodies with these checksums, by combining pairs until one is left."""
    doublings = 0
    while len(crcs) > 1:
        if len(crcs) % 2:
            crcs = np.concatenate((np.zeros(1, dtype=np.uint32), crcs))  # A leading empty body changes nothing.
        crcs = _shift_by(size, doublings)(crcs[0::2]) ^ crcs[1::2]
        doublings += 1
    return int(crcs[0])


def _find_top_bits(bodies: npt.NDArray[np.uint8], size: int) -> Crcs:
    """Return the top bit of the checksum of each body."""
    word = next(f"u{width}" for width in (8, 4, 2, 1) if size % width == 0)
    mask = _find_parity_bits(size).view(word)
    words = bodies.view(word).reshape(-1, len(mask))
    step = max(1, _PARITY_BYTES // size)
    folded = [np.bitwise_xor.reduce(words[at : at + step] & mask, axis=1) for at in range(0, len(words), step)]
    zeros_top_bit = crc32(bytes(size)) >> 31
    return (np.bitwise_count(np.concatenate(folded)) & 1 ^ zeros_top_bit).astype(np.uint32)


class _Shift:
    """The map from checksums to the checksums after a fixed number of zero bytes is appended.

    Args:
        images: The image of each of the 32 bits.
    """

    def __init__(self, images: Crcs) -> None:
        self._images = images
        self._tables = [_xor_all(images[first : first + 8]) for first in (0, 8, 16, 24)]

    def __call__(self, crcs: npt.NDArray[Any]) -> Crcs:
        first, second, third, fourth = self._tables
        low = first.take(crcs & 0xFF) ^ second.take(crcs >> 8 & 0xFF)
        return low ^ third.take(crcs >> 16 & 0xFF) ^ fourth.take(crcs >> 24)

    def doubled(self) -> _Shift:
        return _Shift(self(self._images))


def _xor_all(images: Crcs) -> Crcs:
    """Return the image of every combination of bits."""
    table = np.zeros(1, dtype=np.uint32)
    for image in images:
        table = np.concatenate((table, table ^ image))
    return table


@lru_cache(maxsize=1024)
def _shift_by(size: int, doublings: int) -> _Shift:
    """Return the shift by *size* bytes, doubled *doublings* times."""
    if doublings:
        return _shift_by(size, doublings - 1).doubled()
    zeros = bytes(size)
    zeros_crc = crc32(zeros)
    return _Shift(np.array([_continue_crc(zeros, 1 << bit) ^ zeros_crc for bit in range(32)], dtype=np.uint32))


@lru_cache(maxsize=64)
def _find_parity_bits(size: int) -> npt.NDArray[np.uint8]:
    """Return the bits of a body of *size* bytes on which the top bit of its checksum depends."""
    zeros_crc = crc32(b"\0")
    # The effect of the last byte's bits on a checksum. Earlier bytes have the same effect, shifted.
    images = np.array([[crc32(bytes([1 << bit])) ^ zeros_crc for bit in range(8)]], dtype=np.uint32)
    doublings = 0
    while len(images) < size:
        images = np.concatenate((_shift_by(1, doublings)(images), images))
        doublings += 1
    return np.packbits((images[-size:] >> 31).astype(np.uint8), axis=1, bitorder="little").ravel()
