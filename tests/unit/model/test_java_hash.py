"""Java's String.hashCode."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.java_hash import hash_units, java_hash


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("TAG1", 2567159),
        ("TagA", 2598919),
        ("TagB", 2598920),
        ("FooBar#Hello", -101609924),
        ("TopicTest#k1", 2746024),
        ("polygenelubricants", -(1 << 31)),
        ("🚀", 1773027),
    ],
)
def test_hashes_are_those_of_java(text: str, expected: int):
    """Values computed by Java, outside the basic plane too."""
    assert java_hash(text) == expected


@given(st.text(max_size=1200))
def test_the_quick_way_agrees_with_the_definition(text: str):
    """31 times what was, plus the next UTF-16 unit, in 32 bits."""
    wide = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(wide), 2):
        value = (value * 31 + int.from_bytes(wide[at : at + 2], "big")) & 0xFFFFFFFF
    expected = value - (1 << 32) if value >= 1 << 31 else value

    assert java_hash(text) == expected
    if text.isascii():
        assert hash_units(text.encode()) == expected
