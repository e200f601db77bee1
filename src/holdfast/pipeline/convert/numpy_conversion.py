"""Converts and proves pieces of an index by columns, with numpy: the quick twin of `store.piece_conversion.PieceCraft`.

    pieces of many queues ─ entries that lie near each other in the log ─┬─ one gather of 88 bytes each: heads
                                                                         └─ one of the bytes behind each body: the topic
    heads ─ do they say what the index says, column by column? ─ then that, with the store times that they say

Numbers are not turned round: columns are compared as bytes, as they lie. A column that lies close together is copied to
or from one that does not in a fifth of the time that it takes between two that do not: there is always one of these
between them. Where entries lie close to each other the log is read from its beginning to its end, whichever queues they
are of; where other things are between them, it is in memory only as pages that the system may take back. Whatever is
not plain, and whatever is wrong, goes to the careful twin: it is right about everything, and names who is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.columns.slices import Block, Places, at_any_byte
from holdfast.model.errors import StoreError
from holdfast.pipeline.scan.queue_entries import ENTRY, UNIT
from holdfast.store.conversion.entry_conversion import TAGS_MIN
from holdfast.store.conversion.piece_conversion import Bytes, OldPiece, PieceCraft
from holdfast.store.conversion.record_headers import Owner, RecordHeads
from holdfast.store.queues.queue_log import BLANK_ENTRY_SIZE
from holdfast.store.recovery.conversion_plan import Plan


def _as_it_lies(value: int) -> np.int32:
    """Return what somebody takes the bytes of *value* in a file for who does not turn them round."""
    found: np.int32 = np.array([value], ">i4").view("=i4")[0]
    return found


def _fields(width: int, /, **fields: tuple[str, int]) -> np.dtype[Any]:
    """Return some fields of something that has *width* bytes: of each its kind, and where it begins."""
    kinds, places = zip(*fields.values(), strict=True)
    return np.dtype({"names": list(fields), "formats": kinds, "offsets": places, "itemsize": width})


_INNER_BITS: Final = _as_it_lies(0xC0)
_HOST_BITS: Final = _as_it_lies(0x30)
_HOST_V6_EXTRA: Final = 12
_BLANK_SIZE: Final = _as_it_lies(BLANK_ENTRY_SIZE)
_END: Final = np.array([(1, -1, 0)], [("count", ">i2"), ("compacted", ">i4"), ("rest", ">i4")]).tobytes()

_ENTRY_FIELDS: Final = {
    "entry": (f"V{ENTRY.itemsize}", 0),
    "position": ("=i8", 0),
    "size": ("=i4", 8),
    "tags": (">i8", 12),
}
_ENTRY: Final = _fields(ENTRY.itemsize, **_ENTRY_FIELDS)
_UNIT: Final = _fields(
    UNIT.itemsize, **_ENTRY_FIELDS, store_ms=("=i8", 20), first=("=i8", 28), end=(f"V{len(_END)}", 36)
)
"""Entries of both kinds once more: as they lie, but for the tags, and with what both begin with as one."""


def _head(born: int, store: int) -> np.dtype[Any]:
    """Return the fixed part of a record whose hosts are so much longer than IPv4 ones."""
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
_HEADS: Final = tuple(_head(born, store) for store in (0, _HOST_V6_EXTRA) for born in (0, _HOST_V6_EXTRA))

ROWS: Final = 8192
"""Entries that are looked up at a time: what the log says of them is still in the processor's cache when compared."""
DENSE: Final = 400
"""Bytes of log for each entry up to which it is quicker to read all of them than to have the system map their pages."""
KEPT: Final = 24 << 20
"""Bytes that are used over and over again for one look-up."""

Column = npt.NDArray[Any]


class _Part(NamedTuple):
    """A piece on its way: what the index says of each of its messages, as it lies.

    Attributes:
        entry: All that an entry by message says.
        store_ms: Where the index says nothing of it, what the log says, as far as it was looked up.
    """

    queue_id: bytes
    entry: Column
    position: Column
    size: Column
    first: Column
    store_ms: Column

    def end_at(self, number: int) -> int:
        """Return where a record ends."""
        return int(self.position[number].byteswap()) + int(self.size[number].byteswap())


_Taken = list[tuple[_Part, int, int]]
"""Of some pieces the entries [start, end)."""


def _join(taken: _Taken, name: str) -> bytes:
    """Return a column of all of them."""
    return b"".join([getattr(part, name)[start:end] for part, start, end in taken])


