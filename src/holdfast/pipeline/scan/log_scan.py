"""Reads one range of a log as columns, chunk by chunk, and validates every record.

    range        [--------------------------------------------)
    chunks       [rrrrrrrr|rrrrrrrrrr|rrrr]  ??????  [rrrrrrrrr|rrr..      ?: not a record, reported as damage

A record is valid if its magic is right, it states the position at which it was found, and all its lengths add up.
Callers that read bodies check the body checksums themselves. After damage the scan resumes at the next record whose
body checksum matches, too. Memory: one chunk, or one larger record, and never more than `VIEW_SIZE_MAX`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.columns.property_columns import Properties, split_properties
from holdfast.columns.records import Records, find_valid_bodies, follow_sizes, read_at
from holdfast.columns.slices import Int64Array, copy_slices, view_unaligned
from holdfast.model.errors import CorruptRecord
from holdfast.pipeline.scan.log_ranges import LogRange
from holdfast.pipeline.scan.read_only import VIEW_SIZE_MAX
from holdfast.store.base.log_file import LogFiles
from holdfast.store.log.log_scanner import StopReason, WalkedRecord, validate_record, validate_record_at
from holdfast.store.recovery.log_repair import Damage
from holdfast.wire.records.record import BLANK_SIZE, MAGIC_V1, MAGIC_V2, RECORD_SIZE_MIN

CHUNK_SIZE: Final = 8 << 20
_SEARCH_SIZE: Final = 1 << 20
_POSITION_AT: Final = 28  # offset of the position field in a record


@dataclass(frozen=True)
class Chunk:
    """Consecutive records in one block of bytes, possibly with damage between them.

    Attributes:
        base: The position of the first byte of the block.
        starts: The start of each record in the block.
        records: Their fixed parts.
    """

    block: bytes
    base: int
    starts: Int64Array
    records: Records

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def positions(self) -> Int64Array:
        """The log position of each record."""
        return self.starts + self.base

    @cached_property
    def sizes(self) -> Int64Array:
        """The size of each record in bytes."""
        return self.records.properties_starts + self.records.properties_sizes - self.starts

    @cached_property
    def queue_ids(self) -> npt.NDArray[np.int32]:
        """The physical queue id of each record."""
        return view_unaligned(self.block, ">i4")[self.starts + 12].astype(np.int32)

    @cached_property
    def topics(self) -> pa.DictionaryArray:
        """The topic of each record, as bytes."""
        is_wide = view_unaligned(self.block, ">i4")[self.starts + 4] == MAGIC_V2
        starts = self.records.body_starts + self.records.body_sizes + 1 + is_wide
        return copy_slices(self.block, starts, self.records.properties_starts - 2).dictionary_encode()

    @cached_property
    def properties(self) -> Properties:
        """The properties of each record."""
        starts = self.records.properties_starts
        return split_properties(copy_slices(self.block, starts, starts + self.records.properties_sizes))

    def are_bodies_valid(self) -> npt.NDArray[np.bool_]:
        """Return for each record whether its body matches its checksum."""
        return find_valid_bodies(self.block, self.records)

    def select(self, chosen: npt.NDArray[Any]) -> Chunk:
        """Return a chunk with only the *chosen* records."""
        return Chunk(self.block, self.base, self.starts[chosen], self.records.select(chosen))

    def by_topic(self) -> Iterator[tuple[str, Int64Array]]:
        """Yield each topic in the chunk with the row numbers of its records."""
        codes = self.topics.indices.to_numpy()
        for code, raw in enumerate(self.topics.dictionary.to_pylist()):
            yield raw.decode(errors="replace"), np.flatnonzero(codes == code)

    def by_queue(self) -> Iterator[tuple[str, int, Int64Array]]:
        """Yield each queue in the chunk as (topic, queue id, row numbers of its records)."""
        codes = self.topics.indices.to_numpy().astype(np.int64)
        names = [raw.decode(errors="replace") for raw in self.topics.dictionary.to_pylist()]
        queue_keys = codes << 32 | self.queue_ids
        order = np.argsort(queue_keys, kind="stable")
        splits = np.flatnonzero(np.diff(queue_keys[order])) + 1
        for rows in np.split(order, splits) if len(order) else ():
            yield names[int(codes[rows[0]])], int(self.queue_ids[rows[0]]), rows


class RangeScan:
    """A single pass over a range. The attributes are complete when the iteration has ended.

    Attributes:
        first, next_start: As defined by `log_ranges.RangeResult`.
        damages: Bytes that are not a record.
        count: The number of records.
        size: The bytes of the records, without the unused end of a file.
    """

    def __init__(self, log: LogFiles, log_range: LogRange, log_end: int) -> None:
        self._log = log
        self._range = log_range
        self._file_end = log_range.start - log_range.start % log.size + log.size
        self._log_end = min(log_end, self._file_end)
        self.first = self.next_start = log_range.start
        self.damages: list[Damage] = []
        self.count = 0
        self.size = 0

    def __iter__(self) -> Iterator[Chunk]:
        if not self._range.is_known:
            self.first = self.next_start = self._find_next(self._range.start)
        window = CHUNK_SIZE
        while self.next_start < min(self._range.end, self._log_end):
            block = self._read(self.next_start, window)
            chunk, used_size = self._decode_chunk(block)
            if len(chunk):
                self.count += len(chunk)
                self.size += used_size
                self.next_start += used_size
                window = CHUNK_SIZE
                yield chunk
                continue
            stop = validate_record(
                memoryview(block), 0, self.next_start, self._file_end - self.next_start, check_body=False
            )
            if stop is StopReason.BLANK:
                self.next_start = self._file_end
            elif stop is StopReason.INCOMPLETE and window < VIEW_SIZE_MAX and self.next_start + window < self._file_end:
                window *= 2
            else:
                self._skip_damage(stop)
        self._skip_blank()

    def _skip_blank(self) -> None:
        """Skip to the end of the file if the rest of it is unused: the search for the next record does the same."""
        if self.next_start < self._log_end:
            block = self._read(self.next_start, BLANK_SIZE)
            remaining = self._file_end - self.next_start
            if validate_record(memoryview(block), 0, self.next_start, remaining, check_body=False) is StopReason.BLANK:
                self.next_start = self._file_end

    def _read(self, position: int, size: int) -> bytes:
        found = self._log.find(position)
        assert found is not None, "ranges lie in files"
        return found.file.read(position - found.start, min(position + size, self._file_end) - found.start)

    def _decode_chunk(self, block: bytes) -> tuple[Chunk, int]:
        """Return the valid records at the start of *block*, and their size in bytes."""
        base = self.next_start
        starts, _ = follow_sizes(block)
        starts = starts[: int(np.searchsorted(starts, self._range.end - base))]
        positions = view_unaligned(block, ">i8")
        sizes = view_unaligned(block, ">i4")
        is_valid = (positions[starts + 28] == starts + base) & (
            sizes[starts] <= self._file_end - base - starts - BLANK_SIZE
        )
        is_valid &= (sizes[starts + 12] >= 0) & (positions[starts + 20] >= 0)
        starts = _until_first_invalid(starts, is_valid)
        while True:
            try:
                records = read_at(block, starts)
            except CorruptRecord as fault:
                # read_at checks one rule at a time for all records: an earlier record may break a later rule.
                starts = starts[: int(np.searchsorted(starts, fault.position))]
            else:
                break
        used_size = int(starts[-1] + sizes[starts[-1]]) if len(starts) else 0
        return Chunk(block, base, starts, records), used_size

    def _skip_damage(self, stop: object) -> None:
        start = self.next_start
        self.next_start = self._find_next(start + 1)
        size = min(self.next_start, self._log_end) - start
        reason = (
            stop.value
            if isinstance(stop, StopReason) and stop is not StopReason.INCOMPLETE
            else StopReason.BROKEN.value
        )
        if size:
            self.damages.append(Damage(start, size, reason))

    def _find_next(self, position: int) -> int:
        """Return the start of the next fully valid record; the end of the file if there is none."""
        at = position
        while at < self._file_end:
            block = self._read(at, _SEARCH_SIZE)
            for candidate in _find_candidates(block, at):
                if isinstance(validate_record_at(self._log, at + candidate), WalkedRecord):
                    return at + candidate
            if len(block) < RECORD_SIZE_MIN or at + len(block) >= self._file_end:
                break
            at += len(block) - RECORD_SIZE_MIN
        return self._file_end


def _find_candidates(block: bytes, position: int) -> list[int]:
    """Return the offsets in *block* that have the magic of a record and state their own position."""
    count = len(block) - RECORD_SIZE_MIN + 1
    if count <= 0 or not np.frombuffer(block, np.uint8).any():  # Most of a file may be unused.
        return []
    positions = view_unaligned(block, ">i8")[_POSITION_AT : _POSITION_AT + count]
    candidates = np.flatnonzero(positions == np.arange(position, position + count))
    magics = view_unaligned(block, ">i4")[candidates + 4]
    found: list[int] = candidates[(magics == MAGIC_V1) | (magics == MAGIC_V2)].tolist()
    return found


def _until_first_invalid(starts: Int64Array, is_valid: npt.NDArray[np.bool_]) -> Int64Array:
    return starts if is_valid.all() else starts[: int(np.argmin(is_valid))]
