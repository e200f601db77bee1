"""Read and write one field of many entries at once, without a Python step for each entry.

    rows     | a a b b b b | a a b b b b | a a b b b b |
    column   | b b b b | b b b b | b b b b |               one strided copy for each byte of the field

Fields are integers, big-endian and signed, as everywhere in a store. This module knows no field by name.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import Literal

Piece = bytes | bytearray
Kind = Literal["q", "i", "h"]
"""An integer of 8, 4 or 2 bytes."""


def read_column(rows: Piece, width: int, at: int, kind: Kind) -> Sequence[int]:
    """Return the field at byte *at* of every row."""
    column = array(kind)
    size = column.itemsize
    raw = bytearray(len(rows) // width * size)
    for byte in range(size):
        raw[byte::size] = rows[at + byte :: width]
    column.frombytes(raw)
    _swap_bytes(column)
    return column


def write_column(rows: bytearray, width: int, at: int, kind: Kind, values: Iterable[int]) -> None:
    """Write *values*, one for each row, into the field at byte *at*."""
    column = array(kind, values)
    _swap_bytes(column)
    raw, size = column.tobytes(), column.itemsize
    for byte in range(size):
        rows[at + byte :: width] = raw[byte::size]


def copy_prefixes(rows: Piece, width: int, target_rows: bytearray, target_width: int, size: int) -> None:
    """Copy the first *size* bytes of every row to the start of the row in *target_rows*, *target_width* bytes wide."""
    for byte in range(size):
        target_rows[byte::target_width] = rows[byte::width]


def _swap_bytes(column: array[int]) -> None:
    if sys.byteorder == "little":
        column.byteswap()