class ColumnCraft:
    """Does it quickly where everything is as it should be."""

    def __init__(self, heads: RecordHeads) -> None:
        self._files = heads.files
        self._careful = PieceCraft(heads)
        # Memory that was used before is quicker than new one. The C library gives back at once what is larger than
        # anything that was freed so far: it is shown how much will come and go.
        np.empty(KEPT, np.uint8)
        self._room = np.empty(0, _UNIT)

    def make(self, plan: Plan, olds: Sequence[OldPiece]) -> Iterable[Bytes]:
        """Return what each of *olds* becomes: proven now, but put together one after the other, in the same place."""
        try:
            parts = [_begin(plan, old) for old in olds]
            self._prove(plan, parts)
        except (IndexError, StoreError):
            # Who is to blame, and what is merely unusual, is found out piece by piece.
            if len(olds) == 1:
                return self._careful.make(plan, olds)
            return [bytes(made) for old in olds for made in self.make(plan, [old])]
        return map(self._to_units if plan.to == "batch" else _to_entries, parts)

    def _to_units(self, part: _Part) -> Bytes:
        """Return a piece as entries by record: good until the next is."""
        if len(self._room) < len(part.first):
            self._room = np.empty(len(part.first), _UNIT)
            self._room["end"] = _END
        made = self._room[: len(part.first)]
        for name in ("entry", "store_ms", "first"):
            made[name] = getattr(part, name)
        return made.view(np.uint8).data

    def _prove(self, plan: Plan, parts: list[_Part]) -> None:
        """Require that the log says the same as the index; take the store times from it where the index has none.

        Raises:
            IndexError: a record would end behind its file.
            StoreError: it does not, or something is not plain.
        """
        owner = Owner(plan.topic, 0)
        for taken in self._near_each_other(parts):
            times, at = self._look_up(owner, taken), 0
            for part, start, end in taken:
                mine = times[at : at + end - start]
                at += end - start
                if plan.to == "batch":
                    part.store_ms[start:end] = mine
                elif part.store_ms[start:end].tobytes() != mine.tobytes():
                    raise StoreError("the log has other store times")

    def _near_each_other(self, parts: list[_Part]) -> Iterator[_Taken]:
        """Yield what is looked up at a time: it lies in one file of the log.

        Raises:
            StoreError: there is no such log.
        """
        parts = [part for part in parts if len(part.first)]
        if not parts:
            return
        positions = [part.position.byteswap() for part in parts]
        low, high = min(int(places[0]) for places in positions), max(int(places[-1]) for places in positions)
        if not self._files.start <= low <= high < self._files.end:
            raise StoreError("there is no such log")
        size = self._files.size
        reach = 1 + (high - low) * ROWS // sum(map(len, positions))
        bounds = sorted({*range(low + reach, high, reach), *range(low - low % size + size, high + 1, size)})
        # Whoever goes from 0 to the end passes every entry: also where positions do not rise, though some twice.
        cuts = [[0, *places.searchsorted(bounds).tolist(), len(places)] for places in positions]
        for starts, ends in pairwise(zip(*cuts, strict=True)):
            taken = [(part, start, end) for part, start, end in zip(parts, starts, ends, strict=True) if start < end]
            if taken:
                yield taken

    def _look_up(self, owner: Owner, taken: _Taken) -> Column:
        """Return the store times of all records that *taken* lead to.

        Raises:
            IndexError: a record would end behind its file.
            StoreError: the log says other things than the index, or not all are plain.
        """
        said = {name: _join(taken, name) for name in ("position", "size", "first")}
        said["queue_id"] = b"".join([part.queue_id * (end - start) for part, start, end in taken])
        positions = np.frombuffer(said["position"], "=i8").byteswap()
        said["magic"] = _as_it_lies(owner.magic).tobytes() * len(positions)
        data, starts = self._read(positions, max(part.end_at(end - 1) for part, _, end in taken))
        heads = _take(data, starts, _HEADS[0])
        if any(heads[name].tobytes() != column for name, column in said.items()):
            raise StoreError("the log says other things")
        flags = np.bitwise_or.reduce(heads["flag"])
        if flags & _INNER_BITS == _INNER_BITS:
            raise StoreError("there may be batches")
        if not flags & _HOST_BITS:
            _require_topic(owner, data, starts, heads)
            return heads["store_ms"].copy()
        times, kinds = np.empty(len(starts), "=i8"), (heads["flag"] & _HOST_BITS).view(">i4") >> 4
        for kind, head in enumerate(_HEADS):
            rows = np.flatnonzero(kinds == kind)
            heads = _take(data, starts[rows], head)
            _require_topic(owner, data, starts[rows], heads)
            times[rows] = heads["store_ms"]
        return times

    def _read(self, positions: Places, end: int) -> tuple[Block, Places]:
        """Return a part of the log, and where in it *positions* are; the last record of them ends at *end*."""
        low = int(positions.min())
        found = self._files.find(low)
        if found is None:
            raise StoreError(f"there is no log at position {low}")
        size = min(end, found.start + self._files.size) - low
        if 0 < size <= DENSE * min(len(positions), ROWS):
            return found.file.read(low - found.start, low - found.start + size), positions - low
        return found.file.view(0, self._files.size), positions - found.start


def _require_topic(owner: Owner, data: Block, starts: Places, heads: Column) -> None:
    """Require that all records are of the topic.

    Raises:
        IndexError: one would end behind its file.
        StoreError: one is not.
    """
    # Sizes are numbers without a sign: a body of less than nothing ends behind every file.
    ends = heads["body_size"].astype(np.int64)
    ends += starts
    ends += heads.dtype.itemsize
    topics = _take(data, ends, np.dtype(f"V{len(owner.topic_part)}"))
    if topics.tobytes() != owner.topic_part * len(starts):
        raise StoreError("there are records of another topic")


def _take(data: Block, starts: Places, kind: np.dtype[Any]) -> Column:
    """Return what lies at *starts*: copied as mere bytes, five times as quickly as field by field."""
    return at_any_byte(data, f"V{kind.itemsize}")[starts].view(kind)


def _begin(plan: Plan, old: OldPiece) -> _Part:
    """Return a piece of which nothing is proven.

    Raises:
        StoreError: something is not plain.
    """
    if old.queue.is_gone:
        raise StoreError("there is no record of it left")
    entries = np.frombuffer(old.entries, _ENTRY if plan.to == "batch" else _UNIT)
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
        if entries["first"].tobytes() != first.tobytes() or entries["end"].tobytes() != _END * len(entries):
            raise StoreError("not every offset has a message, or a record is of many")
    if entries["tags"].astype(np.int64).min(initial=0) < TAGS_MIN:
        raise StoreError("a tag is none")
    queue_id = old.piece.queue_id.to_bytes(4, "big")
    return _Part(queue_id, entries["entry"], entries["position"].copy(), size, first, store_ms)


def _to_entries(part: _Part) -> Bytes:
    """Return a piece as entries by message."""
    return part.entry.tobytes()
