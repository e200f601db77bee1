"""Converts Arrow batches to columns of messages, without a Python object per row, and chooses their queues.

    key ─> Java's hash of the text ─> abs(h % N) ─> logical queue        as in all our clients, and in Java's
    no key ─> round robin over the queues, from one that depends on the partition

Pure: depends on neither brokers nor Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.columns.slices import block_of
from holdfast.model import property_names as names
from holdfast.model.errors import HoldfastError
from holdfast.model.java_hash import key_text
from holdfast.model.queue import MessageQueue
from holdfast.spark.key_hash import hash_keys
from holdfast.spark.sink_options import BODY_COLUMNS
from holdfast.wire.records.properties import NAME_END, PROPERTIES_SIZE_MAX, VALUE_END

Numbers: TypeAlias = npt.NDArray[np.int64]

BYTES: Final = pa.large_binary()
"""The type of message columns: large, because a partition may have more than 2 GiB."""
_TEXT: Final = pa.large_string()


class BadRow(HoldfastError):
    """A row cannot be stored as a message; the text says why."""


@dataclass(frozen=True, slots=True)
class MessageColumns:
    """Messages for one topic as columns.

    Attributes:
        keys: Their keys; null for those without.
        tags: Their tags; null for those without.
        bodies: Their bodies.
        properties: Their properties, encoded as stored; they include the key and the tag.
    """

    keys: pa.LargeStringArray
    tags: pa.LargeStringArray
    bodies: pa.LargeBinaryArray
    properties: pa.LargeBinaryArray

    def __len__(self) -> int:
        return len(self.bodies)

    def arrival_order(self) -> Numbers:
        """Return the row numbers in the order of arrival."""
        return np.arange(len(self))

    def content_order(self) -> Numbers:
        """Return the row numbers sorted by content, so that the order does not depend on arrival."""
        columns = {"key": self.keys.cast(BYTES).fill_null(b""), "body": self.bodies, "properties": self.properties}
        order = pc.sort_indices(pa.table(columns), sort_keys=[(name, "ascending") for name in columns])
        return order.to_numpy().astype(np.int64)

    def take(self, chosen: pa.Array) -> MessageColumns:
        """Return the *chosen* rows."""
        return MessageColumns(*(getattr(self, name).take(chosen) for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class MessageSelection:
    """A selection of rows, in any order. Nothing is copied until the rows are encoded, one request at a time.

    Attributes:
        rows: The columns.
        numbers: The numbers of the selected rows.
    """

    rows: MessageColumns
    numbers: Numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, span: slice) -> MessageSelection:
        return MessageSelection(self.rows, self.numbers[span])


def join_rows(parts: Sequence[MessageColumns]) -> MessageColumns:
    """Return *parts*, at least one, concatenated."""
    columns = ([getattr(part, name) for name in MessageColumns.__slots__] for part in parts)
    return MessageColumns(*map(pa.concat_arrays, zip(*columns, strict=True)))


@dataclass(slots=True)
class QueueChoice:
    """Chooses the queue of each message.

    Args:
        queues: The queues of each topic.
        round_robin: The round-robin counter for messages without a key.
    """

    queues: Mapping[str, tuple[MessageQueue, ...]]
    round_robin: int = 0

    def distribute(
        self, topic: str, rows: MessageColumns, order: Numbers
    ) -> Iterator[tuple[MessageQueue, MessageSelection]]:
        """Yield each queue that receives rows, with its messages in *order*."""
        queues = self.queues[topic]
        chosen = self._choose(rows.keys.take(pa.array(order)), len(queues))
        numbers = order[np.argsort(chosen, kind="stable")]
        ends = np.cumsum(np.bincount(chosen, minlength=len(queues))).tolist()
        for queue, start, end in zip(queues, [0, *ends], ends, strict=False):
            if start < end:
                yield queue, MessageSelection(rows, numbers[start:end])

    def _choose(self, keys: pa.LargeStringArray, count: int) -> Numbers:
        """Return the number of the queue of each message."""
        is_keyed = keys.is_valid().to_numpy(zero_copy_only=False)
        numbers = np.empty(len(keys), dtype=np.int64)
        # Java's remainder has the sign of the dividend: its abs(h % N) is abs(h) % N in Python.
        numbers[is_keyed] = np.abs(hash_keys(keys.drop_null())) % count
        unkeyed = len(keys) - int(is_keyed.sum())
        numbers[~is_keyed] = np.arange(self.round_robin + 1, self.round_robin + 1 + unkeyed) % count
        self.round_robin += unkeyed
        return numbers


def to_rows(
    batch: pa.RecordBatch, topic: str | None, *, dropped: frozenset[str] = frozenset()
) -> dict[str, MessageColumns]:
    """Convert rows to messages, by topic.

    Args:
        batch: The rows.
        topic: The topic of rows that do not name one.
        dropped: Names of properties to leave out.

    Raises:
        BadRow: a row cannot be stored as a message.
    """
    columns = {name: batch.column(name) for name in batch.schema.names}
    bodies = next(columns[name] for name in BODY_COLUMNS if name in columns).cast(BYTES)
    if pc.min(pc.fill_null(pc.binary_length(bodies), 0)).as_py() == 0:
        raise BadRow("a row has no body, or an empty one, so it cannot be a message")
    keys = _to_texts(columns.get("key"), batch.num_rows)
    tags = _to_texts(columns.get("tags"), batch.num_rows)
    rows = MessageColumns(keys, tags, bodies, _properties(keys, tags, columns.get("properties"), dropped))
    if "topic" not in columns:
        return {_require_topic(topic): rows} if batch.num_rows else {}
    topics = columns["topic"].cast(_TEXT)
    topics = pc.if_else(pc.equal(pc.fill_null(topics, ""), ""), pa.scalar(topic, _TEXT), topics)
    return {_require_topic(name.as_py()): _rows_of_topic(rows, topics, name) for name in topics.unique()}


def _require_topic(topic: str | None) -> str:
    if topic is None:
        raise BadRow("a row names no topic, and the option 'topic' is not set")
    return topic


def _rows_of_topic(rows: MessageColumns, topics: pa.Array, topic: pa.Scalar) -> MessageColumns:
    """Return the rows of one topic."""
    chosen = pc.indices_nonzero(pc.fill_null(pc.equal(topics, topic), fill_value=False))
    return rows.take(chosen)


def _to_texts(column: pa.Array | None, count: int) -> pa.LargeStringArray:
    """Return keys or tags as text. Bytes that are not UTF-8 are decoded as Latin-1."""
    if column is None:
        return pa.nulls(count, _TEXT)
    try:
        return column.cast(_TEXT)
    except pa.ArrowInvalid:
        return pa.array([None if key is None else key_text(key) for key in column.to_pylist()], _TEXT)


def _properties(
    keys: pa.Array, tags: pa.Array, user_properties: pa.Array | None, dropped: frozenset[str]
) -> pa.LargeBinaryArray:
    """Return the properties of each message, encoded as stored."""
    parts: list[pa.Array] = []
    for column, its_names in ((keys, (names.KEYS, names.SHARDING_KEY)), (tags, (names.TAGS,))):
        if column.null_count < len(column):
            check_separators(column)
            parts.append(to_pairs(column, *its_names))
    if user_properties is not None:
        parts.append(_join_maps(user_properties, dropped))
    return join_properties(*parts) if parts else pa.repeat(pa.scalar(b"", BYTES), len(keys))


def join_properties(*parts: pa.Array) -> pa.LargeBinaryArray:
    """Return *parts* concatenated row by row.

    Raises:
        BadRow: the properties of a row are too large.
    """
    joined = join_columns(*parts)
    largest = pc.max(pc.binary_length(joined)).as_py() or 0
    if largest > PROPERTIES_SIZE_MAX:
        raise BadRow(f"the properties of a row have {largest} bytes; at most {PROPERTIES_SIZE_MAX} can be stored")
    return joined


def to_pairs(values: pa.Array, *property_names: str) -> pa.LargeBinaryArray:
    """Return properties of the given names, all with the value of a column; empty where it is null or empty."""
    raw = values.cast(BYTES)
    pieces: list[Any] = []
    for name in property_names:
        pieces += (name.encode() + b"\x01", raw, b"\x02")
    return pc.if_else(pc.equal(pc.fill_null(raw, b""), b""), pa.scalar(b"", BYTES), join_columns(*pieces))


def join_columns(*columns: pa.Array | bytes) -> pa.LargeBinaryArray:
    """Return *columns* concatenated row by row; a bytes constant is repeated in every row."""
    pieces = [pa.scalar(column, BYTES) if isinstance(column, bytes) else column for column in columns]
    if len(pieces) == 1:
        return pieces[0]
    return pc.binary_join_element_wise(*pieces, pa.scalar(b"", BYTES))


def _join_maps(maps: pa.MapArray, dropped: frozenset[str]) -> pa.LargeBinaryArray:
    """Return the properties of the rows' `properties` column, without reserved and *dropped* names."""
    offsets = maps.offsets.to_numpy().astype(np.int64)
    entries = slice(int(offsets[0]), int(offsets[-1]))
    keys, values = (child[entries].cast(_TEXT) for child in (maps.keys, maps.items))
    rows = np.repeat(np.arange(len(maps)), np.diff(offsets))
    left_out = pc.is_in(keys, value_set=pa.array(sorted(names.RESERVED | dropped | {""}), _TEXT))
    has_value = pc.not_equal(pc.fill_null(values, ""), "")
    is_kept = pc.and_not(has_value, left_out).to_numpy(zero_copy_only=False)
    is_kept &= maps.is_valid().to_numpy(zero_copy_only=False)[rows]
    keys, values = (column.filter(pa.array(is_kept)) for column in (keys, values))
    check_separators(keys)
    check_separators(values)
    pairs = join_columns(keys.cast(BYTES), b"\x01", values.cast(BYTES), b"\x02")
    # The pairs of a row are adjacent: the row begins where its first pair does.
    begins = np.frombuffer(pairs.buffers()[1], dtype=np.int64)[pairs.offset : pairs.offset + len(pairs) + 1]
    counts = np.bincount(rows[is_kept], minlength=len(maps))
    ends = begins[np.concatenate(([0], np.cumsum(counts)))] if len(pairs) else np.zeros(len(maps) + 1, np.int64)
    return pa.LargeBinaryArray.from_buffers(BYTES, len(maps), [None, pa.py_buffer(ends.tobytes()), pairs.buffers()[2]])


def check_separators(column: pa.LargeStringArray) -> None:
    """Reject texts that contain a separator of properties.

    Raises:
        BadRow: a text contains one.
    """
    units = np.frombuffer(block_of(column), dtype=np.uint8)
    if not ((units == ord(NAME_END)) | (units == ord(VALUE_END))).any():
        return
    found = pc.indices_nonzero(pc.fill_null(pc.match_substring_regex(column, "[\x01\x02]"), fill_value=False))
    if len(found):
        raise _has_separator(column[found[0].as_py()].as_py())


def _has_separator(text: str) -> BadRow:
    return BadRow(f"a key, a tag or a property contains a separator of properties (\\x01 or \\x02): {text!r}")
