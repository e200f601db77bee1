"""Turn the bytes of a pull answer into an Arrow batch: columns, not objects.

    key string | body binary | tags string | topic string | queue int | offset bigint | storeTimestamp | bornTimestamp |
    properties map<string,string> | generation int | broker string

Only the requested columns are built: without `body` no body is read; without `key`, `tags` and `properties` no property
is. Checksums of returned bodies are verified. A batch that a broker stored whole becomes one row per message
(`inner_batches`).

Pure; needs pyarrow and numpy, but neither Spark nor a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.columns.inner_batches import are_batches, open_batches
from holdfast.columns.property_columns import Properties, split_properties
from holdfast.columns.records import Records, check_bodies, copy_bodies, read_records
from holdfast.columns.slices import Block, Int64Array, copy_slices
from holdfast.model import property_names as names
from holdfast.model.errors import RemoteProtocolError, UnreadableBatch
from holdfast.wire.records.compression import COMPRESSED, decompress

_TIME: Final = pa.timestamp("us", tz="UTC")
TYPES: Final[dict[str, pa.DataType]] = {
    "key": pa.string(),
    "body": pa.binary(),
    "tags": pa.string(),
    "topic": pa.string(),
    "queue": pa.int32(),
    "offset": pa.int64(),
    "storeTimestamp": _TIME,
    "bornTimestamp": _TIME,
    "properties": pa.map_(pa.string(), pa.string()),
    "generation": pa.int32(),
    "broker": pa.string(),
}
"""Every column, in the order in which users see them by default."""


@dataclass(frozen=True, slots=True)
class RecordOrigin:
    """The source of the records of one answer.

    Attributes:
        queue: The queue's number, as users see it.
        broker: The broker that stores the records.
        generation: The number of the logical queue's segment; None for a queue of a normal topic.
        delta: Added to the offsets in the records.
    """

    topic: str
    queue: int
    broker: str
    generation: int | None
    delta: int = 0


@dataclass(frozen=True, slots=True)
class RowSelection:
    """The part of an answer that becomes rows.

    Attributes:
        columns: The columns, in order.
        start: The first offset.
        end: The offset after the last.
        tags: Only messages with one of these tags; None for all.
    """

    columns: tuple[str, ...]
    start: int
    end: int
    tags: frozenset[str] | None = None


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """Return the Arrow schema of these columns."""
    return _schema_of(tuple(columns))


@lru_cache(maxsize=64)
def _schema_of(columns: tuple[str, ...]) -> pa.Schema:
    return pa.schema([(name, TYPES[name]) for name in columns])


def to_batches(
    block: Block, origin: RecordOrigin, selection: RowSelection, unreadable: list[UnreadableBatch] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of an answer as batches: one, or several if decompressed batches are large.

    Args:
        block: The records of the answer.
        origin: The source of the records.
        selection: The part of them that becomes rows.
        unreadable: Receives an entry for every batch that cannot be opened: such a batch yields no rows. Without it
            the first one is raised.

    Raises:
        CorruptRecord: a record is corrupt.
        UnreadableBatch: a batch that was stored whole cannot be opened.
    """
    records = read_records(block)
    if origin.delta:
        records = replace(records, offsets=records.offsets + origin.delta)
    if len(records) and records.offsets[-1] >= selection.end:
        records = records.select(records.offsets < selection.end)  # Do not open batches that are not wanted.
    if not are_batches(records).any():
        yield _BatchBuilder(block, _select_range(records, selection), origin).build(selection)
        return
    found: list[UnreadableBatch] = [] if unreadable is None else unreadable
    for plain_block, rows in open_batches(block, records, found):
        if found and unreadable is None:
            raise found[0]
        yield _BatchBuilder(plain_block, _select_range(rows, selection), origin).build(selection)


def _select_range(rows: Records, selection: RowSelection) -> Records:
    """Return the rows whose offsets are wanted."""
    offsets = rows.offsets
    # Offsets normally rise, but no checksum covers them: a damaged one may be anywhere.
    # (The methods `min` and `max` cost twice as much in answers of a few rows.)
    if not len(rows) or (np.minimum.reduce(offsets) >= selection.start and np.maximum.reduce(offsets) < selection.end):
        return rows
    return rows.select((offsets >= selection.start) & (offsets < selection.end))


