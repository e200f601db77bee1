"""Converts and proves pieces of an index by columns, with numpy: the quick twin of `store.piece_conversion.PieceCraft`.

    entries ─ positions ─┬─ one gather of 88 bytes each from the mapped log: heads ─ as entries by record ─ the same?
                         └─ one of the bytes behind each body: the topic

What the log says is put together as entries, without turning the bytes of a number round, and compared as a whole. The
log itself is in memory only as pages that the system may take back. Whatever is not plain, and whatever is wrong, goes
to the careful twin: it is right about everything, and names who is not.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.columns.slices import Places, at_any_byte
from holdfast.model.errors import StoreError
from holdfast.pipeline.queue_entries import ENTRY, UNIT
from holdfast.store.conversion_plan import PiecePlan, Plan, SourceQueue
from holdfast.store.entry_conversion import TAGS_MIN
from holdfast.store.piece_conversion import Bytes, PieceCraft
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
        "offset": (">i8", 20),
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

Column = npt.NDArray[Any]


class _Heads(NamedTuple):
    """Heads of records in one file of the log.

    Attributes:
        rows: Which of the places that were asked for.
        data: The file.
        starts: Where in it they are.
    """

    rows: Places | slice
    data: memoryview
    starts: Places
    heads: Column


class ColumnCraft:
    """Does it quickly where everything is as it should be."""

    def __init__(self, heads: RecordHeads) -> None:
        self._files = heads.files
        self._careful = PieceCraft(heads)
        self._known: tuple[Places, list[_Heads]] = np.empty(0, np.int64), []

    def convert(self, plan: Plan, piece: PiecePlan, queue: SourceQueue, old: bytes) -> Bytes:
        """Return what the entries of *piece*, which are *old*, become."""
        made = self._to_units(piece, queue, old) if plan.to == "batch" else _to_entries(piece, old)
        return self._careful.convert(plan, piece, queue, old) if made is None else made

    def check(self, plan: Plan, piece: PiecePlan, queue: SourceQueue, old: bytes, new: Bytes) -> None:
        """Require that *new* is what became of *old*, and that the log says so too."""
        if plan.to == "batch":
            offsets, entries = _messages(old, piece.start)
            units = np.frombuffer(new, _UNIT)
        else:
            offsets, entries = _messages(new, piece.target)
            units = np.frombuffer(old, _UNIT)
        owner = Owner(plan.topic, piece.queue_id)
        is_plain = not queue.is_gone and (units["tags"] >= TAGS_MIN).all()
        if not (is_plain and _are_same(offsets, entries, units) and self._is_borne_out(owner, units)):
            self._careful.check(plan, piece, queue, old, new)

    def _to_units(self, piece: PiecePlan, queue: SourceQueue, old: bytes) -> Bytes | None:
        offsets, entries = _messages(old, piece.start)
        units = np.empty(len(entries), _UNIT)
        units["entry"] = entries.view(_UNIT["entry"])
        units["first"] = offsets
        units["end"] = _END
        if queue.is_gone:
            units["store_ms"] = 0
            return units.view(np.uint8).data
        try:
            for found in self._read(entries["position"].astype(np.int64)):
                units["store_ms"][found.rows] = found.heads["store_ms"]
        except (IndexError, StoreError):
            return None
        return units.view(np.uint8).data

    def _is_borne_out(self, owner: Owner, units: Column) -> bool:
        """Return whether the log has each of *units*, as a single message of *owner*."""
        told = np.empty(len(units), _UNIT)
        told["tags"] = units["tags"]
        told["end"] = _END
        try:
            for found in self._read(units["position"].astype(np.int64)):
                if not _is_of(owner, found):
                    return False
                for name, said in (("position", "position"), ("size", "size"), ("first", "offset")):
                    told[name][found.rows] = found.heads[said]
                told["store_ms"][found.rows] = found.heads["store_ms"]
        except (IndexError, StoreError):
            return False
        # Two bytes at a time: an entry has an even number of them.
        return np.array_equal(told.view(np.uint16), units.view(np.uint16))

    def _read(self, positions: Places) -> list[_Heads]:
        """Return what lies at *positions*. What was read last is known: who converts entries proves them next.

        Raises:
            IndexError: one would end behind its file.
            StoreError: there is no file.
        """
        if not np.array_equal(positions, self._known[0]):
            self._known = positions, self._gather(positions)
        return self._known[1]

    def _gather(self, positions: Places) -> list[_Heads]:
        at, gathered = 0, []
        while at < len(positions):
            found = self._files.find(int(positions[at]))
            if found is None:
                raise StoreError(f"there is no log at position {positions[at]}")
            data = found.file.view(0, self._files.size)
            end = max(at + 1, int(np.searchsorted(positions, found.start + self._files.size)))
            starts = positions[at:end] - found.start
            heads = _take(data, starts, _HEADS[0])
            hosts = heads["flag"] & _HOST_BITS
            if not hosts.any():
                gathered.append(_Heads(slice(at, end), data, starts, heads))
            else:
                kinds = hosts.view(">i4") >> 4
                for kind in np.unique(kinds).tolist():
                    rows = np.flatnonzero(kinds == kind)
                    gathered.append(_Heads(rows + at, data, starts[rows], _take(data, starts[rows], _HEADS[kind])))
            at = end
        return gathered


def _is_of(owner: Owner, found: _Heads) -> bool:
    """Return whether all records are single messages of *owner*.

    Raises:
        IndexError: one would end behind its file.
    """
    heads, part = found.heads, owner.topic_part
    sizes = heads["body_size"].astype(np.int64)
    return bool(
        (heads["queue_id"] == _as_it_lies(owner.queue_id)).all()
        and (heads["magic"] == _as_it_lies(owner.magic)).all()
        and not (heads["flag"] & _INNER_BITS == _INNER_BITS).any()
        and (sizes >= 0).all()
        and _take(found.data, found.starts + heads.dtype.itemsize + sizes, np.dtype(f"V{len(part)}")).tobytes()
        == part * len(heads)
    )


def _take(data: memoryview, starts: Places, kind: np.dtype[Any]) -> Column:
    """Return what lies at *starts*: copied as mere bytes, five times as quickly as field by field."""
    return at_any_byte(data, f"V{kind.itemsize}")[starts].view(kind)


def _messages(entries: Bytes, first: int) -> tuple[Places, Column]:
    """Return the offsets and the entries of messages: of *entries* by message, without blanks."""
    found = np.frombuffer(entries, ENTRY)
    offsets = np.arange(first, first + len(found), dtype=np.int64)
    is_message = found.view(_RAW_ENTRY)["size"] != _BLANK_SIZE
    return (offsets, found) if is_message.all() else (offsets[is_message], found[is_message])


def _to_entries(piece: PiecePlan, old: bytes) -> Bytes | None:
    """Return the entries by message; None where a record holds many, or offsets have gaps."""
    units = np.frombuffer(old, _UNIT)
    is_single = units["end"].tobytes() == _END.tobytes() * len(units)
    if not is_single or (units["first"] != np.arange(piece.target, piece.target + len(units))).any():
        return None
    return units["entry"].tobytes()


def _are_same(offsets: Places, entries: Column, units: Column) -> bool:
    """Return whether both kinds say the same, in as many entries as there are offsets."""
    return bool(
        len(entries) == len(units)
        and units["entry"].tobytes() == entries.tobytes()
        and (units["first"] == offsets).all()
    )
