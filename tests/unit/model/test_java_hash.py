"""Java's String.hashCode."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.java_hash import extend_hash, extend_hashes, hash_units, java_hash


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


@given(st.text(max_size=1200) | st.text(st.characters(max_codepoint=127), max_size=600))
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


KINDS = st.sampled_from(
    [
        st.text("0123456789ABCDEF", max_size=40).map(str.encode),
        st.text(st.characters(max_codepoint=127), max_size=40).map(str.encode),
        st.text(max_size=40).map(str.encode),
        st.binary(max_size=40),
        st.text("0123456789_+- \n", max_size=6).map(str.encode),
        st.sampled_from([b"A" * 511, b"A" * 512, b"z" * 511, b"z" * 700]),
    ]
)


@given(st.lists(st.text(max_size=10), min_size=1, max_size=4), st.data())
def test_texts_can_be_hashed_behind_others_many_at_once(prefixes: list[str], data: st.DataObject):
    """As if each pair were one text, whatever kinds come together; what is no text counts as Java's decoder has it."""
    kind = data.draw(KINDS)
    texts = [data.draw(kind if data.draw(st.booleans()) else data.draw(KINDS)) for _ in prefixes]
    whole = [prefix + text.decode(errors="replace") for prefix, text in zip(prefixes, texts, strict=True)]
    hashes = [java_hash(prefix) for prefix in prefixes]

    expected = [java_hash(text) & 0xFFFFFFFF for text in whole]

    assert extend_hashes(hashes, texts) == expected
    assert [extend_hash(*pair) for pair in zip(hashes, texts, strict=True)] == expected
