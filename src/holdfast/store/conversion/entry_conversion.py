"""Convert entries of one kind of index to the other, and verify the result.

    by message   | position | size | tags |                                          at 20 times its offset
    by record    | position | size | tags | store time | offset | count 1 | -1 | 0 |  consecutive

A blank entry by message stands for an offset without a message. By record it becomes a gap, and a gap becomes blanks.

Each function needs only consecutive entries of a queue and the log. So a long queue can be converted in pieces, in any
order, in parallel, and again: the same entries give the same bytes. Conversion trusts the index; verification reads the
result and trusts only the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import lt, sub

import msgspec

from holdfast.model.errors import StoreError
from holdfast.store.base.index_fields import inner_span
from holdfast.store.conversion.entry_columns import copy_prefixes, read_column, write_column
from holdfast.store.conversion.record_headers import IndexColumns, Owner, RecordHeaders
from holdfast.store.log.log_scanner import WalkedRecord, validate_record_at
from holdfast.store.queues.batch_consume_queue import RECORD_ENTRY, RECORD_ENTRY_SIZE
from holdfast.store.queues.consume_queue import PRE_BLANK
from holdfast.store.queues.queue_files import ENTRY_SIZE
from holdfast.store.queues.queue_index import BLANK_ENTRY_SIZE, BLANKS_MAX, ENTRY

TAGS_MIN = -1 << 31
"""The smallest hash of a tag. Java brokers may store an address instead, which is always smaller."""
_BLANK_BYTE = BLANK_ENTRY_SIZE >> 24  # No record is so large that its size begins with this byte.
_SINGLE = RECORD_ENTRY.pack(0, 0, 0, 0, 0, 1, -1, 0)
Piece = bytes | bytearray


class PieceMessages(msgspec.Struct, frozen=True):
    """The entries of a piece that have messages, and their offsets."""

    entries: Piece
    offsets: Sequence[int]

    @property
    def positions(self) -> Sequence[int]:
        """Positions of the records."""
        return read_column(self.entries, ENTRY_SIZE, 0, "q")

    @property
    def sizes(self) -> Sequence[int]:
        """Sizes of the records."""
        return read_column(self.entries, ENTRY_SIZE, 8, "i")


def read_message_entries(entries: Piece, first: int) -> PieceMessages:
    """Return the messages of *entries*, an index by message from offset *first* on."""
    if _BLANK_BYTE not in entries[8::ENTRY_SIZE]:
        return PieceMessages(entries, range(first, first + len(entries) // ENTRY_SIZE))
    sizes = read_column(entries, ENTRY_SIZE, 8, "i")
    kept = [number for number, size in enumerate(sizes) if size != BLANK_ENTRY_SIZE]
    rows = b"".join(entries[number * ENTRY_SIZE : (number + 1) * ENTRY_SIZE] for number in kept)
    return PieceMessages(rows, [first + number for number in kept])


def read_record_entries(record_entries: Piece) -> PieceMessages:
    """Return the messages of *record_entries*, which must hold one message each.

    Raises:
        StoreError: one holds more, or offsets do not rise; the text names it.
    """
    count = len(record_entries) // RECORD_ENTRY_SIZE
    offsets = read_column(record_entries, RECORD_ENTRY_SIZE, 28, "q")
    counts = read_column(record_entries, RECORD_ENTRY_SIZE, 36, "h")
    if counts.count(1) != count:
        at = next(number for number, message_count in enumerate(counts) if message_count != 1)
        raise StoreError(
            f"the record of offset {offsets[at]} holds {counts[at]} messages, and an index by message can hold only "
            "one: the topic keeps its index by record"
        )
    if not all(map(lt, offsets, offsets[1:])):
        raise StoreError(f"the offsets from {offsets[0]} on do not rise: the index is corrupt")
    entries = bytearray(count * ENTRY_SIZE)
    copy_prefixes(record_entries, RECORD_ENTRY_SIZE, entries, ENTRY_SIZE, ENTRY_SIZE)
    return PieceMessages(entries, offsets)


def require_narrow_gaps(offsets: Sequence[int], next_offset: int) -> None:
    """Require that an index by message that ends at *next_offset* can continue with *offsets*.

    Raises:
        StoreError: a gap between two of them is too wide; the text names it.
    """
    gaps = list(map(sub, offsets, chain((next_offset - 1,), offsets)))
    if max(gaps) > BLANKS_MAX:
        offset = offsets[gaps.index(max(gaps))]
        raise StoreError(
            f"no message has the {max(gaps) - 1} offsets before {offset}, and an index by message would have to fill "
            f"them: at most {BLANKS_MAX} in a row are supported"
        )


# --- by message -> by record


def to_record_entries(entries: Piece, first: int, headers: RecordHeaders, *, is_gone: bool = False) -> bytearray:
    """Return entries by record for *entries* by message, which begin at offset *first*.

    If the records are gone (*is_gone*), their store time is unknown: it becomes 0.

    Raises:
        StoreError: an entry points outside the log.
    """
    messages = read_message_entries(entries, first)
    count = len(messages.offsets)
    record_entries = bytearray(_SINGLE * count)
    copy_prefixes(messages.entries, ENTRY_SIZE, record_entries, RECORD_ENTRY_SIZE, ENTRY_SIZE)
    times = [0] * count if is_gone else headers.store_times(messages.positions)
    write_column(record_entries, RECORD_ENTRY_SIZE, 20, "q", times)
    write_column(record_entries, RECORD_ENTRY_SIZE, 28, "q", messages.offsets)
    return record_entries


def check_record_entries(
    record_entries: Piece, entries: Piece, first: int, owner: Owner, headers: RecordHeaders, *, is_gone: bool = False
) -> None:
    """Require that *record_entries* match *entries* from offset *first* on, and the log.

    Raises:
        StoreError: they do not; the text names the first wrong one.
    """
    source, converted = read_message_entries(entries, first), read_record_entries(record_entries)
    _compare(owner, source, converted)
    rest = read_column(record_entries, RECORD_ENTRY_SIZE, 38, "q")
    if rest.count(-1 << 32) != len(rest):
        raise StoreError(f"the last bytes of an entry of {owner} are wrong: nothing was changed")
    codes = read_column(record_entries, RECORD_ENTRY_SIZE, 12, "q")
    if min(codes, default=0) < TAGS_MIN:
        offset = converted.offsets[next(number for number, code in enumerate(codes) if code < TAGS_MIN)]
        raise StoreError(
            f"the entry of message {offset} of {owner} refers to consumequeue_ext, which an index by record does not "
            "have: switch enableConsumeQueueExt off, and have the index rebuilt from the log"
        )
    if is_gone:
        return
    times = read_column(record_entries, RECORD_ENTRY_SIZE, 20, "q")
    for position in headers.check(owner, IndexColumns(converted.offsets, converted.positions, converted.sizes, times)):
        record = validate_record_at(headers.files, position, check_body=False)
        if not isinstance(record, WalkedRecord) or inner_span(record.sys_flag, record.properties, record.offset) != (
            record.offset,
            1,
        ):
            raise StoreError(
                f"the record of {owner} at position {position} says that it is a batch of many messages, but it has "
                "only one offset: the topic keeps its index by message"
            )


# --- by record -> by message


def to_message_entries(record_entries: Piece, next_offset: int) -> bytearray:
    """Return entries by message for *record_entries*, from *next_offset* on; offsets without a message get blanks.

    Raises:
        StoreError: a record holds more than one message.
    """
    messages = read_record_entries(record_entries)
    offsets = messages.offsets
    if offsets[-1] - next_offset + 1 == len(offsets):
        return bytearray(messages.entries)
    entries = bytearray()
    for number, offset in enumerate(offsets):
        entry = messages.entries[number * ENTRY_SIZE : (number + 1) * ENTRY_SIZE]
        if offset > next_offset:
            entries += ENTRY.pack(int.from_bytes(entry[:8], "big"), BLANK_ENTRY_SIZE, 0) * (offset - next_offset)
        entries += entry
        next_offset = offset + 1
    return entries


def check_message_entries(
    entries: Piece,
    record_entries: Piece,
    next_offset: int,
    owner: Owner,
    headers: RecordHeaders,
    *,
    is_gone: bool = False,
) -> None:
    """Require that *entries* from *next_offset* on match *record_entries*, and the log.

    Raises:
        StoreError: they do not; the text names the first wrong one.
    """
    source, converted = read_record_entries(record_entries), read_message_entries(entries, next_offset)
    _compare(owner, source, converted)
    if len(entries) > len(converted.entries) and entries != to_message_entries(record_entries, next_offset):
        raise StoreError(f"{owner} has not the blank entries that it should have after offset {next_offset}")
    if is_gone:
        return
    times = read_column(record_entries, RECORD_ENTRY_SIZE, 20, "q")
    batches = headers.check(owner, IndexColumns(converted.offsets, converted.positions, converted.sizes, times))
    if batches:
        raise StoreError(
            f"the record of {owner} at position {batches[0]} is a batch, though of one message, and readers of an "
            "index by message do not open batches: the topic keeps its index by record"
        )


def blanks_before(first: int, file_size: int) -> bytes:
    """Return the blanks that fill the first file of an index by message up to offset *first*."""
    return PRE_BLANK * (first % (file_size // ENTRY_SIZE))


def _compare(owner: Owner, source: PieceMessages, converted: PieceMessages) -> None:
    if converted.entries == source.entries and list(converted.offsets) == list(source.offsets):
        return
    pairs = zip(ENTRY.iter_unpack(source.entries), ENTRY.iter_unpack(converted.entries), strict=False)
    for offset, other, (before, after) in zip(source.offsets, converted.offsets, pairs, strict=False):
        if (offset, before) != (other, after):
            raise StoreError(
                f"{owner} had {before} for message {offset}, but would now have {after} for message {other}: nothing "
                "was changed"
            )
    raise StoreError(
        f"{owner} had {len(source.offsets)} messages here, but would now have {len(converted.offsets)}: nothing was "
        "changed"
    )
