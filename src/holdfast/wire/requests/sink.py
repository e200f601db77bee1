"""What a writer that wants every row exactly once says about a batch of messages, and what each record keeps of it.

    a request     HOLDFAST_SINK 1 query batch partition first count before after last anew 2
    a record      HOLDFAST_SINK 1 query batch partition number checksum last 2
                  or, if it is a batch that was kept whole, what its request said

The rows of (query, batch, partition) for one queue are numbered from 0; the checksum runs over them. `before` and
`after` are the checksums before the first and behind the last row of the request. Texts of properties, as everywhere.
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
    """What a request says of its rows.

    Attributes:
        first: The number of its first row.
        count: How many there are.
        before: The checksum of all rows before the first.
        after: The checksum behind the last.
        is_last: There are no more rows.
        is_anew: Take the rows even if nobody knows what a dead broker took.
    """

    query: str
    batch: int
    partition: int
    first: int
    count: int
    before: int
    after: int
    is_last: bool = False
    is_anew: bool = False

    def to_text(self) -> str:
        """Return it as the value of a property."""
        numbers = (self.batch, self.partition, self.first, self.count, self.before, self.after)
        return f"{self.query} {' '.join(map(str, numbers))} {self.is_last:d} {self.is_anew:d}"


class SinkState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a queue has taken of one partition of a query: the newest batch.

    Attributes:
        count: How many rows of it.
        checksum: Of these rows.
        is_over: All of it.
        position: Where in the broker's log the last of them ends; of no meaning elsewhere.
        changed_ms: When.
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
    """Return the stamp of a request, or None when it has none that can be read."""
    text = find_property(properties, SINK)
    words = [] if text is None else text.split(" ")
    if len(words) != _STAMP_WORDS or not all(word.isdecimal() and len(word) < 19 for word in words[1:]):
        return None
    batch, partition, first, count, before, after, is_last, is_anew = map(int, words[1:])
    return SinkStamp(
        query=words[0],
        batch=batch,
        partition=partition,
        first=first,
        count=count,
        before=before,
        after=after,
        is_last=bool(is_last),
        is_anew=bool(is_anew),
    )


def to_state(stamp: SinkStamp, queue: int) -> SinkState:
    """Return what *queue* has taken once it took the rows of a request."""
    return SinkState(
        queue=queue,
        query=stamp.query,
        partition=stamp.partition,
        batch=stamp.batch,
        count=stamp.first + stamp.count,
        checksum=stamp.after,
        is_over=stamp.is_last,
    )


def record_texts(
    query: str, batch: int, partition: int, first: int, checksums: Sequence[int], *, is_last: bool
) -> list[str]:
    """Return what records keep that follow each other, as values of a property.

    Args:
        query: Of which query they are.
        batch: Of which batch of it.
        partition: Of which partition of it.
        first: The number of the first of them.
        checksums: The checksum behind each of them.
        is_last: Nothing comes behind the last of them.
    """
    prefix = f"{query} {batch} {partition} "
    texts = [f"{prefix}{number} {checksum} 0" for number, checksum in enumerate(checksums, first)]
    if is_last and texts:
        texts[-1] = texts[-1][:-1] + "1"
    return texts


def find_state(properties: bytes, queue: int) -> SinkState | None:
    """Return what a record of *queue* says of the rows up to itself, or None when it is not of a sink."""
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
