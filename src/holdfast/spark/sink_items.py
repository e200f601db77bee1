"""Columns of messages as the bodies of batch sends: what `holdfast.wire.batch.encode_items` does, all at once.

    head | body | properties size | properties     four columns, joined row by row: Arrow copies, in C

Pure: columns in, bytes out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.spark.sink_rows import BYTES, BadRow, Messages, join_columns
from holdfast.spark.slices import block_of, bounds_of
from holdfast.wire.batch import ITEM_OVERHEAD
from holdfast.wire.properties import PROPERTIES_SIZE_MAX

_HEAD: Final = np.dtype([("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("flag", ">i4"), ("body_size", ">i4")])
_PROPERTIES_SIZE: Final = np.dtype(">u2")


def encode_messages(messages: Messages, stamps: Sequence[bytes] | None = None) -> bytes:
    """Return the body of a batch send.

    Args:
        messages: What it carries.
        stamps: What is added to the properties of each.

    Raises:
        BadRow: the properties of a message are larger than can be stored.
    """
    chosen = pa.array(messages.numbers)
    bodies, properties = messages.bodies.take(chosen), messages.properties.take(chosen)
    if stamps is not None:
        properties = join_columns(properties, pa.array(stamps, BYTES))
    body_sizes, properties_sizes = np.diff(bounds_of(bodies)), np.diff(bounds_of(properties))
    if (largest := properties_sizes.max(initial=0)) > PROPERTIES_SIZE_MAX:
        raise BadRow(f"the properties of a row have {largest} bytes, at most {PROPERTIES_SIZE_MAX} can be stored")
    heads = np.zeros(len(messages), dtype=_HEAD)
    heads["size"] = ITEM_OVERHEAD + body_sizes + properties_sizes
    heads["body_size"] = body_sizes
    tails = properties_sizes.astype(_PROPERTIES_SIZE)
    return bytes(block_of(join_columns(_to_column(heads), bodies, _to_column(tails), properties)))


def cut_requests(messages: Messages, size_max: int, count_max: int) -> list[int]:
    """Return where requests end that carry all *messages*, in order: none too large, if it has more than one."""
    numbers, sizes = messages.numbers, np.full(len(messages), ITEM_OVERHEAD)
    for bounds in (bounds_of(messages.bodies), bounds_of(messages.properties)):
        sizes += bounds[numbers + 1] - bounds[numbers]
    ends = np.cumsum(sizes)
    cuts: list[int] = []
    at = taken = 0
    while at < len(messages):
        fitting = int(np.searchsorted(ends, taken + size_max, side="right"))
        at = min(max(fitting, at + 1), at + count_max, len(messages))
        taken = int(ends[at - 1])
        cuts.append(at)
    return cuts


def run_checksums(messages: Messages, first: int) -> list[int]:
    """Return the checksum before the first of *messages*, which is given, and behind each of them."""
    columns = messages.bodies, messages.properties
    bodies, properties = map(block_of, columns)
    places = [bounds_of(column)[messages.numbers + end].tolist() for column in columns for end in (0, 1)]
    found = [first]
    checksum = first
    for start, end, properties_start, properties_end in zip(*places, strict=True):
        checksum = crc32(properties[properties_start:properties_end], crc32(bodies[start:end], checksum))
        found.append(checksum)
    return found


def _to_column(values: npt.NDArray[Any]) -> pa.LargeBinaryArray:
    """Return the bytes of each value as a column."""
    ends = np.arange(len(values) + 1, dtype=np.int64) * values.dtype.itemsize
    return pa.Array.from_buffers(BYTES, len(values), [None, pa.py_buffer(ends), pa.py_buffer(values)])
