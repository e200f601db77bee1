"""Read the header fields of many log records at known positions, in log order, and compare them with an index.

    columns    offsets, positions, sizes, store times: the fields in an index, one column each
    headers    size, magic, queue id, offset, position, sys flag, store time, body size: from the log, by one map

Columns and headers are compared as a whole; a wrong entry is searched only if they differ. Nearly all records have IPv4
hosts; if some do not, all are read one by one. Bodies are not read: verifying them is up to their readers. This module
knows no index.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import NamedTuple

from holdfast.model.errors import StoreError
from holdfast.store.base.index_fields import INNER_BITS
from holdfast.store.base.log_file import LogFiles
from holdfast.wire.records.record import BORN_HOST_V6, FIXED_SIZE, LAYOUTS, STORE_HOST_V6, topic_part

_HOSTS_V6 = BORN_HOST_V6 | STORE_HOST_V6
# Hosts and fields that no index contains are skipped.
_unpack_header = struct.Struct(">ii4xi4xqqi16xq20xi").unpack_from
_unpack_time = struct.Struct(">36xi16xq").unpack_from
_unpack_flag = struct.Struct(">i").unpack_from
_FLAG_AT = 36

Header = tuple[int, int, int, int, int, int, int, int]


class IndexColumns(NamedTuple):
    """The fields that an index holds for consecutive messages of one queue, one column each. Positions rise."""

    offsets: Sequence[int]
    positions: Sequence[int]
    sizes: Sequence[int]
    times: Sequence[int]

    def part(self, start: int, end: int) -> IndexColumns:
        """Return the fields of the messages [start, end)."""
        return IndexColumns(*(column[start:end] for column in self))


class Owner:
    """The queue that the records must belong to."""

    def __init__(self, topic: str, queue_id: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.magic, self.topic_part = topic_part(topic)
        self.unpack_topic = struct.Struct(f"{len(self.topic_part)}s").unpack_from

    def __str__(self) -> str:
        return f"queue {self.queue_id} of topic {self.topic}"


class RecordHeaders:
    """Reads the headers of records from the files of a log."""

    def __init__(self, files: LogFiles) -> None:
        self.files = files

    def store_times(self, positions: Sequence[int]) -> list[int]:
        """Return the store times of the records at the rising *positions*; an arbitrary number where there is none."""
        times: list[int] = []
        for view, starts, _ in self._by_file(positions):
            times += _read_times(view, starts)
        return times

    def check(self, owner: Owner, columns: IndexColumns) -> list[int]:
        """Require that every entry matches a record in the log. Return the positions of those that are batches.

        Raises:
            StoreError: an entry does not match; the text names it.
        """
        batches: list[int] = []
        for view, starts, at in self._by_file(columns.positions):
            part = columns.part(at, at + len(starts))
            headers = _read_headers(view, starts)
            if not _headers_match(owner, part, view, starts, headers):
                _raise_mismatch(owner, part, view, starts, headers)
            if any(flag & INNER_BITS == INNER_BITS for flag in {header[5] for header in headers}):
                base = part.positions[0] - starts[0]
                batches += [
                    base + at
                    for at, header in zip(starts, headers, strict=True)
                    if header[5] & INNER_BITS == INNER_BITS
                ]
        return batches

    def _by_file(self, positions: Sequence[int]) -> Iterator[tuple[memoryview, list[int], int]]:
        """Yield a log file, the starts of the next records in it, and the index in *positions* of the first of them."""
        at = 0
        while at < len(positions):
            found = self.files.find(positions[at])
            if found is None:
                raise StoreError(f"the index points at position {positions[at]}, where there is no log")
            end = bisect_left(positions, found.start + self.files.size, at + 1)
            view = found.file.view(0, self.files.size)
            yield view, [position - found.start for position in positions[at:end]], at
            at = end


def _read_times(view: memoryview, starts: list[int]) -> list[int]:
    try:
        found = list(map(_unpack_time, repeat(view), starts))
    except struct.error:
        return [_read_header(view, start)[6] for start in starts]
    if any(flag & _HOSTS_V6 for flag in {flag for flag, _ in found}):
        return [_read_header(view, start)[6] for start in starts]
    return [time for _, time in found]


def _read_headers(view: memoryview, starts: list[int]) -> list[Header]:
    """Return the headers at *starts*. With IPv6 hosts the body size includes the extra bytes of the hosts."""
    try:
        headers: list[Header] = list(map(_unpack_header, repeat(view), starts))
    except struct.error:
        return [_read_header(view, start) for start in starts]
    if any(flag & _HOSTS_V6 for flag in {header[5] for header in headers}):
        return [_read_header(view, start) for start in starts]
    return headers


def _read_header(view: memoryview, start: int) -> Header:
    if not 0 <= start <= len(view) - LAYOUTS[-1].size:
        # Too near to the end for some layouts: read a zero-padded copy.
        view, start = memoryview(bytes(view[max(0, start) :]) + bytes(LAYOUTS[-1].size)), 0
    layout = LAYOUTS[_unpack_flag(view, start + _FLAG_AT)[0] >> 4 & 3]
    size, magic, _, queue_id, _, offset, own, flag, _, _, store_ms, _, _, _, body_size = layout.unpack_from(view, start)
    return size, magic, queue_id, offset, own, flag, store_ms, body_size + layout.size - FIXED_SIZE


def _headers_match(
    owner: Owner, columns: IndexColumns, view: memoryview, starts: list[int], headers: list[Header]
) -> bool:
    sizes, magics, queue_ids, offsets, positions, _, times, body_sizes = zip(*headers, strict=True)
    if not (
        positions == tuple(columns.positions)
        and offsets == tuple(columns.offsets)
        and sizes == tuple(columns.sizes)
        and times == tuple(columns.times)
        and set(queue_ids) == {owner.queue_id}
        and set(magics) == {owner.magic}
    ):
        return False
    topics = [start + FIXED_SIZE + size for start, size in zip(starts, body_sizes, strict=True)]
    if not 0 <= min(topics) <= max(topics) <= len(view) - len(owner.topic_part):
        return False
    return set(map(owner.unpack_topic, repeat(view), topics)) == {(owner.topic_part,)}


def _raise_mismatch(
    owner: Owner, columns: IndexColumns, view: memoryview, starts: list[int], headers: list[Header]
) -> None:
    """Raise an error that names the wrong entry and the difference.

    Raises:
        StoreError: always.
    """
    for at, (start, header) in enumerate(zip(starts, headers, strict=True)):
        row = columns.part(at, at + 1)
        if not _headers_match(owner, row, view, [start], [header]):
            (offset,), (position,), (size,), (time,) = row
            raise StoreError(
                f"{owner} has message {offset} at position {position} ({size} bytes, stored at {time}), but the log "
                f"has there: position {header[4]}, {header[0]} bytes, queue {header[2]}, offset {header[3]}, stored at "
                f"{header[6]}; if the log is right, remove the folder of the topic's index and start the broker once, "
                "which rebuilds it from the log"
            )
    raise AssertionError("the columns differ as a whole, but no entry differs alone")
