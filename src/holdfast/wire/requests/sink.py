"""Stamps of exactly-once sinks: a send request describes its rows, and each record keeps a part of that.

    a request     HOLDFAST_SINK 1 query batch partition first count before after last anew 2
    a record      HOLDFAST_SINK 1 query batch partition number checksum last 2
                  or, in an inner batch, the stamp of its request

The rows of (query, batch, partition) for one queue are numbered from 0; the checksum runs over them. `before` and
`after` are the checksums before the first and after the last row of the request. 1 and 2 are the separators of
properties.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast.model.numbers import Int64
from holdfast.wire.records.properties import find_property

SINK: Final = "HOLDFAST_SINK"
_SINK_BYTES: Final = SINK.encode()
_STAMP_WORDS: Final = 9


class SinkStamp(msgspec.Struct, frozen=True, kw_only=True):
    """A request's description of its rows.

    Attributes:
        first: The number of its first row.
        count: The number of rows.
        checksum_before: The checksum of all rows before the first.
        checksum_after: The checksum after the last row.
        is_last: No rows follow.
        accepts_unknown: Accept the rows even if it is unknown which rows a dead broker accepted.
    """

    query: str
    batch: int
    partition: int
    first: int
    count: int
    checksum_before: int
    checksum_after: int
    is_last: bool = False
    accepts_unknown: bool = False

    def to_text(self) -> str:
        """Return the stamp as the value of a property."""
        numbers = (self.batch, self.partition, self.first, self.count, self.checksum_before, self.checksum_after)
        return f"{self.query} {' '.join(map(str, numbers))} {self.is_last:d} {self.accepts_unknown:d}"


class SinkState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How much of one partition of a query a queue has stored, for the newest batch.

    Attributes:
        count: The number of stored rows of the batch.
        checksum: The checksum of these rows.
        is_over: The batch is complete.
        position: Where the last of them ends in the broker's log; only valid on that broker.
        changed_ms: When the state changed last.
    """

    queue: int
    query: str
    partition: Int64
    batch: Int64
    count: Int64
    checksum: Int64
    is_over: bool = False
    position: Int64 = 0
    changed_ms: Int64 = 0


def find_stamp(properties: str) -> SinkStamp | None:
    """Return the stamp of a request, or None if it has no valid one."""
    text = find_property(properties, SINK)
    words = [] if text is None else text.split(" ")
    if len(words) != _STAMP_WORDS or not all(word.isdecimal() and len(word) < 19 for word in words[1:]):
        return None
    batch, partition, first, count, before, after, is_last, accepts_unknown = map(int, words[1:])
    return SinkStamp(
        query=words[0],
        batch=batch,
        partition=partition,
        first=first,
        count=count,
        checksum_before=before,
        checksum_after=after,
        is_last=bool(is_last),
        accepts_unknown=bool(accepts_unknown),
    )


def to_state(stamp: SinkStamp, queue: int) -> SinkState:
    """Return the state of *queue* after it has stored the rows of a request."""
    return SinkState(
        queue=queue,
        query=stamp.query,
        partition=stamp.partition,
        batch=stamp.batch,
        count=stamp.first + stamp.count,
        checksum=stamp.checksum_after,
        is_over=stamp.is_last,
    )


def record_texts(
    query: str, batch: int, partition: int, first: int, checksums: Sequence[int], *, is_last: bool
) -> list[str]:
    """Return the stamps of consecutive records, as values of a property.

    Args:
        query: The query of the rows.
        batch: The batch within the query.
        partition: The partition of the query.
        first: The number of the first row.
        checksums: The checksum after each row.
        is_last: No rows follow the last one.
    """
    prefix = f"{query} {batch} {partition} "
    texts = [f"{prefix}{number} {checksum} 0" for number, checksum in enumerate(checksums, first)]
    if is_last and texts:
        texts[-1] = texts[-1][:-1] + "1"
    return texts


def find_state(properties: bytes, queue: int) -> SinkState | None:
    """Return the state of *queue* up to and including a record, or None if a sink did not write the record."""
    text = find_property(properties, _SINK_BYTES)
    words = [] if text is None else text.split(b" ")
    if text is not None and len(words) == _STAMP_WORDS:
        stamp = find_stamp(f"{SINK}\x01{text.decode('utf-8', 'replace')}")
        return None if stamp is None else to_state(stamp, queue)
    if len(words) != 6 or not all(word.isdigit() and len(word) < 19 for word in words[1:]):
        return None
    batch, partition, number, checksum, is_last = map(int, words[1:])
    return SinkState(
        queue=queue,
        query=words[0].decode("utf-8", "replace"),
        partition=partition,
        batch=batch,
        count=number + 1,
        checksum=checksum,
        is_over=bool(is_last),
    )
