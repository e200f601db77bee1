"""Converts and proves pieces of an index by columns, with numpy: the quick twin of `store.piece_conversion.PieceCraft`.

    entries ─ positions ─┬─ one gather of 88 bytes each from the mapped log: heads
                         └─ one of the bytes behind each body: the topic

The log itself is in memory only as pages that the system may take back. Whatever is not plain, and whatever is wrong,
goes to the careful twin: it is right about everything, and names who is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

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

_INNER_BITS: Final = 0xC0
_HOST_V6_EXTRA: Final = 12


def _head(born: int, store: int) -> np.dtype[Any]:
    """Return the fixed part of a record whose hosts are so much longer than IPv4 ones."""
    fields: dict[str, tuple[str, int]] = {
        "size": (">i4", 0),
        "magic": (">i4", 4),
        "queue_id": (">i4", 12),
        "offset": (">i8", 20),
        "position": (">i8", 28),
        "flag": (">i4", 36),
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


class ColumnCraft:
    """Does it quickly where everything is as it should be."""

    def __init__(self, heads: RecordHeads) -> None:
        self._files = heads.files
        self._careful = PieceCraft(heads)

    def convert(self, plan: Plan, piece: PiecePlan, queue: SourceQueue, old: bytes) -> Bytes:
        """Return what the entries of *piece*, which are *old*, become."""
        made = self._to_units(piece, queue, old) if plan.to == "batch" else _to_entries(piece, old)
        return self._careful.convert(plan, piece, queue, old) if made is None else made

    def check(self, plan: Plan, piece: PiecePlan, queue: SourceQueue, old: bytes, new: bytes) -> None:
        """Require that *new* is what became of *old*, and that the log says so too."""
        if plan.to == "batch":
            offsets, entries = _messages(old, piece.start)
            units = np.frombuffer(new, UNIT)
        else:
            offsets, entries = _messages(new, piece.target)
            units = np.frombuffer(old, UNIT)
        owner = Owner(plan.topic, piece.queue_id)
        is_plain = not queue.is_gone and (units["tags"] >= TAGS_MIN).all()
        if not (is_plain and _are_same(offsets, entries, units) and self._is_borne_out(owner, units)):
            self._careful.check(plan, piece, queue, old, new)

    def _to_units(self, piece: PiecePlan, queue: SourceQueue, old: bytes) -> Bytes | None:
        offsets, entries = _messages(old, piece.start)
        units = np.zeros(len(entries), UNIT)
        for name in ENTRY.names or ():
            units[name] = entries[name]
        units["first"] = offsets
        units["count"] = 1
        units["compacted"] = -1
        if not queue.is_gone:
            times = self._store_times(entries["position"].astype(np.int64))
            if times is None:
                return None
            units["store_ms"] = times
        return units.view(np.uint8).data

    def _store_times(self, positions: Places) -> Column | None:
        times = np.empty(len(positions), np.int64)
        try:
            for rows, _, _, heads in self._heads(positions):
                times[rows] = heads["store_ms"]
        except (IndexError, StoreError):
            return None
        return times

    def _is_borne_out(self, owner: Owner, units: Column) -> bool:
        """Return whether the log has each of *units*, as a single message of *owner*."""
        part = np.array(owner.topic_part)
        try:
            for rows, data, starts, heads in self._heads(units["position"].astype(np.int64)):
                claims = units[rows]
                topics = starts + heads.dtype.itemsize + heads["body_size"]
                if not (
                    (heads["position"] == claims["position"]).all()
                    and (heads["offset"] == claims["first"]).all()
                    and (heads["size"] == claims["size"]).all()
                    and (heads["store_ms"] == claims["store_ms"]).all()
                    and (heads["queue_id"] == owner.queue_id).all()
                    and (heads["magic"] == owner.magic).all()
                    and (heads["body_size"] >= 0).all()
                    and not (heads["flag"] & _INNER_BITS == _INNER_BITS).any()
                    and (_gather(data, topics, part.dtype) == part).all()
                ):
                    return False
        except (IndexError, StoreError):
            return False
        return True

    def _heads(self, positions: Places) -> Iterator[tuple[Places | slice, memoryview, Places, Column]]:
        """Yield which of *positions*, the file of the log, where in it they are, and the heads there.

        Raises:
            IndexError: one would end behind its file.
            StoreError: there is no file.
        """
        at = 0
        while at < len(positions):
            found = self._files.find(int(positions[at]))
            if found is None:
                raise StoreError(f"there is no log at position {positions[at]}")
            data = found.file.view(0, self._files.size)
            end = max(at + 1, int(np.searchsorted(positions, found.start + self._files.size)))
            starts = positions[at:end] - found.start
            heads = _gather(data, starts, _HEADS[0])
            hosts = heads["flag"] >> 4 & 3
            if not hosts.any():
                yield slice(at, end), data, starts, heads
            else:
                for kind in np.unique(hosts).tolist():
                    rows = np.flatnonzero(hosts == kind)
                    yield rows + at, data, starts[rows], _gather(data, starts[rows], _HEADS[kind])
            at = end


def _gather(data: memoryview, starts: Places, kind: np.dtype[Any]) -> Column:
    """Return what lies at *starts*: copied as mere bytes, five times as quickly as field by field."""
    return at_any_byte(data, f"V{kind.itemsize}")[starts].view(kind)


def _messages(entries: bytes, first: int) -> tuple[Places, Column]:
    """Return the offsets and the entries of messages: of *entries* by message, without blanks."""
    found = np.frombuffer(entries, ENTRY)
    offsets = np.arange(first, first + len(found), dtype=np.int64)
    is_message = found["size"] != BLANK_ENTRY_SIZE
    return (offsets, found) if is_message.all() else (offsets[is_message], found[is_message])


def _to_entries(piece: PiecePlan, old: bytes) -> Bytes | None:
    """Return the entries by message; None where a record holds many, or offsets have gaps."""
    units = np.frombuffer(old, UNIT)
    if (units["count"] != 1).any() or (units["first"] != np.arange(piece.target, piece.target + len(units))).any():
        return None
    entries = np.empty(len(units), ENTRY)
    for name in ENTRY.names or ():
        entries[name] = units[name]
    return entries.view(np.uint8).data


def _are_same(offsets: Places, entries: Column, units: Column) -> bool:
    """Return whether both kinds say the same, in as many entries as there are offsets."""
    return bool(
        len(entries) == len(units)
        and (units["first"] == offsets).all()
        and all((units[name] == entries[name]).all() for name in ENTRY.names or ())
        and (units["count"] == 1).all()
        and (units["compacted"] == -1).all()
        and (units["rest"] == 0).all()
    )
