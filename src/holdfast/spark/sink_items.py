"""Encodes columns of messages as the bodies of batch sends: a vectorized `holdfast.wire.records.batch.encode_items`.

    head | body | properties size | properties     four columns, joined row by row by Arrow, in C

The same body serves both forms of a send: messages that the broker stores separately, or a batch that it stores whole.

Pure: columns in, bytes out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.columns.slices import block_of, bounds_of
from holdfast.spark.sink_rows import BYTES, BadRow, MessageSelection, join_columns
from holdfast.wire.records.batch import ITEM_OVERHEAD
from holdfast.wire.records.compression import Codec
from holdfast.wire.records.inner_batch import KEYS_SIZE_MAX, InnerBatch, wrap_items
from holdfast.wire.records.properties import PROPERTIES_SIZE_MAX

_HEAD: Final = np.dtype([("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("flag", ">i4"), ("body_size", ">i4")])
_PROPERTIES_SIZE: Final = np.dtype(">u2")


def encode_messages(messages: MessageSelection, stamps: Sequence[bytes] | None = None) -> bytes:
    """Return the body of a batch send.

    Args:
        messages: The messages to encode.
        stamps: Properties to append to each message; None for none.

    Raises:
        BadRow: the properties of a message are too large to be stored.
    """
    chosen = pa.array(messages.numbers)
    bodies, properties = messages.rows.bodies.take(chosen), messages.rows.properties.take(chosen)
    if stamps is not None:
        properties = join_columns(properties, pa.array(stamps, BYTES))
    body_sizes, properties_sizes = np.diff(bounds_of(bodies)), np.diff(bounds_of(properties))
    if (largest := properties_sizes.max(initial=0)) > PROPERTIES_SIZE_MAX:
        raise BadRow(f"the properties of a row have {largest} bytes; at most {PROPERTIES_SIZE_MAX} can be stored")
    heads = np.zeros(len(messages), dtype=_HEAD)
    heads["size"] = ITEM_OVERHEAD + body_sizes + properties_sizes
    heads["body_size"] = body_sizes
    tails = properties_sizes.astype(_PROPERTIES_SIZE)
    return bytes(block_of(join_columns(_to_column(heads), bodies, _to_column(tails), properties)))


def wrap_messages(messages: MessageSelection, batch_id: str, codec: Codec | None) -> InnerBatch:
    """Return *messages* as a batch that the broker stores whole.

    Raises:
        BadRow: the properties of a message are too large to be stored.
        LocalProtocolError: the messages are too many or too large, or their keys do not fit the batch's properties.
    """
    chosen = pa.array(messages.numbers)
    keys, tags = (column.take(chosen).unique().to_pylist() for column in (messages.rows.keys, messages.rows.tags))
    items = encode_messages(messages)
    # The batch's properties list all keys, and rows have no ids, so the broker need not search the messages for any.
    return wrap_items(items, len(messages), batch_id, keys=filter(None, keys), tags=tags, codec=codec, has_ids=False)


def count_fitting(messages: MessageSelection, size_max: int) -> int:
    """Return how many of *messages* fit in a request of *size_max* bytes: at least one."""
    numbers, sizes = messages.numbers, np.full(len(messages), ITEM_OVERHEAD)
    for bounds in (bounds_of(messages.rows.bodies), bounds_of(messages.rows.properties)):
        sizes += bounds[numbers + 1] - bounds[numbers]
    return max(1, int(np.searchsorted(np.cumsum(sizes), size_max, side="right")))


def count_fitting_keys(messages: MessageSelection) -> int:
    """Return how many of *messages* have keys that together fit in the properties of one record: at least one."""
    keys = messages.rows.keys.take(pa.array(messages.numbers)).dictionary_encode()
    # Arrow numbers distinct keys by first occurrence, so the running maximum counts the distinct keys up to each row.
    seen = np.maximum.accumulate(keys.indices.fill_null(-1).to_numpy(zero_copy_only=False))
    ends = np.cumsum(pc.binary_length(keys.dictionary).to_numpy(zero_copy_only=False) + 1)
    fitting = int(np.searchsorted(ends, KEYS_SIZE_MAX, side="right"))
    return max(1, int(np.searchsorted(seen, fitting)))


def running_checksums(messages: MessageSelection, first: int) -> list[int]:
    """Return the running checksum before the first of *messages*, which is *first*, and after each of them."""
    columns = messages.rows.bodies, messages.rows.properties
    bodies, properties = map(block_of, columns)
    column_bounds = [bounds_of(column)[messages.numbers + end].tolist() for column in columns for end in (0, 1)]
    checksums = [first]
    checksum = first
    for start, end, properties_start, properties_end in zip(*column_bounds, strict=True):
        checksum = crc32(properties[properties_start:properties_end], crc32(bodies[start:end], checksum))
        checksums.append(checksum)
    return checksums


def _to_column(values: npt.NDArray[Any]) -> pa.LargeBinaryArray:
    """Return the bytes of each value as a column."""
    ends = np.arange(len(values) + 1, dtype=np.int64) * values.dtype.itemsize
    return pa.Array.from_buffers(BYTES, len(values), [None, pa.py_buffer(ends), pa.py_buffer(values)])
