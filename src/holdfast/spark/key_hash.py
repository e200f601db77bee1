"""Java's `String.hashCode` for a column of keys, which determines their queues.

A vectorized `holdfast.model.java_hash`: each step processes one character of all keys.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.columns.slices import block_of, bounds_of
from holdfast.model.java_hash import java_hash

Hashes: TypeAlias = npt.NDArray[np.int64]

# Keys longer than this are rare, and hashing them one by one is faster.
_SIZE_MAX: Final = 256


def hash_keys(keys: pa.LargeStringArray) -> Hashes:
    """Return the hash of each of *keys*, which must not contain nulls."""
    units, bounds = np.frombuffer(block_of(keys), dtype=np.uint8), bounds_of(keys)
    sizes = np.diff(bounds)
    if units.max(initial=0) > 127 or sizes.max(initial=0) > _SIZE_MAX:
        return np.fromiter(map(java_hash, keys.to_pylist()), dtype=np.int64, count=len(keys))
    return _hash_ascii(units, bounds[:-1], sizes)


def _hash_ascii(units: npt.NDArray[np.uint8], starts: Hashes, sizes: Hashes) -> Hashes:
    hashes = np.zeros(len(sizes), dtype=np.uint32)
    live = np.arange(len(sizes))
    for at in range(int(sizes.max(initial=0))):
        if not (is_long := sizes[live] > at).all():
            live = live[is_long]
        hashes[live] = hashes[live] * np.uint32(31) + units[starts[live] + at]
    return hashes.view(np.int32).astype(np.int64)
