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

from holdfast.columns.checksums import SUMMED_COUNT_MIN, SUMMED_SIZE_MAX, are_all_right
from holdfast.columns.slices import Block, Places, at_any_byte, find_size, parts_of, take_slices
from holdfast.model.errors import CorruptRecord
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
# Fields at the same place in every record. The places of later fields depend on the hosts.
_HEAD: Final = np.dtype(
    {
        "names": ["magic", "crc", "offset", "flags", "born_ms"],
        "formats": [">i4", ">i4", ">i8", ">i4", ">i8"],
        "offsets": [4, 8, 20, 36, 40],
        "itemsize": 48,
    }
)
_V6_MORE: Final = 12  # bytes by which an IPv6 host is longer
_AHEAD_MIN: Final = 16  # records to compare at once; grows while all have one size
_ALONE_BYTES: Final = 256 * 1024  # to walk record by record where sizes differ
_LANE_BYTES: Final = 32 * 1024  # of a block that is walked from many places at once
_LANE_SEARCHED: Final = 4 * 1024  # bytes to search for the next record: larger records are few, and quick to walk
_LANES_MIN: Final = 16
_LANE_STEPS: Final = 8  # between checks whether all lanes have arrived
_LANE_STEPS_MAX: Final = 2 * _LANE_BYTES // RECORD_SIZE_MIN
_MAGIC_AT: Final = 4
_MAGIC: Final = MAGIC_V1.to_bytes(4, "big", signed=True)


@dataclass(frozen=True, slots=True)
class Records:
    """The fixed fields of records, one array per field, and where the body and properties of each record are."""

    offsets: Places
    flags: npt.NDArray[np.int32]
    born_ms: Places
    store_ms: Places
    crcs: npt.NDArray[np.int32]
    body_starts: Places
    body_sizes: Places
    properties_starts: Places
    properties_sizes: Places

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
    return read_at(block, find_starts(block))


def read_at(block: Block, starts: Places) -> Records:
    """Return the records that begin at *starts* of *block*. Each must fit by its size.

    Raises:
        CorruptRecord: one of them is not a record. Earlier ones may be corrupt, too: each rule is checked for all
            records before the next rule.
    """
    i2, i4, i8 = (at_any_byte(block, kind) for kind in (">u2", ">i4", ">i8"))
    # Gather whole heads first: gathering each field separately would be one more pass over the block each.
    heads = at_any_byte(block, f"V{_HEAD.itemsize}")[starts].view(_HEAD)
    magics, flags = heads["magic"], heads["flags"].astype(np.int32)
    is_wide = magics == MAGIC_V2
    _validate((magics == MAGIC_V1) | is_wide, starts, "the magic number is wrong")
    born_more = np.where(flags & BORN_HOST_V6, _V6_MORE, 0)
    more = born_more + np.where(flags & STORE_HOST_V6, _V6_MORE, 0)
    ends = starts + i4[starts]
    body_starts = starts + FIXED_SIZE + more
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
        offsets=heads["offset"].astype(np.int64),
        flags=flags,
        born_ms=heads["born_ms"].astype(np.int64),
        store_ms=i8[starts + 56 + born_more].astype(np.int64),
        crcs=heads["crc"].astype(np.int32),
        body_starts=body_starts,
        body_sizes=body_sizes,
        properties_starts=lengths + 2,
        properties_sizes=properties_sizes,
    )


def find_starts(block: Block) -> Places:
    """Return where each record begins.

    Raises:
        CorruptRecord: a size points beyond the block.
    """
    starts, stop = follow_sizes(block)
    if stop < len(block):
        left = len(block) - stop
        size: int = _unpack_size(block, stop)[0] if left >= RECORD_SIZE_MIN else 0
        raise CorruptRecord(stop, f"size is {size}, but {left} bytes are left")
    return starts


def follow_sizes(block: Block) -> tuple[Places, int]:
    """Return where the records begin, by following their sizes, and where the first incomplete one begins."""
    runs: list[Places] = []
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


