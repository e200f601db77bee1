"""Properties text: what upstream's reader takes and drops, and finding one without reading all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import LocalProtocolError
from holdfast.wire.records.properties import find_property, format_properties, parse_properties


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("a\x01b\x02", {"a": "b"}),
        ("a\x01b", {"a": "b"}),
        ("k1\x01v1\x02k2\x01v2", {"k1": "v1", "k2": "v2"}),
        ("a\x01\x02c\x01d\x02", {"c": "d"}),
        ("\x01b\x02c\x01d\x02", {"c": "d"}),
        ("ab\x02c\x01d\x02", {"c": "d"}),
        ("\x02\x02a\x01b\x02", {"a": "b"}),
        ("a\x01b\x01c\x02", {"a": "b\x01c"}),
        ("a\x01b\x02a\x01c\x02", {"a": "c"}),
    ],
)
def test_malformed_pieces_are_dropped_and_the_rest_is_kept(text: str, expected: dict[str, str]):
    """A piece needs a name, a separator and a value; the last separator may be missing; the later of two counts."""
    assert parse_properties(text) == expected


def test_written_properties_end_with_a_separator_and_skip_empty_values():
    """As upstream writes them, null values being our empty ones."""
    assert format_properties({"TAGS": "a", "KEYS": "", "x": "ключ"}) == "TAGS\x01a\x02x\x01ключ\x02"


@pytest.mark.parametrize("properties", [{"": "v"}, {"a\x01b": "v"}, {"a\x02b": "v"}, {"a": "v\x02w"}])
def test_a_separator_in_a_property_is_refused(properties: dict[str, str]):
    """What could not be read back is not written."""
    with pytest.raises(LocalProtocolError):
        format_properties(properties)


_pieces = st.text(alphabet="ab\x01\x02Tё", max_size=24)


@given(_pieces, st.sampled_from(["a", "b", "ab", "T", "Ta"]))
def test_finding_one_property_is_the_same_as_reading_all(text: str, name: str):
    """The quick way agrees with the slow one, on text and on bytes, whatever the text."""
    expected = parse_properties(text).get(name)

    assert find_property(text, name) == expected
    found = find_property(text.encode(), name.encode())
    assert (found.decode() if found is not None else None) == expected


@given(
    st.dictionaries(
        st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1),
        st.text(st.characters(exclude_characters="\x02", codec="utf-8"), min_size=1),
    )
)
def test_properties_survive_a_round_trip(properties: dict[str, str]):
    """Whatever may be written is read back."""
    assert parse_properties(format_properties(properties)) == properties
