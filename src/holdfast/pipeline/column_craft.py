"""Converts and proves pieces of an index by columns, with numpy: the quick twin of `store.piece_conversion.PieceCraft`.

    pieces of many queues ─ entries that lie near each other in the log ─┬─ one gather of 88 bytes each: heads
                                                                         └─ one of the bytes behind each body: the topic
    heads ─ put together as entries by record: what the log says ─ is it what the index says? ─ then that is it

Numbers are not turned round: what is put together is compared as a whole. Where entries lie close to each other the log
is read from its beginning to its end, whichever queues they are of; where other things are between them, it is in
memory only as pages that the system may take back. Whatever is not plain, and whatever is wrong, goes to the careful
twin: it is right about everything, and names who is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from holdfast.columns.slices import Block, Places, at_any_byte
from holdfast.model.errors import StoreError
from holdfast.pipeline.queue_entries import ENTRY, UNIT
from holdfast.store.conversion_plan import Plan
from holdfast.store.entry_conversion import TAGS_MIN
from holdfast.store.piece_conversion import Bytes, OldPiece, PieceCraft
from holdfast.store.queue_index import BLANK_ENTRY_SIZE
from holdfast.store.record_heads import Owner, RecordHeads


def _as_it_lies(value: int) -> np.int32:
    """Return what somebody takes the bytes of *value* in a file for who does not turn them round."""
    found: np.int32 = np.array([value], ">i4").view("=i4")[0]
    return found


_INNER_BITS: Final = _as_it_lies(0xC0)
_HOST_BITS: Final = _as_it_lies(0x30)
_HOST_V6_EXTRA: Final = 12
_UNIT: Final = np.dtype(
    {
        "names": ["entry", "position", "size", "tags", "store_ms", "first", "end"],
        "formats": [f"V{ENTRY.itemsize}", ">i8", ">i4", ">i8", ">i8", ">i8", "V10"],
        "offsets": [0, 0, 8, 12, 20, 28, 36],
        "itemsize": UNIT.itemsize,
    }
)
"""An entry by record, once more: with the entry by message that it begins with as one, and its constant end as one."""
_RAW_ENTRY: Final = np.dtype({"names": ["size"], "formats": ["=i4"], "offsets": [8], "itemsize": ENTRY.itemsize})
_BLANK_SIZE: Final = _as_it_lies(BLANK_ENTRY_SIZE)
_END: Final = np.frombuffer(np.array([(1, -1, 0)], [("count", ">i2"), ("compacted", ">i4"), ("rest", ">i4")]), "V10")


def _head(born: int, store: int) -> np.dtype[Any]:
    """Return the fixed part of a record whose hosts are so much longer than IPv4 ones.

    What is only compared with one number is taken as it lies.
    """
    fields: dict[str, tuple[str, int]] = {
        "size": (">i4", 0),
        "magic": ("=i4", 4),
        "queue_id": ("=i4", 12),
        "first": (">i8", 20),
        "position": (">i8", 28),
        "flag": ("=i4", 36),
        "store_ms": (">i8", 56 + born),
        "body_size": (">i4", 84 + born + store),
    }
    return np.dtype(
        {
            "names": list(fields),
            "formats": [kind for kind, _ in fields.values()],
            "offsets": [at for _, at in fields.values()],
            "itemsize": 88 + born + store,
        }
    )


# Indexed by the two host bits of the flag: neither, born, store, both.
_HEADS: Final = tuple(
    _head(born, store) for born, store in ((0, 0), (_HOST_V6_EXTRA, 0), (0, _HOST_V6_EXTRA), (_HOST_V6_EXTRA,) * 2)
)

ROWS: Final = 8192
"""Entries that are looked up at a time: what the log says of them is still in the processor's cache when compared."""
DENSE: Final = 400
"""Bytes of log for each entry up to which it is quicker to read all of them than to have the system map their pages."""
KEPT: Final = 24 << 20
"""Bytes that are used over and over again for one look-up."""

Column = npt.NDArray[Any]


class _Part(msgspec.Struct):
    """A piece on its way.

    Attributes:
        queue_id: As it lies in a record.
        first: The offset of each entry.
        entries: Those of messages. Both as mere bytes: numpy would copy field by field, and turn them round.
        positions: Where they lead to.
        made: What becomes of them.
        done: How many have been made.
    """

    queue_id: np.int32
    first: Column
    entries: Column
    positions: Places
    made: Column
    done: int = 0

    def size_at(self, number: int) -> int:
        """Return the size of a record."""
        return int.from_bytes(self.entries[number].tobytes()[8:12], "big")


