"""The fixed fields of all records of a pull answer, one numpy array per field.

    record | record | record | ...        see `wire.record` for the bytes of one

Each size leads to the next record. Runs of records of one size, the usual case, are found by one comparison. Every
length is validated before it is used, because the bytes are not trusted. Bodies and properties are not copied.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.columns.checksums import SUMMED_COUNT_MIN, SUMMED_SIZE_MAX, checksums_match
from holdfast.columns.slices import Block, Int64Array, bounds_and_bytes, copy_slices, find_size, view_unaligned
from holdfast.model.errors import CorruptRecord
from holdfast.native import accelerated
from holdfast.wire.records.record import (
    BORN_HOST_V6,
    CRC_MASK,
    FIXED_SIZE,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_SIZE_MIN,
    STORE_HOST_V6,
    crc32,
)

_unpack_size: Final = struct.Struct(">i").unpack_from
# Fields at the same byte in every record. Where later fields begin depends on the hosts.
_HEADER: Final = np.dtype(
    {
        "names": ["magic", "crc", "offset", "flags", "born_ms"],
        "formats": [">i4", ">i4", ">i8", ">i4", ">i8"],
        "offsets": [4, 8, 20, 36, 40],
        "itemsize": 48,
    }
)
_V6_EXTRA: Final = 12  # bytes by which an IPv6 host is longer
_AHEAD_MIN: Final = 16  # records to compare at once; grows while all have one size
_SINGLE_WALK_BYTES: Final = 256 * 1024  # to walk record by record where sizes differ
_LANE_BYTES: Final = 32 * 1024  # of a block that is walked from many places at once
_LANE_SEARCH_BYTES: Final = 4 * 1024  # bytes to search for the next record: larger records are few, and quick to walk
_LANES_MIN: Final = 16
_LANE_STEPS: Final = 8  # between checks whether all lanes have arrived
_LANE_STEPS_MAX: Final = 2 * _LANE_BYTES // RECORD_SIZE_MIN
_MAGIC_AT: Final = 4
_MAGIC: Final = MAGIC_V1.to_bytes(4, "big", signed=True)
_KINDS: Final = (np.int64, np.int32, np.int64, np.int64, np.int32, np.int64, np.int64, np.int64, np.int64)


@dataclass(frozen=True, slots=True)
class Records:
    """The fixed fields of records, one array per field, and where the body and properties of each record are."""

    offsets: Int64Array
    flags: npt.NDArray[np.int32]
    born_ms: Int64Array
    store_ms: Int64Array
    crcs: npt.NDArray[np.int32]
    body_starts: Int64Array
    body_sizes: Int64Array
    properties_starts: Int64Array
    properties_sizes: Int64Array

    def __len__(self) -> int:
        return len(self.offsets)

    def select(self, chosen: npt.NDArray[Any] | slice) -> Records:
        """Return only the *chosen* records."""
        return Records(*(getattr(self, name)[chosen] for name in self.__slots__))


def read_records(block: Block) -> Records:
    """Return the records in *block*, which they fill completely.

    Raises:
        CorruptRecord: the bytes are not a sequence of whole records.
    """
    found = measure_records(block)
    if found is None:
        return read_at(block, find_starts(block))  # It raises the error that names the fault.
    return Records(*map(np.frombuffer, found, _KINDS)) if isinstance(found, tuple) else found


@accelerated
def measure_records(block: Block) -> Records | tuple[bytes, ...] | None:
    """Return the records that fill *block*, or the bytes of their fields, in order; None if other bytes are there."""
    try:
        return read_at(block, find_starts(block))
    except CorruptRecord:
        return None


def read_at(block: Block, starts: Int64Array) -> Records:
    """Return the records that begin at *starts* of *block*. Each must fit by its size.

    Raises:
        CorruptRecord: one of them is not a record. Earlier ones may be corrupt, too: each rule is checked for all
            records before the next rule.
    """
    i2, i4, i8 = (view_unaligned(block, kind) for kind in (">u2", ">i4", ">i8"))
    # Gather whole heads first: gathering each field separately would be one more pass over the block each.
    headers = view_unaligned(block, f"V{_HEADER.itemsize}")[starts].view(_HEADER)
    magics, flags = headers["magic"], headers["flags"].astype(np.int32)
    is_wide = magics == MAGIC_V2
    _validate((magics == MAGIC_V1) | is_wide, starts, "the magic number is wrong")
    born_extra = np.where(flags & BORN_HOST_V6, _V6_EXTRA, 0)
    host_extra = born_extra + np.where(flags & STORE_HOST_V6, _V6_EXTRA, 0)
    ends = starts + i4[starts]
    body_starts = starts + FIXED_SIZE + host_extra
    _validate(body_starts + 3 <= ends, starts, "it is too short for its host fields")
    body_sizes = i4[body_starts - 4].astype(np.int64)
    topics = body_starts + body_sizes
    _validate((body_sizes >= 0) & (topics + 3 + is_wide <= ends), starts, "its body does not fit")
    u1 = np.frombuffer(block, dtype=np.uint8)
    topic_sizes = u1[topics].astype(np.int64)
    if is_wide.any():
        topic_sizes = np.where(is_wide, i2[topics], topic_sizes)
    lengths = topics + 1 + is_wide + topic_sizes
    _validate(lengths + 2 <= ends, starts, "its topic does not fit")
    properties_sizes = i2[lengths].astype(np.int64)
    _validate(lengths + 2 + properties_sizes == ends, starts, "the sizes of its parts do not add up")
    return Records(
        offsets=headers["offset"].astype(np.int64),
        flags=flags,
        born_ms=headers["born_ms"].astype(np.int64),
        store_ms=i8[starts + 56 + born_extra].astype(np.int64),
        crcs=headers["crc"].astype(np.int32),
        body_starts=body_starts,
        body_sizes=body_sizes,
        properties_starts=lengths + 2,
        properties_sizes=properties_sizes,
    )


def find_starts(block: Block) -> Int64Array:
    """Return where each record begins.

    Raises:
        CorruptRecord: a size points beyond the block.
    """
    starts, stop = follow_sizes(block)
    if stop < len(block):
        remaining = len(block) - stop
        size: int = _unpack_size(block, stop)[0] if remaining >= RECORD_SIZE_MIN else 0
        raise CorruptRecord(stop, f"size is {size}, but {remaining} bytes are left")
    return starts


def follow_sizes(block: Block) -> tuple[Int64Array, int]:
    """Return where the records begin, by following their sizes, and where the first incomplete one begins."""
    runs: list[Int64Array] = []
    at, end, ahead, has_lanes = 0, len(block), _AHEAD_MIN, True
    while (size := _size_at(block, at)) is not None:
        count = min((end - at) // size, ahead)
        sizes = np.ndarray(shape=(count,), dtype=">i4", buffer=block, offset=at, strides=(size,))
        differs = sizes != size
        alike = int(differs.argmax()) if differs.any() else count
        runs.append(np.arange(at, at + alike * size, size, dtype=np.int64))
        at += alike * size
        if alike == count:
            ahead *= 8
            continue
        ahead = _AHEAD_MIN
        walked = _walk_in_lanes(block, at) if has_lanes else None
        has_lanes = walked is not None  # Whatever stopped the lanes once is likely to stop them again.
        found, at = walked or _walk(block, at)
        runs.append(found)
    return (np.concatenate(runs) if runs else np.empty(0, dtype=np.int64)), at


def _walk_in_lanes(block: Block, at: int) -> tuple[Int64Array, int] | None:
    """Follow sizes from many places at once, and further than `_walk` does; return None where that is not possible.

    A lane begins at the next magic number. A body may contain that number, too: therefore each lane must arrive exactly
    where the next one begins. Then all lanes together are one walk that begins at *at*.
    """
    lane_starts = [at]
    for position in range(at + _LANE_BYTES, len(block) - _LANE_BYTES, _LANE_BYTES):
        found = bytes(block[position + _MAGIC_AT : position + _LANE_SEARCH_BYTES]).find(_MAGIC)
        if found < 0:
            return None
        lane_starts.append(position + found)
    if len(lane_starts) < _LANES_MIN:
        return None
    sizes_at = view_unaligned(block, ">u4")  # Unsigned: whatever the sizes are, no lane walks backwards.
    positions, ends = np.array(lane_starts[:-1]), np.array(lane_starts[1:])
    walked = [positions]
    while len(walked) < _LANE_STEPS_MAX and not (positions == ends).all():
        for _ in range(_LANE_STEPS):
            # A lane that has arrived stays. A lane that went astray is detected after the loop.
            positions = np.minimum(positions + sizes_at[positions], ends)
            walked.append(positions)
    by_lane = np.array(walked).T
    starts = by_lane[by_lane < ends[:, np.newaxis]]
    sizes = sizes_at[starts].astype(np.int64)
    is_walk = (sizes >= RECORD_SIZE_MIN).all() and np.array_equal(
        starts + sizes, np.append(starts[1:], lane_starts[-1])
    )
    return (starts, lane_starts[-1]) if is_walk else None


def _walk(block: Block, at: int) -> tuple[Int64Array, int]:
    """Return where some records begin, starting with *at*, and where the next one begins, by following their sizes.

    The loop runs once for every record: everything that can be done after it is done there.
    """
    found: list[int] = []
    add, unpack = found.append, _unpack_size
    last = min(len(block) - RECORD_SIZE_MIN, at + _SINGLE_WALK_BYTES)
    while at <= last:
        size = unpack(block, at)[0]
        if size < RECORD_SIZE_MIN:
            break  # The caller checks the size again.
        add(at)
        at += size
    if at > len(block):
        at = found.pop()
    return np.array(found, dtype=np.int64), at


def copy_bodies(block: Block, records: Records) -> pa.BinaryArray:
    """Return the bodies as a column, not decompressed."""
    return copy_slices(block, records.body_starts, records.body_starts + records.body_sizes)


def check_bodies(block: Block, records: Records, copies: pa.BinaryArray | None = None) -> None:
    """Compare every body with its checksum. *copies* are the bodies as a column, if the caller already has them.

    Raises:
        CorruptRecord: a body does not match its checksum.
    """
    _validate(find_valid_bodies(block, records, copies), records.body_starts, "the checksum of its body is wrong")


def find_valid_bodies(block: Block, records: Records, copies: pa.BinaryArray | None = None) -> npt.NDArray[np.bool_]:
    """Return for every record whether its body matches its checksum; *copies* are the bodies, if already copied."""
    size = find_size(records.body_sizes) if len(records) >= SUMMED_COUNT_MIN else None
    if size and size <= SUMMED_SIZE_MAX:
        _, bodies = bounds_and_bytes(copy_bodies(block, records) if copies is None else copies)
        if checksums_match(bodies, size, records.crcs):
            return np.ones(len(records), dtype=np.bool_)
    columns = (records.body_starts.tobytes(), records.body_sizes.tobytes(), records.crcs.tobytes())
    return np.frombuffer(match_bodies(block, *columns), dtype=np.bool_)


@accelerated
def match_bodies(block: Block, starts: bytes, sizes: bytes, crcs: bytes) -> bytes:
    """Return a byte for each body of *block*: 1 if it matches its checksum. Sizes and positions must fit the block."""
    view = memoryview(block)
    firsts = np.frombuffer(starts, dtype=np.int64)
    ends = firsts + np.frombuffer(sizes, dtype=np.int64)
    bounds = zip(firsts.tolist(), ends.tolist(), strict=True)
    found = np.array([crc32(view[start:end]) for start, end in bounds], dtype=np.uint32)
    matches: bytes = ((found & CRC_MASK).astype(np.int32) == np.frombuffer(crcs, dtype=np.int32)).tobytes()
    return matches


def _size_at(block: Block, at: int) -> int | None:
    """Return the size of the record at *at*; None if no whole record can be there."""
    remaining = len(block) - at
    size: int = _unpack_size(block, at)[0] if remaining >= RECORD_SIZE_MIN else 0
    return size if RECORD_SIZE_MIN <= size <= remaining else None


def _validate(is_valid: npt.NDArray[np.bool_], starts: Int64Array, fault: str) -> None:
    if not is_valid.all():
        raise CorruptRecord(int(starts[int(np.argmin(is_valid))]), fault)