def from_rows(block: Block, rows: Records, origin: RecordOrigin, columns: Sequence[str]) -> pa.RecordBatch:
    """Return rows of a block as a batch of these columns, one message per row.

    Raises:
        CorruptRecord: the body is requested, and one does not match its checksum.
    """
    return _BatchBuilder(block, rows, origin).build(RowSelection(tuple(columns), 0, 1 << 62))


class _BatchBuilder:
    """Builds the columns of one answer on request."""

    def __init__(self, block: Block, records: Records, origin: RecordOrigin) -> None:
        self._block = block
        self._records = records
        self._origin = origin
        self._properties: Properties | None = None

    def build(self, selection: RowSelection) -> pa.RecordBatch:
        if selection.tags is not None:
            has_tag = pc.is_in(self.properties.find(names.TAGS), pa.array(sorted(selection.tags)))
            self._records = self._records.select(has_tag.to_numpy(zero_copy_only=False))
            self._properties = None
        arrays = [_COLUMN_BUILDERS[name](self) for name in selection.columns]
        if not arrays:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * len(self._records), type=pa.struct([])))
        return pa.RecordBatch.from_arrays(arrays, schema=schema_of(selection.columns))

    @property
    def properties(self) -> Properties:
        if self._properties is None:
            records = self._records
            ends = records.properties_starts + records.properties_sizes
            self._properties = split_properties(copy_slices(self._block, records.properties_starts, ends))
        return self._properties

    def key(self) -> pa.Array:
        """Return the sharding key, which decides the queue; the message keys where the sender set none."""
        sharding = self.properties.find(names.SHARDING_KEY)
        return pc.coalesce(sharding, self.properties.find(names.KEYS)) if sharding.null_count else sharding

    def body(self) -> pa.Array:
        records = self._records
        bodies = copy_bodies(self._block, records)
        is_item = are_batches(records)
        if not is_item.any():
            check_bodies(self._block, records, bodies)
        elif not is_item.all():
            check_bodies(self._block, records.select(~is_item))
        is_compressed = (records.flags & COMPRESSED).astype(np.bool_)
        if not is_compressed.any():
            return bodies
        plain = [self._uncompress(int(row)) for row in np.flatnonzero(is_compressed)]
        return pc.replace_with_mask(bodies, pa.array(is_compressed), pa.array(plain, type=pa.binary()))

    def _uncompress(self, row: int) -> bytes:
        start, size = int(self._records.body_starts[row]), int(self._records.body_sizes[row])
        stored = bytes(self._block[start : start + size])
        try:
            return decompress(stored, int(self._records.flags[row]))
        except RemoteProtocolError:
            return stored  # The checksum matches: the sender sent it like this.

    def tags(self) -> pa.Array:
        return self.properties.find(names.TAGS)

    def property_map(self) -> pa.Array:
        return self.properties.to_map()

    def topic(self) -> pa.Array:
        return self._constant_column(pa.scalar(self._origin.topic, pa.string()))

    def queue(self) -> pa.Array:
        return self._constant_column(pa.scalar(self._origin.queue, pa.int32()))

    def broker(self) -> pa.Array:
        return self._constant_column(pa.scalar(self._origin.broker, pa.string()))

    def generation(self) -> pa.Array:
        return self._constant_column(pa.scalar(self._origin.generation, pa.int32()))

    def offset(self) -> pa.Array:
        return pa.array(self._records.offsets)

    def store_time(self) -> pa.Array:
        return _to_time(self._records.store_ms)

    def born_time(self) -> pa.Array:
        return _to_time(self._records.born_ms)

    def _constant_column(self, value: Any) -> pa.Array:
        if not value.is_valid:
            return pa.nulls(len(self._records), value.type)
        return pa.repeat(value, len(self._records))


_COLUMN_BUILDERS: Final[dict[str, Callable[[_BatchBuilder], pa.Array]]] = {
    "key": _BatchBuilder.key,
    "body": _BatchBuilder.body,
    "tags": _BatchBuilder.tags,
    "topic": _BatchBuilder.topic,
    "queue": _BatchBuilder.queue,
    "offset": _BatchBuilder.offset,
    "storeTimestamp": _BatchBuilder.store_time,
    "bornTimestamp": _BatchBuilder.born_time,
    "properties": _BatchBuilder.property_map,
    "generation": _BatchBuilder.generation,
    "broker": _BatchBuilder.broker,
}


def _to_time(milliseconds: Int64Array) -> pa.Array:
    # In answers of a few rows, a cast would cost more than everything else.
    return pa.Array.from_buffers(_TIME, len(milliseconds), [None, pa.py_buffer(milliseconds * 1000)])