class _Rows(NamedTuple):
    """Entries that lie near each other in one file of the log, of many pieces.

    Attributes:
        end: Where the last of their records ends, as they say.
    """

    queue_ids: Column
    first: Column
    entries: Column
    positions: Places
    end: int

    @classmethod
    def of(cls, taken: list[tuple[_Part, int]]) -> _Rows:
        """Return what is taken of pieces: of each all up to an entry that have not been made."""
        return cls(
            np.repeat([part.queue_id for part, _ in taken], [end - part.done for part, end in taken]),
            np.concatenate([part.first[part.done : end] for part, end in taken]),
            np.concatenate([part.entries[part.done : end] for part, end in taken]),
            np.concatenate([part.positions[part.done : end] for part, end in taken]),
            max(int(part.positions[end - 1]) + part.size_at(end - 1) for part, end in taken),
        )


class _Heads(NamedTuple):
    """Heads of records.

    Attributes:
        rows: Which of those that were looked up.
        data: A part of the log.
        starts: Where in it they are.
    """

    rows: Places | slice
    data: Block
    starts: Places
    heads: Column


class ColumnCraft:
    """Does it quickly where everything is as it should be."""

    def __init__(self, heads: RecordHeads) -> None:
        self._files = heads.files
        self._careful = PieceCraft(heads)
        # Memory that was used before is quicker than new one. The C library gives back at once what is larger than
        # anything that was freed so far: it is shown how much will come and go.
        np.empty(KEPT, np.uint8)
        self._rooms: list[Column] = []
        self._told = np.empty(0, _UNIT)

    def make(self, plan: Plan, olds: Sequence[OldPiece]) -> list[Bytes]:
        """Return what each of *olds* becomes: good until others are made."""
        try:
            return self._make(plan, olds)
        except (IndexError, StoreError):
            # Who is to blame, and what is merely unusual, is found out piece by piece.
            if len(olds) == 1:
                return self._careful.make(plan, olds)
            return [bytes(self.make(plan, [old])[0]) for old in olds]

    def _make(self, plan: Plan, olds: Sequence[OldPiece]) -> list[Bytes]:
        """Return the same.

        Raises:
            IndexError: a record would end behind its file.
            StoreError: something is not plain.
        """
        parts = [self._begin(plan, old, number) for number, old in enumerate(olds)]
        magic, topic = Owner(plan.topic, 0).magic, Owner(plan.topic, 0).topic_part
        for taken in self._near_each_other(parts):
            told = self._tell(_as_it_lies(magic), topic, _Rows.of(taken))
            made = told.view(f"V{_UNIT.itemsize}") if plan.to == "batch" else told["entry"]
            at = 0
            for part, end in taken:
                part.made[part.done : end] = made[at : at + end - part.done]
                at += end - part.done
                part.done = end
        return [part.made.view(np.uint8).data for part in parts]

    def _begin(self, plan: Plan, old: OldPiece, number: int) -> _Part:
        """Return a piece of which nothing is made."""
        if old.queue.is_gone:
            raise StoreError("there is no record of it left")
        if plan.to == "batch":
            offsets, entries = _messages(old.entries, old.piece.start)
        else:
            entries = np.frombuffer(old.entries, _UNIT)
            offsets = np.arange(old.piece.target, old.piece.target + len(entries))
        size = len(entries) * plan.target.entry_size
        if number == len(self._rooms):
            self._rooms.append(np.empty(0, np.uint8))
        if len(self._rooms[number]) < size:
            self._rooms[number] = np.empty(size, np.uint8)
        return _Part(
            _as_it_lies(old.piece.queue_id),
            offsets.astype(">i8").view("V8"),
            entries.view(f"V{entries.dtype.itemsize}"),
            entries["position"].astype(np.int64),
            self._rooms[number][:size].view(f"V{plan.target.entry_size}"),
        )

    def _near_each_other(self, parts: list[_Part]) -> Iterator[list[tuple[_Part, int]]]:
        """Yield from which pieces what comes next in the log is to be taken, up to which entry."""
        left = [part for part in parts if len(part.positions)]
        if not left:
            return
        ends = [int(part.positions[-1]) for part in left]
        reach = 1 + (max(ends) - min(int(part.positions[0]) for part in left)) * ROWS // sum(
            len(part.positions) for part in left
        )
        while left:
            low = min(int(part.positions[part.done]) for part in left)
            high = min(low + reach, low - low % self._files.size + self._files.size)
            taken = [
                (part, int(part.positions.searchsorted(high))) for part in left if part.positions[part.done] < high
            ]
            if any(end <= part.done for part, end in taken):
                raise StoreError("positions do not rise")
            yield taken
            left = [part for part in left if part.done < len(part.positions)]

    def _tell(self, magic: np.int32, topic: bytes, rows: _Rows) -> Column:
        """Return the entries by record that the log has where *rows* lead to; only the tags are theirs.

        Raises:
            IndexError: a record would end behind its file.
            StoreError: they do not say the same, or not all are plain.
        """
        count, kind = len(rows.positions), ENTRY if rows.entries.itemsize == ENTRY.itemsize else _UNIT
        if len(self._told) < count:
            self._told = np.empty(count, _UNIT)
            self._told["end"] = _END
        told = self._told[:count]
        for found in self._gather(rows.positions, rows.end):
            if not _is_of(rows.queue_ids[found.rows], magic, topic, found):
                raise StoreError("there are other records")
            for name in ("position", "size", "store_ms", "first"):
                told[name][found.rows] = found.heads[name]
        told["tags"] = rows.entries.view(kind)["tags"]
        said = told["entry"].tobytes() if kind == ENTRY else told.tobytes()
        if (
            said != rows.entries.tobytes()
            or told["first"].tobytes() != rows.first.tobytes()
            or told["tags"].astype(np.int64).min() < TAGS_MIN
        ):
            raise StoreError("the log says other things, or a tag is none")
        return told

    def _gather(self, positions: Places, end: int) -> list[_Heads]:
        """Return the heads of the records at *positions*, all in one file, the last of which ends at *end*."""
        low = int(positions.min())
        found = self._files.find(low)
        if found is None:
            raise StoreError(f"there is no log at position {low}")
        size = min(end, found.start + self._files.size) - low
        if 0 < size <= DENSE * min(len(positions), ROWS):
            data: Block = found.file.read(low - found.start, low - found.start + size)
            starts = positions - low
        else:
            data, starts = found.file.view(0, self._files.size), positions - found.start
        heads = _take(data, starts, _HEADS[0])
        if not np.bitwise_or.reduce(heads["flag"]) & _HOST_BITS:
            return [_Heads(slice(None), data, starts, heads)]
        kinds = (heads["flag"] & _HOST_BITS).view(">i4") >> 4
        alike = [np.flatnonzero(kinds == kind) for kind in range(len(_HEADS))]
        return [
            _Heads(rows, data, starts[rows], _take(data, starts[rows], head))
            for rows, head in zip(alike, _HEADS, strict=True)
            if len(rows)
        ]