def _walk_in_lanes(block: Block, at: int) -> tuple[Places, int] | None:
    """Follow sizes from many places at once, and further than `_walk` does; return None where that is not possible.

    A lane begins at the next magic number. A body may contain that number, too: therefore each lane must arrive exactly
    where the next one begins. Then all lanes together are one walk that begins at *at*.
    """
    begins = [at]
    for place in range(at + _LANE_BYTES, len(block) - _LANE_BYTES, _LANE_BYTES):
        found = bytes(block[place + _MAGIC_AT : place + _LANE_SEARCHED]).find(_MAGIC)
        if found < 0:
            return None
        begins.append(place + found)
    if len(begins) < _LANES_MIN:
        return None
    sizes_at = at_any_byte(block, ">u4")  # Unsigned: whatever the sizes are, no lane walks backwards.
    places, ends = np.array(begins[:-1]), np.array(begins[1:])
    walked = [places]
    while len(walked) < _LANE_STEPS_MAX and not (places == ends).all():
        for _ in range(_LANE_STEPS):
            # A lane that has arrived stays. A lane that went astray is detected after the loop.
            places = np.minimum(places + sizes_at[places], ends)
            walked.append(places)
    by_lane = np.array(walked).T
    starts = by_lane[by_lane < ends[:, np.newaxis]]
    sizes = sizes_at[starts].astype(np.int64)
    is_walk = (sizes >= RECORD_SIZE_MIN).all() and np.array_equal(starts + sizes, np.append(starts[1:], begins[-1]))
    return (starts, begins[-1]) if is_walk else None


def _walk(block: Block, at: int) -> tuple[Places, int]:
    """Return where some records begin, starting with *at*, and where the next one begins, by following their sizes.

    The loop runs once for every record: everything that can be done after it is done there.
    """
    found: list[int] = []
    add, unpack = found.append, _unpack_size
    last = min(len(block) - RECORD_SIZE_MIN, at + _ALONE_BYTES)
    while at <= last:
        size = unpack(block, at)[0]
        if size < RECORD_SIZE_MIN:
            break  # The caller checks the size again.
        add(at)
        at += size
    if at > len(block):
        at = found.pop()
    return np.array(found, dtype=np.int64), at


def take_bodies(block: Block, records: Records) -> pa.BinaryArray:
    """Return the bodies as a column, not decompressed."""
    return take_slices(block, records.body_starts, records.body_starts + records.body_sizes)


def check_bodies(block: Block, records: Records, copies: pa.BinaryArray | None = None) -> None:
    """Compare every body with its checksum. *copies* are the bodies as a column, if the caller already has them.

    Raises:
        CorruptRecord: a body does not match its checksum.
    """
    _validate(is_body_right(block, records, copies), records.body_starts, "the checksum of its body is wrong")


def is_body_right(block: Block, records: Records, copies: pa.BinaryArray | None = None) -> npt.NDArray[np.bool_]:
    """Return for every record whether its body matches its checksum; *copies* are the bodies, if already copied."""
    size = find_size(records.body_sizes) if len(records) >= SUMMED_COUNT_MIN else None
    if size and size <= SUMMED_SIZE_MAX:
        _, bodies = parts_of(take_bodies(block, records) if copies is None else copies)
        if are_all_right(bodies, size, records.crcs):
            return np.ones(len(records), dtype=np.bool_)
    view = memoryview(block)
    starts = records.body_starts.tolist()
    ends = (records.body_starts + records.body_sizes).tolist()
    found = np.array([crc32(view[start:end]) for start, end in zip(starts, ends, strict=True)], dtype=np.uint32)
    is_right: npt.NDArray[np.bool_] = (found & CRC_MASK).astype(np.int32) == records.crcs
    return is_right


def _size_at(block: Block, at: int) -> int | None:
    """Return the size of the record at *at*; None if no whole record can be there."""
    left = len(block) - at
    size: int = _unpack_size(block, at)[0] if left >= RECORD_SIZE_MIN else 0
    return size if RECORD_SIZE_MIN <= size <= left else None


def _validate(is_right: npt.NDArray[np.bool_], starts: Places, fault: str) -> None:
    if not is_right.all():
        raise CorruptRecord(int(starts[int(np.argmin(is_right))]), fault)
