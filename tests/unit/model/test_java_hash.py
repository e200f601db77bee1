"""Java's String.hashCode."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.java_hash import hash_behind, hash_units, java_hash


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


@given(st.text(max_size=20), st.one_of(st.text(max_size=700).map(str.encode), st.binary(max_size=700)))
def test_a_text_can_be_hashed_behind_another(prefix: str, text: bytes):
    """As if both were one, without looking at the first again; what is no text counts as Java's decoder has it."""
    whole = prefix + text.decode(errors="replace")

    assert hash_behind(java_hash(prefix), text) == java_hash(whole) & 0xFFFFFFFF


@pytest.mark.parametrize("text", [b"_1", b"1_0", b" 1", b"+1", b"-1", b"1\n", b"0x1", b"", b"\x00", b"\x7f" * 600])
def test_what_a_number_may_look_like_does_not_matter(text: bytes):
    """A text is read as a number, but no sign, blank or underscore in it is taken for a number's."""
    assert hash_behind(7, text) == (7 * 31 ** len(text) + hash_units(text)) & 0xFFFFFFFF