def _is_of(queue_ids: Column, magic: np.int32, topic: bytes, found: _Heads) -> bool:
    """Return whether all records are single messages of these queues of a topic.

    Raises:
        IndexError: one would end behind its file.
    """
    heads = found.heads
    sizes = heads["body_size"].astype(np.int64)
    return bool(
        (heads["queue_id"] == queue_ids).all()
        and (heads["magic"] == magic).all()
        and np.bitwise_or.reduce(heads["flag"]) & _INNER_BITS != _INNER_BITS
        and sizes.min() >= 0
        and _take(found.data, found.starts + heads.dtype.itemsize + sizes, np.dtype(f"V{len(topic)}")).tobytes()
        == topic * len(heads)
    )


def _take(data: Block, starts: Places, kind: np.dtype[Any]) -> Column:
    """Return what lies at *starts*: copied as mere bytes, five times as quickly as field by field."""
    return at_any_byte(data, f"V{kind.itemsize}")[starts].view(kind)


def _messages(entries: Bytes, first: int) -> tuple[Places, Column]:
    """Return the offsets and the entries of messages: of *entries* by message, without blanks."""
    found = np.frombuffer(entries, ENTRY)
    offsets = np.arange(first, first + len(found), dtype=np.int64)
    is_message = found.view(_RAW_ENTRY)["size"] != _BLANK_SIZE
    return (offsets, found) if is_message.all() else (offsets[is_message], found[is_message])
