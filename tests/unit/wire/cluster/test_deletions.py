"""Deletion markers as text in a header field."""

import pytest

from holdfast.model.deletion import MARKERS_MAX, DeletionMarker
from holdfast.model.errors import RemoteProtocolError
from holdfast.wire.cluster.deletions import decode_markers, encode_markers


def test_markers_survive_the_way():
    """And a text without any holds none."""
    markers = [DeletionMarker("orders", 7, "east"), DeletionMarker("orders", 8, is_lifted=True)]

    assert decode_markers(encode_markers(markers)) == markers
    assert encode_markers([]) == "[]"
    assert decode_markers("") == decode_markers("[]") == []


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1]",
        '[{"topic":"t"}]',
        '[{"topic":"t","version":-1}]',
        '[{"topic":"","version":1}]',
        '[{"topic":"t","version":99999999999999999999}]',
        encode_markers([DeletionMarker("t" * 256, 1)]),
        encode_markers([DeletionMarker("t", 1, "c" * 256)]),
        encode_markers([DeletionMarker(f"t{number}", 1) for number in range(MARKERS_MAX + 1)]),
        " " * (1 << 20) + "[]",
        "\ud800",
    ],
)
def test_what_is_not_markers_is_refused(text: str):
    """Nothing of it is believed."""
    with pytest.raises(RemoteProtocolError, match="deletion marker"):
        decode_markers(text)
