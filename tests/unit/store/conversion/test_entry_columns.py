from __future__ import annotations

import struct

from holdfast.store.conversion.entry_columns import copy_prefixes, read_column, write_column

ROW = struct.Struct(">qihx")
ROWS = [(1, -2, 3), (-(1 << 60), 1 << 30, -5), (0, 0, 32_767)]
DATA = b"".join(ROW.pack(*row) for row in ROWS)


def test_a_field_of_every_row_is_taken():
    """With its sign, from wherever it stands."""
    assert list(read_column(DATA, ROW.size, 0, "q")) == [row[0] for row in ROWS]
    assert list(read_column(DATA, ROW.size, 8, "i")) == [row[1] for row in ROWS]
    assert list(read_column(bytearray(DATA), ROW.size, 12, "h")) == [row[2] for row in ROWS]
    assert list(read_column(b"", ROW.size, 0, "q")) == []


def test_a_field_of_every_row_is_put():
    """And nothing else is touched."""
    rows = bytearray(DATA)

    write_column(rows, ROW.size, 8, "i", range(-1, 2))

    assert list(ROW.iter_unpack(rows)) == [(row[0], number - 1, row[2]) for number, row in enumerate(ROWS)]


def test_rows_begin_with_the_heads_of_others():
    """Narrower ones or wider ones."""
    wide = bytearray(b"\xff" * 3 * 20)

    copy_prefixes(DATA, ROW.size, wide, 20, 12)

    assert [wide[at : at + 20] for at in range(0, 60, 20)] == [
        DATA[at : at + 12] + b"\xff" * 8 for at in range(0, 3 * ROW.size, ROW.size)
    ]
