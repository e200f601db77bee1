"""Converts and verifies pieces of an index as columns, with numpy: a faster `store.conversion.piece_conversion`.

    pieces of many queues ─ entries that are near each other in the log ─┬─ gather 88 bytes each: record headers
                                                                         └─ gather the bytes after each body: the topic
    compare headers with the index, column by column ─ new entries, with the store times from the headers

Columns are compared as raw bytes, without swapping the byte order. Copying between a contiguous and a strided column
takes a fifth of the time of copying between two strided ones, so one side is always contiguous. Where entries are
dense, the log is read sequentially, across queues. Where they are sparse, the log is mapped, and the system can
reclaim its pages. Unusual or wrong pieces go to the slow path, `PythonConverter`, which handles every case and names
the faulty record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.columns.slices import Block, Int64Array, view_unaligned
from holdfast.model.errors import StoreError
from holdfast.pipeline.scan.queue_entries import MESSAGE_ENTRY, RECORD_ENTRY
from holdfast.store.base.index_fields import INNER_BITS
from holdfast.store.conversion.entry_conversion import TAGS_MIN
from holdfast.store.conversion.piece_conversion import Bytes, OldPiece, PythonConverter
from holdfast.store.conversion.record_headers import Owner, RecordHeaders
from holdfast.store.queues.queue_index import BLANK_ENTRY_SIZE
from holdfast.store.recovery.conversion_plan import ConversionPlan


def _big_endian(value: int) -> np.int32:
    """Return *value* as it reads without swapping the big-endian bytes of the file."""
    found: np.int32 = np.array([value], ">i4").view("=i4")[0]
    return found


def _fields(width: int, /, **fields: tuple[str, int]) -> np.dtype[Any]:
    """Return a dtype of *width* bytes with some named fields, each given by its format and start."""
    kinds, starts = zip(*fields.values(), strict=True)
    return np.dtype({"names": list(fields), "formats": kinds, "offsets": starts, "itemsize": width})


_INNER_BITS: Final = _big_endian(INNER_BITS)
_HOST_BITS: Final = _big_endian(0x30)
_HOST_V6_EXTRA: Final = 12
_BLANK_SIZE: Final = _big_endian(BLANK_ENTRY_SIZE)
_RECORD_ENTRY_END: Final = np.array([(1, -1, 0)], [("count", ">i2"), ("compacted", ">i4"), ("rest", ">i4")]).tobytes()

_COMMON_FIELDS: Final = {
    "entry": (f"V{MESSAGE_ENTRY.itemsize}", 0),
    "position": ("=i8", 0),
    "size": ("=i4", 8),
    "tags": (">i8", 12),
}
_MESSAGE_ENTRY: Final = _fields(MESSAGE_ENTRY.itemsize, **_COMMON_FIELDS)
_RECORD_ENTRY: Final = _fields(
    RECORD_ENTRY.itemsize,
    **_COMMON_FIELDS,
    store_ms=("=i8", 20),
    first=("=i8", 28),
    end=(f"V{len(_RECORD_ENTRY_END)}", 36),
)
"""Layouts of both kinds of entries: without byte swapping except for the tags; `entry` is the part common to both."""


def _header_layout(born: int, store: int) -> np.dtype[Any]:
    """Return the layout of a record header whose hosts are *born* and *store* bytes longer than IPv4 hosts."""
    return _fields(
        88 + born + store,
        size=("=i4", 0),
        magic=("=i4", 4),
        queue_id=("=i4", 12),
        first=("=i8", 20),
        position=("=i8", 28),
        flag=("=i4", 36),
        store_ms=("=i8", 56 + born),
        body_size=(">u4", 84 + born + store),
    )


# Indexed by the two host bits of the flag: neither, born, store, both.
_HEADER_LAYOUTS: Final = tuple(
    _header_layout(born, store) for store in (0, _HOST_V6_EXTRA) for born in (0, _HOST_V6_EXTRA)
)

LOOKUP_ROWS: Final = 8192
"""Entries per look-up: few enough that their headers are still in the CPU cache when compared."""
DENSE_BYTES: Final = 400
"""Up to this many bytes of log per entry, reading the log is faster than mapping its pages."""
REUSED_BYTES: Final = 24 << 20
"""Bytes of memory that every look-up reuses."""

Column = npt.NDArray[Any]


class _PieceColumns(NamedTuple):
    """The index fields of each message of a piece, in the byte order of the file.

    Attributes:
        entry: The whole entry by message.
        store_ms: The store times; if the index has none, filled from the log during verification.
    """

    queue_id: bytes
    entry: Column
    position: Column
    size: Column
    first: Column
    store_ms: Column

    def end_at(self, number: int) -> int:
        """Return the end position of a record."""
        return int(self.position[number].byteswap()) + int(self.size[number].byteswap())


_EntryGroup = list[tuple[_PieceColumns, int, int]]
"""The entries [start, end) of some pieces."""


def _join(group: _EntryGroup, name: str) -> bytes:
    """Return one column of all the entries, joined."""
    return b"".join([getattr(part, name)[start:end] for part, start, end in group])


class NumpyConverter:
    """Converts regular pieces fast, and passes all others to `PythonConverter`."""

    def __init__(self, headers: RecordHeaders) -> None:
        self._files = headers.files
        self._slow_path = PythonConverter(headers)
        # Reused memory is faster than new memory. The C library returns blocks to the system if they are larger than
        # any block freed so far: free a large block once, so that it keeps smaller ones.
        np.empty(REUSED_BYTES, np.uint8)
        self._buffer = np.empty(0, _RECORD_ENTRY)

    def convert(self, plan: ConversionPlan, olds: Sequence[OldPiece]) -> Iterable[Bytes]:
        """Return the new entries of each of *olds*: verified now, but built lazily, one at a time, in one buffer."""
        try:
            parts = [_read_columns(plan, old) for old in olds]
            self._verify(plan, parts)
        except (IndexError, StoreError):
            # Retry piece by piece, to separate the faulty or unusual ones.
            if len(olds) == 1:
                return self._slow_path.convert(plan, olds)
            return [bytes(entries) for old in olds for entries in self.convert(plan, [old])]
        return map(self._to_record_entries if plan.to == "batch" else _to_message_entries, parts)

    def _to_record_entries(self, part: _PieceColumns) -> Bytes:
        """Return a piece as entries by record. The result is valid until the next call."""
        if len(self._buffer) < len(part.first):
            self._buffer = np.empty(len(part.first), _RECORD_ENTRY)
            self._buffer["end"] = _RECORD_ENTRY_END
        entries = self._buffer[: len(part.first)]
        for name in ("entry", "store_ms", "first"):
            entries[name] = getattr(part, name)
        return entries.view(np.uint8).data

    def _verify(self, plan: ConversionPlan, parts: list[_PieceColumns]) -> None:
        """Verify that the log matches the index; fill the store times from the log if the index has none.

        Raises:
            IndexError: a record would end past its file.
            StoreError: they differ, or a record is unusual.
        """
        owner = Owner(plan.topic, 0)
        for group in self._group_by_position(parts):
            times, at = self._read_store_times(owner, group), 0
            for part, start, end in group:
                store_times = times[at : at + end - start]
                at += end - start
                if plan.to == "batch":
                    part.store_ms[start:end] = store_times
                elif part.store_ms[start:end].tobytes() != store_times.tobytes():
                    raise StoreError("the store times in the log differ from the index")

    def _group_by_position(self, parts: list[_PieceColumns]) -> Iterator[_EntryGroup]:
        """Yield the entries of each look-up, all in one log file.

        Raises:
            StoreError: positions are outside the log.
        """
        parts = [part for part in parts if len(part.first)]
        if not parts:
            return
        positions = [part.position.byteswap() for part in parts]
        low, high = min(int(column[0]) for column in positions), max(int(column[-1]) for column in positions)
        if not self._files.start <= low <= high < self._files.end:
            raise StoreError("an index entry points outside the log")
        size = self._files.size
        span = 1 + (high - low) * LOOKUP_ROWS // sum(map(len, positions))
        bounds = sorted({*range(low + span, high, span), *range(low - low % size + size, high + 1, size)})
        # From 0 to the end every entry is covered, even if positions do not rise; then some are covered twice.
        splits = [[0, *column.searchsorted(bounds).tolist(), len(column)] for column in positions]
        for starts, ends in pairwise(zip(*splits, strict=True)):
            group = [(part, start, end) for part, start, end in zip(parts, starts, ends, strict=True) if start < end]
            if group:
                yield group

    def _read_store_times(self, owner: Owner, group: _EntryGroup) -> Column:
        """Return the store times of all records that the entries in *group* point to.

        Raises:
            IndexError: a record would end past its file.
            StoreError: the log differs from the index, or a record is unusual.
        """
        expected = {name: _join(group, name) for name in ("position", "size", "first")}
        expected["queue_id"] = b"".join([part.queue_id * (end - start) for part, start, end in group])
        positions = np.frombuffer(expected["position"], "=i8").byteswap()
        expected["magic"] = _big_endian(owner.magic).tobytes() * len(positions)
        data, starts = self._read(positions, max(part.end_at(end - 1) for part, _, end in group))
        headers = _copy_values(data, starts, _HEADER_LAYOUTS[0])
        if any(headers[name].tobytes() != column for name, column in expected.items()):
            raise StoreError("the log differs from the index")
        flags = np.bitwise_or.reduce(headers["flag"])
        if flags & _INNER_BITS == _INNER_BITS:
            raise StoreError("some records may be batches")
        if not flags & _HOST_BITS:
            _require_topic(owner, data, starts, headers)
            return headers["store_ms"].copy()
        times, kinds = np.empty(len(starts), "=i8"), (headers["flag"] & _HOST_BITS).view(">i4") >> 4
        for kind, layout in enumerate(_HEADER_LAYOUTS):
            rows = np.flatnonzero(kinds == kind)
            headers = _copy_values(data, starts[rows], layout)
            _require_topic(owner, data, starts[rows], headers)
            times[rows] = headers["store_ms"]
        return times

    def _read(self, positions: Int64Array, end: int) -> tuple[Block, Int64Array]:
        """Return a block of the log, and *positions* relative to it; the last of these records ends at *end*."""
        low = int(positions.min())
        found = self._files.find(low)
        if found is None:
            raise StoreError(f"the log has no position {low}")
        size = min(end, found.start + self._files.size) - low
        if 0 < size <= DENSE_BYTES * min(len(positions), LOOKUP_ROWS):
            return found.file.read(low - found.start, low - found.start + size), positions - low
        return found.file.view(0, self._files.size), positions - found.start


def _require_topic(owner: Owner, data: Block, starts: Int64Array, headers: Column) -> None:
    """Verify that all records belong to the topic.

    Raises:
        IndexError: a record would end past its file.
        StoreError: a record belongs to another topic.
    """
    # Sizes are read as unsigned: a body of negative size ends past every file.
    ends = headers["body_size"].astype(np.int64)
    ends += starts
    ends += headers.dtype.itemsize
    topics = _copy_values(data, ends, np.dtype(f"V{len(owner.topic_part)}"))
    if topics.tobytes() != owner.topic_part * len(starts):
        raise StoreError("a record belongs to another topic")


def _copy_values(data: Block, starts: Int64Array, kind: np.dtype[Any]) -> Column:
    """Return the values at *starts*, copied as raw bytes: five times as fast as field by field."""
    return view_unaligned(data, f"V{kind.itemsize}")[starts].view(kind)


def _read_columns(plan: ConversionPlan, old: OldPiece) -> _PieceColumns:
    """Return the index fields of a piece, not yet verified.

    Raises:
        StoreError: the piece is unusual.
    """
    if old.queue.is_gone:
        raise StoreError("the log has no record of the queue left")
    entries = np.frombuffer(old.entries, _MESSAGE_ENTRY if plan.to == "batch" else _RECORD_ENTRY)
    size = entries["size"].copy()
    if plan.to == "batch":
        first = np.arange(old.piece.start, old.piece.end).byteswap(inplace=True)
        is_blank = size == _BLANK_SIZE
        if is_blank.any():
            entries, size, first = entries[~is_blank], size[~is_blank], first[~is_blank]
        store_ms = np.empty(len(entries), "=i8")
    else:
        first = np.arange(old.piece.target, old.piece.target + len(entries)).byteswap(inplace=True)
        store_ms = entries["store_ms"]
        if entries["first"].tobytes() != first.tobytes() or entries["end"].tobytes() != _RECORD_ENTRY_END * len(
            entries
        ):
            raise StoreError("an offset has no message, or a record has several")
    if entries["tags"].astype(np.int64).min(initial=0) < TAGS_MIN:
        raise StoreError("an entry has an invalid tags code")
    queue_id = old.piece.queue_id.to_bytes(4, "big")
    return _PieceColumns(queue_id, entries["entry"], entries["position"].copy(), size, first, store_ms)


def _to_message_entries(part: _PieceColumns) -> Bytes:
    """Return a piece as entries by message."""
    return part.entry.tobytes()
