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
from holdfast.columns.records import Records, follow_sizes, is_body_right, read_at
from holdfast.columns.slices import Places, at_any_byte, take_slices
from holdfast.model.errors import CorruptRecord
from holdfast.pipeline.scan.log_ranges import LogRange
from holdfast.pipeline.scan.read_only import VIEW_SIZE_MAX
from holdfast.store.base.log_file import LogFiles
from holdfast.store.log.log_scanner import Stop, WalkedRecord, judge, judge_at
from holdfast.store.recovery.log_repair import Damage
from holdfast.wire.records.record import BLANK_SIZE, MAGIC_V1, MAGIC_V2, RECORD_SIZE_MIN

CHUNK_SIZE: Final = 8 << 20
_SEARCHED: Final = 1 << 20
_OWN_AT: Final = 28  # offset of the position field in a record


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
    starts: Places
    records: Records

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def positions(self) -> Places:
        """The log position of each record."""
        return self.starts + self.base

    @cached_property
    def sizes(self) -> Places:
        """The size of each record in bytes."""
        return self.records.properties_starts + self.records.properties_sizes - self.starts

    @cached_property
    def queue_ids(self) -> npt.NDArray[np.int32]:
        """The physical queue id of each record."""
        return at_any_byte(self.block, ">i4")[self.starts + 12].astype(np.int32)

    @cached_property
    def topics(self) -> pa.DictionaryArray:
        """The topic of each record, as bytes."""
        is_wide = at_any_byte(self.block, ">i4")[self.starts + 4] == MAGIC_V2
        starts = self.records.body_starts + self.records.body_sizes + 1 + is_wide
        return take_slices(self.block, starts, self.records.properties_starts - 2).dictionary_encode()

    @cached_property
    def properties(self) -> Properties:
        """The properties of each record."""
        starts = self.records.properties_starts
        return split_properties(take_slices(self.block, starts, starts + self.records.properties_sizes))

    def is_right(self) -> npt.NDArray[np.bool_]:
        """Return for each record whether its body matches its checksum."""
        return is_body_right(self.block, self.records)

    def select(self, chosen: npt.NDArray[Any]) -> Chunk:
        """Return a chunk with only the *chosen* records."""
        return Chunk(self.block, self.base, self.starts[chosen], self.records.select(chosen))

    def by_topic(self) -> Iterator[tuple[str, Places]]:
        """Yield each topic in the chunk with the row numbers of its records."""
        codes = self.topics.indices.to_numpy()
        for code, raw in enumerate(self.topics.dictionary.to_pylist()):
            yield raw.decode(errors="replace"), np.flatnonzero(codes == code)

    def by_queue(self) -> Iterator[tuple[str, int, Places]]:
        """Yield each queue in the chunk as (topic, queue id, row numbers of its records)."""
        codes = self.topics.indices.to_numpy().astype(np.int64)
        names = [raw.decode(errors="replace") for raw in self.topics.dictionary.to_pylist()]
        both = codes << 32 | self.queue_ids
        order = np.argsort(both, kind="stable")
        cuts = np.flatnonzero(np.diff(both[order])) + 1
        for rows in np.split(order, cuts) if len(order) else ():
            yield names[int(codes[rows[0]])], int(self.queue_ids[rows[0]]), rows


