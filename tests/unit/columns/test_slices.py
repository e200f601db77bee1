"""Columns of values as one block of bytes and the bounds in it."""

import pyarrow as pa

from holdfast.columns.slices import block_of, bounds_of


def test_a_slice_has_its_own_block_and_bounds():
    """They begin at 0, wherever the slice begins in its column."""
    part = pa.array([b"ab", b"cde", b"f"], pa.large_binary()).slice(1)

    assert bytes(block_of(part)) == b"cdef"
    assert bounds_of(part).tolist() == [0, 3, 4]


def test_a_column_without_values_may_have_no_bounds():
    """Arrow allows an array of length 0 without even the first bound."""
    column = pa.Array.from_buffers(pa.large_binary(), 0, [None, None, pa.py_buffer(b"")])

    assert bytes(block_of(column)) == b""
    assert bounds_of(column).tolist() == [0]