class RangeScan:
    """A single pass over a range. The attributes are complete when the iteration has ended.

    Attributes:
        first, behind: As defined by `log_ranges.RangeDone`.
        damages: Bytes that are not a record.
        count: The number of records.
        size: The bytes of the records, without the unused end of a file.
    """

    def __init__(self, log: LogFiles, mine: LogRange, log_end: int) -> None:
        self._log = log
        self._range = mine
        self._file_end = mine.start - mine.start % log.size + log.size
        self._log_end = min(log_end, self._file_end)
        self.first = self.behind = mine.start
        self.damages: list[Damage] = []
        self.count = 0
        self.size = 0

    def __iter__(self) -> Iterator[Chunk]:
        if not self._range.is_known:
            self.first = self.behind = self._find_next(self._range.start)
        window = CHUNK_SIZE
        while self.behind < min(self._range.end, self._log_end):
            block = self._read(self.behind, window)
            chunk, used = self._take(block)
            if len(chunk):
                self.count += len(chunk)
                self.size += used
                self.behind += used
                window = CHUNK_SIZE
                yield chunk
                continue
            stop = judge(memoryview(block), 0, self.behind, self._file_end - self.behind, check_body=False)
            if stop is Stop.BLANK:
                self.behind = self._file_end
            elif stop is Stop.CUT and window < VIEW_SIZE_MAX and self.behind + window < self._file_end:
                window *= 2
            else:
                self._pass_damage(stop)
        self._pass_blank()

    def _pass_blank(self) -> None:
        """Skip to the end of the file if the rest of it is unused: the search for the next record does the same."""
        if self.behind < self._log_end:
            block = self._read(self.behind, BLANK_SIZE)
            left = self._file_end - self.behind
            if judge(memoryview(block), 0, self.behind, left, check_body=False) is Stop.BLANK:
                self.behind = self._file_end

    def _read(self, position: int, size: int) -> bytes:
        found = self._log.find(position)
        assert found is not None, "ranges lie in files"
        return found.file.read(position - found.start, min(position + size, self._file_end) - found.start)

    def _take(self, block: bytes) -> tuple[Chunk, int]:
        """Return the valid records at the start of *block*, and their size in bytes."""
        base = self.behind
        starts, _ = follow_sizes(block)
        starts = starts[: int(np.searchsorted(starts, self._range.end - base))]
        own = at_any_byte(block, ">i8")
        sizes = at_any_byte(block, ">i4")
        is_own = (own[starts + 28] == starts + base) & (sizes[starts] <= self._file_end - base - starts - BLANK_SIZE)
        is_own &= (sizes[starts + 12] >= 0) & (own[starts + 20] >= 0)
        starts = _until_first_wrong(starts, is_own)
        while True:
            try:
                records = read_at(block, starts)
            except CorruptRecord as fault:
                # read_at checks one rule at a time for all records: an earlier record may break a later rule.
                starts = starts[: int(np.searchsorted(starts, fault.position))]
            else:
                break
        used = int(starts[-1] + sizes[starts[-1]]) if len(starts) else 0
        return Chunk(block, base, starts, records), used

    def _pass_damage(self, stop: object) -> None:
        start = self.behind
        self.behind = self._find_next(start + 1)
        size = min(self.behind, self._log_end) - start
        reason = stop.value if isinstance(stop, Stop) and stop is not Stop.CUT else Stop.BROKEN.value
        if size:
            self.damages.append(Damage(start, size, reason))

    def _find_next(self, position: int) -> int:
        """Return the start of the next fully valid record; the end of the file if there is none."""
        at = position
        while at < self._file_end:
            block = self._read(at, _SEARCHED)
            for place in _find_candidates(block, at):
                if isinstance(judge_at(self._log, at + place), WalkedRecord):
                    return at + place
            if len(block) < RECORD_SIZE_MIN or at + len(block) >= self._file_end:
                break
            at += len(block) - RECORD_SIZE_MIN
        return self._file_end


def _find_candidates(block: bytes, position: int) -> list[int]:
    """Return the places in *block* that have the magic of a record and state their own position."""
    count = len(block) - RECORD_SIZE_MIN + 1
    if count <= 0 or not np.frombuffer(block, np.uint8).any():  # Most of a file may be unused.
        return []
    own = at_any_byte(block, ">i8")[_OWN_AT : _OWN_AT + count]
    places = np.flatnonzero(own == np.arange(position, position + count))
    magics = at_any_byte(block, ">i4")[places + 4]
    found: list[int] = places[(magics == MAGIC_V1) | (magics == MAGIC_V2)].tolist()
    return found


def _until_first_wrong(starts: Places, is_right: npt.NDArray[np.bool_]) -> Places:
    return starts if is_right.all() else starts[: int(np.argmin(is_right))]
